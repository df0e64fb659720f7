"""Layouts and moves in words."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.base.formatting import bytes_text
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.propagation import Move


def summary(layout: ShardLayout) -> str:
    """A layout in a few words.

    >>> from caldera.compiler.sharding.distributions import Grid, Replicated, Rows
    >>> from caldera.compiler.sharding.explanation import summary
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


def moves_table(moves: Sequence[Move]) -> list[str]:
    """Lines that say what moves, from where to where, how many bytes that is and what it takes."""
    lines = [f"{'what moves':44}  {'from':22}  {'to':22}  {'bytes':>10}  seconds"]
    for move in moves:
        terms = f"{move.terms} terms, " if move.terms > 1 else ""
        lines.append(
            f"{shortened(move.what, 44):44}  {shortened(terms + summary(move.source), 22):22}  "
            f"{shortened(summary(move.target), 22):22}  {bytes_text(move.nbytes):>10}  "
            f"{move.seconds:.1e}"
        )
    return lines


def shortened(text: str, width: int) -> str:
    """A text that is no longer than this."""
    return text if len(text) <= width else text[: width - 1] + "…"
