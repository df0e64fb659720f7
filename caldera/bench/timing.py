"""Taking the time of a task inside its own process."""

from __future__ import annotations

import time

from caldera.bench.frameworks.base import Task

WARM_UP = 0.05
"""Seconds of calls before the clock starts; a long call is enough by itself."""
SHORTEST = 2e-3
"""Seconds below which several calls are timed together, so that the clock does not matter."""


def first_call(task: Task) -> float:
    """Seconds of a call that includes whatever is compiled for it."""
    start = time.perf_counter()
    task.call()
    task.wait()
    return time.perf_counter() - start


def timed(task: Task, seconds: float, least: int = 3) -> list[float]:
    """Seconds a step, again and again for about this long, and at least `least` times."""
    once = _warmed_up(task)
    together = max(1, int(SHORTEST / max(once, 1e-7)))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(together):
            task.call()
        task.wait()
        times.append((time.perf_counter() - start) / (together * task.steps_per_call))
    return times


def _warmed_up(task: Task) -> float:
    """Seconds of a call, once it is no longer the first after a pause."""
    end = time.perf_counter() + WARM_UP
    once = first_call(task)
    while time.perf_counter() < end:
        once = first_call(task)
    return once
