"""The CPU as a device: its memory is the host's, and what is launched runs at once."""

from __future__ import annotations

from collections.abc import Callable

from caldera.core.memory.interface import Event, Stream, TransferCounters
from caldera.core.memory.pool import Block, Pool
from caldera.core.memory.software import RecordingStream, SoftwareDevice


class HostEvent(Event):
    """An event of a stream that never has work waiting: it is done from the start."""

    def __init__(self, counters: TransferCounters) -> None:
        self._counters = counters

    def done(self) -> bool:
        return True

    def check(self) -> None:
        return

    def synchronize(self) -> None:
        self._counters.add_wait()


class HostStream(RecordingStream):
    """Runs what is launched before `launch` returns."""

    def _launch(self, call: Callable[[], object]) -> None:
        call()

    def synchronize(self) -> None:
        self._before_waiting("synchronize")
        self._counters.add_wait()

    def record(self) -> Event:
        self._before_waiting("record")
        return HostEvent(self._counters)

    def wait(self, event: Event) -> None:
        self._before_waiting("wait")
        event.synchronize()


class HostDevice(SoftwareDevice):
    """The CPU.

    >>> from caldera.core.memory import device
    >>> device("cpu")
    <device cpu>
    """

    kind = "cpu"
    is_host = True

    def __init__(self) -> None:
        super().__init__("cpu", 0, Pool("cpu"))

    def new_stream(self) -> Stream:
        return HostStream("cpu", self.counters)

    def allocate_host(self, nbytes: int, owner: str = "") -> Block:
        return self.pool.allocate(nbytes, owner)
