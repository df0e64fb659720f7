"""Ops about layouts: those of whole values, as users write them, and those that one rank runs.

`place` is written into a graph of whole values: it changes nothing but where elements are. The
others are what `sharding.propagation` writes for one rank. `redistribute` brings a part from one
layout to another; a token goes through all nodes that communicate, which keeps all ranks to one
order. `random_part` has the numbers that a rank's part has of an array of random numbers.
"""

from __future__ import annotations

from caldera.compiler.sharding.layout import CartesianLayout, Layout
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import Nodes, item, op, refuse_shape
from caldera.core.graph.ops.base import broadcast_to
from caldera.core.graph.ops.collective import TOKEN, Number, next_number
from caldera.core.graph.ops.elementwise import mul
from caldera.core.graph.ops.leaf import constant
from caldera.core.graph.ops.movement import reshape
from caldera.core.tensor.dtype import DType, float64, part_of

EVERYONE = "all"
"""As the axis of a message: all ranks."""


def copies(layout: Layout) -> int:
    """How many ranks have the same part of a layout, of which all parts have as many."""
    if isinstance(layout, CartesianLayout):
        return layout.replicas
    counts = {
        len(layout.owners([axis[0][0] for axis in piece.axes]))
        for rank in layout.ranks
        for piece in layout.pieces(rank)
    }
    if len(counts) > 1:
        refuse_shape("a layout in which all blocks have as many owners as each other")
    return counts.pop() if counts else 1


@op("place", kind="distributed")
def _place(x: Spec, *, layout: Layout | None) -> Spec:
    if layout is not None and layout.shape != x.shape:
        refuse_shape(f"a value of the layout's shape {layout.shape}")
    return x


@_place.gradient
def _(g: Node, y: Node, x: Node, *, layout: Layout | None) -> Nodes:
    # The gradient is where the value is, unless what follows says something else.
    return (place(g, layout),)


def place(x: Node, layout: Layout | None) -> Node:
    """The same value, in this layout; None says that ranks have it, wherever that is best."""
    return _place(x, layout=layout)


@op("redistribute", kind="distributed")
def redistribute(
    *inputs: Spec,
    source: Layout,
    target: Layout,
    rank: int,
    dtype: DType,
    terms: int,
    reduce: str,
    axis: str,
    number: int | Number,
) -> tuple[Spec, ...]:
    """A rank's part of an array in another layout, and a token; see `transfer.redistributed`.

    Ranks are those along an axis of the mesh of all."""
    if inputs[0].shape != source.local_shape(rank):
        refuse_shape(f"a part of shape {source.local_shape(rank)}, that of rank {rank}")
    if source.shape != target.shape:
        refuse_shape(f"two layouts of shape {source.shape}")
    return Spec(target.local_shape(rank), dtype), TOKEN


@redistribute.gradient
def _(
    g: tuple[Node | None, ...],
    y: Nodes,
    *inputs: Node,
    source: Layout,
    target: Layout,
    rank: int,
    dtype: DType,
    terms: int,
    reduce: str,
    axis: str,
    number: int | Number,
) -> tuple[Node | None, ...]:
    """The redistribution back. What a part does to the loss happens on all ranks that were given
    it, so their gradients are added up; where several ranks had the same part, each of them counts
    for its share of that."""
    if reduce != "sum":
        refuse_shape("a sum of terms, which alone has a gradient", f"reduce={reduce!r}")
    given = inputs[0]
    slope = g[0]
    assert slope is not None
    back = redistribute.node(
        slope,
        source=target,
        target=source,
        rank=rank,
        dtype=given.dtype,
        reduce="sum",
        terms=copies(target),
        axis=axis,
        number=next_number(),
    )
    alike = copies(source) // terms
    found = item(back, 0)
    if alike > 1:
        found = mul(found, constant(1 / alike, found.dtype))
    return found, *(None for _ in inputs[1:])


@op("random_part", kind="distributed")
def random_part(
    state: Spec,
    offset: Spec,
    *,
    layout: Layout,
    rank: int,
    dtype: DType,
    stream: int,
    normal: bool,
) -> Spec:
    """A rank's part of the array of this layout's shape that `random_uniform` (or
    `random_normal`) gives."""
    return Spec(layout.local_shape(rank), dtype)


@op("largest_singular", kind="distributed")
def largest_singular(
    a: Spec, *, k: int, tolerance: float, steps: int, seed: int
) -> tuple[Spec, ...]:
    """U, s and Vᵀ for the `k` largest singular values, and a bound for the error of each."""
    if a.rank != 2 or not 0 < k <= min(a.shape):
        refuse_shape(f"a matrix with at least {k} rows and columns, and k from 1 on")
    part = part_of(a.dtype)
    m, n = a.shape
    return Spec((m, k), a.dtype), Spec((k,), part), Spec((k, n), a.dtype), Spec((k,), float64)


@op("ordered_sum", kind="distributed")
def ordered_sum(x: Spec, *, axis: int) -> Spec:
    """The sum of a matrix along an axis, in an order that nothing but its length decides."""
    if x.rank != 2 or axis not in (0, 1):
        refuse_shape("a matrix, and axis 0 or 1")
    return Spec((x.shape[1 - axis],), x.dtype)


@ordered_sum.gradient
def _(g: Node, y: Node, x: Node, *, axis: int) -> Nodes:
    lines = reshape(g, (1, x.shape[1]) if axis == 0 else (x.shape[0], 1))
    return (broadcast_to(lines, x.shape),)


@op("halo", kind="distributed")
def halo(
    *inputs: Spec,
    axis: int,
    cuts: tuple[int, ...],
    wanted: tuple[tuple[int, int], ...],
    peers: tuple[int, ...],
    rank: int,
    number: int,
) -> tuple[Spec, ...]:
    """A rank's part of an axis with what it wants beside it, and a token: `peers` have the parts
    between `cuts`, and get `wanted`. A rank that is none of them keeps what it has."""
    shape = list(inputs[0].shape)
    if rank in peers:
        begin, end = wanted[peers.index(rank)]
        shape[axis] = end - begin
    return Spec(tuple(shape), inputs[0].dtype), TOKEN
