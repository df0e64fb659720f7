"""What an optimizer does, where each rank has the gradients of its own stage alone.

Whatever depends on one stage is computed there, and what depends on none everywhere. Where values
of several stages meet (the common length of all gradients, say), those values are first given to
everybody: a rank that does not have one adds 0 in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caldera.compiler.lazy import Expr
from caldera.core.graph.body import topological
from caldera.core.graph.node import Node
from caldera.parallel.data.sums import sum_over_axis
from caldera.parallel.pipeline.batch_sums import zero
from caldera.parallel.pipeline.stage_program import AXIS, rewritten


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
                # A number that only some have is given away as soon as others will need it.
                if len(depends[node]) > 1:
                    for given in node.inputs:
                        if given in self._at and len(depends[given]) == 1 and given.spec.size == 1:
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
