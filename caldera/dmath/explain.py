"""What `Array.explain()` prints: what moves where, and which way was taken."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.amounts import bytes_text
from caldera.dmath.handle import Handle
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.sharding.layout import CartesianLayout, Layout
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
        lines = [f"{'what moves':44}  {'from':22}  {'to':22}  {'bytes':>10}  seconds"]
        for move in self.moves:
            terms = f"{move.terms} terms, " if move.terms > 1 else ""
            lines.append(
                f"{_short(move.what, 44):44}  {_short(terms + summary(move.source), 22):22}  "
                f"{_short(summary(move.target), 22):22}  {bytes_text(move.nbytes):>10}  "
                f"{move.seconds:.1e}"
            )
        total = f"in all {bytes_text(self.nbytes)}, {self.seconds:.1e} s"
        lines += [total, "", "ways"]
        for choice in self.choices:
            lines.append(f"{_short(choice.what, 44):44}  {choice.chosen}, {choice.seconds:.1e} s")
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


def summary(layout: Layout) -> str:
    """A layout in a few words.

    >>> from caldera.dmath.explain import summary
    >>> from caldera.sharding.distributions import Grid, Replicated, Rows
    >>> shape = (8, 8)
    >>> [summary(each.of(shape, range(4))) for each in (Rows(), Grid(2, 2), Replicated())]
    ['axis 0 over 4', 'axis 0 over 2, axis 1 over 2', 'whole on 4']
    """
    if not isinstance(layout, CartesianLayout):
        return f"blocks on {len(layout.ranks)}"
    splits = [(axis, split.parts) for axis, split in enumerate(layout.splits) if split is not None]
    if not splits:
        return f"whole on {len(layout.ranks)}"
    words = ", ".join(f"axis {axis} over {parts}" for axis, parts in splits)
    return words if layout.replicas == 1 else f"{words}, {layout.replicas} copies"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
