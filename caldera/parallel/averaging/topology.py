"""Which ranks share with which, and by how much: patterns of gossip as matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caldera.data.random_draws import permutation


def ring(ranks: int, turn: int, seed: int) -> np.ndarray:
    """Each rank with its two neighbours.

    >>> from caldera.parallel.averaging.topology import ring
    >>> ring(4, turn=0, seed=0)
    array([[1, 1, 0, 1],
           [1, 1, 1, 0],
           [0, 1, 1, 1],
           [1, 0, 1, 1]])
    """
    found = np.eye(ranks, dtype=np.int64)
    for rank in range(ranks):
        for neighbour in ((rank - 1) % ranks, (rank + 1) % ranks):
            found[rank, neighbour] = 1
    return found


def random_pairs(ranks: int, turn: int, seed: int) -> np.ndarray:
    """Each rank with one other, in every turn another; of an odd number one is by itself.

    >>> from caldera.parallel.averaging.topology import random_pairs
    >>> random_pairs(3, turn=0, seed=0)
    array([[1, 0, 1],
           [0, 2, 0],
           [1, 0, 1]])
    """
    found = 2 * np.eye(ranks, dtype=np.int64)
    order = permutation(ranks, seed, turn)
    for one, other in zip(order[0::2], order[1::2], strict=False):
        found[one, one] = found[other, other] = 1
        found[one, other] = found[other, one] = 1
    return found


PATTERNS: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "ring": ring,
    "random pairs": random_pairs,
}
"""Whole numbers: how often each rank counts for each. Rows and columns all have the same sum."""
