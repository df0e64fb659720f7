"""Capture and batching of launches, on every device.

During a capture, calls are recorded and waiting is an error. A capture belongs to the thread that
started it. Calls launched by other threads run normally: one thread tunes or captures while another
trains or serves. Repetitions of the same work become one launch.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from caldera.core.memory.interface import Call, CapturedGraph, Stream, Times, TransferCounters
from caldera.errors import DeviceError

Launch = Callable[[Call], None]
MOST = 16
"""Maximum number of repetitions per launch."""


class LaunchBatcher:
    """Delays repetitions of the same work and launches them in batches.

    The first is launched immediately, and each batch is twice as long as the previous one, so that
    an idle device does not wait. Any other user of the stream has to `settle` first.

    >>> from caldera.core.memory.capture import LaunchBatcher
    >>> seen = []
    >>> repeats = LaunchBatcher()
    >>> times = lambda count: lambda: seen.append(count)
    >>> for _ in range(5):
    ...     repeats.add(times, lambda call: call())
    >>> seen
    [1, 2]
    >>> repeats.settle(lambda call: call())
    >>> seen
    [1, 2, 2]
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Launched work is not referenced, so that it can be freed.
        self._times: Times | None = None
        self._last: Callable[[], Times | None] = _nothing
        self._count = 0
        self._enough = 1

    def add(self, times: Times, launch: Launch) -> None:
        """Add a repetition, and launch the batch when it is full."""
        with self._lock:
            if times != self._last():
                self.settle(launch)
                self._last = _reference(times)
            self._times = times
            self._count += 1
            if self._count >= self._enough:
                self._run(launch)
                self._enough = min(2 * self._enough, MOST)

    def settle(self, launch: Launch) -> None:
        """Launch the delayed repetitions."""
        with self._lock:
            if self._count:
                self._run(launch)
            self._last, self._enough = _nothing, 1

    def _run(self, launch: Launch) -> None:
        times, count = self._times, self._count
        assert times is not None
        self._times, self._count = None, 0
        launch(times(count))


def _nothing() -> None:
    return None


def _reference(times: Times) -> Callable[[], Times | None]:
    bound: Any = times
    return weakref.WeakMethod(bound) if hasattr(times, "__self__") else weakref.ref(times)


def capture(stream: Stream, work: Callable[[], object]) -> CapturedGraph:
    """Return the recorded launches of `work` on a stream; an error ends the capture.

    >>> from caldera.core.memory import device
    >>> from caldera.core.memory.capture import capture
    >>> stream, seen = device("cpu").new_stream(), []
    >>> graph = capture(stream, lambda: stream.launch(lambda: seen.append("ran")))
    >>> graph.replay()
    >>> seen
    ['ran']
    """
    stream.begin_capture()
    try:
        work()
    except BaseException:
        # Errors in the rest of the capture are irrelevant.
        with suppress(Exception):
            stream.end_capture()
        raise
    return stream.end_capture()


class _Recording(threading.local):
    """Calls recorded by the calling thread; None outside a capture."""

    calls: list[Callable[[], object]] | None = None


class CapturingStream(Stream):
    """Stream that records calls during a capture; subclasses run them."""

    def __init__(self, device_name: str, counters: TransferCounters) -> None:
        self._device_name = device_name
        self._counters = counters
        self._recording = _Recording()
        self._repeats = LaunchBatcher()

    @abstractmethod
    def _launch(self, call: Callable[[], object]) -> None:
        """Run a call in stream order."""

    def _record(self, call: Callable[[], object]) -> None:
        """Record a call; devices may override this method."""

    @property
    def capturing(self) -> bool:
        return self._recording.calls is not None

    def launch(self, call: Callable[[], object]) -> None:
        recorded = self._recording.calls
        if recorded is None:
            self.settle()
            self._launch(call)
        else:
            recorded.append(call)
            self._record(call)

    def repeat(self, times: Times) -> None:
        if self.capturing:
            self.launch(times(1))
        else:
            self._repeats.add(times, self._launch)

    def settle(self) -> None:
        """Launch delayed repetitions outside of a capture."""
        if not self.capturing:
            self._repeats.settle(self._launch)

    def begin_capture(self) -> None:
        self._before_waiting("begin_capture")
        self._recording.calls = []

    def _end_recording(self) -> list[Callable[[], object]]:
        """Return the calls recorded during the capture, and end it."""
        recorded, self._recording.calls = self._recording.calls, None
        if recorded is None:
            raise DeviceError.build(
                f"end_capture on {self._device_name}",
                expected="a stream on which this thread is capturing",
                got="none",
                hint="call begin_capture first",
            )
        return recorded

    def _before_waiting(self, what: str) -> None:
        """Launch delayed repetitions; raise if this thread captures."""
        if self.capturing:
            raise DeviceError.build(
                f"{what} on {self._device_name}",
                expected="a stream that is not capturing",
                got="a capture in progress, which must not synchronise",
                hint="call end_capture first",
            )
        self.settle()
