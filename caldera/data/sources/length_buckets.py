"""To which lengths sequences are padded: few of them, and little padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.errors import ConfigError

PADDING = 0.05
"""The part of all steps that may be padding, where the number of buckets is chosen."""
MOST_BUCKETS = 16
_MOST_CANDIDATES = 256


def bucket_lengths(
    lengths: NDArray[np.int64], wanted: int | Sequence[int] | None = None
) -> tuple[int, ...]:
    """The lengths to pad to, in order: as given, so many, or the fewest that suffice.

    >>> bucket_lengths(np.array([1, 2, 9, 10]), 2)
    (2, 10)
    >>> bucket_lengths(np.array([7, 7, 7]))
    (7,)
    """
    longest = int(lengths.max())
    if wanted is not None and not isinstance(wanted, int):
        return _given(wanted, longest)
    if isinstance(wanted, bool) or (wanted is not None and not 1 <= wanted <= 1024):
        raise ConfigError.build(
            "data.RaggedData", expected="buckets= how many, or their lengths", got=repr(wanted)
        )
    ends, counts = _candidates(lengths)
    most = min(wanted or MOST_BUCKETS, len(ends))
    cost, came_from = _cheapest(ends, counts, most)
    total = float(lengths.sum())
    number = most
    if wanted is None:
        number = next((k + 1 for k in range(most) if 1 - total / cost[k, -1] <= PADDING), most)
    found, end = [], len(ends) - 1
    for k in range(number - 1, -1, -1):
        found.append(int(ends[end]))
        end = int(came_from[k, end])
        if end < 0:
            break
    return tuple(reversed(found))


def _given(wanted: Sequence[int], longest: int) -> tuple[int, ...]:
    found: list[Any] = list(wanted)
    if not found or not all(isinstance(each, int | np.integer) and each > 0 for each in found):
        raise ConfigError.build(
            "data.RaggedData", expected="buckets= lengths above 0", got=repr(wanted)[:80]
        )
    if max(found) < longest:
        raise ConfigError.build(
            "data.RaggedData",
            expected=f"a bucket for the longest sequence, of {longest} steps",
            got=f"{max(found)} at most",
            hint="add one, or cut the sequences",
        )
    return tuple(sorted({int(each) for each in found}))


def _candidates(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths that buckets may have, and how many sequences each takes from the one before."""
    values, counts = np.unique(lengths, return_counts=True)
    if len(values) > _MOST_CANDIDATES:
        # Of many, those that divide the sequences into equal parts.
        total = np.cumsum(counts)
        places = np.searchsorted(total, np.linspace(0, total[-1], _MOST_CANDIDATES + 1)[1:])
        values = np.unique(values[np.minimum(places, len(values) - 1)])
        edges = np.searchsorted(np.sort(lengths), values, side="right")
        counts = np.diff(edges, prepend=0)
    return values.astype(np.int64), counts.astype(np.int64)


def _cheapest(
    ends: NDArray[np.int64], counts: NDArray[np.int64], most: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """For each number of buckets and last candidate: the fewest padded steps, and the bucket before
    the last. A dynamic program: what is best for k buckets ends with what is best for k - 1."""
    upto = np.concatenate([[0], np.cumsum(counts)])
    size = len(ends)
    cost = np.full((most, size), np.inf)
    came_from = np.full((most, size), -1, np.int64)
    cost[0] = upto[1:] * ends
    for k in range(1, most):
        for end in range(k, size):
            before = cost[k - 1, :end] + (upto[end + 1] - upto[1 : end + 1]) * ends[end]
            came_from[k, end] = int(before.argmin())
            cost[k, end] = before[came_from[k, end]]
    return cost, came_from
