"""Optimizer step of a pipeline stage, and sums over all micro-batches and ranks.

Assignments that depend on one stage are computed there, and assignments that depend on no stage
everywhere. Where an assignment combines values of several stages (for example the norm of all
gradients), the values are first sent to all ranks: a rank without such a value adds 0. The step of
a micro-batch is traced before these sums exist, with leaves in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph import Node, topological
from caldera.core.graph.ops import add, full
from caldera.parallel.data.sums import sum_over_axis
from caldera.parallel.pipeline.stage_program import AXIS, MicroBatch, rewritten
from caldera.train.strategy import VOTES

OverRanks = Callable[[list[Node]], list[Node]]


def early_sums(
    parts: Sequence[MicroBatch], is_early: Callable[[Node], bool], own: bool, over: OverRanks
) -> dict[Node, Node]:
    """Return the values of leaves that do not depend on the network.

    `own` is True if this rank adds them; `is_early` is evaluated for the leaves of the first part.
    """
    new: dict[Node, Node] = {}
    for call, first in enumerate(parts[0].sums):
        if not all(is_early(value) and not is_vote(value) for value in first.values()):
            continue
        alike = list(zip(*(part.sums[call].values() for part in parts), strict=True))
        totals = over([reduce(add, values) if own else zero(values[0]) for values in alike])
        for part in parts:
            new |= zip(part.sums[call], totals, strict=True)
    return new


def late_sums(
    first: MicroBatch, totals: Sequence[Node | None], known: dict[Node, Node], over: OverRanks
) -> dict[Node, Node]:
    """Return the values of the remaining leaves of the first part.

    `totals` contains this rank's sums over the parts, for each value that depends on samples.
    """
    new: dict[Node, Node] = {}
    here = iter(totals)
    for sums in first.sums:
        # Every rank may vote.
        own = [value if is_vote(value) else (next(here) or zero(value)) for value in sums.values()]
        if next(iter(sums)) not in known:
            new |= zip(sums, over(own), strict=True)
    return new


def stand_in(name: str, like: Node) -> Node:
    """Return a placeholder for a node that is not built yet."""
    return op.input(name, like.shape, like.dtype).node


def zero(like: Node) -> Node:
    """Return the value that a rank without the node adds to a sum."""
    return full(like.shape, 0, like.dtype)


def is_vote(node: Node) -> bool:
    """Return True if a value is a request to this rank, independent of samples."""
    symbols = (each.attrs.get("symbol") for each in topological([node]))
    return any(symbol is not None and symbol.name == VOTES for symbol in symbols)


class StageUpdate:
    """Assignments of a step for one stage.

    `stages` contains the stage of each leaf that belongs to one; `new` the replacements of leaves
    on this rank. `run` returns the assignments of this stage and of all stages, and the additional
    nodes of the program.
    """

    def __init__(self, stages: Mapping[Node, int], new: Mapping[Node, Node], stage: int) -> None:
        self._owner = stages
        self._at = dict(stages)
        self._new = dict(new)
        self._stage = stage

    def run(self, assignments: Sequence[Node]) -> list[Node]:
        """Return the assignments of this rank."""
        order = topological(assignments)
        given: list[Node] = []
        for group in self._that_meet(order):
            here = [
                rewritten([node], self._new)[0] if stage == self._stage else zero(node)
                for node, stage in group.items()
            ]
            totals = [each.node for each in sum_over_axis([Expr(node) for node in here], AXIS)]
            self._new |= zip(group, totals, strict=True)
            given += totals
        own = [
            each for each in assignments if self._owner.get(each.inputs[0]) in (None, self._stage)
        ]
        found = rewritten(own, self._new)
        needed = set(topological(found))
        # Ranks that do not need a value still take part in its collective.
        return [*found, *(total for total in given if total not in needed)]

    def _that_meet(self, order: Sequence[Node]) -> list[dict[Node, int]]:
        """Return the values that all ranks need, with their stages, grouped by message.

        Groups are ordered, since values may depend on earlier ones.
        """
        depends = self._depends(order)
        level: dict[Node, int] = {}
        groups: list[dict[Node, int]] = []

        def give(node: Node) -> None:
            while len(groups) <= level[node]:
                groups.append({})
            groups[level[node]][node] = self._at.pop(node)
            level[node] += 1

        for node in order:
            if node not in self._at:
                # Scalars of one stage are sent as soon as another stage needs them. Parameters are
                # not: a bias with one element is assigned where it is stored.
                numbers = [each for each in node.inputs if each.inputs and each.spec.size == 1]
                if len(depends[node]) > 1:
                    for given in numbers:
                        if given in self._at and len(depends[given]) == 1:
                            give(given)
                there = {self._at[given] for given in node.inputs if given in self._at}
                if len(there) > 1:
                    for given in dict.fromkeys(node.inputs):
                        if given in self._at:
                            give(given)
                elif there:
                    (self._at[node],) = there
            level[node] = max((level[given] for given in node.inputs), default=0)
        return groups

    def _depends(self, order: Sequence[Node]) -> dict[Node, frozenset[int]]:
        """Return the stages on which each node depends."""
        found: dict[Node, frozenset[int]] = {}
        for node in order:
            if node in self._at:
                found[node] = frozenset([self._at[node]])
            else:
                found[node] = frozenset().union(*(found[given] for given in node.inputs))
        return found
