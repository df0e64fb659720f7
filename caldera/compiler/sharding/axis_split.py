"""Distribution of the indices of an axis: blocks of any sizes, each owned by a part."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.errors import ShapeError

Interval = tuple[int, int]
"""Half-open range of indices: first index, and last index + 1."""
Intervals = tuple[Interval, ...]
MOST_BLOCKS = 1 << 16
"""Blocks of a split that a reshape may make; beyond, data moves instead."""


@dataclass(frozen=True)
class AxisSplit:
    """Block b has the indices from `cuts[b]` to `cuts[b + 1]` and belongs to part `owners[b]`.

    A part has its indices in ascending order, over all its blocks. Two splits that assign every
    index to the same part are equal: empty blocks are omitted, and adjacent blocks with the same
    owner are merged.

    >>> from caldera.compiler.sharding.axis_split import AxisSplit
    >>> split = AxisSplit(2, (0, 3, 3, 4, 6), (0, 1, 0, 1))
    >>> split
    AxisSplit(parts=2, cuts=(0, 4, 6), owners=(0, 1))
    >>> split.sizes, split.intervals[1]
    ((4, 2), ((4, 6),))
    """

    parts: int
    cuts: tuple[int, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        _check(self)
        cuts = [0]
        owners: list[int] = []
        for owner, begin, end in zip(self.owners, self.cuts, self.cuts[1:], strict=False):
            if begin == end:
                continue
            if owners and owners[-1] == owner:
                cuts[-1] = end
            else:
                cuts.append(end)
                owners.append(owner)
        object.__setattr__(self, "cuts", tuple(cuts))
        object.__setattr__(self, "owners", tuple(owners))

    @property
    def length(self) -> int:
        """Number of indices."""
        return self.cuts[-1]

    @cached_property
    def intervals(self) -> tuple[Intervals, ...]:
        """Blocks of each part, in order."""
        found: list[list[Interval]] = [[] for _ in range(self.parts)]
        for owner, begin, end in zip(self.owners, self.cuts, self.cuts[1:], strict=False):
            found[owner].append((begin, end))
        return tuple(map(tuple, found))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of indices in each part."""
        return tuple(map(total, self.intervals))

    def sliced(self, start: int, stop: int, step: int = 1) -> AxisSplit:
        """Return the split of the indices `start:stop:step` (step > 0), renumbered from 0.

        >>> from caldera.compiler.sharding.axis_split import even_split
        >>> even_split(10, 2).sliced(1, 10, 3)
        AxisSplit(parts=2, cuts=(0, 2, 3), owners=(0, 1))
        """
        count = len(range(start, stop, step))
        if not count:
            return AxisSplit(self.parts, (0,), ())
        cuts = [min(max(-((start - cut) // step), 0), count) for cut in self.cuts]
        return AxisSplit(self.parts, tuple(cuts), self.owners)

    def flipped(self) -> AxisSplit:
        """Return the split of the indices in reverse order."""
        cuts = tuple(self.length - cut for cut in reversed(self.cuts))
        return AxisSplit(self.parts, cuts, tuple(reversed(self.owners)))

    def joined(self, other: AxisSplit) -> AxisSplit:
        """Return the split of the concatenated axes."""
        cuts = (*self.cuts, *(self.length + cut for cut in other.cuts[1:]))
        return AxisSplit(self.parts, cuts, (*self.owners, *other.owners))

    # --- what a reshape needs

    def scaled(self, factor: int) -> AxisSplit:
        """Return the split of an axis with `factor` indices in place of each index."""
        return AxisSplit(self.parts, tuple(cut * factor for cut in self.cuts), self.owners)

    def divided(self, factor: int) -> AxisSplit | None:
        """Return the split that `scaled(factor)` turns into this split; None if there is none."""
        if any(cut % factor for cut in self.cuts):
            return None
        return AxisSplit(self.parts, tuple(cut // factor for cut in self.cuts), self.owners)

    def repeated(self, times: int) -> AxisSplit | None:
        """Return the split repeated `times` times; None if it has too many blocks."""
        if times * len(self.owners) > MOST_BLOCKS:
            return None
        cuts = [0]
        for number in range(times):
            cuts += [number * self.length + cut for cut in self.cuts[1:]]
        return AxisSplit(self.parts, tuple(cuts), self.owners * times)

    def period(self, times: int) -> AxisSplit | None:
        """Return the split that `repeated(times)` turns into this split; None if there is none."""
        each, rest = divmod(self.length, times)
        if rest:
            return None
        first = self.sliced(0, each)
        return first if first.repeated(times) == self else None


def _check(split: AxisSplit) -> None:
    cuts, owners = split.cuts, split.owners
    rising = all(a <= b for a, b in itertools.pairwise(cuts))
    if not cuts or cuts[0] != 0 or not rising or len(owners) != len(cuts) - 1:
        raise ShapeError.build(
            "AxisSplit",
            expected="cuts from 0 that never fall, and an owner for each block",
            got=f"cuts {cuts} and owners {owners}",
        )
    if any(not 0 <= owner < split.parts for owner in owners):
        raise ShapeError.build(
            "AxisSplit", expected=f"owners from 0 to {split.parts - 1}", got=str(owners)
        )


def even_split(length: int, parts: int, unit: int = 1) -> AxisSplit:
    """Return one block a part, as evenly as whole units go; the first parts have one more.

    >>> from caldera.compiler.sharding.axis_split import even_split
    >>> even_split(10, 3).cuts, even_split(10, 2, unit=4).cuts
    ((0, 4, 7, 10), (0, 8, 10))
    """
    units = -(-length // unit)
    cuts = tuple(min(length, unit * -(-units * part // parts)) for part in range(parts + 1))
    return AxisSplit(parts, cuts, tuple(range(parts)))


def cyclic_split(length: int, parts: int, block: int) -> AxisSplit:
    """Return the split with blocks of equal length dealt to all parts in turn, as in ScaLAPACK.

    >>> from caldera.compiler.sharding.axis_split import cyclic_split
    >>> cyclic_split(7, 2, 2)
    AxisSplit(parts=2, cuts=(0, 2, 4, 6, 7), owners=(0, 1, 0, 1))
    """
    cuts = (*range(0, length, block), length)
    return AxisSplit(parts, cuts, tuple(number % parts for number in range(len(cuts) - 1)))


# --- intervals


def total(intervals: Sequence[Interval]) -> int:
    """Return the number of indices in intervals."""
    return sum(end - begin for begin, end in intervals)


def overlap(first: Intervals, second: Intervals) -> Intervals:
    """Return the indices that are in both, each of which has its intervals in order.

    >>> overlap(((0, 4), (6, 9)), ((2, 7),))
    ((2, 4), (6, 7))
    """
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def positions(part: Intervals, wanted: Intervals) -> slice | np.ndarray:
    """Return the local positions of the indices `wanted` in a part.

    All indices must be in the part, in order.

    >>> positions(((0, 4), (6, 9)), ((2, 4), (6, 7)))
    slice(2, 5, None)
    >>> positions(((0, 9),), ((2, 4), (6, 7)))
    array([2, 3, 6])
    """
    found = list(_runs(part, wanted))
    if len(found) == 1:
        return slice(*found[0])
    if not found:
        return slice(0, 0)
    return np.concatenate([np.arange(begin, end) for begin, end in found])


def _runs(part: Intervals, wanted: Intervals) -> Iterator[Interval]:
    """Yield the intervals of `wanted` as local positions in a part."""
    held, place, run = iter(part), 0, None
    begin, end = next(held, (0, 0))
    for first, last in wanted:
        while last > end:
            place += end - begin
            begin, end = next(held)
        here = place + first - begin
        if run is not None and run[1] == here:
            run = (run[0], here + last - first)
            continue
        if run is not None:
            yield run
        run = (here, here + last - first)
    if run is not None:
        yield run


def indices(intervals: Intervals) -> np.ndarray:
    """Return all indices as an array."""
    if not intervals:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(begin, end) for begin, end in intervals])
