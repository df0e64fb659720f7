"""Collectives as ordinary nodes, so that a plan shows where data moves.

The gradient of a sum over ranks: the loss of the whole job is the sum of what the ranks compute,
so the derivative with respect to one rank's term is the sum of what arrives on all of them.
"""

from __future__ import annotations

from caldera.graph.node import Node, Spec
from caldera.graph.opdef import Nodes, op


@op("all_sum")
def all_sum(x: Spec, *, axis: str) -> Spec:
    """The sum of `x` over the ranks along a named axis of the mesh of ranks."""
    return x


@all_sum.gradient
def _(g: Node, y: Node, x: Node, *, axis: str) -> Nodes:
    return (all_sum(g, axis=axis),)
