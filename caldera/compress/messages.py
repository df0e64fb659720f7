"""Messages of bytes, whose length only their sender knows, but for a bound: nobody announces it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from caldera.comm import Communicator
from caldera.errors import DataError
from caldera.kernels.native.compression.random_draws import ALIGNED

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
