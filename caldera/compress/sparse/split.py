"""Each rank adds up one part of all vectors, and all ranks gather the parts.

Every value travels to one rank, not to all: for vectors large enough that bandwidth counts. The
parts of the sum are denser than what was summed. `split_allgather` still sends them with their
places; `dense_switching` sends all their elements without, which is less once most are not zero.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from caldera.comm import Communicator
from caldera.compress.messages import EMPTY, allgather_messages, alltoall_messages, bounds
from caldera.compress.sparse.coding import Coding
from caldera.compress.sparse.vector import SparseVector
from caldera.kernels.native.compression import add_at

_SUMMANDS, _SUMS = 0, 1


def split_allgather(
    communicator: Communicator, vector: SparseVector, coding: Coding
) -> SparseVector:
    """The sum over all ranks, the same bits on each; its parts travel sparse."""
    edges, total = _sum_of_part(communicator, vector, coding)
    rank = communicator.rank
    (message,), _ = coding.encode([SparseVector.of(total)], [edges[rank]], _SUMS, rank)
    messages = allgather_messages(communicator, message, [None] * communicator.size)
    parts = [
        coding.decode(each, end - begin, total.dtype)
        for each, (begin, end) in zip(messages, pairwise(edges), strict=True)
    ]
    places = [p.places + np.int32(begin) for p, begin in zip(parts, edges, strict=False)]
    values = [part.values for part in parts]
    return SparseVector(vector.length, np.concatenate(places), np.concatenate(values))


def dense_switching(communicator: Communicator, vector: SparseVector, coding: Coding) -> np.ndarray:
    """The sum over all ranks, the same bits on each; its parts travel whole."""
    edges, total = _sum_of_part(communicator, vector, coding)
    message = coding.encode_dense(total, _SUMS, edges[communicator.rank])
    lengths = [end - begin for begin, end in pairwise(edges)]
    known = [coding.code.size(length) for length in lengths]
    messages = allgather_messages(communicator, message, known)
    return np.concatenate([
        coding.code.decode(each, length, total.dtype)
        for each, length in zip(messages, lengths, strict=True)
    ])  # fmt: skip


def _sum_of_part(
    communicator: Communicator, vector: SparseVector, coding: Coding
) -> tuple[list[int], np.ndarray]:
    """Where the parts begin, and the sum of this rank's part, added up in the order of ranks."""
    rank, size = communicator.rank, communicator.size
    edges = bounds(vector.length, size)
    pieces = [vector.between(begin, end) for begin, end in pairwise(edges)]
    others = [other for other in range(size) if other != rank]
    leaving, _ = coding.encode(
        [pieces[other] for other in others], [edges[other] for other in others], _SUMMANDS, rank
    )
    # What stays here does not travel, and is not rounded.
    leaving.insert(rank, EMPTY)
    arriving = alltoall_messages(communicator, leaving, [None] * size)
    total = np.zeros(pieces[rank].length, vector.values.dtype)
    for other, message in enumerate(arriving):
        piece = pieces[rank] if other == rank else coding.decode(message, total.size, total.dtype)
        add_at(total, piece.places, piece.values)
    return edges, total
