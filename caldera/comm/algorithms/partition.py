"""How a buffer is cut into the parts of ranks, and those into segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

SEGMENT_BYTES = 61440
"""What travels as one message where somebody waits for it. Smaller than what MPI sends without
asking the receiver first, and large enough that the cost of a message is small beside it."""


def even_counts(elements: int, parts: int) -> list[int]:
    """As equal as possible, the larger parts first.

    >>> even_counts(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(elements, parts)
    return [size + (part < larger) for part in range(parts)]


def bounds(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Where each part begins and ends.

    >>> bounds([3, 0, 2])
    [(0, 3), (3, 3), (3, 5)]
    """
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return list(pairwise(ends))


def segments(part: tuple[int, int], elements: int) -> list[tuple[int, int]]:
    """A part in pieces of at most `elements` elements.

    >>> segments((10, 15), 2)
    [(10, 12), (12, 14), (14, 15)]
    """
    begin, end = part
    return [(at, min(at + elements, end)) for at in range(begin, end, elements)]
