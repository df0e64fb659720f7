"""Counters of sent and received data, by operation."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from caldera.base.formatting import bytes_text, seconds_text, table_lines


@dataclass
class Count:
    """Cost of an operation on one rank; `messages` counts sent messages.

    >>> Count(calls=2, messages=2, bytes_sent=80) - Count(calls=1, messages=1, bytes_sent=40)
    Count(calls=1, messages=1, bytes_sent=40, bytes_received=0, seconds=0.0)
    """

    calls: int = 0
    messages: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.calls + other.calls,
            self.messages + other.messages,
            self.bytes_sent + other.bytes_sent,
            self.bytes_received + other.bytes_received,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: Count) -> Count:
        return self + Count(
            -other.calls, -other.messages, -other.bytes_sent, -other.bytes_received, -other.seconds
        )


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
        """Sum over all operations."""
        return sum(self.values(), Count())


class Traffic:
    """Thread-safe counters of a communicator.

    Messages of nested operations count for the outermost operation, such as the messages inside an
    `Allreduce`.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     before = comm.traffic.mark()
    ...     comm.Allreduce(np.ones(4), np.empty(4))
    ...     return comm.traffic.since(before)["Allreduce"].bytes_sent
    >>> run_virtual_ranks(2, work)
    [32, 32]

    Printed, it is a table:

    >>> from caldera.comm import SingleProcess
    >>> comm = SingleProcess()
    >>> comm.Barrier()
    >>> print(comm.traffic)
    operation  calls  messages  sent  received ...time
    Barrier        1         0   0 B       0 B ... us
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._thread = threading.local()

    def __str__(self) -> str:
        rows = [("operation", "calls", "messages", "sent", "received", "time")]
        for name, count in sorted(self.mark().items()):
            moved = bytes_text(count.bytes_sent), bytes_text(count.bytes_received)
            numbers = f"{count.calls:,}", f"{count.messages:,}"
            rows.append((name, *numbers, *moved, seconds_text(count.seconds)))
        return "\n".join(table_lines(rows, left=(0,)))

    def operation(self, name: str) -> AbstractContextManager[None]:
        """Context manager: time and messages inside count under `name`."""
        if getattr(self._thread, "running", None) is not None:
            return _INSIDE
        return _Operation(self, name)

    def apart(self, name: str) -> AbstractContextManager[None]:
        """Context manager: time and messages count under `name` instead of the outer operation."""
        return _Operation(self, name)

    def sent(self, nbytes: int, messages: int = 1) -> None:
        """Count messages that the running operation sent, with their bytes together."""
        running: _Operation = self._thread.running
        running.messages += messages
        running.bytes_sent += nbytes

    def received(self, nbytes: int) -> None:
        """Count bytes that the running operation received."""
        running: _Operation = self._thread.running
        running.bytes_received += nbytes

    def mark(self) -> Counts:
        """Return the counts of all operations that have ended, for `since`."""
        with self._lock:
            return Counts((name, replace(count)) for name, count in self._counts.items())

    def since(self, mark: Counts) -> Counts:
        """Return the counts since a mark."""
        now = self.mark()
        return Counts((name, now[name] - mark[name]) for name in now if now[name] != mark[name])

    @property
    def total(self) -> Count:
        """Sum over all operations since the start."""
        return self.mark().total


class _Operation(AbstractContextManager[None]):
    """Operation in progress on one thread; its counts are added when it ends.

    It has its own counters: creating a `Count` per message takes longer than sending a short
    message.
    """

    __slots__ = (
        "_began",
        "_name",
        "_outer",
        "_traffic",
        "bytes_received",
        "bytes_sent",
        "messages",
    )

    def __init__(self, traffic: Traffic, name: str) -> None:
        self._traffic = traffic
        self._name = name
        self.messages = self.bytes_sent = self.bytes_received = 0

    def __enter__(self) -> None:
        thread = self._traffic._thread
        self._outer = getattr(thread, "running", None)
        thread.running = self
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._began
        traffic = self._traffic
        traffic._thread.running = self._outer
        with traffic._lock:
            total = traffic._counts.get(self._name)
            if total is None:
                total = traffic._counts[self._name] = Count()
            total.calls += 1
            total.messages += self.messages
            total.bytes_sent += self.bytes_sent
            total.bytes_received += self.bytes_received
            total.seconds += seconds


_INSIDE: AbstractContextManager[None] = nullcontext()
