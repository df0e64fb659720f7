"""What captures have in common on every device: calls are kept, and nothing may wait.

A capture belongs to the thread that began it. What other threads launch meanwhile runs as always:
one tunes or captures while another trains or serves, and neither has to know.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress

from caldera.core.memory.interface import CapturedGraph, Stream, TransferCounters
from caldera.core.memory.launch_batching import LaunchBatcher, Times
from caldera.errors import DeviceError


def capture(stream: Stream, work: Callable[[], object]) -> CapturedGraph:
    """What `work` launches on a stream, recorded; if it fails, the stream captures no longer.

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
        # What is wrong with the rest of the capture does not matter any more.
        with suppress(Exception):
            stream.end_capture()
        raise
    return stream.end_capture()


class _Recording(threading.local):
    """What the calling thread has launched since it began to capture; None if it does not."""

    calls: list[Callable[[], object]] | None = None


class CapturingStream(Stream):
    """A stream that keeps what it is given during a capture; how calls run is up to the child."""

    def __init__(self, device_name: str, counters: TransferCounters) -> None:
        self._device_name = device_name
        self._counters = counters
        self._recording = _Recording()
        self._repeats = LaunchBatcher()

    @abstractmethod
    def _launch(self, call: Callable[[], object]) -> None:
        """Run a call in stream order."""

    def _record(self, call: Callable[[], object]) -> None:
        """Do what the device needs to record a call, beside keeping it."""

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
        """Launch what was held back; a capture does not see it."""
        if not self.capturing:
            self._repeats.settle(self._launch)

    def begin_capture(self) -> None:
        self._before_waiting("begin_capture")
        self._recording.calls = []

    def _end_recording(self) -> list[Callable[[], object]]:
        """What was launched during the capture, which is over."""
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
        """What was held back is launched; nothing may wait while this thread captures."""
        if self.capturing:
            raise DeviceError.build(
                f"{what} on {self._device_name}",
                expected="a stream that is not capturing",
                got="a capture in progress, in which nothing may wait",
                hint="call end_capture first",
            )
        self.settle()
