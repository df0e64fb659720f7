"""Processor time that other programs take from this process, from counters of the system.

A measurement of kernels is only as good as the machine was quiet. `NoiseWatch` compares counters
before and after: processor time of others (and of other virtual machines), time that runnable
threads of this process waited for a core, and time in which a quota stopped it. Systems without
these counters report no noise, except for their average load.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

from caldera.base.config import settings
from caldera.base.machine import processor_groups

QUIET = 0.2
"""Number of cores taken by others up to which times are reliable: the best of several counts."""
LEAST_S = 0.2
"""Seconds over which the system's clock ticks show a load."""
WAKE_S = 5e-5
"""Seconds that a thread waits for its core after it slept, without any other program."""
MOST_CORES = 99.0

_STAT = Path("/proc/stat")
_TASKS = Path("/proc/self/task")
_BUSY = (1, 2, 3, 6, 7, 8)
"""Columns: user, nice, system, two kinds of interrupts, and time given to other machines."""


def busy_seconds() -> tuple[float, int]:
    """Return the busy seconds of this process's cores since they were started, and their number.

    >>> busy_seconds()[0] >= 0.0
    True
    """
    with suppress(OSError, ValueError, IndexError, AttributeError):
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in _STAT.read_text().splitlines()]
        ticks = [int(row[place]) for row in rows if row and row[0] in cores for place in _BUSY]
        return sum(ticks) / os.sysconf("SC_CLK_TCK"), len(cores)
    return 0.0, 0


@dataclass(frozen=True)
class _Counters:
    """Seconds since some start: by the clock, of this process, and of all on its cores."""

    wall: float
    own: float
    busy: float
    cores: int

    def used_by_others(self, since: _Counters) -> float:
        """Return the number of cores that other programs used, 0 if it is not known."""
        wall = self.wall - since.wall
        busy = self.busy - since.busy - (self.own - since.own)
        return max(0.0, busy / wall) if wall > 0 and self.cores else 0.0


def _counters() -> _Counters:
    busy, cores = busy_seconds()
    return _Counters(perf_counter(), process_time(), busy, cores)


_past: deque[_Counters] = deque(maxlen=64)
"""Earlier counters of this process: short measurements are judged by the time before them too."""


def _now() -> _Counters:
    """Return the present counters, which are kept unless others are as new."""
    found = _counters()
    if not _past or found.wall - _past[-1].wall > LEAST_S / 4:
        _past.append(found)
    return found


def _earlier(than: float) -> _Counters | None:
    """Return the newest counters at least this old; the oldest if none is; None without any."""
    return next(
        (each for each in reversed(_past) if each.wall <= than), _past[0] if _past else None
    )


class OthersWatch:
    """Share of its cores' time used by other programs since creation.

    >>> 0.0 <= OthersWatch().share() <= 1.0
    True
    """

    def __init__(self) -> None:
        self._start = _counters()

    def share(self) -> float:
        """Other programs, and other machines of the host; 0 where the system does not say."""
        cores = self._start.cores
        return min(1.0, _counters().used_by_others(self._start) / cores) if cores else 0.0


class NoiseWatch:
    """Number of cores that others took from this process since creation.

    >>> NoiseWatch().cores() >= 0.0
    True
    """

    def __init__(self) -> None:
        self._start, self._waited, self._stopped = _now(), _waited(), _stopped()

    def cores(self) -> float:
        """Return the largest of the counters, in cores; cores that no thread needs do not count."""
        now = _now()
        wall = max(now.wall - self._start.wall, 1e-6)
        waited = (_waited() - self._waited) / wall
        stopped = (_stopped() - self._stopped) / wall
        return min(MOST_CORES, max(others_now(self._start.wall), waited, stopped, 0.0))


def others_now(since: float | None = None) -> float:
    """Return the number of cores that others use and that threads of this process need.

    It is measured since this time by the clock, or for the last moment if that is longer.

    >>> others_now() >= 0.0
    True
    """
    now = _now()
    start = _earlier(now.wall - LEAST_S if since is None else min(since, now.wall - LEAST_S))
    if not now.cores:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return max(0.0, load - settings.threads)
    if start is None or now.wall - start.wall < LEAST_S / 2:
        return 0.0
    return max(0.0, now.used_by_others(start) - max(0, now.cores - settings.threads))


def _waited() -> float:
    """Return the seconds that runnable threads of this process waited, without their waking."""
    seconds, slept = 0.0, 0
    with suppress(OSError, ValueError, IndexError, ImportError):
        import resource

        slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        for task in os.listdir(_TASKS):
            with suppress(FileNotFoundError, ProcessLookupError):
                seconds += int((_TASKS / task / "schedstat").read_text().split()[1]) * 1e-9
    return seconds - slept * WAKE_S if seconds else 0.0


def _stopped() -> float:
    """Return the seconds in which a quota of processor time stopped this process's groups."""
    found = 0.0
    for group in processor_groups():
        with suppress(OSError, ValueError):
            lines = (group / "cpu.stat").read_text().splitlines()
            facts = dict(line.split() for line in lines)
            found = max(
                found,
                int(facts.get("throttled_usec", 0)) * 1e-6,
                int(facts.get("throttled_time", 0)) * 1e-9,
            )
    return found


# The first measurement of a process can refer to the time since this import.
_now()
