"""Partners swap all they have and add it up, twice as far away each time.

The fewest messages, log2(n) a rank: for vectors so small that latency is what counts, or so alike
over the ranks that their sum is hardly denser than one of them.
"""

from __future__ import annotations

import numpy as np

from caldera.comm import Communicator
from caldera.compress.sparse.codec import SparseCodec
from caldera.compress.sparse.vector import SparseVector

_FOLD = 0
"""The stage in which ranks beyond the largest power of two hand over what they have."""


def recursive_doubling(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> SparseVector:
    """The sum over all ranks, the same bits on each.

    After stage s, groups of 2**s ranks hold the same sum. All of a group encode it alike, with
    the draws of their first rank, who keeps what is lost.
    """
    rank, size = communicator.rank, communicator.size
    paired = 1 << (size.bit_length() - 1)
    whole, dtype = (0, vector.length), vector.values.dtype
    longest = coding.longest(whole)

    def swap(leaving: dict[int, np.ndarray], *others: int) -> list[np.ndarray]:
        arrived = communicator.exchange_messages(leaving, dict.fromkeys(others, longest))
        return [arrived[other] for other in others]

    def decoded(message: np.ndarray) -> SparseVector:
        places, values, _ = coding.decode([message], [whole], dtype)
        return SparseVector(vector.length, places, values)

    if rank >= paired:
        partner = rank - paired
        (message,) = coding.encode(vector, [whole], _FOLD, rank)
        swap({partner: message})
        first, second = (swap({}, partner)[0] for _ in range(2))
        return decoded(first) + decoded(second)
    if rank + paired < size:
        vector = vector + decoded(swap({}, rank + paired)[0])
    messages: list[np.ndarray] = []
    for stage in range(paired.bit_length() - 1):
        leader = rank >> stage << stage
        (mine,) = coding.encode(vector, [whole], stage + 1, leader)
        other = rank ^ (1 << stage)
        (theirs,) = swap({other: mine}, other)
        messages = [mine, theirs] if rank < other else [theirs, mine]
        vector = decoded(mine) + decoded(theirs)
    if rank + paired < size:
        for message in messages:
            swap({rank + paired: message})
    return vector
