"""All-to-all exchange through memory shared by the ranks of one machine.

Each rank writes its outgoing values to its section, all ranks synchronise, and each rank reads
the values addressed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.segments import alltoall_volume
from caldera.comm.shared_memory import LINE, DoubleBuffer, made_once

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator

ROOM_BYTES, ALL_ROOM_BYTES = 8 << 20, 256 << 20
"""Of a rank for one exchange, at most, and of all ranks together."""


def room_bytes(ranks: int) -> int:
    """Return the bytes of each rank's section of the shared memory.

    >>> room_bytes(2), room_bytes(16)
    (8388608, 8388608)
    """
    return min(ROOM_BYTES, ALL_ROOM_BYTES // (2 * ranks))


class SharedExchange:
    """Shared memory of a communicator, with a section for each rank.

    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     def write(numbers):
    ...         numbers[:] = [10 * comm.rank, 10 * comm.rank + 1]
    ...     found = shared_exchange(comm).run([1, 1], [1, 1], np.dtype(int), write)
    ...     return [int(each[0]) for each in found]
    >>> run_virtual_ranks(2, work)
    [[0, 10], [1, 11]]
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        # A section begins with the end offset of the data for each receiver.
        self._head = -(-8 * (comm.size + 1) // LINE) * LINE
        self._rooms = DoubleBuffer(comm, self._head + room_bytes(comm.size))

    def run(
        self,
        leaving: Sequence[int],
        arriving: Sequence[int],
        dtype: np.dtype,
        write: Callable[[np.ndarray], None],
    ) -> list[np.ndarray]:
        """Return the arrays addressed to this rank, valid until the exchange after the next.

        `write` receives the buffer for the outgoing values, ordered by receiver. All ranks take
        part, and each rank's outgoing values must fit into its section.
        """
        comm, size, rooms = self._comm, dtype.itemsize, self._rooms.next()
        ends = rooms[:, : 8 * (comm.size + 1)].view(np.int64)
        ends[comm.rank, 0] = 0
        np.cumsum(leaving, out=ends[comm.rank, 1:])
        own: np.ndarray = rooms[comm.rank, self._head :][: sum(leaving) * size].view(dtype)
        with comm._collective("Alltoall"):
            write(own)
            comm._count(alltoall_volume(comm.rank, leaving, arriving), own)
            comm._barrier()
        begins = (self._head + ends[:, comm.rank] * size).tolist()
        return [
            room[begin : begin + count * size].view(dtype)
            for room, begin, count in zip(rooms, begins, arriving, strict=True)
        ]

    def together(self, dtype: np.dtype, write: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return the sections of all ranks as one array, after each rank has written its own.

        The array stays valid until the exchange after the next. No traffic is counted.
        """
        rooms = self._rooms.next().reshape(-1)
        found: np.ndarray = rooms[: rooms.size // dtype.itemsize * dtype.itemsize].view(dtype)
        with self._comm._collective("Allgather"):
            write(found)
            self._comm._barrier()
        return found


def shared_exchange(comm: Communicator) -> SharedExchange:
    """Return the shared exchange of a communicator."""
    return made_once(comm, "exchange", lambda: SharedExchange(comm))
