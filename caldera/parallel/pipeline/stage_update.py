"""Optimizer step of a pipeline stage, and sums over all micro-batches and ranks.

Assignments that depend on one stage are computed there, and those that depend on no stage
everywhere. Where values of several stages meet (for example the norm of all gradients), those
values are first sent to all ranks: a rank without such a value adds 0 in its place. The step of a
micro-batch is traced before these sums exist: leaves stand for them.
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
    """What leaves become whose values do not depend on the network; `own` says whether this rank
    adds them, and `is_early` is asked for those of the first part."""
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
    """What the other leaves of the first part become; `totals` has what this rank has of each value
    that is about samples, summed over the parts."""
    new: dict[Node, Node] = {}
    here = iter(totals)
    for sums in first.sums:
        # Everybody may vote.
        own = [value if is_vote(value) else (next(here) or zero(value)) for value in sums.values()]
        if next(iter(sums)) not in known:
            new |= zip(sums, over(own), strict=True)
    return new


def stand_in(name: str, like: Node) -> Node:
    """A leaf for something that is not there yet."""
    return op.input(name, like.shape, like.dtype).node


def zero(like: Node) -> Node:
    """What a rank adds that does not have a value."""
    return full(like.shape, 0, like.dtype)


def is_vote(node: Node) -> bool:
    """Whether a value is what a rank was asked for, and not about samples."""
    symbols = (each.attrs.get("symbol") for each in topological([node]))
    return any(symbol is not None and symbol.name == VOTES for symbol in symbols)


class StageUpdate:
    """The assignments of a step, for one stage.

    `stages` has the stage of each leaf that belongs to one, `new` what leaves have become on this
    rank. `run` gives the assignments to what is this stage's or everybody's, and what else has to
    be part of the program.
    """

    def __init__(self, stages: Mapping[Node, int], new: Mapping[Node, Node], stage: int) -> None:
        self._owner = stages
        self._at = dict(stages)
        self._new = dict(new)
        self._stage = stage

    def run(self, assignments: Sequence[Node]) -> list[Node]:
        """Those of this rank."""
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
        # A rank that does not need what is given takes part all the same.
        return [*found, *(total for total in given if total not in needed)]

    def _that_meet(self, order: Sequence[Node]) -> list[dict[Node, int]]:
        """The values that everybody needs, each with its stage: those of one message after the
        other, for some follow from others."""
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
                # A number that only some have is given away as soon as others will need it, but
                # no parameter: a bias of one number is assigned where it is.
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
        """The stages on which each node depends."""
        found: dict[Node, frozenset[int]] = {}
        for node in order:
            if node in self._at:
                found[node] = frozenset([self._at[node]])
            else:
                found[node] = frozenset().union(*(found[given] for given in node.inputs))
        return found
