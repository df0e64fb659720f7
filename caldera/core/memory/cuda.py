"""An NVIDIA card as a device, through CuPy: its memory, and copies in the order of streams.

Work on one stream runs in order, so memory that comes back to the pool may be given to later work
on the same stream at once. The copy stream is another one: before it writes to memory that it has
not seen, it waits for all that the kernels' stream was given until then, and what it uses is kept
until it is done.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.core.memory.cuda_stream import CudaStream, launching_stream
from caldera.core.memory.device_array import address_of, device_view
from caldera.core.memory.gpus import Card, cupy
from caldera.core.memory.interface import Device, Event, Stream
from caldera.core.memory.pool import Block, Pool
from caldera.core.memory.software import contiguous_bytes


class CudaDevice(Device):
    """A card. Its memory comes from CuPy's pool, its host memory is pinned."""

    kind = "cuda"
    kernels = "cuda"
    is_host = False

    def __init__(self, index: int) -> None:
        self.card = Card(index)
        name = self.card.name
        self._pinned = Pool(f"{name} pinned", self._take_pinned)
        self._managed = Pool(f"{name} managed", self._take_managed)
        # Blocks that the copy stream was given before, and what it may still be using.
        self._seen_by_copies: weakref.WeakSet[Block] = weakref.WeakSet()
        self._in_use: deque[tuple[Event, object]] = deque()
        self._in_use_lock = threading.Lock()
        super().__init__(name, index, Pool(name, self._take))

    @property
    def pools(self) -> tuple[Pool, ...]:
        # What copies have used is in use no longer than they are.
        self._let_go_of_copies()
        return (self.pool, self._pinned, self._managed)

    @property
    def memory_bytes(self) -> int | None:
        with self.card.active():
            there = int(cupy().cuda.runtime.memGetInfo()[1])
        limit = self.pool.capacity
        return there if limit is None else min(there, limit)

    def trim(self) -> int:
        given_back = super().trim()
        with self.card.active():
            cupy().get_default_memory_pool().free_all_blocks()
        return given_back

    def empty_cache(self) -> int:
        given_back = super().empty_cache()
        with self.card.active():
            cupy().get_default_memory_pool().free_all_blocks()
            cupy().get_default_pinned_memory_pool().free_all_blocks()
        return given_back

    def new_stream(self) -> Stream:
        return CudaStream(self.card, self.counters)

    def allocate_host(self, nbytes: int, owner: str = "") -> Block:
        return self._pinned.allocate(nbytes, owner)

    def allocate_shared(self, nbytes: int, owner: str = "") -> Block:
        return self._managed.allocate(nbytes, owner)

    def array(self, block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return device_view(block, offset, shape, dtype)

    def copy_in(self, target: Block, offset: int, source: NDArray[Any], stream: Stream) -> None:
        given = contiguous_bytes(source)
        self._copy(
            "h2d", target.address + offset, address_of(given), given.nbytes, stream, (target, given)
        )

    def copy_out(
        self, target: NDArray[Any], source: Block, offset: int, nbytes: int, stream: Stream
    ) -> None:
        outside = contiguous_bytes(target)
        kept = (source, outside)
        self._copy("d2h", address_of(outside), source.address + offset, nbytes, stream, kept)

    def copy_within(
        self,
        target: Block,
        offset: int,
        source: Block,
        source_offset: int,
        nbytes: int,
        stream: Stream,
    ) -> None:
        to, given = target.address + offset, source.address + source_offset
        if given < to + nbytes and to < given + nbytes and to != given:
            # The runtime's copy says nothing about ranges that overlap.
            between = self.allocate(nbytes, owner="copies")
            self._copy("d2d", between.address, given, nbytes, stream, (between, source))
            given = between.address
            source = between
        self._copy("d2d", to, given, nbytes, stream, (target, source))

    def _copy(
        self,
        direction: Any,
        to: int,
        given: int,
        nbytes: int,
        stream: Stream,
        kept: tuple[Any, ...],
    ) -> None:
        runtime = cupy().cuda.runtime
        kinds = {
            "h2d": runtime.memcpyHostToDevice,
            "d2h": runtime.memcpyDeviceToHost,
            "d2d": runtime.memcpyDeviceToDevice,
        }
        apart = stream is not self.stream
        if apart:
            self._order_copies(stream, kept)
        with self.span(direction, stream):
            stream.launch(
                lambda: runtime.memcpyAsync(to, given, nbytes, kinds[direction], launching_stream())
            )
        self.counters.add(direction, nbytes)
        if apart or direction != "d2d":
            self._keep_until_done(stream, kept)

    def _order_copies(self, stream: Stream, kept: tuple[Any, ...]) -> None:
        """Let a stream of copies wait for kernels that may still use blocks that are new to it."""
        new = [
            each for each in kept if isinstance(each, Block) and each not in self._seen_by_copies
        ]
        if new:
            stream.wait(self.stream.record())
            self._seen_by_copies.update(new)

    def _keep_until_done(self, stream: Stream, kept: object) -> None:
        self._let_go_of_copies()
        self._in_use.append((stream.record(), kept))

    def _let_go_of_copies(self) -> None:
        """Forget what copies that have ended were using."""
        with self._in_use_lock:
            while self._in_use and self._in_use[0][0].done():
                self._in_use.popleft()

    # --- memory from CuPy

    def _take(self, nbytes: int) -> tuple[int, object]:
        with self.card.active():
            memory = cupy().cuda.alloc(nbytes)
        return int(memory.ptr), memory

    def _take_pinned(self, nbytes: int) -> tuple[int, object]:
        with self.card.active():
            memory = cupy().cuda.alloc_pinned_memory(nbytes)
        return int(memory.ptr), memory

    def _take_managed(self, nbytes: int) -> tuple[int, object]:
        with self.card.active():
            memory = cupy().cuda.malloc_managed(nbytes)
        return int(memory.ptr), memory
