"""Rules for ops with distributed algorithms.

Each variant of an algorithm is an alternative to local computation on the ranks' parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from caldera.compiler.sharding.algorithms.registry import ALGORITHMS, spmd, spmd_attrs
from caldera.compiler.sharding.algorithms.variant import Variant
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.rules import loops, products
from caldera.compiler.sharding.rules.registry import (
    RULES,
    AxisSignature,
    Lazy,
    Rule,
    ShardingRule,
    ShardPlacement,
    letter_ways,
    matching_letters,
    names,
)
from caldera.core.graph import Node, Nodes

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation

WHOLE_BYTES = 1 << 20
"""Maximum size of inputs that may be gathered and computed redundantly on every rank."""
STARTING = 3e-5
"""Seconds that an algorithm takes before it does anything."""
AFTER = (loops, products)
"""Rules of the same ops, which these are added to."""


def _rule(
    before: Rule | None, graph: Propagation, node: Node
) -> list[ShardingRule] | Lazy | Node | None:
    """Return the variants that compute locally and the variants of distributed algorithms."""
    only_together = node.op.kind == "distributed"
    alone = None if only_together else (before or _alone)(graph, node)
    by_itself = graph.ranks == 1 or not graph.may_exchange
    # The algorithms compute on the host, and a GPU multiplies its own blocks.
    by_itself |= graph.family == "cuda" and node.op.name == "matmul"
    if isinstance(alone, Lazy | Node) or (by_itself and not only_together):
        return alone
    layouts = [graph.layout(given) for given in node.inputs]
    together = ALGORITHMS[node.op.name].variants(node, layouts, graph.ranks)
    if together:
        alone = without_gathering(node, alone or [], layouts)
    return [*(alone or []), *(_way(graph, node, each) for each in together)]


def without_gathering(
    node: Node, ways: list[ShardingRule], layouts: Sequence[ShardLayout]
) -> list[ShardingRule]:
    """Return the variants that do not gather large inputs on any rank."""
    if sum(given.spec.nbytes for given in node.inputs) <= WHOLE_BYTES:
        return ways
    return [way for way in ways if not _gathers(way, layouts)]


def _gathers(way: ShardingRule, layouts: Sequence[ShardLayout]) -> bool:
    """Return True if a variant moves inputs to become whole on every rank."""
    moves = any(wanted != given for wanted, given in zip(way.inputs, layouts, strict=True))
    return moves and all(layout.is_replicated for layout in way.inputs)


def _way(graph: Propagation, node: Node, variant: Variant) -> ShardingRule:
    outputs = tuple(ShardPlacement(layout) for layout in variant.outputs)
    make = partial(_write, graph, node, variant)
    seconds = STARTING + variant.cost.seconds(graph.links)
    nbytes = variant.cost.bytes * graph.ranks
    return ShardingRule(variant.name, variant.inputs, outputs, make, seconds, nbytes)


def _write(graph: Propagation, node: Node, variant: Variant, parts: Sequence[Node]) -> Nodes:
    return graph.together(spmd, *parts, **spmd_attrs(node, variant))


def _alone(graph: Propagation, node: Node) -> list[ShardingRule]:
    """Return the variants by matrices of a partitioned batch, or with whole inputs."""
    axes = max(len(each.shape) for each in node.inputs) - 2
    whole, batch = node.outputs[0].shape[:axes], tuple(names(axes))
    inputs = [matching_letters(batch, whole, given.shape[:-2]) for given in node.inputs]
    outputs = [(*batch, *(None,) * (len(spec.shape) - axes)) for spec in node.outputs]
    signature = AxisSignature(tuple((*each, None, None) for each in inputs), tuple(outputs))
    return letter_ways(graph, node, signature)


for _name in ALGORITHMS:
    RULES[_name] = partial(_rule, RULES.get(_name))
