"""The streams of a card: events, timing, side streams, capture and replay, all CUDA's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from caldera.core.memory.capture import CapturingStream
from caldera.core.memory.gpus import Card, cupy
from caldera.core.memory.interface import (
    CapturedGraph,
    Event,
    StreamCall,
    TimingEvent,
    TransferCounters,
)


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


class CudaTimingEvent(TimingEvent):
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
            self._graph.launch(self._stream.streams[0])


_launching = threading.local()


def launching_stream() -> int:
    """The stream on which a kernel that runs now belongs: that of the `launch` around it."""
    return getattr(_launching, "pointer", 0)


def launching_side_stream() -> int:
    """The number of the stream on which a kernel is launched now; 0 is the card's own."""
    return getattr(_launching, "index", 0)


class _Captured(threading.local):
    """The streams on which the calling thread captures, None if it does not, and those for the
    next time."""

    streams: list[Any] | None = None
    spare: list[Any] | None = None


class CudaStream(CapturingStream):
    """A CUDA stream; what is launched on it is put into its queue at once.

    Captures are made on streams of their own, which nobody else launches on.
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
        """The stream that this thread launches on, and those beside it."""
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
        """What is launched inside goes to the stream with this number."""
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
            # Meanwhile nobody may wait for the card as a whole.
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
