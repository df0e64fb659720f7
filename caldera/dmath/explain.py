"""What `Array.explain()` prints: what moves where, and which way was taken."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.base.amounts import bytes_text
from caldera.compiler.sharding.explanation import moves_table, shortened, summary
from caldera.compiler.sharding.layout import Layout
from caldera.compiler.sharding.propagation import Choice, Move, distribute
from caldera.core.graph.body import topological
from caldera.core.graph.node import Node
from caldera.dmath.handle import Handle
from caldera.dmath.session import Session

CALL_S = 1.5e-4
"""To begin with a move or with what is computed, however small it is."""
SHOWN = 4
"""Ways that were beaten, the nearest first; of others there is only the number."""


@dataclass(frozen=True)
class Explanation:
    """What happens when an array is computed: `moves` one after the other, `choices` among ways,
    and the `layout` that the result has. Printed, it is a table."""

    moves: tuple[Move, ...]
    choices: tuple[Choice, ...]
    layout: Layout

    @property
    def nbytes(self) -> int:
        """All bytes that move between ranks, those inside of algorithms too."""
        return sum(move.nbytes for move in self.moves) + sum(c.nbytes for c in self.choices)

    @property
    def seconds(self) -> float:
        """What moving and computing are thought to take, and the calls for each of them."""
        steps: list[Move | Choice] = [*self.moves, *self.choices]
        return sum(step.seconds + CALL_S for step in steps if step.seconds)

    def __str__(self) -> str:
        lines = moves_table(self.moves)
        lines += ["", f"{'what is computed':44}  {'how':46}  {'bytes':>10}  seconds"]
        for choice in self.choices:
            lines.append(
                f"{shortened(choice.what, 44):44}  {shortened(choice.chosen.name, 46):46}  "
                f"{bytes_text(choice.nbytes):>10}  {choice.seconds:.1e}"
            )
            lines += _beaten(choice)
        lines += ["", f"in all {bytes_text(self.nbytes)}, {self.seconds:.1e} s"]
        lines.append(f"result: {summary(self.layout)}")
        return "\n".join(lines)

    __repr__ = __str__


def explained(node: Node, session: Session, *, again: bool = False) -> Explanation:
    """What computing a node of whole values in a session means; with `again` by what ranks know by
    now of the time that it takes, if the script can ask them."""
    leaves = {}
    for each in topological([node]):
        symbol = each.attrs.get("symbol")
        if symbol is not None and isinstance(symbol.value, Handle):
            leaves[symbol] = symbol.value.layout
    # Where all ranks run the script, one of them may ask alone.
    again = again and session.one_script
    links = session.links([symbol.spec for symbol in leaves], again=again)
    found = distribute([node], leaves, ranks=session.ranks, rank=0, links=links)
    return Explanation(found.moves, found.choices, found.layouts[0])


def _beaten(choice: Choice) -> list[str]:
    """The way that was taken and those it was chosen among, each with all that moves for it."""
    if not choice.others:
        return []
    ranked = sorted(choice.others, key=lambda each: each.seconds)
    found = [
        f"{word:>14} {shortened(each.name, 30):30}  {bytes_text(each.nbytes):>10}  "
        f"{each.seconds:.1e}"
        for word, each in zip(
            ("with its moves", *["before"] * SHOWN), (choice.chosen, *ranked[:SHOWN]), strict=False
        )
    ]
    rest = len(ranked) - SHOWN
    return found if rest <= 0 else [*found, f"{'':14} and {rest} more"]
