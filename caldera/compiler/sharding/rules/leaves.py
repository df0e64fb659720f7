"""Values that nobody has to send: constants, ranges, random numbers, what is broadcast.

They are made where they are wanted, each rank its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caldera.compiler.passes.constants import array_node, value_of
from caldera.compiler.sharding.layout import CartesianLayout, replicated
from caldera.compiler.sharding.ops import random_part
from caldera.compiler.sharding.rules.registry import Lazy, rule
from caldera.compiler.sharding.rules.stretches import part
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import broadcast_to, full, iota, reshape

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation


def _free(layout: CartesianLayout) -> float:
    return 0.0


def constant_array(values: np.ndarray) -> Node:
    """A constant array as a node."""
    return array_node(values) if values.size else full(values.shape, 0, values.dtype)


@rule("constant")
def _(graph: Propagation, node: Node) -> Lazy:
    return Lazy(lambda layout: node, _free)


@rule("array")
def _(graph: Propagation, node: Node) -> Lazy:
    values = value_of(node)

    def make(layout: CartesianLayout) -> Node:
        if layout.is_replicated:
            return node
        return constant_array(layout.part_of(values, graph.rank))

    return Lazy(make, _free)


@rule("tensor", "variable", "input")
def _(graph: Propagation, node: Node) -> Lazy:
    """What is the same on every rank: each takes its part."""

    def make(layout: CartesianLayout) -> Node:
        return part(node, layout, graph.rank)

    return Lazy(make, _free)


@rule("iota")
def _(graph: Propagation, node: Node) -> Lazy:
    axis, dtype = node.attrs["axis"], node.attrs["dtype"]

    def make(layout: CartesianLayout) -> Node:
        local = layout.local_shape(graph.rank)
        if layout.splits[axis] is None:
            return iota(shape=local, axis=axis, dtype=dtype)
        numbers = constant_array(layout.axis_indices(graph.rank, axis).astype(dtype))
        line = tuple(n if i == axis else 1 for i, n in enumerate(local))
        return broadcast_to(reshape(numbers, line), local)

    return Lazy(make, _free)


@rule("random_uniform", "random_normal")
def _(graph: Propagation, node: Node) -> Lazy:
    state, offset = node.inputs

    def make(layout: CartesianLayout) -> Node:
        ranks = layout.ranks
        own = graph.placed(state, replicated(state.shape, ranks))
        first = graph.placed(offset, replicated(offset.shape, ranks))
        if graph.rank not in layout.ranks:
            return graph.empty(layout, node.dtype)
        if layout.is_replicated:
            return node.op(own, first, **node.attrs)
        with graph.messaging():
            # Its kernel is the host's, as are those that send.
            return random_part(
                own,
                first,
                layout=layout,
                rank=graph.rank,
                dtype=node.dtype,
                stream=node.attrs["stream"],
                normal=node.op.name == "random_normal",
            )

    return Lazy(make, _free)


@rule("broadcast_to")
def _(graph: Propagation, node: Node) -> Lazy:
    (x,) = node.inputs
    extra = len(node.shape) - len(x.shape)
    repeated = [i for i, n in enumerate(x.shape) if n != node.shape[extra + i]]

    def source(layout: CartesianLayout) -> CartesianLayout:
        less = layout.without([*range(extra), *(extra + i for i in repeated)])
        for axis in repeated:
            less = less.expanded(axis)
        return less

    def make(layout: CartesianLayout) -> Node:
        own = graph.placed(x, source(layout))
        if graph.rank not in layout.ranks:
            return graph.empty(layout, node.dtype)
        return broadcast_to(own, layout.local_shape(graph.rank))

    def seconds(layout: CartesianLayout) -> float:
        return graph.seconds(x, source(layout))

    return Lazy(make, seconds, _like(graph, node, repeated))


def _like(graph: Propagation, node: Node, repeated: list[int]) -> CartesianLayout | None:
    """A layout that what is broadcast follows, if it is shared out at all."""
    (x,) = node.inputs
    own = graph.suited(x)
    if own is None or not own.split_axes or repeated:
        return None
    for axis in range(len(node.shape) - len(x.shape)):
        own = own.expanded(axis, node.shape[axis])
    return own
