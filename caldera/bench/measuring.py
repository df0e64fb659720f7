"""Taking the time of a task inside its own process, and the memory of that."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

from caldera.bench.frameworks.base import Task
from caldera.lazy import forget_plans
from caldera.memory import device

WARM_UP = 0.05
"""Seconds of calls before the clock starts; a long call is enough by itself."""
SHORTEST = 2e-3
"""Seconds below which several calls are timed together, so that the clock does not matter."""
CARD_SHORTEST = 20e-3
"""The same on a card, where waiting for the last call costs tens of microseconds as well."""


def first_call(task: Task) -> float:
    """Seconds of a call that includes whatever is compiled for it."""
    return _seconds_of(task, 1)


def timed(task: Task, seconds: float, least: int = 3, *, shortest: float = SHORTEST) -> list[float]:
    """Seconds a step, again and again for about this long, and at least `least` times.

    Each time is that of so many calls, waited for once, that they take `shortest` together.
    """
    together = max(1, int(shortest / max(_warmed_up(task), 1e-7)))
    # A call that is waited for by itself can take longer than one of many.
    while (found := _seconds_of(task, together)) < shortest:
        together = max(together + 1, int(together * min(16.0, 1.2 * shortest / found)))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        times.append(_seconds_of(task, together) / (together * task.steps_per_call))
    return times


def _seconds_of(task: Task, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        task.call()
    task.wait()
    return time.perf_counter() - start


def _warmed_up(task: Task) -> float:
    """Seconds of a call, once it is no longer the first after a pause."""
    end = time.perf_counter() + WARM_UP
    once = first_call(task)
    while time.perf_counter() < end:
        once = first_call(task)
    return once


# --- memory

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_memory() -> int:
    """Bytes of memory this process has now (its peak where the system does not say).

    >>> resident_memory() > 0
    True
    """
    return _status("VmRSS") or peak_memory()


def peak_memory() -> int:
    """The most bytes this process had, since it began or since `reset_peak_memory`.

    >>> peak_memory() >= 1 << 20
    True
    """
    found = _status("VmHWM")
    if found:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak_memory() -> None:
    """Count the peak from here on, where the system can; and give back what nobody uses.

    What a peer's worker needed to build the network in Caldera is not the peer's memory.
    """
    forget_plans()
    gc.collect()
    device("cpu").pool.trim()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def _status(name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
