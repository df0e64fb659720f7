"""Memory that the ranks of one machine have in common."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator

LINE = 64
"""Bytes of a cache line, where each array begins."""
_IN_MEMORY = Path("/dev/shm")


class SharedMemory:
    """Arrays of these shapes and dtypes, zeros at first, of which all ranks see the same bytes.

    Every rank has to make it. The file behind it has no name any more once all have opened it, so
    nothing is left behind whichever way they end.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.comm.shared_memory import SharedMemory
    >>> def work(comm):
    ...     shared = SharedMemory(comm, [((2,), np.dtype("float32"))])
    ...     shared.arrays[0][comm.rank] = comm.rank + 1
    ...     comm.Barrier()
    ...     return shared.arrays[0].tolist()
    >>> run_virtual_ranks(2, work)
    [[1.0, 2.0], [1.0, 2.0]]
    """

    def __init__(
        self, communicator: Communicator, wanted: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    ) -> None:
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in wanted]
        edges = list(accumulate((-(-size // LINE) * LINE for size in sizes), initial=0))
        self._file = _opened(communicator, max(edges[-1], LINE))
        memory = mmap.mmap(self._file, max(edges[-1], LINE))
        self.arrays = [
            np.frombuffer(memory, dtype, size // dtype.itemsize, start).reshape(shape)
            for (shape, dtype), size, start in zip(wanted, sizes, edges, strict=False)
        ]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other rank is: each has opened the file for itself."""
        # Not on every system, and needed only here.
        import fcntl

        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


class DoubleBuffer:
    """Room of so many bytes for each rank, twice, and used in turn: who comes back to the first
    knows that all have left it, if all have met in between."""

    def __init__(self, communicator: Communicator, nbytes: int) -> None:
        room = ((2, communicator.size, nbytes), np.dtype(np.uint8))
        self._memory = SharedMemory(communicator, [room])
        self._turn = 0

    def next(self) -> np.ndarray:
        """The bytes that are free now, a row for each rank."""
        self._turn = 1 - self._turn
        return self._memory.arrays[0][self._turn]


Kept = TypeVar("Kept")


def made_once(communicator: Communicator, name: str, make: Callable[[], Kept]) -> Kept:
    """What all ranks of a communicator make together, once, and keep with it under a name."""
    made = communicator.made_together
    if name not in made:
        with communicator.traffic.apart("tuning"):
            made[name] = make()
    return made[name]


def _opened(communicator: Communicator, nbytes: int) -> int:
    """A file of that size, which all ranks have open and nobody can find."""
    if communicator.rank == 0:
        file, name = _made(nbytes)
        communicator.bcast_object(name)
    else:
        file = os.open(communicator.bcast_object(), os.O_RDWR)
    communicator.Barrier()
    if communicator.rank == 0:
        os.unlink(name)
    return file


def _made(nbytes: int) -> tuple[int, str]:
    """A new file that has room for so many bytes, in memory if there is enough of it."""
    try:
        return _made_in(_IN_MEMORY, nbytes)
    except OSError:
        return _made_in(None, nbytes)


def _made_in(folder: Path | None, nbytes: int) -> tuple[int, str]:
    file, name = tempfile.mkstemp(prefix="caldera-", dir=folder)
    try:
        os.truncate(file, nbytes)
        if sys.platform == "linux":
            # Else a process is killed when it writes to a page for which there is no room.
            os.posix_fallocate(file, 0, nbytes)
    except OSError:
        os.close(file)
        os.unlink(name)
        raise
    return file, name
