"""Devices in host memory: the CPU, and a loopback device that behaves like one with hardware.

On the CPU launched work runs immediately. The memory of a loopback device is in this process, but
separate: a forgotten copy shows up as wrong numbers. Each of its streams is a thread with a queue,
so work runs later, in order within a stream and concurrently with other streams. An error that
would occur on a GPU occurs there, on any machine.

Memory freed between live blocks stays with the process, and so does memory freed at the end of
the heap, up to 64 MiB for each thread. A compiler and the arrays used for measuring kernels leave
more of it than a small network needs for all of its training; `trim_heap` returns it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from caldera.core.memory.interface import Event, Stream, TransferCounters
from caldera.core.memory.pool import Block, Pool, take_host_memory
from caldera.core.memory.software import RecordingStream, SoftwareDevice
from caldera.errors import DeviceError


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
    """Stream that runs work inside `launch`."""

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
    """Return freed memory to the system if garbage was reported, or `always`.

    Return True if it was done. Only the GNU C library provides the function.

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


class _Queue:
    """Queue of a stream's work, run by one thread.

    It has no reference to the stream, which may be freed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: BaseException | None = None
        # (call, whether it runs even after an earlier call has failed); None ends the thread.
        self.items: SimpleQueue[tuple[Callable[[], object], bool] | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def put(self, call: Callable[[], object], *, always: bool = False) -> None:
        if self.thread is None:
            with self._starting:
                if self.thread is None:
                    thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                    thread.start()
                    self.thread = thread
        self.items.put((call, always))

    def surfaced(self, failure: BaseException) -> None:
        """Clear a failure that has been raised; later work runs again."""
        if self.failure is failure:
            self.failure = None

    def _work(self) -> None:
        while (item := self.items.get()) is not None:
            call, always = item
            if always or self.failure is None:
                try:
                    call()
                except BaseException as error:  # raised when a thread waits for the stream
                    self.failure = error
            # An idle thread must not keep the last call's arrays alive.
            del item, call


class LoopbackEvent(Event):
    """A point in a queue, with earlier failures."""

    def __init__(self, queue: _Queue, counters: TransferCounters) -> None:
        self._queue = queue
        self._counters = counters
        self._reached = threading.Event()
        self.failure: BaseException | None = None
        queue.put(self._reach, always=True)

    def _reach(self) -> None:
        self.failure = self._queue.failure
        self._reached.set()

    def done(self) -> bool:
        return self._reached.is_set()

    def check(self) -> None:
        if self.failure is not None:
            self._queue.surfaced(self.failure)
            raise self.failure

    def wait_until_reached(self) -> None:
        """Wait for the point without raising what went wrong before it."""
        self._reached.wait()

    def synchronize(self) -> None:
        if threading.current_thread() is self._queue.thread and not self.done():
            raise DeviceError.build(
                f"synchronize on {self._queue.name}",
                expected="a wait from outside the stream",
                got="a call running on the stream itself, which would wait for its own end",
                hint="wait before launching, or read the arrays that were given to the call",
            )
        self._counters.add_wait()
        self._reached.wait()
        self.check()


class LoopbackStream(RecordingStream):
    """Queue of calls, run in order by a separate thread.

    After a failed call the rest are skipped, until `synchronize` has raised the failure.
    """

    def __init__(self, device_name: str, counters: TransferCounters) -> None:
        super().__init__(device_name, counters)
        self._queue = _Queue(f"stream of {device_name}")
        weakref.finalize(self, self._queue.items.put, None)

    def _launch(self, call: Callable[[], object]) -> None:
        self._queue.put(call)

    def synchronize(self) -> None:
        self._before_waiting("synchronize")
        LoopbackEvent(self._queue, self._counters).synchronize()

    def record(self) -> Event:
        self._before_waiting("record")
        return LoopbackEvent(self._queue, self._counters)

    def wait(self, event: Event) -> None:
        self._before_waiting("wait")
        queue = self._queue

        def hold_back() -> None:
            if not isinstance(event, LoopbackEvent):
                event.synchronize()
                return
            event.wait_until_reached()
            if event.failure is not None and queue.failure is None:
                queue.failure = event.failure

        queue.put(hold_back, always=True)


def _take_marked_memory(nbytes: int) -> tuple[int, object]:
    """Return memory filled with NaN (or -1), which exposes reads without a copy."""
    address, storage = take_host_memory(nbytes)
    assert isinstance(storage, np.ndarray)
    storage.fill(0xFF)
    return address, storage


class LoopbackDevice(SoftwareDevice):
    """Test device with separate memory and streams.

    >>> from caldera.core.memory import device
    >>> device("loopback:2")
    <device loopback:2>
    """

    kind = "loopback"
    is_host = False

    def __init__(self, index: int, host_pool: Pool) -> None:
        name = f"loopback:{index}"
        self._host_pool = host_pool
        super().__init__(name, index, Pool(name, _take_marked_memory))

    def new_stream(self) -> Stream:
        return LoopbackStream(self.name, self.counters)

    def allocate_host(self, nbytes: int, owner: str = "") -> Block:
        return self._host_pool.allocate(nbytes, owner)
