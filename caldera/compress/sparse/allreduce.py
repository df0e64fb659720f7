"""Sums of sparse vectors over ranks, after SparCML (Renggli and others, 2018).

- **recursive doubling**: partners swap all they have and add it up, twice as far away each time.
  The fewest messages, log2(n) a rank: for vectors so small that latency is what counts, or so alike
  over the ranks that their sum is hardly denser than one of them.
- **split**: each rank adds up one part of all vectors, and all ranks gather the parts. Every value
  travels to one rank, not to all: for vectors large enough that bandwidth counts. The parts of the
  sum are denser than what was summed. `split_allgather` still sends them with their places;
  `dense_switching` sends all their elements without, which is less once most are not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from caldera.base.registry import Registry
from caldera.comm import Communicator
from caldera.compress.codecs import RawCodec
from caldera.compress.messages import EMPTY, allgather_messages, alltoall_messages, bounds
from caldera.compress.random_stream import RandomStream
from caldera.compress.sparse.codec import SparseCodec
from caldera.compress.sparse.cost import Link, fastest
from caldera.compress.sparse.vector import SparseVector
from caldera.kernels.native.compression import add_at
from caldera.kernels.native.compression.rice import Span

Sum = SparseVector | np.ndarray
Algorithm = Callable[[Communicator, SparseVector, SparseCodec], Sum]
_FOLD = 0
"""The stage in which ranks beyond the largest power of two hand over what they have."""
_SUMMANDS, _SUMS = 0, 1


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


ALGORITHMS: Registry[Algorithm] = Registry("sparse allreduce")
ALGORITHMS.add("recursive_doubling", recursive_doubling)
ALGORITHMS.add("split_allgather", split_allgather)
ALGORITHMS.add("dense_switching", dense_switching)


def sparse_allreduce(
    vector: SparseVector,
    communicator: Communicator,
    *,
    algorithm: str = "auto",
    link: Link | None = None,
) -> np.ndarray:
    """The sum of the ranks' vectors, all its elements, the same bits on every rank.

    `algorithm` is "recursive_doubling", "split_allgather", "dense_switching" or "auto": the one
    that the cost model expects to be fastest on this `link`.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     mine = np.zeros(6, np.float32)
    ...     mine[[0, communicator.rank + 1]] = 1.0
    ...     return compress.sparse_allreduce(compress.SparseVector.of(mine), communicator)
    >>> comm.run_virtual_ranks(3, work)[0]
    array([3., 1., 1., 1., 0., 0.], dtype=float32)
    """
    counts = np.array([vector.places.size], np.int64)
    communicator.Allreduce(counts.copy(), counts, op="max")
    coding = SparseCodec(
        RawCodec(vector.values.dtype), RandomStream(0, 0, ""), communicator.rank, None
    )
    total = sum_sparse(vector, communicator, coding, int(counts[0]), algorithm, link)
    return total if isinstance(total, np.ndarray) else total.dense()


def sum_sparse(
    vector: SparseVector,
    communicator: Communicator,
    coding: SparseCodec,
    expected: int,
    algorithm: str = "auto",
    link: Link | None = None,
) -> Sum:
    """As `sparse_allreduce` with any coding; all ranks expect the same number of places."""
    if algorithm == "auto":
        bits = coding.code.bits(expected)
        algorithm = fastest(vector.length, expected, communicator.size, bits, link)
    chosen = ALGORITHMS[algorithm]
    return vector if communicator.size == 1 else chosen(communicator, vector, coding)
