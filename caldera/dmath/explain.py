"""What `Array.explain()` prints: what moves where, and which way was taken."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.dmath.handle import Handle
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.sharding.explanation import moves_table, shortened, summary
from caldera.sharding.layout import Layout
from caldera.sharding.propagation import Choice, Move, distribute


@dataclass(frozen=True)
class Explanation:
    """What happens when an array is computed: `moves` one after the other, `choices` among ways,
    and the `layout` that the result has. Printed, it is a table."""

    moves: tuple[Move, ...]
    choices: tuple[Choice, ...]
    layout: Layout

    @property
    def nbytes(self) -> int:
        """All bytes that move between ranks."""
        return sum(move.nbytes for move in self.moves)

    @property
    def seconds(self) -> float:
        """What moving them is thought to take."""
        return sum(move.seconds for move in self.moves)

    def __str__(self) -> str:
        lines = [*moves_table(self.moves), "", "ways"]
        for choice in self.choices:
            lines.append(
                f"{shortened(choice.what, 44):44}  {choice.chosen}, {choice.seconds:.1e} s"
            )
            beaten = ", ".join(f"{name} {seconds:.1e} s" for name, seconds in choice.others)
            lines.append(f"    before {beaten}")
        lines.append(f"result: {summary(self.layout)}")
        return "\n".join(lines)

    __repr__ = __str__


def explained(node: Node, ranks: int) -> Explanation:
    """What computing a node of whole values on so many ranks means."""
    leaves = {}
    for each in topological([node]):
        symbol = each.attrs.get("symbol")
        if symbol is not None and isinstance(symbol.value, Handle):
            leaves[symbol] = symbol.value.layout
    found = distribute([node], leaves, ranks=ranks, rank=0)
    return Explanation(found.moves, found.choices, found.layouts[0])
