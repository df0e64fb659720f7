"""What captures have in common on every device: calls are kept, and nothing may wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from caldera.errors import DeviceError
from caldera.memory.interface import Stream, TransferCounters
from caldera.memory.launch_batching import LaunchBatcher, Times


class CapturingStream(Stream):
    """A stream that keeps what it is given during a capture; how calls run is up to the child."""

    def __init__(self, device_name: str, counters: TransferCounters) -> None:
        self._device_name = device_name
        self._counters = counters
        self._recorded: list[Callable[[], object]] | None = None
        self._repeats = LaunchBatcher()

    @abstractmethod
    def _launch(self, call: Callable[[], object]) -> None:
        """Run a call in stream order, or record it."""

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

    def begin_capture(self) -> None:
        self._before_waiting("begin_capture")
        self._recorded = []

    def _end_recording(self) -> list[Callable[[], object]]:
        """What was launched during the capture, which is over."""
        self.settle()
        if self._recorded is None:
            raise DeviceError.build(
                f"end_capture on {self._device_name}",
                expected="a stream that is capturing",
                got="none",
                hint="call begin_capture first",
            )
        recorded, self._recorded = self._recorded, None
        return recorded

    def _before_waiting(self, what: str) -> None:
        """What was held back is launched; nothing may wait while the stream captures."""
        self.settle()
        if self._recorded is not None:
            raise DeviceError.build(
                f"{what} on {self._device_name}",
                expected="a stream that is not capturing",
                got="a capture in progress, in which nothing may wait",
                hint="call end_capture first",
            )
