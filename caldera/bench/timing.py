"""Taking the time of a task inside its own process."""

from __future__ import annotations

import time

from caldera.bench.frameworks.base import Task

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
