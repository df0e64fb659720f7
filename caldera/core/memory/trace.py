"""When copies and steps ran on a device: shows whether one goes on beside the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from caldera.core.memory.interface import Device, Stream, TimingEvent


@dataclass(frozen=True)
class StreamSpan:
    """Something that ran on a stream ("kernels" or "copies"), in seconds since the trace began."""

    what: str
    stream: str
    begin: float
    end: float


class Trace:
    """What ran on a device while it was recorded; see `recorded`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._start = device.stream.record_timing()
        self._marks: list[tuple[str, str, TimingEvent, TimingEvent]] = []

    @contextmanager
    def around(self, what: str, stream: Stream) -> Iterator[None]:
        """Record what is launched inside."""
        begin = stream.record_timing()
        yield
        name = "kernels" if stream is self._device.stream else "copies"
        self._marks.append((what, name, begin, stream.record_timing()))

    def spans(self) -> list[StreamSpan]:
        """Everything that was recorded, in the order of its launch; waits for the device."""
        self._device.stream.synchronize()
        self._device.copy_stream.synchronize()
        return [
            StreamSpan(what, name, begin.since(self._start), end.since(self._start))
            for what, name, begin, end in self._marks
        ]


@contextmanager
def recorded(device: Device) -> Iterator[Trace]:
    """Record the copies of a device and the runs of its plans.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera.core.memory.trace import recorded
    >>> with recorded(cd.device("loopback")) as trace:
    ...     _ = cd.tensor([1.0, 2.0], kind=cd.DEVICE, device="loopback")
    >>> [(span.what, span.stream) for span in trace.spans()]
    [('h2d', 'kernels')]
    """
    trace = Trace(device)
    device.trace = trace
    try:
        yield trace
    finally:
        device.trace = None
