"""Arrays published in shared memory instead of being sent.

The sender announces the location in a message of a few bytes, which MPI transfers immediately; a
long message would wait until its sender enters MPI again. Arrays are removed together, when all
ranks have finished reading.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.shared_memory import LINE, SharedMemory, made_once

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator
    from caldera.comm.requests import Request

ROOM_BYTES, ALL_ROOM_BYTES = 8 << 20, 64 << 20
"""Maximum bytes of a rank, and of all ranks together."""


def post_bytes(ranks: int) -> int:
    """Return the bytes that each rank may publish before all ranks have finished reading.

    >>> post_bytes(2), post_bytes(16)
    (8388608, 4194304)
    """
    return min(ROOM_BYTES, ALL_ROOM_BYTES // ranks)


class SharedPost:
    """Shared memory of a communicator, with a section for each rank.

    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     post = SharedPost(comm)
    ...     own = post.place((2,), np.dtype(float))
    ...     own[:] = comm.rank
    ...     other = 1 - comm.rank
    ...     arriving, told = post.listen(other, 7), post.tell(own, other, 7)
    ...     found = post.read(arriving, other, (2,), np.dtype(float)).tolist()
    ...     told.wait()
    ...     return found
    >>> run_virtual_ranks(2, work)
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._rank = comm, comm.rank
        room = ((comm.size, post_bytes(comm.size)), np.dtype(np.uint8))
        self._memory = SharedMemory(comm, [room])
        self._filled = 0

    def clear(self) -> None:
        """Remove all published arrays; no rank reads them any more."""
        self._filled = 0

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return shared memory for an array that other ranks will read."""
        begin = self._filled
        made = self._at(self._rank, begin, shape, dtype)
        self._filled = -(-(begin + made.nbytes) // LINE) * LINE
        return made

    def tell(self, array: np.ndarray, rank: int, tag: int) -> Request:
        """Begin to tell a rank where an array is that `place` has made."""
        where = _address(array) - _address(self._memory.arrays[0][self._rank])
        # Without checks and counters: it is short, and who sends it is waited for.
        return self._comm._start_send(np.array([where]), rank, tag)

    def listen(self, rank: int, tag: int) -> tuple[np.ndarray, Request]:
        """Start receiving the location of an array published by `rank`."""
        where = np.empty(1, np.int64)
        return where, self._comm._start_receive(where, rank, tag)

    def read(
        self,
        arriving: tuple[np.ndarray, Request],
        rank: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
    ) -> np.ndarray:
        """Return the array published by `rank`, once its location has arrived."""
        where, request = arriving
        request.wait()
        return self._at(rank, int(where[0]), shape, dtype)

    def count(self, messages: int, nbytes: int) -> None:
        """Count arrays read by other ranks as sent."""
        with self._comm.traffic.operation("post"):
            self._comm.traffic.sent(nbytes, messages)

    def _at(self, rank: int, begin: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        end = begin + prod(shape) * dtype.itemsize
        return self._memory.arrays[0][rank, begin:end].view(dtype).reshape(shape)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def shared_post(comm: Communicator) -> SharedPost:
    """Return the shared post of a communicator."""
    return made_once(comm, "post", lambda: SharedPost(comm))
