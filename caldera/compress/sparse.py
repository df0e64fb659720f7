"""Sparse vectors, their wire format, the allreduce of SparCML, and the cost of its algorithms.

A message costs the latency and its bytes over the bandwidth, plus computing time. Indices are
assumed random, so that the sum of m vectors of density d has density 1 - (1 - d)**m.

A sparse vector stores sorted indices and their values. The codec keeps the errors of rounding the
values. The allreduce (Renggli and others, 2018) has two forms:

- **recursive doubling**: partners exchange and add their sums, at twice the distance each time. It
  sends the fewest messages, log2(n) per rank. It suits vectors so small that latency dominates, or
  so similar over the ranks that their sum is hardly denser than a single vector.
- **split**: each rank sums one part of all vectors, and all ranks gather the parts. Every value is
  sent to one rank instead of all. It suits vectors so large that bandwidth dominates. The parts of
  the sum are denser than the summands. `split_allgather` sends them with their indices;
  `dense_switching` sends all their elements without indices, which is shorter once most are
  nonzero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log2

import numpy as np

from caldera.base.arguments import refusal, require, within
from caldera.base.registry import Registry
from caldera.comm import Communicator
from caldera.comm.autotune import Link, link_for_choices
from caldera.compress.codecs import Codec, RawCodec
from caldera.compress.compressor import (
    AT_ONCE,
    EMPTY,
    HEADER,
    RandomStream,
    allgather_messages,
    alltoall_messages,
    bounds,
    max_index_bytes,
    packed_bits,
)
from caldera.core.tensor.dtype import DType
from caldera.errors import ShapeError
from caldera.kernels.native.compression import add_at, merge_sorted, not_zero
from caldera.kernels.native.compression.rice import Span, pack, unpack

NAMES = ("recursive_doubling", "split_allgather", "dense_switching")
_ENCODED, _DECODED, _MERGED = 15e-9, 7e-9, 3e-9
_ENCODED_DENSE, _DECODED_DENSE = 7e-9, 1e-9
_POSTED = 2e-5
"""Seconds that a core works on a value, with its place or without, and on any message. Measured on
a Neoverse N1; what counts is how they compare."""


def predicted_seconds(
    length: int, count: int, ranks: int, bits: float, link: Link | None = None
) -> dict[str, float]:
    """Return the time on the wire of each algorithm, for `count` of `length` elements a rank and
    `bits` a value.

    >>> from caldera import compress
    >>> slow = compress.Link(latency=1e-4, bandwidth=12.5e6)
    >>> times = compress.predicted_seconds(1_000_000, 31_250, ranks=8, bits=4, link=slow)
    >>> min(times, key=times.get)
    'split_allgather'
    """
    link = link or Link()
    within("predicted_seconds", "ranks", ranks, 1, 2**31)
    if ranks == 1 or not length:
        return dict.fromkeys(NAMES, 0.0)
    density = min(count / length, 1.0)

    def size(vectors: int, part: float) -> float:
        """Return the bytes of the sum of `vectors` vectors, for a fraction of all elements."""
        dense = 1 - (1 - density) ** vectors
        return HEADER + length * part * dense * (packed_bits(dense) + bits) / 8

    others = ranks - 1
    stages = int(log2(ranks))
    doubling = sum(link.seconds(size(1 << stage, 1.0)) for stage in range(stages))
    if ranks > 1 << stages:
        doubling += link.seconds(size(1, 1.0)) + link.seconds(2 * size(1 << stages >> 1, 1.0), 2)

    def gather(longest: float, each: float) -> float:
        """Return the cost of a direct exchange, or of lengths in log2(ranks) rounds and then a
        ring.
        """
        rounds = 1 if longest <= AT_ONCE else stages + others
        return link.seconds(others * each, rounds)

    scatter = link.seconds(others * size(1, 1 / ranks))
    sparse = gather(length * (1 + bits) / 8, size(ranks, 1 / ranks))
    dense = gather(length * bits / 8, length / ranks * bits / 8)
    return dict(zip(NAMES, (doubling, scatter + sparse, scatter + dense), strict=True))


def predicted_work(length: int, count: int, ranks: int) -> dict[str, float]:
    """Return the computing time of each algorithm, without the work common to all."""
    if ranks == 1 or not length:
        return dict.fromkeys(NAMES, 0.0)
    density = min(count / length, 1.0)

    def values(vectors: int) -> float:
        """Return the number of nonzero values in the sum of `vectors` vectors."""
        return length * (1 - (1 - density) ** vectors)

    stages = int(log2(ranks))
    doubling = sum(
        _POSTED + values(1 << stage) * (_ENCODED + 2 * (_DECODED + _MERGED))
        for stage in range(stages)
    )
    scatter = (ranks - 1) * _POSTED + values(1) * (_ENCODED + _DECODED)
    sparse = (ranks - 1) * _POSTED + values(ranks) * (_ENCODED / ranks + _DECODED)
    dense = (ranks - 1) * _POSTED + length * (_ENCODED_DENSE / ranks + _DECODED_DENSE)
    return dict(zip(NAMES, (doubling, scatter + sparse, scatter + dense), strict=True))


@lru_cache(maxsize=4096)
def fastest(length: int, count: int, ranks: int, bits: float, link: Link | None = None) -> str:
    """Return the algorithm that takes least time, on the wire and of a core.

    >>> from caldera.compress.sparse import Link, fastest
    >>> fastest(1_000_000, 31_250, ranks=8, bits=4, link=Link(latency=1e-5, bandwidth=1e9))
    'split_allgather'
    """
    wire = predicted_seconds(length, count, ranks, bits, link)
    work = predicted_work(length, count, ranks)
    return min(NAMES, key=lambda name: wire[name] + work[name])


LONGEST = 2**31 - 1


@dataclass(frozen=True)
class SparseVector:
    """A vector of `length` elements that is zero but at some places.

    `places` are int32 and increase; `values` are float32 or float64.

    >>> import numpy as np
    >>> from caldera.compress.sparse import SparseVector
    >>> x = SparseVector.of(np.array([0.0, 3.0, 0.0, 4.0], np.float32))
    >>> y = SparseVector.of(np.array([0.0, 1.0, 5.0, 0.0], np.float32))
    >>> (x + y).dense()
    array([0., 4., 5., 4.], dtype=float32)
    """

    length: int
    places: np.ndarray
    values: np.ndarray

    def __post_init__(self) -> None:
        for name in ("places", "values"):
            if not isinstance(getattr(self, name), np.ndarray):
                raise refusal("SparseVector", name, "an array", getattr(self, name))
        require(
            self.length <= LONGEST and self.places.shape == self.values.shape,
            "SparseVector",
            f"up to {LONGEST} elements, a value for every place",
            f"{self.length}, {self.places.shape} and {self.values.shape}",
            hint="exchange fewer parameters per message",
            error=ShapeError,
        )

    @classmethod
    def of(cls, dense: np.ndarray, begin: int = 0, length: int | None = None) -> SparseVector:
        """Return the elements of a vector that are not zero.

        It may be a part that begins somewhere.
        """
        places, values = not_zero(dense, begin)
        return cls(dense.size if length is None else length, places, values)

    def __add__(self, other: SparseVector) -> SparseVector:
        places, values = merge_sorted((self.places, self.values), (other.places, other.values))
        return SparseVector(self.length, places, values)

    def span(self, part: tuple[int, int]) -> tuple[int, int]:
        """Return the range of stored indices inside a part."""
        low, high = np.searchsorted(self.places, np.array(part, np.int32))
        return int(low), int(high)

    def dense(self) -> np.ndarray:
        """Return the dense vector."""
        whole = np.zeros(self.length, self.values.dtype)
        whole[self.places] = self.values
        return whole


class SparseCodec:
    """Encoding of values in one allreduce: a code and the draws for rounding.

    A rank's rounding error is added to `kept`, a vector of full length, and only once: where
    several ranks round the same vector alike, one rank owns the error. Over all ranks, the sum and
    the kept errors add up to the exact sum.
    """

    def __init__(
        self, code: Codec, random_stream: RandomStream, rank: int, kept: np.ndarray | None
    ) -> None:
        self.code = code
        self._chance = random_stream
        self._rank = rank
        self._kept = kept

    def encode(
        self, vector: SparseVector, parts: Sequence[Span], stage: int, owner: int
    ) -> list[np.ndarray]:
        """Return the messages of some parts of a vector.

        `owner` is the rank by whose draws of this stage they are rounded, and who keeps the loss.
        """
        spans = [vector.span(part) for part in parts]
        free = [self._size(high - low) for low, high in spans]
        messages = pack(vector.places, spans, parts, free)
        behind = [each[each.size - size :] for each, size in zip(messages, free, strict=True)]
        lost = self.code.encode_all(vector.values, spans, behind, self._chance.of(owner, stage))
        if lost is not None and self._kept is not None and owner == self._rank:
            add_at(self._kept, vector.places, lost.astype(self._kept.dtype, copy=False))
        return messages

    def decode(
        self, messages: Sequence[np.ndarray], parts: Sequence[Span], dtype: DType
    ) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Return the indices and values of messages for these parts, and the count of each
        message.
        """
        places, counts, taken = unpack(messages, parts)
        behind = [each[size:] for each, size in zip(messages, taken, strict=True)]
        return places, self.code.decode_all(behind, counts, dtype), counts

    def longest(self, part: Span) -> int:
        """Return the most bytes that the message of a part can have."""
        length = part[1] - part[0]
        return max_index_bytes(length) + self._size(length)

    def encode_dense(self, part: np.ndarray, stage: int, begin: int) -> np.ndarray:
        """Return the message of a part of the sum with all its elements, which this rank owns."""
        message = np.empty(self._size(part.size), np.uint8)
        draws = self._chance.of(self._rank, stage)
        lost = self.code.encode_all(part, [(0, part.size)], [message], draws)
        if lost is not None and self._kept is not None:
            self._kept[begin : begin + part.size] += lost
        return message

    def _size(self, count: int) -> int:
        size = self.code.size(count)
        assert size is not None, "sparse values travel in a code whose size is known"
        return size


