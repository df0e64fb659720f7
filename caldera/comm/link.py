"""Latency and bandwidth of the link between ranks, measured once and cached on this machine.

The latency is half the round trip of an empty message between neighbours. The bandwidth is measured
with long messages that all ranks pass around a ring simultaneously. The slowest rank counts for
both.

Ranks measure together. Rank 0 stores the results in `settings.cache_dir` and sends them to the
remaining ranks, so all ranks use the same values. Measurements are repeated after pauses that grow
with the number of results, and their median counts, because other programs may slow the machine
temporarily.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.comm.autotune import machine_key
from caldera.comm.communicator import Communicator
from caldera.errors import ConfigError

SWEEPS = 3
"""Number of measurements at first."""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 3600.0
"""Pause before the second measurement, doubled each time, and its maximum."""
REMEMBERED = 16
"""Number of recent measurements in the median, so that a slower machine is noticed."""
PING_PONGS, ROUNDS = 21, 7
LONG_BYTES = 4 << 20


@dataclass(frozen=True)
class Link:
    """Link between ranks: seconds for a message however short it is, and bytes a second.

    >>> from caldera import compress
    >>> compress.Link(latency=1e-4, bandwidth=12.5e6).seconds(messages=1, size=125)
    0.00011
    """

    latency: float = 5e-5
    bandwidth: float = 125e6

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ConfigError.build(
                type(self).__name__,
                expected="latency of 0 or more seconds, bandwidth above 0 bytes a second",
                got=f"{self.latency} and {self.bandwidth}",
            )

    def seconds(self, size: float, messages: float = 1) -> float:
        """Return the time of messages of `size` bytes together."""
        return messages * self.latency + size / self.bandwidth

    @classmethod
    def measured(cls, communicator: Communicator) -> Link:
        """Measure the link between the ranks of a communicator; see `measured_link`.

        >>> from caldera import comm, compress
        >>> comm.run_virtual_ranks(2, compress.Link.measured)[0].bandwidth > 0
        True
        """
        return measured_link(communicator)


Measured = TypeVar("Measured", bound=Any)


class MeasuredTable(Generic[Measured]):
    """Measurements of a dataclass of numbers, by ranks and machine.

    - `kind`: the dataclass; `may_be_zero`: its fields that may be 0.
    """

    def __init__(self, name: str, kind: type[Measured], may_be_zero: Sequence[str] = ()) -> None:
        self.file = FileCache(name)
        self.kind = kind
        self.may_be_zero = may_be_zero
        self._names = [field.name for field in fields(kind)]

    def typical(self, comm: Communicator, sweep: Callable[[Communicator], Measured]) -> Measured:
        """Return the median of remembered sweeps, after new ones if they are due.

        All ranks have to call this.
        """
        key = machine_key(comm) if comm.rank == 0 else None
        known = [] if key is None else self._read(key)
        due = sweeps_due([each["at"] for each in known], time.time())
        known, due = comm.bcast_object((known, due))
        if due:
            with comm.traffic.apart("tuning"):
                new = [{"at": time.time(), **asdict(sweep(comm))} for _ in range(due)]
            known = [*known, *new][-REMEMBERED:]
            if key is not None:
                with suppress(OSError):
                    self.file.write_json(key, known)
        return self.kind(**{name: median(each[name] for each in known) for name in self._names})

    def _read(self, key: str) -> list[dict[str, float]]:
        """Return earlier sweeps; unreadable content counts as none."""
        try:
            found = [
                {name: float(sweep[name]) for name in ("at", *self._names)}
                for sweep in self.file.read_json(key)
            ]
        except (KeyError, TypeError, ValueError):
            return []
        is_right = all(
            0 < value < float("inf") or (value == 0 and name in self.may_be_zero)
            for sweep in found
            for name, value in sweep.items()
        )
        return found if is_right else []


def sweeps_due(times: Sequence[float], now: float) -> int:
    """Return the number of measurements to make now, after those made at these times.

    >>> sweeps_due([], 100.0), sweeps_due([100, 100, 100], 100.5), sweeps_due([100, 100, 100], 102)
    (3, 0, 1)
    """
    if not times:
        return SWEEPS
    pause = min(PAUSE_S * 2 ** max(len(times) - SWEEPS, 0), LONGEST_PAUSE_S)
    # A clock may have been set back.
    return int(not 0 <= now - times[-1] < pause)


_LINKS = MeasuredTable("link", Link)
_CHOSEN: WeakKeyDictionary[Communicator, Link] = WeakKeyDictionary()


def measured_link(communicator: Communicator) -> Link:
    """Return the measured link between the ranks of a communicator; all ranks must call it.

    >>> from caldera.comm import run_virtual_ranks
    >>> first, second = run_virtual_ranks(2, measured_link)
    >>> first == second, first.latency > 0
    (True, True)
    """
    return Link() if communicator.size == 1 else _LINKS.typical(communicator, _sweep)


def choices_may_vary(communicator: Communicator) -> bool:
    """Return True if choices may depend on measurements between these ranks.

    They must not for threads of one process, which share results, or where choices have to be the
    same in each run (`settings.deterministic`).
    """
    is_measured = communicator.size > 1 and communicator.name != "threads"
    return is_measured and not settings.deterministic


def link_for_choices(communicator: Communicator) -> Link | None:
    """Return the measured link if choices may depend on it, else None; a collective call.

    The link of a communicator stays the same.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, link_for_choices)
    [None, None]
    """
    if not choices_may_vary(communicator):
        return None
    if communicator not in _CHOSEN:
        _CHOSEN[communicator] = measured_link(communicator)
    return _CHOSEN[communicator]


def ping_pong(communicator: Communicator) -> float:
    """Return half the round trip of an empty message, in seconds; neighbours take turns.

    The slowest rank counts.
    """
    nothing = np.empty(0, np.uint8)
    times: list[float] = []
    for first in range(communicator.size - 1):
        for _ in range(PING_PONGS):
            began = time.perf_counter()
            if communicator.rank == first:
                communicator.Send(nothing, first + 1)
                communicator.Recv(nothing, first + 1)
                times.append((time.perf_counter() - began) / 2)
            elif communicator.rank == first + 1:
                communicator.Recv(nothing, first)
                communicator.Send(nothing, first)
    return slowest(communicator, median(times or [0.0]))


def slowest(communicator: Communicator, seconds: float) -> float:
    """Return the longest time of all ranks."""
    return float(max(communicator.gather_objects(seconds)))


def _sweep(communicator: Communicator) -> Link:
    latency = ping_pong(communicator)
    send, receive = np.zeros(LONG_BYTES, np.uint8), np.empty(LONG_BYTES, np.uint8)
    after = (communicator.rank + 1) % communicator.size
    before = (communicator.rank - 1) % communicator.size
    times = []
    for _ in range(ROUNDS):
        communicator.Barrier()
        began = time.perf_counter()
        communicator.Sendrecv(send, after, receive, before)
        times.append(time.perf_counter() - began)
    # Connections are made and memory is touched in the first rounds.
    seconds = slowest(communicator, median(times[ROUNDS // 2 :]))
    return Link(max(latency, 1e-9), LONG_BYTES / max(seconds - latency, 0.5 * seconds))
