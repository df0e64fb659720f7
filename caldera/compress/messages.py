"""Messages whose length only their sender knows: the lengths travel first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from caldera.comm import Communicator
from caldera.kernels.native.compression.draws import ALIGNED

EMPTY = np.empty(0, np.uint8)
Sizes = Sequence[int | None]


def bounds(length: int, parts: int) -> list[int]:
    """Where the parts of a vector begin, and its end: multiples of 64, about equally far apart.

    >>> bounds(1000, 3)
    [0, 320, 640, 1000]
    """
    blocks = -(-length // ALIGNED)
    return [min(blocks * part // parts * ALIGNED, length) for part in range(parts + 1)]


def alltoall_messages(
    communicator: Communicator, leaving: Sequence[np.ndarray], known: Sizes
) -> list[np.ndarray]:
    """Message r goes to rank r; those that came, by rank. `known` are the sizes of these, if a
    rule gives them (then for all ranks)."""
    lengths = _complete(known)
    if lengths is None:
        everyone = np.empty((communicator.size, communicator.size), np.int64)
        communicator.Allgather(np.array([each.size for each in leaving], np.int64), everyone)
        lengths = everyone[:, communicator.rank]
    received = np.empty(int(lengths.sum()), np.uint8)
    sent = [message.size for message in leaving]
    communicator.Alltoall(np.concatenate(leaving), received, sent, lengths.tolist())
    return _cut(received, lengths)


def allgather_messages(
    communicator: Communicator, message: np.ndarray, known: Sizes
) -> list[np.ndarray]:
    """The messages of all ranks, on every rank."""
    lengths = _complete(known)
    if lengths is None:
        lengths = np.empty(communicator.size, np.int64)
        communicator.Allgather(np.array([message.size], np.int64), lengths)
    received = np.empty(int(lengths.sum()), np.uint8)
    communicator.Allgather(message, received, lengths.tolist())
    return _cut(received, lengths)


def swap_messages(communicator: Communicator, message: np.ndarray, other: int) -> np.ndarray:
    """Give a message to another rank, and take its own."""
    length = np.empty(1, np.int64)
    communicator.Sendrecv(np.array([message.size], np.int64), other, length, other)
    received = np.empty(int(length[0]), np.uint8)
    communicator.Sendrecv(message, other, received, other)
    return received


def send_message(communicator: Communicator, message: np.ndarray, other: int) -> None:
    """A message for `receive_message`."""
    communicator.Send(np.array([message.size], np.int64), other)
    communicator.Send(message, other)


def receive_message(communicator: Communicator, other: int) -> np.ndarray:
    """The next message of another rank."""
    length = np.empty(1, np.int64)
    communicator.Recv(length, other)
    message = np.empty(int(length[0]), np.uint8)
    communicator.Recv(message, other)
    return message


def _complete(known: Sizes) -> np.ndarray | None:
    sizes = [size for size in known if size is not None]
    return np.array(sizes, np.int64) if len(sizes) == len(known) else None


def _cut(received: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    edges = [0, *np.cumsum(lengths).tolist()]
    return [received[begin:end] for begin, end in pairwise(edges)]
