"""Sums over all micro-batches and all ranks, where each rank has only some of the network.

While the step of a micro-batch is written, such sums are not there yet: leaves stand for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from caldera import op
from caldera.core.graph.body import topological
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import full
from caldera.core.graph.ops.elementwise import add
from caldera.parallel.pipeline.stage_program import MicroBatch
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
