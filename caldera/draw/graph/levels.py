"""The level of each box in a layered drawing: below everything it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BETWEEN_BOXES = 16.0
WIDEST = 1500.0
"""How wide a level may get before it is spread over several."""


@dataclass(frozen=True)
class GraphEdge:
    """A line from one box down to another, by their numbers.

    `leaves_at` and `enters_at` are offsets from the middle of the box. Without the first a link
    leaves in the middle; links without the second are spread over the top of their box.
    """

    source: int
    target: int
    leaves_at: float = 0.0
    enters_at: float | None = None


def levels_of(
    widths: Sequence[float],
    links: Iterable[GraphEdge],
    first: Iterable[int] = (),
    last: Iterable[int] = (),
) -> list[int]:
    """A level for each box: below all its sources, and sources close to what they lead to.

    Boxes in `first` stand on the highest level, those in `last` on the lowest. The numbers of
    boxes must grow along links. A level too wide to be read is spread over several.
    """
    count = len(widths)
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for link in links:
        above[link.target].append(link.source)
        below[link.source].append(link.target)
    level = [0] * count
    for box in range(count):
        level[box] = max((level[source] + 1 for source in above[box]), default=0)
    _spread(level, widths, above, below)
    bottom = max(level, default=0)
    for box in last:
        level[box] = bottom
    _pull_down(level, above, below)
    for box in first:
        level[box] = 0
    highest = min(level, default=0)
    return [each - highest for each in level]


def _pull_down(level: list[int], above: list[list[int]], below: list[list[int]]) -> None:
    """Move boxes down to what they lead to where that makes links shorter."""
    # What hangs on leaves alone and is read once can move down freely: all of it moves along.
    loose = [False] * len(level)
    for box in range(len(level)):
        inside = len(below[box]) == 1 and all(loose[source] for source in above[box])
        loose[box] = inside or not above[box]
    for box in reversed(range(len(level))):
        held = sum(1 for source in above[box] if not loose[source])
        if below[box] and len(below[box]) > held:
            level[box] = min(level[target] for target in below[box]) - 1


def _spread(
    level: list[int],
    widths: Sequence[float],
    above: list[list[int]],
    below: list[list[int]],
) -> None:
    """Move boxes down from levels that are too wide: first those from which little follows."""
    follow = [0] * len(level)
    for box in reversed(range(len(level))):
        follow[box] = max((follow[target] + 1 for target in below[box]), default=0)
    rows: dict[int, list[int]] = {}
    for box in range(len(level)):
        # Leaves go where they are needed; they take no room of their own here.
        if above[box]:
            rows.setdefault(level[box], []).append(box)
    row = 0
    while row <= max(rows, default=-1):
        taken = 0.0
        for box in sorted(rows.get(row, ()), key=lambda box: (-follow[box], box)):
            leaves = sum(widths[source] for source in above[box] if not above[source])
            taken += max(widths[box], leaves) + BETWEEN_BOXES
            if taken > WIDEST and taken > widths[box] + BETWEEN_BOXES:
                _push(box, row + 1, level, rows, below)
        row += 1


def _push(
    box: int, to: int, level: list[int], rows: dict[int, list[int]], below: list[list[int]]
) -> None:
    """Move a box down to a level, and what follows from it as far as needed."""
    pending = [(box, to)]
    while pending:
        box, to = pending.pop()
        if level[box] < to:
            rows[level[box]].remove(box)
            rows.setdefault(to, []).append(box)
            level[box] = to
            pending.extend((target, to + 1) for target in below[box])
