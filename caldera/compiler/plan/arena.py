"""Where each intermediate value lives: lifetimes to offsets in one block of memory.

Largest first, each at the lowest offset that is free during its whole life. On training graphs,
whose lifetimes nest, this comes within a few percent of the largest live set.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from caldera.core.memory import Block, Device, size_class

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of any CPU in use."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines (nothing takes no room at all)."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


def place(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> tuple[list[int], int]:
    """Offsets for buffers that live from step `first` to step `last`, and the total size."""
    needed = [aligned(size) for size in sizes]
    offsets = [0] * len(needed)
    # Those placed so far, in order of offset, so that gaps are met from the bottom up: from where
    # to where, and from which step to which.
    placed: list[tuple[int, int, int, int]] = []
    bottoms: list[int] = []
    for index in sorted(range(len(needed)), key=lambda i: (-needed[i], first[i])):
        size, start, end = needed[index], first[index], last[index]
        spot = 0
        for bottom, top, born, dies in placed:
            if born <= end and dies >= start:
                if bottom - spot >= size:
                    break
                if top > spot:
                    spot = top
        offsets[index] = spot
        position = bisect_right(bottoms, spot)
        bottoms.insert(position, spot)
        placed.insert(position, (spot, spot + size, start, end))
    return offsets, max((top for _, top, _, _ in placed), default=0)


class ArenaUser(ABC):
    """Calls that are bound to the block of an arena."""

    block: Block | None = None

    @abstractmethod
    def unbind(self) -> None:
        """Release the block, which is outgrown; the next run binds another."""


class SharedArena:
    """The block that plans of one thread on one device use one after the other.

    It is there as long as a plan is tied to it. One that is too small is given up by all of them:
    it must not lie beside the larger one.
    """

    _of_thread = threading.local()
    # Plans may be run by several threads, which bind them to their own arenas.
    _binding = threading.Lock()

    def __init__(self, device: Device) -> None:
        self._device = device
        self._block: weakref.ref[Block] | None = None
        self._users: weakref.WeakSet[ArenaUser] = weakref.WeakSet()

    @classmethod
    def of(cls, device: Device) -> SharedArena:
        """The arena of a device for the calling thread."""
        arenas: dict[Device, SharedArena] = cls._of_thread.__dict__.setdefault("arenas", {})
        if device not in arenas:
            arenas[device] = cls(device)
        return arenas[device]

    @property
    def nbytes(self) -> int:
        """Bytes of the block that is there now."""
        block = None if self._block is None else self._block()
        return 0 if block is None else size_class(block.nbytes)

    def at_least(self, nbytes: int) -> Block:
        """The block, replaced by a larger one if it is too small."""
        block = None if self._block is None else self._block()
        if block is not None and block.nbytes >= nbytes:
            return block
        if block is not None:
            self._unbind_users(block)
            del block
            if not self._device.is_host:
                # The memory of a device is scarce.
                self._device.trim()
        found = self._device.allocate(nbytes, owner="arena")
        self._block = weakref.ref(found)
        return found

    def bind(self, user: ArenaUser, block: Block) -> None:
        """Record that the user's calls are bound to the block."""
        with self._binding:
            user.block = block
        self._users.add(user)

    def _unbind_users(self, block: Block) -> None:
        for user in list(self._users):
            with self._binding:
                if user.block is block:
                    user.unbind()
        self._users.clear()


def block_to_keep(device: Device, nbytes: int) -> Block:
    """Memory for a captured plan: other plans may outgrow the arena, this one stays."""
    if device.is_host:
        # Threads run at the same time, and anyone may replay.
        return device.allocate(nbytes, owner="captured arena")
    # All plans run on the device's one stream, one after the other, whoever launched them.
    return SharedArena.of(device).at_least(nbytes)
