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
from caldera.compress.sparse.codec import SparseCodec
from caldera.compress.sparse.vector import SparseVector
from caldera.kernels.native.compression import add_at
from caldera.kernels.native.compression.rice import Span

_SUMMANDS, _SUMS = 0, 1


def split_allgather(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> SparseVector:
    """The sum over all ranks, the same bits on each; its parts travel sparse."""
    parts, total = _sum_of_part(communicator, vector, coding)
    mine = parts[communicator.rank]
    summed = SparseVector.of(total, mine[0], vector.length)
    (message,) = coding.encode(summed, [mine], _SUMS, communicator.rank)
    longest = [coding.longest(part) for part in parts]
    messages = allgather_messages(communicator, message, longest)
    places, values, _ = coding.decode(messages, parts, total.dtype)
    return SparseVector(vector.length, places, values)


def dense_switching(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> np.ndarray:
    """The sum over all ranks, the same bits on each; its parts travel whole."""
    parts, total = _sum_of_part(communicator, vector, coding)
    message = coding.encode_dense(total, _SUMS, parts[communicator.rank][0])
    lengths = [end - begin for begin, end in parts]
    longest = [coding.code.longest(length, total.dtype) for length in lengths]
    messages = allgather_messages(communicator, message, longest)
    return coding.code.decode_all(messages, lengths, total.dtype)


def _sum_of_part(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> tuple[list[Span], np.ndarray]:
    """The parts, and the sum of this rank's, added up in the order of ranks."""
    rank, size = communicator.rank, communicator.size
    parts = list(pairwise(bounds(vector.length, size)))
    mine = parts[rank]
    others = parts[:rank] + parts[rank + 1 :]
    leaving = coding.encode(vector, others, _SUMMANDS, rank)
    leaving.insert(rank, EMPTY)
    arriving = alltoall_messages(communicator, leaving, coding.longest(mine))
    del arriving[rank]
    places, values, counts = coding.decode(arriving, [mine] * (size - 1), vector.values.dtype)
    total = np.zeros(mine[1] - mine[0], vector.values.dtype)
    before = sum(counts[:rank])
    add_at(total, places[:before], values[:before], mine[0])
    # What stays here does not travel, and is not rounded.
    low, high = vector.span(mine)
    add_at(total, vector.places[low:high], vector.values[low:high], mine[0])
    add_at(total, places[before:], values[before:], mine[0])
    return parts, total
