"""Partners swap all they have and add it up, twice as far away each time.

The fewest messages, log2(n) a rank: for vectors so small that latency is what counts, or so alike
over the ranks that their sum is hardly denser than one of them.
"""

from __future__ import annotations

import numpy as np

from caldera.comm import Communicator
from caldera.compress.messages import receive_message, send_message, swap_messages
from caldera.compress.sparse.coding import Coding
from caldera.compress.sparse.vector import SparseVector

_FOLD = 0
"""The stage in which ranks beyond the largest power of two hand over what they have."""


def recursive_doubling(
    communicator: Communicator, vector: SparseVector, coding: Coding
) -> SparseVector:
    """The sum over all ranks, the same bits on each.

    After stage s, groups of 2**s ranks hold the same sum. All of a group encode it alike, with
    the draws of their first rank, who keeps what is lost.
    """
    rank, size = communicator.rank, communicator.size
    paired = 1 << (size.bit_length() - 1)
    dtype = vector.values.dtype
    if rank >= paired:
        partner = rank - paired
        (message,), _ = coding.encode([vector], [0], _FOLD, rank)
        send_message(communicator, message, partner)
        last = [receive_message(communicator, partner) for _ in range(2)]
        return _sum(coding, last, vector.length, dtype)
    if rank + paired < size:
        message = receive_message(communicator, rank + paired)
        vector = vector + coding.decode(message, vector.length, dtype)
    messages: list[np.ndarray] = []
    for stage in range(paired.bit_length() - 1):
        leader = rank >> stage << stage
        (mine,), (sent,) = coding.encode([vector], [0], stage + 1, leader)
        other = rank ^ (1 << stage)
        theirs = swap_messages(communicator, mine, other)
        messages = [mine, theirs] if rank < other else [theirs, mine]
        vector = sent + coding.decode(theirs, vector.length, dtype)
    if rank + paired < size:
        for message in messages:
            send_message(communicator, message, rank + paired)
    return vector


def _sum(coding: Coding, messages: list[np.ndarray], length: int, dtype: np.dtype) -> SparseVector:
    first, second = (coding.decode(message, length, dtype) for message in messages)
    return first + second
