"""What a communicator has sent and received, counted by operation."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields
from types import TracebackType


@dataclass
class Count:
    """What one operation has cost one rank: `messages` are those it sent.

    >>> Count(calls=2, messages=2, bytes_sent=80) - Count(calls=1, messages=1, bytes_sent=40)
    Count(calls=1, messages=1, bytes_sent=40, bytes_received=0, seconds=0.0)
    """

    calls: int = 0
    messages: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Count)))

    def __sub__(self, other: Count) -> Count:
        return Count(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Count)))


class Counts(dict[str, Count]):
    """Counts by the name of an operation; one that never ran has zeros.

    >>> counts = Counts(Send=Count(1, 1, 8), Allreduce=Count(1, 2, 16))
    >>> counts.total.bytes_sent, counts["Bcast"].calls
    (24, 0)
    """

    def __missing__(self, name: str) -> Count:
        return Count()

    @property
    def total(self) -> Count:
        """All operations together."""
        return sum(self.values(), Count())


class Traffic:
    """Counters of one communicator, which any thread may add to.

    What an operation sends while another one runs counts for the outer one: the messages that an
    `Allreduce` consists of are its own.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     before = comm.traffic.mark()
    ...     comm.Allreduce(np.ones(4), np.empty(4))
    ...     return comm.traffic.since(before)["Allreduce"].bytes_sent
    >>> run_virtual_ranks(2, work)
    [32, 32]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._thread = threading.local()

    def operation(self, name: str) -> _Running:
        """Around an operation: its time, and whatever is sent meanwhile, count under `name`."""
        return _Running(self, name)

    def sent(self, nbytes: int, messages: int = 1) -> None:
        """Count messages that were sent, with their bytes together."""
        count = self._current()
        with self._lock:
            count.messages += messages
            count.bytes_sent += nbytes

    def received(self, nbytes: int) -> None:
        """Count bytes that were received."""
        count = self._current()
        with self._lock:
            count.bytes_received += nbytes

    def mark(self) -> Counts:
        """The counts as they are now, for `since`."""
        with self._lock:
            return Counts((name, count + Count()) for name, count in self._counts.items())

    def since(self, mark: Counts) -> Counts:
        """What was counted after a mark."""
        now = self.mark()
        return Counts((name, now[name] - mark[name]) for name in now if now[name] != mark[name])

    @property
    def total(self) -> Count:
        """All operations together, from the beginning."""
        return self.mark().total

    def _current(self) -> Count:
        name: str = self._thread.name
        return self._counts[name]


class _Running:
    """One operation of one thread; inside another one it does nothing."""

    __slots__ = ("_began", "_name", "_outermost", "_traffic")

    def __init__(self, traffic: Traffic, name: str) -> None:
        self._traffic = traffic
        self._name = name

    def __enter__(self) -> None:
        thread = self._traffic._thread
        self._outermost = getattr(thread, "name", None) is None
        if self._outermost:
            thread.name = self._name
            with self._traffic._lock:
                self._traffic._counts.setdefault(self._name, Count()).calls += 1
            self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._outermost:
            seconds = time.perf_counter() - self._began
            self._traffic._thread.name = None
            with self._traffic._lock:
                self._traffic._counts[self._name].seconds += seconds
