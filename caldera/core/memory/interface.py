"""Devices: memory, streams that run work in order, events, capture and replay, traces.

`host.py` and `cuda.py` implement them; higher packages use devices only through this file.

Work is launched on a stream and may run later. Work on one stream runs in order; work on two
streams is unordered unless a stream waits for an event of the second. Copies between host and
device are launched like any other work. A call references its arrays and blocks, which therefore
stay alive until it has run.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from caldera.core.memory.pool import Block, Pool

Call = Callable[[], object]
Times = Callable[[int], Call]
"""Function that returns a call which repeats some work `n` times."""


class Event(ABC):
    """A point in a stream's work that others can wait for.

    >>> from caldera.core.memory import device
    >>> event = device("loopback").stream.record()
    >>> event.synchronize()
    >>> event.done()
    True
    """

    @abstractmethod
    def done(self) -> bool:
        """True once all earlier work has finished, successfully or not."""

    @abstractmethod
    def check(self) -> None:
        """Raise what went wrong in the work before this point, which must be `done`."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the work before this point, and raise what went wrong in it."""

    def settle(self) -> None:
        """Synchronise; counted as a wait only if work is pending."""
        if self.done():
            self.check()
        else:
            self.synchronize()


class TimingEvent(ABC):
    """Time at which a stream reached a point of its work; known afterwards."""

    @abstractmethod
    def done(self) -> bool:
        """True once the stream has reached it."""

    @abstractmethod
    def since(self, earlier: Self) -> float:
        """Return seconds from another moment of the same device to this one."""


class CapturedGraph(ABC):
    """Work that was recorded once and can be launched again as a whole.

    >>> from caldera.core.memory import device
    >>> stream, seen = device("cpu").new_stream(), []
    >>> stream.begin_capture()
    >>> stream.launch(lambda: seen.append(len(seen)))
    >>> graph = stream.end_capture()
    >>> graph.replay(); graph.replay()
    >>> seen
    [0, 1]
    """

    @abstractmethod
    def replay(self) -> None:
        """Launch everything recorded on the stream it was recorded from."""


@dataclass(frozen=True)
class StreamCall:
    """A call of a group that may run concurrently.

    Calls of one stream run in order. `after` contains the indices of earlier calls, on other
    streams, that must finish first.
    """

    call: Callable[[], object]
    stream: int = 0
    after: tuple[int, ...] = ()


class Stream(ABC):
    """Queue of work that runs in order.

    While a stream captures, launches are recorded and do not run. Calls that would make the host or
    another stream wait (`synchronize`, `record`, `wait`) are then rejected. This applies to the
    thread that started the capture: launches of other threads run normally.

    >>> from caldera.core.memory import device
    >>> stream, seen = device("loopback").new_stream(), []
    >>> stream.begin_capture()
    >>> stream.launch(lambda: seen.append("ran"))
    >>> graph = stream.end_capture()
    >>> graph.replay(); graph.replay(); stream.synchronize()
    >>> seen
    ['ran', 'ran']
    """

    @property
    @abstractmethod
    def capturing(self) -> bool:
        """True while launches of this thread are recorded."""

    @abstractmethod
    def launch(self, call: Callable[[], object]) -> None:
        """Run `call` after everything launched before it. It must not wait for this stream."""

    @property
    def has_side_streams(self) -> bool:
        """True if calls of different streams run concurrently."""
        return False

    def launch_on_streams(self, calls: Sequence[StreamCall]) -> None:
        """Run calls after all earlier launches; later launches wait for all of these calls."""
        for each in calls:
            self.launch(each.call)

    @abstractmethod
    def repeat(self, times: Times) -> None:
        """Launch `times(1)`, or hold it back until more of the same can be launched as one.

        It runs after everything launched before it, and before everything launched after it.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched has run, and raise the first thing that went wrong."""

    @abstractmethod
    def record(self) -> Event:
        """Return an event that is done once everything launched so far has run."""

    @abstractmethod
    def record_timing(self) -> TimingEvent:
        """Record an event with the time at which all work launched so far has run."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Delay later launches until `event`, without blocking the host."""

    @abstractmethod
    def begin_capture(self) -> None:
        """Record what this thread launches from now on, instead of running it."""

    @abstractmethod
    def end_capture(self) -> CapturedGraph:
        """Stop recording, and return the recorded launches for replay."""


Direction = Literal["h2d", "d2h", "d2d"]


