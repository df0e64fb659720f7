"""What the devices without hardware share: bytes of this process, capture as a list of calls."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caldera.core.memory.capture import CapturingStream
from caldera.core.memory.interface import CapturedGraph, Device, Stream, TimingEvent
from caldera.core.memory.pool import Block, host_view
from caldera.errors import DeviceError

_BYTE = np.dtype(np.uint8)


class WallClock(TimingEvent):
    """The time at which a stream came to a call."""

    def __init__(self, stream: Stream) -> None:
        self._seconds: float | None = None
        stream.launch(self._note)

    def _note(self) -> None:
        self._seconds = perf_counter()

    def done(self) -> bool:
        return self._seconds is not None

    def since(self, earlier: Self) -> float:
        assert self._seconds is not None
        assert earlier._seconds is not None
        return self._seconds - earlier._seconds


class RecordedGraph(CapturedGraph):
    """The calls that were launched during a capture, in order."""

    def __init__(self, stream: Stream, calls: tuple[Callable[[], object], ...]) -> None:
        self._stream = stream
        self._calls = calls

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        for call in self._calls:
            self._stream.launch(call)


class RecordingStream(CapturingStream):
    """A stream whose capture keeps the calls themselves; how they run is up to the child."""

    def record_timing(self) -> TimingEvent:
        self._before_waiting("moment")
        return WallClock(self)

    def end_capture(self) -> CapturedGraph:
        return RecordedGraph(self, tuple(self._end_recording()))


class SoftwareDevice(Device):
    """A device whose bytes are NumPy's; its kernels are the CPU's."""

    kernels = "cpu"

    def allocate_shared(self, nbytes: int, owner: str = "") -> Block:
        return self.pool.allocate(nbytes, owner)

    def array(
        self, block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        return host_view(block, offset, shape, dtype)

    def copy_in(self, target: Block, offset: int, source: NDArray[Any], stream: Stream) -> None:
        given = contiguous_bytes(source)
        inside = host_view(target, offset, given.shape, _BYTE)

        def copy() -> None:
            np.copyto(inside, given)
            self.counters.add("h2d", inside.nbytes)

        with self.span("h2d", stream):
            stream.launch(copy)

    def copy_out(
        self, target: NDArray[Any], source: Block, offset: int, nbytes: int, stream: Stream
    ) -> None:
        outside = contiguous_bytes(target)[:nbytes]
        inside = host_view(source, offset, (nbytes,), _BYTE)

        def copy() -> None:
            np.copyto(outside, inside)
            self.counters.add("d2h", inside.nbytes)

        with self.span("d2h", stream):
            stream.launch(copy)

    def copy_within(
        self,
        target: Block,
        offset: int,
        source: Block,
        source_offset: int,
        nbytes: int,
        stream: Stream,
    ) -> None:
        to = host_view(target, offset, (nbytes,), _BYTE)
        given = host_view(source, source_offset, (nbytes,), _BYTE)

        def copy() -> None:
            np.copyto(to, given)
            self.counters.add("d2d", to.nbytes)

        with self.span("d2d", stream):
            stream.launch(copy)


def contiguous_bytes(array: NDArray[Any]) -> NDArray[Any]:
    """The array's bytes as a flat view; refused where that would need a copy."""
    if not array.flags.c_contiguous:
        raise DeviceError.build(
            "copy between host and device",
            expected="a contiguous array",
            got=f"strides {array.strides} for shape {array.shape}",
            hint="use np.ascontiguousarray",
        )
    return array.reshape(-1).view(_BYTE)
