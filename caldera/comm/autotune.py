"""Speed of the link between ranks, and the fastest allreduce, measured once and cached.

Ranks measure together, and the slowest rank's time counts. Rank 0 stores results in
`settings.cache_dir` and broadcasts the selection, so all ranks agree.

The latency is half the round trip of an empty message between neighbours. The bandwidth is measured
with long messages that all ranks pass around a ring simultaneously. The slowest rank counts for
both.

Ranks measure together. Rank 0 stores the results in `settings.cache_dir` and sends them to the
remaining ranks, so all ranks use the same values. Measurements are repeated after pauses that grow
with the number of results, and their median counts, because other programs may slow the machine
temporarily.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.base.machine import this_machine
from caldera.base.plain_data import json_digest
from caldera.comm.algorithms.allreduce import default_algorithm
from caldera.comm.algorithms.rings import sides

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from statistics import median
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from caldera.comm.communicator import Communicator

FORMAT = 2
ROUNDS, MOST_ROUNDS, ROUND_AFTER_S = 3, 20, 0.05
"""Minimum and maximum number of rounds, and the time after which no further round starts."""
HOPELESS = 1.5
"""Algorithms slower than the best by this factor are not measured again."""
CLEARLY = 0.9
"""Another algorithm than the usual one must take less than so much of its time: a few measurements
on a busy network cannot tell more."""
_SIZES = [4**power for power in range(5, 14)]
_ENVIRONMENT = ("OMPI_MCA_btl", "OMPI_MCA_pml", "UCX_TLS", "FI_PROVIDER")


@dataclass(eq=False)
class AllreduceTuner:
    """The algorithm for each size that one communicator has met.

    - `chosen`: the algorithm for each size in bytes; `times`: the seconds that each one took.
    """

    chosen: dict[int, str] = field(default_factory=dict)
    times: dict[int, dict[str, float]] = field(default_factory=dict)

    def for_bytes(self, comm: Communicator, nbytes: int) -> str:
        """Return the algorithm for buffers of about that size. Called by all ranks together."""
        if settings.deterministic or comm.size == 1:
            # Measurements vary from run to run, and the order of a sum would vary with them.
            return default_algorithm(np.empty(nbytes, np.uint8), "sum")
        size = size_class(nbytes)
        if size not in self.chosen:
            with comm.traffic.apart("tuning"):
                self.chosen[size] = self._find(comm, size)
        return self.chosen[size]

    def _find(self, comm: Communicator, size: int) -> str:
        key = machine_key(comm) if comm.rank == 0 else None
        read = _read(key).get(str(size), {}) if key else {}
        known = comm.bcast_object({n: t for n, t in read.items() if n in comm.algorithms()})
        if not known:
            known = _measure(comm, size)
            if key:
                with suppress(OSError):
                    _TIMES.write_json(key, {**_read(key), str(size): known})
        self.times[size] = known
        return fastest(known, default_algorithm(np.empty(size, np.uint8), "sum"))


def fastest(times: dict[str, float], usual_one: str) -> str:
    """Return the algorithm to take: the usual one unless another is clearly faster.

    >>> fastest({"ring": 1.0, "halving": 0.95, "library": 2.0}, "ring")
    'ring'
    >>> fastest({"ring": 1.0, "halving": 0.95, "library": 0.5}, "ring")
    'library'
    """
    best = min(times, key=lambda name: (times[name], name))
    return usual_one if times.get(usual_one, math.inf) * CLEARLY <= times[best] else best


def size_class(nbytes: int) -> int:
    """Return sizes that share a choice: the power of four above, from 1 KiB to 64 MiB.

    >>> size_class(4), size_class(5000), size_class(2**22), size_class(2**40)
    (1024, 16384, 4194304, 67108864)
    """
    return next(size for size in _SIZES if size >= min(nbytes, _SIZES[-1]))


def _measure(comm: Communicator, size: int) -> dict[str, float]:
    """Return median seconds of each algorithm that is worth a try, within the budget for tuning."""
    before = comm.algorithm
    buffer = np.full(size // 4, 0, np.float32)
    remaining = candidates(comm, size)
    seen: dict[str, list[float]] = {name: [] for name in remaining}
    medians: dict[str, float] = {}
    for name in remaining:
        # Connections are made when two ranks first talk, and memory when it is first touched.
        comm.algorithm = name
        comm.Allreduce(buffer, buffer)
    began = time.perf_counter()
    for rounds in range(MOST_ROUNDS):
        limit = settings.tune_budget_s if rounds < ROUNDS else ROUND_AFTER_S
        for name in remaining:
            if comm.bcast_object(time.perf_counter() - began > limit):
                break
            comm.algorithm = name
            seen[name].append(_seconds(comm, buffer))
            medians[name] = statistics.median(seen[name])
        worst = HOPELESS * min(medians.values(), default=math.inf)
        remaining = [name for name in remaining if medians.get(name, math.inf) <= worst]
    comm.algorithm = before
    return medians or {default_algorithm(buffer, "sum"): 0.0}


def _seconds(comm: Communicator, buffer: np.ndarray) -> float:
    """Return the time of the slowest rank."""
    comm.Barrier()
    began = time.perf_counter()
    comm.Allreduce(buffer, buffer)
    return max(comm.gather_objects(time.perf_counter() - began))


def candidates(comm: Communicator, size: int) -> list[str]:
    """Return the algorithms that can be the fastest for a size, the likely ones first.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(3, lambda comm: candidates(comm, 1 << 22))[0]
    ['ring', 'window', 'halving', 'direct']
    """
    machines = len(set(comm.nodes))
    worth = {
        # A prime number of ranks has no rows and columns.
        "torus": sides(comm.size)[0] > 1,
        "hierarchical": 1 < machines < comm.size,
        # These send the whole buffer several times.
        "doubling": size <= 1 << 20,
        "master": size <= 1 << 16,
    }
    likely = (
        "ring",
        "library",
        "window",
        "halving",
        "direct",
        "torus",
        "hierarchical",
        "doubling",
        "master",
    )
    return [name for name in likely if name in comm.algorithms() and worth.get(name, True)]


_TIMES = FileCache("allreduce")


def machine_key(comm: Communicator) -> str:
    """Return all that the times depend on: the ranks, their machines and their way of talking."""
    here = this_machine()
    facts = {
        "format": FORMAT,
        "communicator": comm.describe(),
        "nodes": list(comm.nodes),
        "machine": [here.node, here.architecture, here.cores],
        "environment": {name: os.environ.get(name) for name in _ENVIRONMENT},
    }
    return json_digest(facts)


def _read(key: str) -> dict[str, Any]:
    """Return cached measurements; unreadable ones count as missing."""
    found = _TIMES.read_json(key)
    try:
        return {
            str(int(size)): {str(name): float(seconds) for name, seconds in times.items()}
            for size, times in found.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}


SWEEPS = 3
"""Number of measurements at first."""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 3600.0
"""Pause before the second measurement, doubled each time, and its maximum."""
REMEMBERED = 16
"""Number of recent measurements in the median, so that a slower machine is noticed."""
PING_PONGS, LINK_ROUNDS = 21, 7
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
        require(
            self.latency >= 0 and self.bandwidth > 0,
            type(self).__name__,
            "latency of 0 or more seconds, bandwidth above 0 bytes a second",
            f"{self.latency} and {self.bandwidth}",
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
    for _ in range(LINK_ROUNDS):
        communicator.Barrier()
        began = time.perf_counter()
        communicator.Sendrecv(send, after, receive, before)
        times.append(time.perf_counter() - began)
    # Connections are made and memory is touched in the first rounds.
    seconds = slowest(communicator, median(times[LINK_ROUNDS // 2 :]))
    return Link(max(latency, 1e-9), LONG_BYTES / max(seconds - latency, 0.5 * seconds))
