"""CPU device, and the return of freed heap memory to the operating system.

The memory of the device is the host's, and launched work runs immediately.

Memory freed between live blocks stays with the process, and so does memory freed at the end of
the heap, up to 64 MiB for each thread. A compiler and the arrays used for measuring kernels leave
more of it than a small network needs for all of its training.
"""

from __future__ import annotations

import ctypes
import os
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


_has_garbage = False


def note_garbage() -> None:
    """Say that much has been allocated and freed: the next `trim_heap` is worth its time.

    >>> from caldera.core.memory.host import note_garbage
    >>> note_garbage()
    """
    global _has_garbage
    _has_garbage = True


def trim_heap(*, always: bool = False) -> bool:
    """Give freed memory back to the system if somebody noted garbage since the last time, or
    `always`; whether that was done. Only the GNU C library has a function for it.

    >>> from caldera.core.memory.host import note_garbage, trim_heap
    >>> note_garbage()
    >>> trim_heap() and trim_heap()
    False
    """
    global _has_garbage
    if not (_has_garbage or always):
        return False
    _has_garbage = False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return False
    trim(0)
    return True
