"""Memory from which the other processes of this machine read long messages.

A rank copies a long message into its outbox and tells the receiver where it lies; the receiver
copies it from there and marks it as read. A message for which there is no room goes
through the socket: nobody ever waits for a place. The file behind the outbox never has a name, so
nothing is left behind whichever way a process ends.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from contextlib import suppress

import numpy as np

CAPACITY = 64 << 20
"""Bytes of an outbox. Memory is taken as it is first written to, from its beginning."""
PAGE = 4096
SLOTS = PAGE
"""Messages at a time. The first page has a byte for each: whether it has been read."""


class SharedOutbox:
    """What this process has sent and others have not read yet.

    >>> outbox = SharedOutbox(1 << 16)
    >>> outbox.put(np.ones(5000, np.uint8)), outbox.put(np.ones(10, np.uint8))
    ((0, 4096), (1, 12288))
    >>> mark_read(open_outbox(outbox.address), 0)
    >>> outbox.put(np.ones(8000, np.uint8))
    (0, 4096)
    >>> outbox.put(np.ones(1 << 16, np.uint8)) is None
    True
    """

    def __init__(self, capacity: int) -> None:
        self.file = os.memfd_create("caldera", os.MFD_CLOEXEC)
        os.truncate(self.file, capacity)
        self._bytes = np.frombuffer(mmap.mmap(self.file, capacity), np.uint8)
        self._free = [(SLOTS, capacity)]
        self._slots = list(range(SLOTS))[::-1]
        self._used: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Where other processes of this user find it."""
        return f"/proc/{os.getpid()}/fd/{self.file}"

    def put(self, payload: np.ndarray) -> tuple[int, int] | None:
        """Copy bytes into it; their slot and where they are, or None if there is no room."""
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
        """Places whose messages have been read are free again."""
        read = [slot for slot in self._used if self._bytes[slot]]
        if not read:
            return
        for slot in read:
            self._bytes[slot] = 0
            self._free.append(self._used.pop(slot))
            self._slots.append(slot)
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(self._free):
            if merged and merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        self._free = merged

    def __del__(self) -> None:
        if hasattr(self, "file"):
            with suppress(OSError):
                os.close(self.file)


def open_outbox(address: str) -> np.ndarray:
    """The bytes of another process's outbox.

    >>> outbox = SharedOutbox(2 * PAGE)
    >>> slot, place = outbox.put(np.arange(3, dtype=np.uint8))
    >>> open_outbox(outbox.address)[place : place + 3].tolist()
    [0, 1, 2]
    """
    file = os.open(address, os.O_RDWR)
    try:
        memory = mmap.mmap(file, os.fstat(file).st_size)
    finally:
        os.close(file)
    return np.frombuffer(memory, np.uint8)


def mark_read(memory: np.ndarray, slot: int) -> None:
    """Tell the sender that a message has been read: no message has to be sent for that."""
    memory[slot] = 1


def can_share() -> bool:
    """Whether this system has files without names that other processes can open."""
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd")