Sum = SparseVector | np.ndarray
Algorithm = Callable[[Communicator, SparseVector, SparseCodec], Sum]
_FOLD = 0
"""Stage in which ranks beyond the largest power of two send their vectors."""
_SUMMANDS, _SUMS = 0, 1


def recursive_doubling(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> SparseVector:
    """Return the sum over all ranks, with the same bits on each rank.

    After stage s, groups of 2**s ranks have the same sum. All ranks of a group encode it alike,
    with the draws of the group's first rank, which keeps the error.
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
        (mine,) = coding.encode(vector, [whole], stage + 1, rank >> stage << stage)
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
    """Return the sum over all ranks, the same bits on each; its parts travel sparse."""
    parts, total = _sum_of_part(communicator, vector, coding)
    mine = parts[communicator.rank]
    summed = SparseVector.of(total, mine[0], vector.length)
    (message,) = coding.encode(summed, [mine], _SUMS, communicator.rank)
    messages = allgather_messages(communicator, message, [coding.longest(part) for part in parts])
    places, values, _ = coding.decode(messages, parts, total.dtype)
    return SparseVector(vector.length, places, values)


def dense_switching(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> np.ndarray:
    """Return the sum over all ranks, the same bits on each; its parts travel whole."""
    parts, total = _sum_of_part(communicator, vector, coding)
    message = coding.encode_dense(total, _SUMS, parts[communicator.rank][0])
    lengths = [end - begin for begin, end in parts]
    longest = [coding.code.longest(length, total.dtype) for length in lengths]
    messages = allgather_messages(communicator, message, longest)
    return coding.code.decode_all(messages, lengths, total.dtype)


def _sum_of_part(
    communicator: Communicator, vector: SparseVector, coding: SparseCodec
) -> tuple[list[Span], np.ndarray]:
    """Return the parts, and the sum of this rank's, added up in the order of ranks."""
    rank, size = communicator.rank, communicator.size
    parts = list(pairwise(bounds(vector.length, size)))
    mine = parts[rank]
    leaving = coding.encode(vector, parts[:rank] + parts[rank + 1 :], _SUMMANDS, rank)
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
    """Return the dense sum of the ranks' vectors, with the same bits on every rank.

    `algorithm` is "recursive_doubling", "split_allgather", "dense_switching" or "auto", which
    selects the fastest by the cost model on this `link`, by default the measured link.

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
    link = link or link_for_choices(communicator)
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
    """Sum sparse vectors with any coding; all ranks expect the same number of places."""
    if algorithm == "auto":
        bits = coding.code.bits(expected)
        algorithm = fastest(vector.length, expected, communicator.size, bits, link)
    chosen = ALGORITHMS[algorithm]
    return vector if communicator.size == 1 else chosen(communicator, vector, coding)
