"""Ops on layouts, and their CPU kernels: placement, redistribution, random parts and halos.

`place` is written into a graph of whole values and changes only the location of elements.
`caldera.compiler.sharding.propagation` writes the remaining ops for one rank. `redistribute`
converts a part from one layout to another; a token passes through all nodes that communicate, which
keeps all ranks in one order. `random_part` returns a rank's part of an array of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.compiler.sharding.algorithms.axis_exchange import halo_exchange
from caldera.compiler.sharding.axis_split import indices
from caldera.compiler.sharding.layout import CartesianLayout, IndexBlock, ShardLayout
from caldera.compiler.sharding.transfer import redistributed
from caldera.core.graph import Node, Nodes, Spec, item, op, refuse_shape
from caldera.core.graph.ops import broadcast_to, constant, mul, reshape
from caldera.core.graph.ops.base import cast, sum_
from caldera.core.graph.ops.collective import TOKEN, Number, backward_number
from caldera.core.graph.ops.reduction import max_, min_, prod
from caldera.core.tensor import HALVES, DType, float32, float64, part_of, size
from caldera.core.tensor.philox import normal, uniform01
from caldera.kernels.table import TABLE, Call, Kernel, Runner

EVERYONE = "all"
"""Name of the message axis that contains all ranks."""
STACK = "stack"
"""Name of the reduction that stacks terms along a new first axis; only GPUs have its kernel."""


def copies(layout: ShardLayout) -> int:
    """Return the number of replicas of each part, which must be the same for all parts."""
    if isinstance(layout, CartesianLayout):
        return layout.replicas
    counts = {
        len(layout.owners([axis[0][0] for axis in piece.axes]))
        for rank in layout.ranks
        for piece in layout.pieces(rank)
    }
    if len(counts) > 1:
        refuse_shape("a layout in which every block has the same number of owners")
    return counts.pop() if counts else 1


@op("place", kind="distributed")
def _place(x: Spec, *, layout: ShardLayout | None) -> Spec:
    if layout is not None and layout.shape != x.shape:
        refuse_shape(f"a value of the layout's shape {layout.shape}")
    return x


@_place.gradient
def _(g: Node, y: Node, x: Node, *, layout: ShardLayout | None) -> Nodes:
    # The gradient has the layout of the value, unless later ops determine another.
    return (place(g, layout),)


def place(x: Node, layout: ShardLayout | None) -> Node:
    """Return the same value in this layout; None leaves the choice of the layout open."""
    return _place(x, layout=layout)


@op("redistribute", kind="distributed")
def redistribute(
    *inputs: Spec,
    source: ShardLayout,
    target: ShardLayout,
    rank: int,
    dtype: DType,
    terms: int,
    reduce: str,
    axis: str,
    number: int | Number,
) -> tuple[Spec, ...]:
    """Return a rank's part of an array in another layout, and a token.

    See `transfer.redistributed`.

    Ranks are those along an axis of the mesh of all."""
    if inputs[0].shape != source.local_shape(rank):
        refuse_shape(f"a part of shape {source.local_shape(rank)} on rank {rank}")
    if source.shape != target.shape:
        refuse_shape(f"two layouts of shape {source.shape}")
    local = target.local_shape(rank)
    return Spec((terms, *local) if reduce == STACK else local, dtype), TOKEN


def reduced_stack(terms: Node, reduce: str) -> Node:
    """Return the reduction of stacked terms; float16 and bfloat16 are added in float32."""
    reductions: dict[str, Any] = {"sum": sum_, "max": max_, "min": min_, "prod": prod}
    wide = cast(terms, float32) if terms.dtype in HALVES else terms
    return reductions[reduce](wide, axis=(0,), keepdims=False)


@redistribute.gradient
def _(
    g: tuple[Node | None, ...],
    y: Nodes,
    *inputs: Node,
    source: ShardLayout,
    target: ShardLayout,
    rank: int,
    dtype: DType,
    terms: int,
    reduce: str,
    axis: str,
    number: int | Number,
) -> tuple[Node | None, ...]:
    """Redistribute the gradient back.

    A part affects the loss on all ranks that received it, so their gradients are added up. If the
    source has replicas of a part, each replica counts for an equal share.
    """
    if reduce != "sum":
        refuse_shape("a sum of terms: other reductions have no gradient", f"reduce={reduce!r}")
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
        number=backward_number(number),
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
    layout: ShardLayout,
    rank: int,
    dtype: DType,
    stream: int,
    normal: bool,
) -> Spec:
    """Return a rank's part of an array of random numbers.

    The whole array is the result of `random_uniform` (or `random_normal`) for the layout's shape.
    """
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
    """Return the sum of a matrix along an axis, in an order that depends only on its length."""
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
    """Return a rank's part of an axis extended to its range of `wanted`, and a token.

    The ranks `peers` have the parts between `cuts`, and receive the ranges `wanted`. A rank outside
    `peers` keeps its part.
    """
    shape = list(inputs[0].shape)
    if rank in peers:
        begin, end = wanted[peers.index(rank)]
        shape[axis] = end - begin
    return Spec(tuple(shape), inputs[0].dtype), TOKEN


SHORT_RUN = 1024
"""Number of contiguous elements for which a separate call is worthwhile."""


def _order(number: int | Number) -> int:
    """Return the position of an op among the communicating ops of its program."""
    return number if isinstance(number, int) else number[0]


def _bind_redistribute(call: Call) -> Runner:
    attrs, given, made = call.node.attrs, call.inputs[0], call.outputs[0]
    straight = made.flags.c_contiguous
    several = call.communicator is not None
    communicator = call.communicator.along(attrs["axis"]) if several else None

    def run() -> None:
        found = redistributed(
            given,
            attrs["source"],
            attrs["target"],
            communicator,
            rank=attrs["rank"],
            dtype=attrs["dtype"],
            terms=attrs["terms"],
            reduce=attrs["reduce"],
            out=made if straight else None,
            number=_order(attrs["number"]),
        )
        if not straight:
            np.copyto(made, found)

    return run


def _bind_random_part(call: Call) -> Runner:
    state, offset = call.inputs
    attrs, (made,) = call.node.attrs, call.outputs

    def run() -> None:
        seed, step = int(state[0]) & (2**64 - 1), int(state[1])

        def numbers(first: int, count: int) -> np.ndarray:
            draw = normal if attrs["normal"] else uniform01
            return draw(seed, step, attrs["stream"], int(offset) + first, count, attrs["dtype"])

        layout: ShardLayout = attrs["layout"]
        found = [_drawn(piece, layout.shape, numbers) for piece in layout.pieces(attrs["rank"])]
        if found:
            np.copyto(made, np.concatenate(found).reshape(made.shape))

    return run


def _drawn(
    piece: IndexBlock, shape: tuple[int, ...], numbers: Callable[[int, int], np.ndarray]
) -> np.ndarray:
    """Return the numbers of a piece, row by row or from whole stretches where rows are short."""
    if not shape:
        return numbers(0, 1)
    strides = [size(shape[axis + 1 :]) for axis in range(len(shape))]
    # Trailing axes that are all there make longer rows.
    inner = len(shape)
    while inner > 1 and piece.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = [indices(axis) * stride for axis, stride in zip(piece.axes, strides, strict=True)]
    starts = np.zeros(1, np.int64)
    for each in outer[: inner - 1]:
        starts = (starts[:, None] + each).reshape(-1)
    stride = strides[inner - 1]
    runs = [(begin * stride, end * stride) for begin, end in piece.axes[inner - 1]]
    row = sum(end - begin for begin, end in runs)
    if row >= SHORT_RUN * len(runs) or len(starts) * len(runs) < 8:
        return np.concatenate([numbers(int(s) + b, e - b) for s in starts for b, e in runs])
    inside = np.concatenate([np.arange(begin, end) for begin, end in runs])
    found = np.empty((len(starts), row), numbers(0, 1).dtype)
    whole = strides[inner - 2] if inner > 1 else 0
    most = max(1, (1 << 20) // max(1, whole))
    for first in range(0, len(starts), most):
        block = starts[first : first + most]
        begin, end = int(block[0]), int(block[-1]) + int(inside[-1]) + 1
        if end - begin > 4 * most * max(1, whole):
            for number, start in enumerate(block):
                found[first + number] = numbers(int(start), int(inside[-1]) + 1)[inside]
            continue
        drawn = numbers(begin, end - begin)
        found[first : first + most] = drawn[(block - begin)[:, None] + inside]
    return found.reshape(-1)


def _bind_halo(call: Call) -> Runner:
    attrs, part, made = call.node.attrs, call.inputs[0], call.outputs[0]

    def run() -> None:
        if attrs["rank"] not in attrs["peers"]:
            np.copyto(made, part)
            return
        found = halo_exchange(
            part, attrs["cuts"], attrs["wanted"], attrs["axis"], call.communicator, attrs["peers"]
        )
        np.copyto(made, found)

    return run


TABLE.add(Kernel("halo", "cpu", "messages", _bind_halo, measured=False))
TABLE.later["redistribute", "cuda"] = ("caldera.compiler.sharding.card_transfer",)
TABLE.add(Kernel("redistribute", "cpu", "messages", _bind_redistribute, measured=False))
TABLE.add(Kernel("random_part", "cpu", "philox", _bind_random_part, measured=False))
