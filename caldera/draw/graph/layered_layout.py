"""Boxes and links to coordinates: a layered drawing that is read from top to bottom.

The method of Sugiyama, Tagawa and Toda (1981). Each box has a level below all its dependencies. A
link gets a bend at each level that it passes. Sweeps up and down reorder the boxes within each
level to remove crossings. Finally each level is moved as near to its neighbours as the order
allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from caldera.draw.svg import Point

BETWEEN_BOXES = 16.0
WIDEST = 1500.0
"""Maximum width of a level; wider levels are spread over several."""


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
    """Return a level for each box: below all its sources, and near its targets if possible.

    Boxes in `first` are on the highest level, boxes in `last` on the lowest. Links must lead from
    smaller to larger box numbers. A level too wide to be read is spread over several.
    """
    count = len(widths)
    above, below = _neighbours(count, ((link.source, link.target) for link in links))
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


def _neighbours(
    count: int, lines: Iterable[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """For each item those above and those below that lines (from, to) connect it with."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for upper, lower in lines:
        above[lower].append(upper)
        below[upper].append(lower)
    return above, below


def _pull_down(level: list[int], above: list[list[int]], below: list[list[int]]) -> None:
    """Move boxes down towards their targets where this shortens links."""
    # A box that depends only on leaves and has a single reader moves down with its sources.
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
        # Leaves are placed near their readers, so their widths do not count here.
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
    """Move a box down to a level, and its successors as far as needed."""
    pending = [(box, to)]
    while pending:
        box, to = pending.pop()
        if level[box] < to:
            rows[level[box]].remove(box)
            rows.setdefault(to, []).append(box)
            level[box] = to
            pending.extend((target, to + 1) for target in below[box])


BETWEEN_BENDS = 10.0
SMALLEST_GAP = 26.0
LARGEST_GAP = 56.0
ORDER_SWEEPS = 12
PLACE_SWEEPS = 40
STRAIGHTNESS = 6.0
"""Weight of straight link segments between bends, relative to the ends of a link."""
LIGHTNESS = 0.01
"""Weight of pulls by sources and sinks: small, so that they follow the remaining boxes."""
MAIN_LINE = 8.0
"""Weight of straight links on the longest path through the graph."""
BETWEEN_ENTRIES = 20.0


@dataclass(frozen=True)
class NodePosition:
    """Layout result: the centre of each box, and the points on each link.

    Points in a vertical line are joined by a line, and all further ones by a curve with vertical
    ends.
    """

    centres: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


def arrange(
    sizes: Sequence[tuple[float, float]],
    links: Sequence[GraphEdge],
    levels: Sequence[int],
    squeeze: float = 1.0,
) -> NodePosition:
    """Place boxes of these sizes. `squeeze` scales all distances between them."""
    if not sizes:
        return NodePosition([], [], 0.0, 0.0)
    return _Drawing(sizes, links, levels, squeeze).place()


