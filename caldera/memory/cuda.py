"""An NVIDIA card as a device, through CuPy: memory, streams, events, capture and replay.

Work on one stream runs in order, so memory that comes back to the pool may be given to later work
on the same stream at once. The copy stream is another one: before it writes to memory that it has
not seen, it waits for all that the kernels' stream was given until then, and what it uses is kept
until it is done.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caldera.errors import DeviceError
from caldera.memory.device_array import address_of, device_view
from caldera.memory.interface import (
    CapturedGraph,
    Device,
    Event,
    LaneCall,
    Moment,
    Stream,
    TransferCounters,
)
from caldera.memory.pool import Block, Pool
from caldera.memory.repeats import Repeats, Times
from caldera.memory.software import contiguous_bytes
from caldera.optional import optional_import

PACKAGE = "caldera[cuda]"


@cache
def cupy() -> Any:
    """CuPy, imported when the first card is asked for."""
    return optional_import("cupy", PACKAGE, "device 'cuda'")


@cache
def card_count() -> int:
    """How many cards can be used: 0 also where CuPy or the driver is missing."""
    if find_spec("cupy") is None:
        return 0
    try:
        return int(cupy().cuda.runtime.getDeviceCount())
    except Exception:
        # Without a driver every call of the runtime fails, each version with an error of its own.
        return 0


class CudaEvent(Event):
    """A point in a stream's work."""

    def __init__(self, card: Card, counters: TransferCounters, stream: Any) -> None:
        self._card = card
        self._counters = counters
        with card.active():
            self.event = cupy().cuda.Event(disable_timing=True)
            self.event.record(stream)

    def done(self) -> bool:
        return bool(self.event.done)

    def check(self) -> None:
        # What fails on a card makes every later call of the runtime fail, so nobody misses it.
        return

    def synchronize(self) -> None:
        self._counters.add_wait()
        with self._card.active():
            self.event.synchronize()


class CudaMoment(Moment):
    """A point in a stream's work whose time the card notes."""

    def __init__(self, card: Card, stream: Any) -> None:
        self._card = card
        with card.active():
            self._event = cupy().cuda.Event()
            self._event.record(stream)

    def done(self) -> bool:
        return bool(self._event.done)

    def since(self, earlier: Self) -> float:
        with self._card.active():
            return float(cupy().cuda.get_elapsed_time(earlier._event, self._event)) / 1e3


class CudaGraph(CapturedGraph):
    """A captured CUDA graph; it keeps the calls, whose arrays it reads and writes."""

    def __init__(self, stream: CudaStream, graph: Any, kept: list[Callable[[], object]]) -> None:
        self._stream = stream
        self._graph = graph
        self._kept = kept

    def replay(self) -> None:
        self._stream.settle()
        with self._stream.card.active():
            self._graph.launch(self._stream.stream)


