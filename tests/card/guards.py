"""Memory with guarded ends: what a kernel writes beside its arrays is seen after its launch.

Around each piece of memory lie bytes of a pattern that no kernel writes. They are nan to who reads
them, so that a read beside an array spoils what is made of it.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.core.memory.pool import ALIGNMENT, Block, Pool

WIDE = 512
"""Bytes of a guard."""
NUMPY_SKEW = 16
"""Bytes that large arrays of NumPy's lie from alignment."""
PATTERN = struct.pack("<I", 0xFFF3C5A9) * (WIDE // 4)
# There are thousands of guards, and all are looked at after each launch: that is done in C, from a
# table of where they begin and how long they are. A place without a guard has length 0.
_MOST = 1 << 16
_table = np.zeros((_MOST, 2), np.int64)
_broken = np.zeros(_MOST, np.uint32)
_TABLE, _BROKEN = (ctypes.c_void_p(each.ctypes.data) for each in (_table, _broken))
_free = list(range(_MOST))[::-1]
_reach = 0
"""Places from here on were never used."""
_lock = threading.Lock()
_guards: dict[int, weakref.ref[Guard]] = {}
"""The guards by their places in the table."""


class Guard:
    """Bytes that hold the pattern, until nobody refers to the guard any more."""

    def __init__(self, memory: np.ndarray, what: str) -> None:
        self._bytes = memoryview(memory)
        self.what = what
        self.renew()
        global _reach
        place = _free.pop()
        with _lock:
            _reach = max(_reach, place + 1)
        _guards[place] = weakref.ref(self, lambda _: _forget(place))
        _table[place] = memory.__array_interface__["data"][0], memory.nbytes

    def renew(self) -> None:
        """Write the pattern."""
        self._bytes[:] = PATTERN[: self._bytes.nbytes]


def _forget(place: int) -> None:
    """The guard at a place of the table is gone, and its memory may follow."""
    _table[place] = 0
    del _guards[place]
    _free.append(place)


class Guarded:
    """So many bytes, full of nan, between two guards; `skew` is how far from alignment they lie."""

    def __init__(self, nbytes: int, what: str, skew: int = 0) -> None:
        whole = np.empty(nbytes + 2 * WIDE + ALIGNMENT, np.uint8)
        start = (skew - whole.__array_interface__["data"][0] - WIDE) % ALIGNMENT + WIDE
        self.memory = whole[start : start + nbytes]
        self.memory.fill(0xFF)
        self._before = Guard(whole[start - WIDE : start], f"before {what}")
        self._after = Guard(whole[start + nbytes :][:WIDE], f"after {what}")
        self._spare: Guard | None = None

    def use(self, used: int, what: str) -> None:
        """Only so many of the bytes are used from now on: guard those behind them too."""
        self._spare = None
        spare = self.memory[used : used + WIDE]
        if spare.size:
            self._spare = Guard(spare, f"after {what}")


def guarded_bytes(nbytes: int, what: str) -> np.ndarray:
    """Memory full of nan whose guards live as long as any array over it."""
    held = Guarded(nbytes, what, NUMPY_SKEW)
    start = held.memory.__array_interface__["data"][0]
    # An array over something that is none: NumPy shortens chains of arrays.
    lease: Any = type("Lease", (ctypes.c_ubyte * nbytes,), {}).from_address(start)
    lease.held = held
    return np.ndarray((nbytes,), np.uint8, lease)


def check_guards(name: str, find_broken: Callable[..., int]) -> None:
    """Fail if anybody has written beside what was given; `name` is who ran last.

    `find_broken` is that of process.cpp.
    """
    found = find_broken(_TABLE, _reach, PATTERN, _BROKEN)
    if found:
        guards = [_guards[place]() for place in _broken[:found].tolist() if place in _guards]
        broken = [guard for guard in guards if guard is not None]
        for guard in broken:
            # Who runs next is not to blame.
            guard.renew()
        where = ", ".join(sorted({guard.what for guard in broken}))
        raise AssertionError(f"{name} wrote where it must not: {where}")


class GuardedPool(Pool):
    """Memory of a card: right behind what was asked for lies a guard."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _take)

    def allocate(self, nbytes: int, owner: str = "") -> Block:
        block = super().allocate(nbytes, owner)
        storage = block._segment.storage
        assert isinstance(storage, Guarded)
        storage.use(nbytes, f"{nbytes} bytes of {owner or 'nobody'}")
        return block


def _take(nbytes: int) -> tuple[int, object]:
    memory = Guarded(nbytes, f"a segment of {nbytes} bytes")
    return memory.memory.__array_interface__["data"][0], memory
