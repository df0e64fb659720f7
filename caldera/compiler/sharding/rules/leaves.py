"""Values that nobody has to send: constants, ranges, random numbers, what is broadcast.

They are made where they are wanted, each rank its part.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def constant_array(values: np.ndarray) -> Node:
    """A constant array as a node."""
    return array_node(values) if values.size else full(values.shape, 0, values.dtype)


@rule("constant")
def _(graph: Propagation, node: Node) -> Lazy:
    return Lazy(lambda parts, layout: node)


@rule("array")
def _(graph: Propagation, node: Node) -> Lazy:
    values = value_of(node)

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        if layout.is_replicated:
            return node
        return constant_array(layout.part_of(values, graph.rank))

    return Lazy(make)


@rule("tensor", "variable", "input")
def _(graph: Propagation, node: Node) -> Lazy:
    """What is the same on every rank: each takes its part."""
    return Lazy(lambda parts, layout: part(node, layout, graph.rank))


@rule("iota")
def _(graph: Propagation, node: Node) -> Lazy:
    axis, dtype = node.attrs["axis"], node.attrs["dtype"]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        local = layout.local_shape(graph.rank)
        if layout.splits[axis] is None:
            return iota(shape=local, axis=axis, dtype=dtype)
        numbers = constant_array(layout.axis_indices(graph.rank, axis).astype(dtype))
        line = tuple(n if i == axis else 1 for i, n in enumerate(local))
        return broadcast_to(reshape(numbers, line), local)

    return Lazy(make)


@rule("random_uniform", "random_normal")
def _(graph: Propagation, node: Node) -> Lazy:
    def sources(layout: CartesianLayout) -> list[CartesianLayout]:
        return [replicated(given.shape, layout.ranks) for given in node.inputs]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        if layout.is_replicated:
            return node.op(*parts, **node.attrs)
        with graph.messaging():
            # Its kernel is the host's, as are those that send.
            return random_part(
                *parts,
                layout=layout,
                rank=graph.rank,
                dtype=node.dtype,
                stream=node.attrs["stream"],
                normal=node.op.name == "random_normal",
            )

    return Lazy(make, node.inputs, sources)


@rule("broadcast_to")
def _(graph: Propagation, node: Node) -> Lazy:
    (x,) = node.inputs
    extra = len(node.shape) - len(x.shape)
    repeated = [i for i, n in enumerate(x.shape) if n != node.shape[extra + i]]

    def sources(layout: CartesianLayout) -> list[CartesianLayout]:
        less = layout.without([*range(extra), *(extra + i for i in repeated)])
        for axis in repeated:
            less = less.expanded(axis)
        return [less]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        return broadcast_to(parts[0], layout.local_shape(graph.rank))

    like = graph.suited(x)
    if like is None or not like.split_axes or repeated:
        return Lazy(make, node.inputs, sources)
    # What is broadcast follows its layout, where it is shared out at all.
    for axis in range(extra):
        like = like.expanded(axis, node.shape[axis])
    return Lazy(make, node.inputs, sources, like)
