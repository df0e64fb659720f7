"""Shared memory between the ranks of one machine: common buffers and outboxes.

A rank copies a long message into its outbox and sends the receiver its position; the receiver
copies it from there and marks it as read. A message that does not fit is sent over the socket, so
no rank waits for free space. The file behind the outbox has no name, so it is freed however a
process ends.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from caldera.base.machine import memory_id

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator


LINE = 64
"""Bytes of a cache line, where each array begins."""
_IN_MEMORY = Path("/dev/shm")


class SharedMemory:
    """Arrays shared by all ranks, of the given shapes and dtypes, initialised with zeros.

    Every rank must create it. The file behind it is unlinked once all ranks have opened it, so it
    is freed however they end.

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
        """Context manager in which ranks run one at a time."""
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


def machines_of(communicator: Communicator) -> list[int]:
    """Return for each rank the number of its machine, in the order of the ranks.

    Ranks have the same number if they can share memory. All ranks call this.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, machines_of)[1]
    [0, 0]
    """
    names = list(map(tuple, communicator.gather_objects(memory_id())))
    order = list(dict.fromkeys(names))
    return [order.index(name) for name in names]


class DoubleBuffer:
    """Two shared buffers of `nbytes` per rank, used alternately.

    When a rank returns to the first buffer, no rank reads it any more, provided that all ranks have
    synchronised in between.
    """

    def __init__(self, communicator: Communicator, nbytes: int) -> None:
        room = ((2, communicator.size, nbytes), np.dtype(np.uint8))
        self._memory = SharedMemory(communicator, [room])
        self._turn = 0

    def next(self) -> np.ndarray:
        """Return the bytes that are free now, a row for each rank."""
        self._turn = 1 - self._turn
        return self._memory.arrays[0][self._turn]


Kept = TypeVar("Kept")


def made_once(communicator: Communicator, name: str, make: Callable[[], Kept]) -> Kept:
    """Return an object that all ranks of a communicator create together, once, stored by name."""
    made = communicator.made_together
    if name not in made:
        with communicator.traffic.apart("tuning"):
            made[name] = make()
    return made[name]


def _opened(communicator: Communicator, nbytes: int) -> int:
    """Return a descriptor of an unnamed file of `nbytes`, opened by all ranks."""
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
    """Create a file of `nbytes`, in memory if there is enough."""
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


CAPACITY = 64 << 20
"""Bytes of an outbox. Memory is taken as it is first written to, from its beginning."""
PAGE = 4096
PROOF = 16
SLOTS = PAGE - PROOF
"""Messages at a time. The first page has a byte for each, set once it was read, and the proof."""


class SharedOutbox:
    """Sent messages that their receivers have not read yet.

    >>> outbox = SharedOutbox(1 << 16)
    >>> outbox.put(np.ones(5000, np.uint8)), outbox.put(np.ones(10, np.uint8))
    ((0, 4096), (1, 12288))
    >>> mark_read(open_outbox(outbox.address, outbox.proof), 0)
    >>> outbox.put(np.ones(8000, np.uint8))
    (0, 4096)
    >>> outbox.put(np.ones(1 << 16, np.uint8)) is None
    True
    """

    def __init__(self, capacity: int) -> None:
        self.file = os.memfd_create("caldera", os.MFD_CLOEXEC)
        os.truncate(self.file, capacity)
        self._bytes = np.frombuffer(mmap.mmap(self.file, capacity), np.uint8)
        self.proof = os.urandom(PROOF)
        self._bytes[SLOTS:PAGE] = np.frombuffer(self.proof, np.uint8)
        self._free = [(PAGE, capacity)]
        self._slots = list(range(SLOTS))[::-1]
        self._used: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Path at which other processes of this user open the outbox."""
        return f"/proc/{os.getpid()}/fd/{self.file}"

    def put(self, payload: np.ndarray) -> tuple[int, int] | None:
        """Copy bytes into the outbox; return (slot, offset), or None if they do not fit."""
        wanted = max(-(-payload.nbytes // PAGE), 1) * PAGE
        with self._lock:
            self._collect()
            fits = [index for index, (begin, end) in enumerate(self._free) if end - begin >= wanted]
            if not fits or not self._slots:
                return None
            begin, end = self._free.pop(fits[0])
            if end - begin > wanted:
                self._free.insert(fits[0], (begin + wanted, end))
            slot = self._slots.pop()
            self._used[slot] = (begin, begin + wanted)
        np.copyto(self._bytes[begin : begin + payload.nbytes], payload)
        return slot, begin

    def _collect(self) -> None:
        """Free the memory of messages that have been read."""
        read = [slot for slot in self._used if self._bytes[slot]]
        if not read:
            return
        for slot in read:
            self._bytes[slot] = 0
            self._free.append(self._used.pop(slot))
            self._slots.append(slot)
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(self._free):
            joins = merged and merged[-1][1] == begin
            merged.append((merged.pop()[0] if joins else begin, end))
        self._free = merged

    def __del__(self) -> None:
        if hasattr(self, "file"):
            with suppress(OSError):
                os.close(self.file)


def open_outbox(address: str, proof: bytes | bytearray) -> np.ndarray | None:
    """Return the bytes of another process's outbox, or None if this process cannot read it.

    In two containers the same address may belong to different files: the file must hold the random
    bytes that its owner has sent.

    >>> outbox, other = SharedOutbox(2 * PAGE), SharedOutbox(2 * PAGE)
    >>> slot, place = outbox.put(np.arange(3, dtype=np.uint8))
    >>> open_outbox(outbox.address, outbox.proof)[place : place + 3].tolist()
    [0, 1, 2]
    >>> open_outbox(other.address, outbox.proof) is None
    True
    """
    try:
        file = os.open(address, os.O_RDWR)
    except OSError:
        return None
    try:
        memory = np.frombuffer(mmap.mmap(file, os.fstat(file).st_size), np.uint8)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    return memory if memory[SLOTS:PAGE].tobytes() == proof else None


def mark_read(memory: np.ndarray, slot: int) -> None:
    """Tell the sender that a message has been read: no message has to be sent for that."""
    memory[slot] = 1


def can_share() -> bool:
    """Return True if other processes can open unnamed files on this system."""
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd")