class TransferCounters:
    """Copies of a device with their bytes, and the number of host waits.

    `h2d` is host to device, `d2h` device to host, `d2d` inside the device. A copy counts when it
    runs, so replayed copies count as well; synchronise before reading. `waits` counts every
    `synchronize` of a stream or an event, even without pending work.

    >>> from caldera.core.memory.interface import TransferCounters
    >>> counters = TransferCounters()
    >>> counters.add("h2d", 100)
    >>> counters
    TransferCounters(h2d=1 (100 bytes), d2h=0 (0 bytes), d2d=0 (0 bytes), waits=0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._counts: dict[Direction, int] = {"h2d": 0, "d2h": 0, "d2d": 0}
            self._bytes: dict[Direction, int] = {"h2d": 0, "d2h": 0, "d2d": 0}
            self._waits = 0

    def add(self, direction: Direction, nbytes: int) -> None:
        """Count one copy of `nbytes` bytes."""
        with self._lock:
            self._counts[direction] += 1
            self._bytes[direction] += nbytes

    def add_wait(self) -> None:
        """Count one wait of the host."""
        with self._lock:
            self._waits += 1

    waits = property(lambda self: self._waits, doc="The number of waits of the host.")
    h2d = property(lambda self: self._counts["h2d"], doc="Copies from host to device.")
    d2h = property(lambda self: self._counts["d2h"], doc="Copies from device to host.")
    d2d = property(lambda self: self._counts["d2d"], doc="Copies inside the device.")
    h2d_bytes = property(lambda self: self._bytes["h2d"], doc="Bytes from host to device.")
    d2h_bytes = property(lambda self: self._bytes["d2h"], doc="Bytes from device to host.")
    d2d_bytes = property(lambda self: self._bytes["d2d"], doc="Bytes inside the device.")

    def __repr__(self) -> str:
        parts = [f"{key}={self._counts[key]} ({self._bytes[key]} bytes)" for key in self._counts]
        return f"TransferCounters({', '.join(parts)}, waits={self._waits})"


class Device(ABC):
    """Separate memory with kernels that use it.

    - `name`: "cpu" or "loopback:1"; `kind` and `index` are its two halves.
    - `kernels`: the family of kernels that it runs.
    - `is_host`: True if its memory is the host's, so that no copies are made.
    - `pool`: its memory; `pools` are all pools that it owns.
    - `counters`: statistics of copies and host waits.
    - `touched`: another object after each `touch`.
    - `trace`: recorder used by `span`, if recording is active.
    - `stream`: default stream of kernels; `copy_stream`: stream of prefetches.
    - `turn`: lock held by a thread whose launches must be consecutive. The host has none: its
      threads compute concurrently.

    Offsets and sizes are in bytes. A block is allocated only when no pending work can access its
    bytes.

    >>> from caldera.core.memory import device
    >>> here, apart = device("cpu"), device("loopback:1")
    >>> here.is_host, apart.is_host, apart.kind, apart.index, apart.kernels
    (True, False, 'loopback', 1, 'cpu')
    """

    kind: str
    kernels: str
    is_host: bool

    def __init__(self, name: str, index: int, pool: Pool) -> None:
        self.name = name
        self.index = index
        self.pool = pool
        self.counters = TransferCounters()
        self.touched = object()
        self.last_writer: object = None
        """The plan (a token of it) that was the last to run of those that update variables."""
        self.trace: Trace | None = None
        self.turn: AbstractContextManager[Any] = (
            nullcontext() if self.is_host else threading.RLock()
        )
        self.stream = self.new_stream()
        self.copy_stream = self.stream if self.is_host else self.new_stream()

    @property
    def pools(self) -> tuple[Pool, ...]:
        """All memory pools of this device, for reports."""
        return (self.pool,)

    @property
    def memory_bytes(self) -> int | None:
        """Maximum number of bytes, or None without a limit."""
        return self.pool.capacity

    def touch(self) -> None:
        """Report that the host, or another stream, has accessed memory of kernels.

        Checks that memory is ready for a kernel remain valid until the next report.
        """
        self.touched = object()

    def span(self, what: str, stream: Stream) -> AbstractContextManager[None]:
        """Context manager: record launches inside under this name, if there is a `trace`."""
        if self.trace is None or stream.capturing:
            return nullcontext()
        return self.trace.around(what, stream)

    @abstractmethod
    def new_stream(self) -> Stream:
        """Return a new independent stream."""

    def allocate(self, nbytes: int, owner: str = "") -> Block:
        """Return memory of the device."""
        return self.pool.allocate(nbytes, owner)

    def trim(self) -> int:
        """Return unused memory to the system, and return the number of bytes."""
        return self.pool.trim()

    def empty_cache(self) -> int:
        """Return unused memory of all pools to the system, including host memory."""
        return sum(pool.trim() for pool in self.pools)

    @abstractmethod
    def allocate_host(self, nbytes: int, owner: str = "") -> Block:
        """Return host memory that this device copies from and to at full speed."""

    @abstractmethod
    def allocate_shared(self, nbytes: int, owner: str = "") -> Block:
        """Return memory that host and device both reach at the same address."""

    @abstractmethod
    def array(self, block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return the array that a kernel of this device is given for a part of a block."""

    @abstractmethod
    def copy_in(self, target: Block, offset: int, source: NDArray[Any], stream: Stream) -> None:
        """Launch a copy of a contiguous host array into a block. It is read when the copy runs."""

    @abstractmethod
    def copy_out(
        self, target: NDArray[Any], source: Block, offset: int, nbytes: int, stream: Stream
    ) -> None:
        """Launch a copy from a block into a contiguous host array."""

    @abstractmethod
    def copy_within(
        self,
        target: Block,
        offset: int,
        source: Block,
        source_offset: int,
        nbytes: int,
        stream: Stream,
    ) -> None:
        """Launch a copy between two blocks of this device, or inside one; ranges may overlap."""

    def __repr__(self) -> str:
        return f"<device {self.name}>"


@dataclass(frozen=True)
class StreamSpan:
    """Something that ran on a stream ("kernels" or "copies"), in seconds since the trace began."""

    what: str
    stream: str
    begin: float
    end: float


class Trace:
    """Record of the work on a device; see `recorded`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._start = device.stream.record_timing()
        self._marks: list[tuple[str, str, TimingEvent, TimingEvent]] = []

    @contextmanager
    def around(self, what: str, stream: Stream) -> Iterator[None]:
        """Context manager: record launches inside."""
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
    >>> from caldera.core.memory.interface import recorded
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
