"""Arrays left where other ranks of the machine see them, instead of being sent.

Who leaves one tells the others where by a message of a few bytes, which MPI brings at once; a long
one would wait until its sender has time for MPI again. All of them are taken away together, when
all ranks are done with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.shared_memory import LINE, SharedMemory

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator

ROOM_BYTES, ALL_ROOM_BYTES = 8 << 20, 64 << 20
"""Of a rank, at most, and of all ranks together."""


def post_bytes(ranks: int) -> int:
    """What each of so many ranks may leave before all are done with it.

    >>> post_bytes(2), post_bytes(16)
    (8388608, 4194304)
    """
    return min(ROOM_BYTES, ALL_ROOM_BYTES // ranks)


class SharedPost:
    """The room of all ranks of a communicator.

    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     post = SharedPost(comm)
    ...     own = post.place((2,), np.dtype(float))
    ...     own[:] = comm.rank
    ...     comm.Barrier()
    ...     return post.at(1 - comm.rank, post.where(own), (2,), np.dtype(float)).tolist()
    >>> run_virtual_ranks(2, work)
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, comm: Communicator) -> None:
        self._rank = comm.rank
        with comm.traffic.apart("tuning"):
            room = ((comm.size, post_bytes(comm.size)), np.dtype(np.uint8))
            self._memory = SharedMemory(comm, [room])
        self._filled = 0

    def clear(self) -> None:
        """Nobody needs what was left here."""
        self._filled = 0

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Room for an array that others will read."""
        begin = self._filled
        made = self.at(self._rank, begin, shape, dtype)
        self._filled = -(-(begin + made.nbytes) // LINE) * LINE
        return made

    def where(self, array: np.ndarray) -> int:
        """Where an array is that `place` has made."""
        return _address(array) - _address(self._memory.arrays[0][self._rank])

    def at(self, rank: int, begin: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array that a rank has left."""
        end = begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        found: np.ndarray = self._memory.arrays[0][rank, begin:end].view(dtype).reshape(shape)
        return found


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def shared_post(comm: Communicator) -> SharedPost:
    """That of a communicator, made once by all of its ranks together and kept with it."""
    made = vars(comm)
    if "_shared_post" not in made:
        made["_shared_post"] = SharedPost(comm)
    found: SharedPost = made["_shared_post"]
    return found