class _Drawing:
    """Boxes and bends of a drawing; bends are numbered after the boxes."""

    def __init__(
        self,
        sizes: Sequence[tuple[float, float]],
        links: Sequence[GraphEdge],
        levels: Sequence[int],
        squeeze: float,
    ) -> None:
        self.sizes = list(sizes)
        self.links = links
        self.level = list(levels)
        self.squeeze = squeeze
        self.boxes = len(sizes)
        self.chains: list[list[int]] = []
        for link in links:
            bends = range(self.level[link.source] + 1, self.level[link.target])
            first = len(self.level)
            self.level.extend(bends)
            self.chains.append([link.source, *range(first, first + len(bends)), link.target])
        lines = (line for chain in self.chains for line in pairwise(chain))
        self.above, self.below = _neighbours(len(self.level), lines)
        self.rows: list[list[int]] = [[] for _ in range(max(self.level) + 1)]
        for item in self._first_order():
            self.rows[self.level[item]].append(item)

    def place(self) -> NodePosition:
        self._remove_crossings()
        x = self._across(self._attractions())
        left = min(x[item] - self._width(item) / 2 for item in range(len(x)))
        x = [value - left for value in x]
        width = max(x[item] + self._width(item) / 2 for item in range(len(x)))
        tops, bottoms = self._down(x)
        middle = [(top + bottom) / 2 for top, bottom in zip(tops, bottoms, strict=True)]
        centres = []
        for box in range(self.boxes):
            level = self.level[box]
            half = self.sizes[box][1] / 2
            # Sources are placed close to the level below, sinks close to the level above.
            y = middle[level]
            if not self.above[box]:
                y = bottoms[level] - half
            elif not self.below[box]:
                y = tops[level] + half
            centres.append((x[box], y))
        routes = [self._route(index, x, centres, tops, bottoms) for index in range(len(self.links))]
        return NodePosition(centres, routes, width, bottoms[-1])

    def _width(self, item: int) -> float:
        return self.sizes[item][0] if item < self.boxes else 0.0

    # --- order inside the levels

    def _first_order(self) -> list[int]:
        """Depth first from the bottom, so that what belongs together starts out together."""
        seen: set[int] = set()
        order: list[int] = []
        stack = [item for item in reversed(range(len(self.level))) if not self.below[item]]
        while stack:
            item = stack.pop()
            if item not in seen:
                seen.add(item)
                order.append(item)
                stack.extend(reversed(self.above[item]))
        return order

    def _remove_crossings(self) -> None:
        best = [list(row) for row in self.rows]
        fewest = self._crossings()
        for sweep in range(ORDER_SWEEPS):
            if not fewest:
                break
            downwards = sweep % 2 == 0
            rows = range(1, len(self.rows)) if downwards else range(len(self.rows) - 2, -1, -1)
            neighbours = self.above if downwards else self.below
            for index in rows:
                beside = index - 1 if downwards else index + 1
                self._sort_row(index, neighbours, beside, turn_ties=sweep % 4 >= 2)
            found = self._crossings()
            if found < fewest:
                fewest = found
                best = [list(row) for row in self.rows]
        self.rows = best

    def _sort_row(
        self, index: int, neighbours: list[list[int]], beside: int, *, turn_ties: bool
    ) -> None:
        """Order a row by the mean position of each item's neighbours in the row `beside` it."""
        position = {item: i for i, item in enumerate(self.rows[beside])}
        row = self.rows[index]
        weight: dict[int, float] = {}
        for i, item in enumerate(row):
            near = [position[other] for other in neighbours[item]]
            weight[item] = sum(near) / len(near) if near else i * len(position) / len(row)
        if turn_ties:
            # Reversing items with equal weights may reduce crossings.
            row.reverse()
        row.sort(key=weight.__getitem__)

    def _crossings(self) -> int:
        total = 0
        for upper, lower in pairwise(self.rows):
            position = {item: i for i, item in enumerate(lower)}
            ends = [sorted(position[other] for other in self.below[item]) for item in upper]
            total += _inversions(end for each in ends for end in each)
        return total

    # --- across

    def _attractions(self) -> list[list[tuple[int, float, float]]]:
        """Return the attractions of each item as (item, desired distance, strength)."""
        self.entries = enters = self._entries()
        result: list[list[tuple[int, float, float]]] = [[] for _ in self.level]
        follower = self._followers()
        for index, chain in enumerate(self.chains):
            link = self.links[index]
            line = MAIN_LINE if follower.get(link.source) == chain[1] else 1.0
            for upper, lower in pairwise(chain):
                start = link.leaves_at if upper == link.source else 0.0
                end = enters[index] if lower == link.target else 0.0
                inner = (upper >= self.boxes) + (lower >= self.boxes)
                strength = line * STRAIGHTNESS**inner
                ends = (not self.above[link.source]) + (not self.below[link.target])
                strength *= LIGHTNESS**ends
                result[lower].append((upper, start - end, strength))
                result[upper].append((lower, end - start, strength))
        return result

    def _followers(self) -> dict[int, int]:
        """For each item the one below it from which the longest way leads on."""
        length = [0] * len(self.level)
        follower: dict[int, int] = {}
        for item in sorted(range(len(self.level)), key=lambda item: -self.level[item]):
            if self.below[item]:
                follower[item] = max(self.below[item], key=length.__getitem__)
                length[item] = length[follower[item]] + 1
        return follower

    def _entries(self) -> list[float]:
        """Return each link's entry offset at its target; links without one share the top edge."""
        position = {item: i for row in self.rows for i, item in enumerate(row)}
        entries = [link.enters_at or 0.0 for link in self.links]
        free: dict[int, list[int]] = {}
        for index, link in enumerate(self.links):
            if link.enters_at is None:
                free.setdefault(link.target, []).append(index)
        for target, indices in free.items():
            indices.sort(key=lambda index: position[self.chains[index][-2]])
            # Computed values enter in the middle, so that chains are straight.
            main = [i for i, index in enumerate(indices) if self.above[self.links[index].source]]
            middle = sum(main) / len(main) if main else (len(indices) - 1) / 2
            furthest = max(middle, len(indices) - 1 - middle, 1e-9)
            step = min(BETWEEN_ENTRIES, 0.42 * self._width(target) / furthest)
            for i, index in enumerate(indices):
                entries[index] = (i - middle) * step
        return entries

    def _across(self, attractions: list[list[tuple[int, float, float]]]) -> list[float]:
        x = [0.0] * len(self.level)
        apart = [[self._apart(a, b) for a, b in pairwise(row)] for row in self.rows]
        for row, gaps in zip(self.rows, apart, strict=True):
            for item, place in zip(row, accumulate(gaps, initial=0.0), strict=False):
                x[item] = place
        totals = [sum(force for _, _, force in near) for near in attractions]
        strength = [[totals[item] or 1e-3 for item in row] for row in self.rows]
        downwards = range(len(self.rows))
        for sweep in range(PLACE_SWEEPS):
            for index in downwards if sweep % 2 == 0 else reversed(downwards):
                row, wanted = self.rows[index], []
                for item in row:
                    pull = sum(
                        (x[other] + away) * force for other, away, force in attractions[item]
                    )
                    wanted.append(pull / totals[item] if totals[item] else x[item])
                places = _nearest(wanted, strength[index], apart[index])
                for item, value in zip(row, places, strict=True):
                    x[item] = value
        return x

    def _apart(self, left: int, right: int) -> float:
        """Return the least distance of two neighbours' middles."""
        bends = left >= self.boxes and right >= self.boxes
        gap = BETWEEN_BENDS if bends else BETWEEN_BOXES
        return self._width(left) / 2 + self._width(right) / 2 + gap * self.squeeze

    # --- down

    def _down(self, x: list[float]) -> tuple[list[float], list[float]]:
        """Return the top and bottom of each level: wide swings of a link get a higher gap."""
        tops: list[float] = []
        bottoms: list[float] = []
        y = 0.0
        for row in self.rows:
            tops.append(y)
            height = max((self.sizes[item][1] for item in row if item < self.boxes), default=0.0)
            bottoms.append(y + height)
            swings = [abs(x[item] - x[other]) for item in row for other in self.below[item]]
            swing = max(swings, default=0.0)
            y += height + min(LARGEST_GAP, SMALLEST_GAP + 0.06 * swing) * self.squeeze
        return tops, bottoms

    def _route(
        self,
        index: int,
        x: list[float],
        centres: list[Point],
        tops: list[float],
        bottoms: list[float],
    ) -> list[Point]:
        link, chain = self.links[index], self.chains[index]
        start = x[link.source] + link.leaves_at
        end = x[link.target] + self.entries[index]
        source_level, target_level = self.level[link.source], self.level[link.target]
        points = [
            (start, centres[link.source][1] + self.sizes[link.source][1] / 2),
            (start, bottoms[source_level]),
        ]
        for bend in chain[1:-1]:
            level = self.level[bend]
            points += [(x[bend], tops[level]), (x[bend], bottoms[level])]
        points += [
            (end, tops[target_level]),
            (end, centres[link.target][1] - self.sizes[link.target][1] / 2),
        ]
        return points


def _inversions(values: Iterable[int]) -> int:
    """Return the number of pairs in the wrong order."""
    seen: list[int] = []
    total = 0
    for value in values:
        place = bisect_right(seen, value)
        total += len(seen) - place
        seen.insert(place, value)
    return total


def _nearest(wanted: list[float], strength: list[float], apart: list[float]) -> list[float]:
    """Return the positions closest to `wanted` (squares, weighted) that keep order and distances.

    Without the distances this is isotonic regression, solved by pooling neighbours that collide.
    """
    shift = list(accumulate(apart, initial=0.0))
    pools: list[tuple[float, float, int]] = []
    for value, weight, offset in zip(wanted, strength, shift, strict=False):
        mean, total, count = value - offset, weight, 1
        while pools and pools[-1][0] > mean:
            other, heavier, more = pools.pop()
            mean = (mean * total + other * heavier) / (total + heavier)
            total, count = total + heavier, count + more
        pools.append((mean, total, count))
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, shift, strict=False)]
