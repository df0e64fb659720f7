"""Messages of compressed exchanges: variable lengths, packed indices, random words.

Only the sender has the length of a message; the receiver has an upper bound, and no length is
announced. Indices of a sparse message are packed in the shorter of two lossless forms (layout:
`kernels.native.compression.rice`):

- **gaps**: the differences of successive indices, in Rice code. For randomly spread indices this
  is within 3% of the entropy; with the parameter 0 it is a bitmap.
- **runs**: the gaps before runs of consecutive indices and the lengths of the runs, both in Rice
  code. Rows of an embedding have this form.

The random words of an exchange depend on the rounded values, never on timing. The stream is
selected by the parameter, the step by the number of its exchanges; ranks and the stages of an
exchange use successive positions of the stream, so no two share a word.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from caldera.comm import Communicator
from caldera.errors import DataError
from caldera.kernels.native.compression.rice import HEADER, pack, unpack
from caldera.kernels.native.compression.stochastic_rounding import ALIGNED, Draws

EMPTY = np.empty(0, np.uint8)
AT_ONCE = 1 << 20
"""Bytes up to which everybody sends to everybody at once. More would meet in front of one link."""


def bounds(length: int, parts: int) -> list[int]:
    """Where the parts of a vector begin, and its end: multiples of 64, about equally far apart.

    >>> bounds(1000, 3)
    [0, 320, 640, 1000]
    """
    blocks = -(-length // ALIGNED)
    return [min(blocks * part // parts * ALIGNED, length) for part in range(parts + 1)]


def alltoall_messages(
    communicator: Communicator, leaving: Sequence[np.ndarray], longest: int
) -> list[np.ndarray]:
    """Message r goes to rank r; those that came, by rank, none of more bytes than `longest`. What
    a rank has for itself is left out: nothing is in its place."""
    others = [rank for rank in range(communicator.size) if rank != communicator.rank]
    arrived = communicator.exchange_messages(
        {rank: leaving[rank] for rank in others}, dict.fromkeys(others, longest)
    )
    return [arrived.get(rank, EMPTY) for rank in range(communicator.size)]


def allgather_messages(
    communicator: Communicator, message: np.ndarray, longest: Sequence[int]
) -> list[np.ndarray]:
    """The messages of all ranks, on every rank; that of rank r has at most `longest[r]` bytes."""
    if sum(longest) <= AT_ONCE:
        others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        arrived = communicator.exchange_messages(
            dict.fromkeys(others, message), {rank: longest[rank] for rank in others}
        )
        return [arrived.get(rank, message) for rank in range(communicator.size)]
    # What goes around the ring has to be announced.
    lengths = np.empty(communicator.size, np.int64)
    communicator.Allgather(np.array([message.size], np.int64), lengths)
    received = np.empty(int(lengths.sum()), np.uint8)
    communicator.Allgather(message, received, lengths.tolist())
    edges = [0, *np.cumsum(lengths).tolist()]
    return [received[begin:end] for begin, end in pairwise(edges)]


# --- arrays in a message


def as_bytes(*arrays: np.ndarray) -> np.ndarray:
    """The bytes of some arrays, one after the other."""
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def read(message: np.ndarray, dtype: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` elements of a message, and the bytes that follow."""
    size = count * np.dtype(dtype).itemsize
    if message.size < size:
        raise DataError.build("a message", expected=f"{size} more bytes", got=f"{message.size}")
    # A copy, because a message may begin anywhere in memory.
    return message[:size].copy().view(dtype), message[size:]


__all__ = ["HEADER", "max_index_bytes", "pack_indices", "packed_bits", "unpack_indices"]
_WIDEST = 30


def pack_indices(places: np.ndarray, length: int) -> np.ndarray:
    """Increasing places (int32) below `length` as bytes, in the smaller of the forms.

    >>> import numpy as np
    >>> from caldera.compress.messages import pack_indices, unpack_indices
    >>> places = np.arange(0, 32_000, 32, dtype=np.int32)
    >>> packed = pack_indices(places, 32_000)
    >>> packed.nbytes, np.array_equal(unpack_indices(packed, 32_000)[0], places)
    (766, True)
    """
    (packed,) = pack(places, [(0, places.size)], [(0, length)], [0])
    return packed


def unpack_indices(packed: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The places (int32) at the beginning of a message, and the bytes that follow."""
    places, _, (taken,) = unpack([packed], [(0, length)])
    return places, packed[taken:]


def max_index_bytes(length: int) -> int:
    """The most bytes that places in a vector of this length can take.

    >>> max_index_bytes(1000)
    141
    """
    return HEADER + -(-length // 8)


def packed_bits(density: float) -> float:
    """About how many bits a place takes if this part of all elements is chosen by chance.

    >>> round(packed_bits(1 / 32), 1), round(packed_bits(0.9), 1)
    (6.5, 1.1)
    """
    if density <= 0:
        return 0.0
    bitmap = 1 / density
    if density >= 0.5:
        return bitmap
    keep = 1 - density
    by_gaps = (r + 1 + keep ** (1 << r) / (1 - keep ** (1 << r)) for r in range(_WIDEST))
    return min(bitmap, *by_gaps)


_RANKS = 1 << 16
_ROOM = 1 << 32
"""For one rank in one stage, in units of 64 words."""


@dataclass(frozen=True)
class RandomStream:
    """The random words of one exchange.

    >>> random_stream = RandomStream(seed=3, step=0, name="dense/weight")
    >>> stream = random_stream.of(rank=1)
    >>> stream == random_stream.of(rank=1), stream == random_stream.of(rank=1, stage=1)
    (True, False)
    """

    seed: int
    step: int
    name: str

    def of(self, rank: int, stage: int = 0, start: int = 0) -> Draws:
        """The words of a rank in a stage, for what begins at an element that 64 divides."""
        stream = zlib.crc32(self.name.encode())
        place = (stage * _RANKS + rank) * _ROOM + start // ALIGNED
        return Draws(self.seed, self.step & 0xFFFFFFFF, stream, place)