class Card:
    """Which card is meant."""

    def __init__(self, index: int) -> None:
        self.index = index

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make it the current card of the thread."""
        with cupy().cuda.Device(self.index):
            yield


_launching = threading.local()


def launching_stream() -> int:
    """The stream on which a kernel that runs now belongs: that of the `launch` around it."""
    return getattr(_launching, "pointer", 0)


def launching_lane() -> int:
    """The lane of a kernel that runs now; those of different lanes may run at the same time."""
    return getattr(_launching, "lane", 0)


class CudaStream(Stream):
    """A CUDA stream; what is launched on it is put into its queue at once."""

    def __init__(self, card: Card, counters: TransferCounters) -> None:
        self.card = card
        self._counters = counters
        with card.active():
            self.stream = cupy().cuda.Stream(non_blocking=True)
        self._lanes = [self.stream]
        self._recorded: list[Callable[[], object]] | None = None
        self._repeats = Repeats()

    @property
    def capturing(self) -> bool:
        return self._recorded is not None

    def launch(self, call: Callable[[], object]) -> None:
        self.settle()
        self._launch(call)

    def repeat(self, times: Times) -> None:
        self._repeats.add(times, self._launch)

    def settle(self) -> None:
        """Launch what was held back."""
        self._repeats.settle(self._launch)

    def _launch(self, call: Callable[[], object]) -> None:
        if self._recorded is not None:
            self._recorded.append(call)
        with self.card.active(), self._launching_on(0):
            call()

    @property
    def has_lanes(self) -> bool:
        return True

    def launch_in_lanes(self, calls: Sequence[LaneCall]) -> None:
        self.settle()
        while len(self._lanes) <= max(each.lane for each in calls):
            with self.card.active():
                self._lanes.append(cupy().cuda.Stream(non_blocking=True))
        awaited = {number for each in calls for number in each.after}
        last = {each.lane: number for number, each in enumerate(calls)}
        reached: dict[int, Any] = {}
        with self.card.active():
            begin = self._point(0)
            for lane in last.keys() - {0}:
                self._lanes[lane].wait_event(begin)
            for number, each in enumerate(calls):
                for other in each.after:
                    self._lanes[each.lane].wait_event(reached[other])
                with self._launching_on(each.lane):
                    each.call()
                if number in awaited or (each.lane and number == last[each.lane]):
                    reached[number] = self._point(each.lane)
            for lane, number in last.items():
                if lane:
                    self.stream.wait_event(reached[number])
        if self._recorded is not None:
            self._recorded += [each.call for each in calls]

    @contextmanager
    def _launching_on(self, lane: int) -> Iterator[None]:
        """What is launched inside goes to this lane."""
        before = launching_stream(), launching_lane()
        _launching.pointer, _launching.lane = self._lanes[lane].ptr, lane
        try:
            with self._lanes[lane]:
                yield
        finally:
            _launching.pointer, _launching.lane = before

    def _point(self, lane: int) -> Any:
        event = cupy().cuda.Event(disable_timing=True)
        event.record(self._lanes[lane])
        return event

    def synchronize(self) -> None:
        self._before_waiting("synchronize")
        self._counters.add_wait()
        with self.card.active():
            self.stream.synchronize()

    def record(self) -> Event:
        self._before_waiting("record")
        return CudaEvent(self.card, self._counters, self.stream)

    def moment(self) -> Moment:
        self._before_waiting("moment")
        return CudaMoment(self.card, self.stream)

    def wait(self, event: Event) -> None:
        self._before_waiting("wait")
        if isinstance(event, CudaEvent):
            with self.card.active():
                self.stream.wait_event(event.event)
        else:
            event.synchronize()

    def begin_capture(self) -> None:
        self._before_waiting("begin_capture")
        with self.card.active():
            self.stream.begin_capture()
        self._recorded = []

    def end_capture(self) -> CapturedGraph:
        self.settle()
        if self._recorded is None:
            raise DeviceError.build(
                f"end_capture on cuda:{self.card.index}", expected="a stream that is capturing",
                got="none", hint="call begin_capture first",
            )  # fmt: skip
        kept, self._recorded = self._recorded, None
        with self.card.active():
            graph = self.stream.end_capture()
        return CudaGraph(self, graph, kept)

    def _before_waiting(self, what: str) -> None:
        """What was held back is launched; nothing may wait while the stream captures."""
        self.settle()
        if self._recorded is not None:
            raise DeviceError.build(
                f"{what} on cuda:{self.card.index}",
                expected="a stream that is not capturing",
                got="a capture in progress, in which nothing may wait",
                hint="do this before begin_capture or after end_capture",
            )


class CudaDevice(Device):
    """A card. Its memory comes from CuPy's pool, its host memory is pinned."""

    kind = "cuda"
    kernels = "cuda"
    is_host = False

    def __init__(self, index: int) -> None:
        self.card = Card(index)
        name = f"cuda:{index}"
        self._pinned = Pool(f"{name} pinned", self._take_pinned)
        self._managed = Pool(f"{name} managed", self._take_managed)
        # Blocks that the copy stream was given before, and what it may still be using.
        self._seen_by_copies: weakref.WeakSet[Block] = weakref.WeakSet()
        self._in_use: deque[tuple[Event, object]] = deque()
        super().__init__(name, index, Pool(name, self._take))

    @property
    def pools(self) -> tuple[Pool, ...]:
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
        while self._in_use and self._in_use[0][0].done():
            self._in_use.popleft()
        self._in_use.append((stream.record(), kept))

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
