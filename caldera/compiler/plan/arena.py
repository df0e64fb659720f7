"""Arena layout: from lifetimes of intermediate values to offsets in one memory block.

Buffers are placed in order of size, largest first, each at the lowest offset that is free during
its whole life. On training graphs, whose lifetimes nest, this comes within a few percent of the
largest live set.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Sequence
from operator import add
from sys import maxsize

from caldera.core.memory import Block, Device, size_class

_FEW = 4000
_LAST = (maxsize, maxsize)
ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of any CPU in use."""


def aligned(nbytes: int) -> int:
    """Round `nbytes` up to whole cache lines; 0 bytes occupy one line."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


def place(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> tuple[list[int], int]:
    """Return offsets for buffers that live from step `first` to step `last`, and the total size."""
    needed = [aligned(size) for size in sizes]
    offsets = [0] * len(needed)
    placed = _Placed(max(last, default=0) + 1) if len(needed) > _FEW else _FewPlaced()
    for index in sorted(range(len(needed)), key=lambda i: (-needed[i], first[i])):
        size, start, end = needed[index], first[index], last[index]
        spot = 0
        # In order of offset, so that gaps are met from the bottom up.
        for bottom, top in placed.during(start, end):
            if bottom - spot >= size:
                break
            if top > spot:
                spot = top
        offsets[index] = spot
        placed.add((spot, spot + size), start, end)
    return offsets, max(map(add, offsets, needed), default=0)


Span = tuple[int, int]


class _FewPlaced:
    """Buffers in order of offset: of few, a look at each is the fastest."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int, int]] = []

    def add(self, span: Span, start: int, end: int) -> None:
        """Keep a buffer that lives from one step to another."""
        insort(self._spans, (*span, start, end))

    def during(self, start: int, end: int) -> list[Span]:
        """Return the spans live during any of these steps, in order of offset."""
        return [
            (bottom, top)
            for bottom, top, born, dies in self._spans
            if born <= end and dies >= start
        ]


class _Placed:
    """Buffers indexed by lifetime, so that only overlapping lifetimes are examined.

    A tree of spans of steps: each buffer is stored at the few nodes whose spans together are its
    life. The ancestors of a step contain exactly the buffers live at this step. Buffers with a
    later start are found in a sorted list.
    """

    def __init__(self, steps: int) -> None:
        self._leaves = 1 << (steps - 1).bit_length()
        self._tree: dict[int, list[Span]] = {}
        self._born: list[tuple[int, Span]] = []

    def add(self, span: Span, start: int, end: int) -> None:
        """Keep a buffer that lives from one step to another."""
        low, high = start + self._leaves, end + self._leaves + 1
        while low < high:
            if low & 1:
                self._tree.setdefault(low, []).append(span)
            if high & 1:
                self._tree.setdefault(high - 1, []).append(span)
            low, high = (low + 1) >> 1, high >> 1
        insort(self._born, (start, span))

    def during(self, start: int, end: int) -> list[Span]:
        """Return the spans live during any of these steps, in order of offset."""
        first, last = (bisect_right(self._born, (step, _LAST)) for step in (start, end))
        found = [span for _, span in self._born[first:last]]
        node = start + self._leaves
        while node:
            found += self._tree.get(node, ())
            node >>= 1
        return sorted(found)


class ArenaUser(ABC):
    """Calls that are bound to the block of an arena."""

    block: Block | None = None

    @abstractmethod
    def unbind(self) -> None:
        """Release the block, which is outgrown; the next run binds another."""


class SharedArena:
    """Memory block shared by the plans that a thread runs sequentially on a device.

    The block exists while a plan is bound to it. When it is too small, all plans release it: the
    old block must not occupy memory in addition to the larger one.
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
        """Return the arena of a device for the calling thread."""
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
        """Return the block, replaced by a larger one if it is too small."""
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
    """Return memory for a captured plan: other plans may outgrow the arena, this one stays."""
    if device.is_host:
        # Threads run at the same time, and anyone may replay.
        return device.allocate(nbytes, owner="captured arena")
    # All plans run sequentially on the device's one stream, regardless of the launching thread.
    return SharedArena.of(device).at_least(nbytes)
