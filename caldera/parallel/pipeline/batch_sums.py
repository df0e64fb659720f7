"""Sums over all parts of a batch and all ranks, where each rank has only some of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from caldera import op
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.graph.ops.base import full
from caldera.graph.ops.collective import Message, all_reduce, next_number
from caldera.graph.ops.elementwise import add
from caldera.lazy import Expr, Variable
from caldera.nn.tracing import Context
from caldera.strategy import VOTES

WIDE = "float64"
"""All values fit into one message then, and counts stay exact."""


@dataclass
class MicroBatchTrace:
    """What was asked for while the program of one part of a batch was written.

    Sums over all parts and ranks are not there yet: leaves stand for them, and for gradients.
    `values` has those of each message, one after the other, `sums` the leaves for their sums.
    """

    context: Context
    loss: Expr | None = None
    parameters: Sequence[Variable] = ()
    gradients: list[Node] = field(default_factory=list)
    values: list[list[Node]] = field(default_factory=list)
    sums: list[list[Node]] = field(default_factory=list)

    def all_reduce(self, values: Sequence[Expr]) -> list[Expr]:
        """Leaves for the sums of these values."""
        self.values.append([value.node for value in values])
        self.sums.append([stand_in("sum over the batch", value.node) for value in values])
        return [Expr(node) for node in self.sums[-1]]

    def states(self) -> dict[Node, Node]:
        """The new values of variables that layers change, by the nodes of those."""
        changes = [update.node.inputs for update in self.context.updates]
        return {each[0]: each[1] for each in changes}

    def samples(self) -> list[Node]:
        """The values that are about samples."""
        return [value for values in self.values for value in values if not is_vote(value)]


OverRanks = Callable[[list[Node]], list[Node]]


def early_sums(
    writings: Sequence[MicroBatchTrace],
    is_early: Callable[[Node], bool],
    own: bool,
    over: OverRanks,
) -> dict[Node, Node]:
    """What leaves become whose values do not depend on the network; `own` says whether this rank
    adds them, and `is_early` is asked for those of the first part."""
    new: dict[Node, Node] = {}
    for call, first in enumerate(writings[0].values):
        if not all(is_early(value) and not is_vote(value) for value in first):
            continue
        alike = list(zip(*(each.values[call] for each in writings), strict=True))
        totals = over([_sum(values) if own else zero(values[0]) for values in alike])
        for each in writings:
            new |= zip(each.sums[call], totals, strict=True)
    return new


def late_sums(
    first: MicroBatchTrace, totals: Sequence[Node | None], known: dict[Node, Node], over: OverRanks
) -> dict[Node, Node]:
    """What the other leaves of the first part become; `totals` has what this rank has of each value
    that is about samples, summed over the parts."""
    new: dict[Node, Node] = {}
    here = iter(totals)
    for values, sums in zip(first.values, first.sums, strict=True):
        # Everybody may have wishes.
        own = [value if is_vote(value) else (next(here) or zero(value)) for value in values]
        if sums[0] not in known:
            new |= zip(sums, over(own), strict=True)
    return new


def over_axis(values: Sequence[Node], axis: str, *, alike: int = 1, now: bool = True) -> list[Node]:
    """The sums of values over the ranks along an axis, in one message; so many ranks have the same
    values, which count once."""
    wide = [op.cast(Expr(value), WIDE).node for value in values]
    found = [Expr(each) for each in all_reduce(wide, Message("sum", axis, next_number(), now=now))]
    once = found if alike == 1 else [total / float(alike) for total in found]
    return [op.cast(each, value.dtype).node for each, value in zip(once, values, strict=True)]


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


def _sum(values: Sequence[Node]) -> Node:
    total = values[0]
    for value in values[1:]:
        total = add(total, value)
    return total
