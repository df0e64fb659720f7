"""NVIDIA GPUs as devices through CuPy: memory, copies, streams, events, capture and replay.

Work on one stream runs in order, so memory that returns to the pool may be used by later work on
the same stream immediately. The copy stream is separate. Before it writes to memory that is new to
it, it waits for all work launched on the kernels' stream so far. Its buffers are kept until the
copy is done.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caldera.core.memory.capture import CapturingStream
from caldera.core.memory.gpus import Card, cupy
from caldera.core.memory.interface import (
    CapturedGraph,
    Device,
    Event,
    Stream,
    StreamCall,
    TimingEvent,
    TransferCounters,
)
from caldera.core.memory.pool import Block, Pool
from caldera.core.memory.software import address_of, contiguous_bytes, device_view


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
        # An error on a GPU makes every later runtime call fail, so it is not lost.
        return

    def synchronize(self) -> None:
        self._counters.add_wait()
        with self._card.active():
            self.event.synchronize()


class CudaTimingEvent(TimingEvent):
    """A point in a stream's work, with its time on the GPU's clock."""

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
            self._graph.launch(self._stream.streams[0])


_launching = threading.local()


def launching_stream() -> int:
    """Return the stream of the enclosing `launch`, on which kernels run now."""
    return getattr(_launching, "pointer", 0)


def launching_side_stream() -> int:
    """Return the index of the stream on which a kernel is launched now; 0 is the main stream."""
    return getattr(_launching, "index", 0)


class _Captured(threading.local):
    """The streams on which the calling thread captures, None if it does not, and those for the
    next time."""

    streams: list[Any] | None = None
    spare: list[Any] | None = None


class CudaStream(CapturingStream):
    """CUDA stream; launched work is enqueued immediately.

    Captures use separate streams, on which no other work is launched.
    """

    def __init__(self, card: Card, counters: TransferCounters) -> None:
        super().__init__(card.name, counters)
        self.card = card
        self.stream = self._new_stream()
        self._with_sides = [self.stream]
        self._captured = _Captured()

    def _new_stream(self) -> Any:
        with self.card.active():
            return cupy().cuda.Stream(non_blocking=True)

    @property
    def streams(self) -> list[Any]:
        """Stream on which this thread launches, and its side streams."""
        captured = self._captured.streams
        return self._with_sides if captured is None else captured

    def _launch(self, call: Callable[[], object]) -> None:
        with self.card.active(), self._launching_on(0):
            call()

    def _record(self, call: Callable[[], object]) -> None:
        self._launch(call)

    @property
    def has_side_streams(self) -> bool:
        return True

    def launch_on_streams(self, calls: Sequence[StreamCall]) -> None:
        self.settle()
        streams = self.streams
        while len(streams) <= max(each.stream for each in calls):
            streams.append(self._new_stream())
        awaited = {number for each in calls for number in each.after}
        last = {each.stream: number for number, each in enumerate(calls)}
        reached: dict[int, Any] = {}
        with self.card.active():
            begin = self._point(0)
            for index in last.keys() - {0}:
                streams[index].wait_event(begin)
            for number, each in enumerate(calls):
                for other in each.after:
                    streams[each.stream].wait_event(reached[other])
                with self._launching_on(each.stream):
                    each.call()
                if number in awaited or (each.stream and number == last[each.stream]):
                    reached[number] = self._point(each.stream)
            for index, number in last.items():
                if index:
                    streams[0].wait_event(reached[number])
        if self._recording.calls is not None:
            self._recording.calls += [each.call for each in calls]

    @contextmanager
    def _launching_on(self, index: int) -> Iterator[None]:
        """Context manager: launches inside use the stream with this index."""
        before = launching_stream(), launching_side_stream()
        stream = self.streams[index]
        _launching.pointer, _launching.index = stream.ptr, index
        try:
            with stream:
                yield
        finally:
            _launching.pointer, _launching.index = before

    def _point(self, index: int) -> Any:
        event = cupy().cuda.Event(disable_timing=True)
        event.record(self.streams[index])
        return event

    def synchronize(self) -> None:
        self._before_waiting("synchronize")
        self._counters.add_wait()
        with self.card.active():
            self.stream.synchronize()

    def record(self) -> Event:
        self._before_waiting("record")
        return CudaEvent(self.card, self._counters, self.stream)

    def record_timing(self) -> TimingEvent:
        self._before_waiting("moment")
        return CudaTimingEvent(self.card, self.stream)

    def wait(self, event: Event) -> None:
        self._before_waiting("wait")
        if isinstance(event, CudaEvent):
            with self.card.active():
                self.stream.wait_event(event.event)
        else:
            event.synchronize()

    def begin_capture(self) -> None:
        super().begin_capture()
        try:
            streams = self._captured.spare or [self._new_stream()]
            self._captured.spare = None
            # During a capture no thread may synchronise the whole GPU.
            self.card.capture_lock.acquire()
            try:
                with self.card.active():
                    streams[0].begin_capture()
            except BaseException:
                self.card.capture_lock.release()
                raise
        except BaseException:
            self._end_recording()
            raise
        self._captured.streams = streams

    def end_capture(self) -> CapturedGraph:
        kept = self._end_recording()
        streams, self._captured.streams = self._captured.streams, None
        assert streams is not None
        try:
            with self.card.active():
                graph = streams[0].end_capture()
        finally:
            self.card.capture_lock.release()
        self._captured.spare = streams
        return CudaGraph(self, graph, kept)


class CudaDevice(Device):
    """GPU. Its memory is allocated in CuPy's pool, and its host memory is pinned."""

    kind = "cuda"
    kernels = "cuda"
    is_host = False

    def __init__(self, index: int) -> None:
        self.card = Card(index)
        name = self.card.name
        self._pinned = Pool(f"{name} pinned", partial(self._take, "alloc_pinned_memory"))
        self._managed = Pool(f"{name} managed", partial(self._take, "malloc_managed"))
        # Blocks that the copy stream has used before, or may still be using.
        self._seen_by_copies: weakref.WeakSet[Block] = weakref.WeakSet()
        self._copies_in_use: deque[tuple[Event, object]] = deque()
        self._copies_lock = threading.Lock()
        super().__init__(name, index, Pool(name, partial(self._take, "alloc")))

    @property
    def pools(self) -> tuple[Pool, ...]:
        # What copies have used is in use no longer than they are.
        self._release_copies()
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
            # The runtime's copy is undefined for overlapping ranges.
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
        self._release_copies()
        self._copies_in_use.append((stream.record(), kept))

    def _release_copies(self) -> None:
        """Forget what copies that have ended were using."""
        with self._copies_lock:
            while self._copies_in_use and self._copies_in_use[0][0].done():
                self._copies_in_use.popleft()

    # --- memory from CuPy

    def _take(self, allocate: str, nbytes: int) -> tuple[int, object]:
        with self.card.active():
            memory = getattr(cupy().cuda, allocate)(nbytes)
        return int(memory.ptr), memory
