"""Ops about layouts: those of whole values, as users write them, and those that one rank runs.

`place` is written into a graph of whole values: it changes nothing but where elements are. The
others are what `sharding.propagation` writes for one rank. `redistribute` brings a part from one
layout to another; a token goes through all nodes that communicate, which keeps all ranks to one
order. `random_part` has the numbers that a rank's part has of an array of random numbers.
"""

from __future__ import annotations

from caldera.graph.node import Node, Spec, intern
from caldera.graph.opdef import Nodes, op, refuse_shape
from caldera.graph.ops.collective import TOKEN
from caldera.sharding.layout import Layout
from caldera.tensor.dtype import DType, is_complex


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
    if is_complex(x.dtype):
        # It never runs as it stands, so nothing has to take complex numbers apart for it.
        return intern(_place, (x,), {"layout": layout}, (_place.infer(x.spec, layout=layout),))
    node: Node = _place(x, layout=layout)
    return node


@op("redistribute", kind="distributed")
def redistribute(
    *inputs: Spec,
    source: Layout,
    target: Layout,
    rank: int,
    dtype: DType,
    terms: int,
    reduce: str,
    number: int,
) -> tuple[Spec, ...]:
    """A rank's part of an array in another layout, and a token; see `transfer.redistributed`."""
    if inputs[0].shape != source.local_shape(rank):
        refuse_shape(f"a part of shape {source.local_shape(rank)}, that of rank {rank}")
    if source.shape != target.shape:
        refuse_shape(f"two layouts of shape {source.shape}")
    return Spec(target.local_shape(rank), dtype), TOKEN


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
