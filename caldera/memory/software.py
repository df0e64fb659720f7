"""What the devices without hardware share: bytes of this process, capture as a list of calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caldera.errors import DeviceError
from caldera.memory.interface import CapturedGraph, Device, Moment, Stream, TransferCounters
from caldera.memory.pool import Block, host_view
from caldera.memory.repeats import Repeats, Times

_BYTE = np.dtype(np.uint8)


class WallClock(Moment):
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


class RecordingStream(Stream):
    """A stream whose capture keeps the calls themselves; how they run is up to the child."""

    def __init__(self, device_name: str, counters: TransferCounters) -> None:
        self._device_name = device_name
        self._counters = counters
        self._recorded: list[Callable[[], object]] | None = None
        self._repeats = Repeats()

    @abstractmethod
    def _run(self, call: Callable[[], object]) -> None:
        """Run a call in stream order."""

    @property
    def capturing(self) -> bool:
        return self._recorded is not None

    def launch(self, call: Callable[[], object]) -> None:
        self._settle()
        self._launch(call)

    def repeat(self, times: Times) -> None:
        self._repeats.add(times, self._launch)

    def _settle(self) -> None:
        """Launch what was held back."""
        self._repeats.settle(self._launch)

    def _launch(self, call: Callable[[], object]) -> None:
        if self._recorded is None:
            self._run(call)
        else:
            self._recorded.append(call)

    def moment(self) -> Moment:
        self._before_waiting("moment")
        return WallClock(self)

    def begin_capture(self) -> None:
        self._settle()
        if self._recorded is not None:
            raise DeviceError.build(
                f"begin_capture on {self._device_name}",
                expected="a stream that is not capturing",
                got="a capture that has begun already",
                hint="call end_capture first",
            )
        self._recorded = []

    def end_capture(self) -> CapturedGraph:
        self._settle()
        if self._recorded is None:
            raise DeviceError.build(
                f"end_capture on {self._device_name}",
                expected="a stream that is capturing",
                got="none",
                hint="call begin_capture first",
            )
        recorded, self._recorded = self._recorded, None
        return RecordedGraph(self, tuple(recorded))

    def _before_waiting(self, what: str) -> None:
        """What was held back is launched; nothing may wait while the stream captures."""
        self._settle()
        if self._recorded is not None:
            raise DeviceError.build(
                f"{what} on {self._device_name}",
                expected="a stream that is not capturing",
                got="a capture in progress, in which nothing may wait",
                hint="do this before begin_capture or after end_capture",
            )


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
