"""Sums along a fixed tree: the same bits for any number of ranks.

The tree has a fixed number of leaves, in order; each node is the sum of its two halves. Each rank
holds the leaves of one interval. It adds the subtrees inside its interval; the remaining levels are
added by the rank that owns the respective part of the elements.
"""

from __future__ import annotations

import numpy as np

from caldera.comm.communicator import Communicator

LeafRange = tuple[int, int]


def leaf_range(rank: int, ranks: int, leaves: int) -> LeafRange:
    """Return the range of leaves of a rank, end excluded.

    >>> [leaf_range(rank, 3, 8) for rank in range(3)]
    [(0, 2), (2, 5), (5, 8)]
    """
    return leaves * rank // ranks, leaves * (rank + 1) // ranks


def tree_sum(rows: np.ndarray, leaves: int, communicator: Communicator) -> np.ndarray:
    """Return the sum of the leaves of all ranks; `rows` has this rank's, and is used up.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> tree_sum(np.array([[1.0], [2.0], [4.0]]), 3, SingleProcess())
    array([7.])
    """
    ranks = communicator.size
    first, last = leaf_range(communicator.rank, ranks, leaves)
    own = _subtrees(first, last, 0, leaves)
    for low, high in own:
        _add_up(rows, low - first, high - first)
    if ranks == 1:
        return rows[0]
    counts = [end - begin for begin, end in _parts(rows.shape[1], ranks)]
    held = [_subtrees(*leaf_range(rank, ranks, leaves), 0, leaves) for rank in range(ranks)]
    # Each rank adds one part of the elements, for which it needs the subtrees of all ranks.
    sent = np.concatenate(
        [
            rows[low - first, begin:end]
            for begin, end in _parts(rows.shape[1], ranks)
            for low, _ in own
        ]
    )
    mine = counts[communicator.rank]
    received = np.empty(mine * sum(map(len, held)), rows.dtype)
    communicator.Alltoall(
        sent, received, [len(own) * count for count in counts], [len(each) * mine for each in held]
    )
    values = received.reshape(-1, mine) if mine else np.empty((sum(map(len, held)), 0), rows.dtype)
    known = dict(zip((stretch for each in held for stretch in each), values, strict=True))
    part = np.ascontiguousarray(_value(known, 0, leaves))
    total = np.empty(rows.shape[1], rows.dtype)
    communicator.Allgather(part, total, counts)
    return total


def _parts(elements: int, ranks: int) -> list[LeafRange]:
    return [leaf_range(rank, ranks, elements) for rank in range(ranks)]


def _subtrees(first: int, last: int, low: int, high: int) -> list[LeafRange]:
    """Return the largest subtrees of (low, high) that lie wholly in a stretch, in order."""
    if last <= low or high <= first or low == high:
        return []
    if first <= low and high <= last:
        return [(low, high)]
    middle = (low + high) // 2
    return [*_subtrees(first, last, low, middle), *_subtrees(first, last, middle, high)]


def _add_up(rows: np.ndarray, low: int, high: int) -> None:
    """Row `low` becomes the sum of the subtree."""
    if high - low < 2:
        return
    middle = (low + high) // 2
    _add_up(rows, low, middle)
    _add_up(rows, middle, high)
    rows[low] += rows[middle]


def _value(known: dict[LeafRange, np.ndarray], low: int, high: int) -> np.ndarray:
    if (low, high) in known:
        return known[low, high]
    middle = (low + high) // 2
    return _value(known, low, middle) + _value(known, middle, high)
