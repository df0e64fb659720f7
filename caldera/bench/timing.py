"""Timing of tasks within a process, interleaved timing of several, and memory use."""

from __future__ import annotations

import gc
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.noise import OthersWatch
from caldera.bench.frameworks.base import BenchTask
from caldera.compiler.lazy import forget_plans
from caldera.core.memory import device, trim_heap
from caldera.train.callbacks import Callback
from caldera.train.run import Run

MORE, SHORT = 7, 1.0
"""Factor by which short work is repeated more often, and its usual seconds in total."""
_WINDOW_S = 0.5
"""Seconds over which the use of the cores by other programs is measured."""
Work = Callable[[], object]


def in_turns(
    contestants: Mapping[str, Work],
    repeats: int,
    least: float = 2e-3,
    *,
    short: float = SHORT,
    most: float = math.inf,
    within: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
    wait: Work | None = None,
) -> dict[str, list[float]]:
    """Return seconds per call of each contestant, measured in turns: a slowdown affects all.

    A time is measured over enough calls to take `least` seconds together. Turns that take less than
    `short` seconds in total are repeated more often, so that a disturbed turn does not count; after
    `most` seconds two turns are enough.
    A contestant runs inside the context that `within` returns for its name. `wait` returns when
    all submitted work is done.

    >>> sorted(in_turns({"a": lambda: None, "b": lambda: None}, 2))
    ['a', 'b']
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    calls = {}
    for name, work in contestants.items():
        with within(name):
            calls[name] = _calls(work, least, wait)
    watch, turns = Stopwatch(), 0
    while turns < repeats or (turns < MORE * repeats and watch.wall < short):
        if turns > 1 and watch.wall > most:
            break
        for name, work in contestants.items():
            with within(name):
                found[name].append(_seconds(work, calls[name], wait) / calls[name])
        turns += 1
    return found


def best_in_turns(
    contestants: Mapping[str, Work], repeats: int, least: float = 2e-3, **options: Any
) -> dict[str, float]:
    """Return each contestant's best time; for `options` see `in_turns`.

    >>> sorted(best_in_turns({"a": lambda: None, "b": lambda: None}, 2))
    ['a', 'b']
    """
    found = in_turns(contestants, repeats, least, **options)
    return {name: min(times) for name, times in found.items()}


class Stopwatch:
    """Seconds since creation, by the clock and of this process's CPU time.

    >>> Stopwatch().wall < 1.0
    True
    """

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall(self) -> float:
        """Elapsed seconds."""
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        """CPU seconds of all threads of this process."""
        return time.process_time() - self._cpu


class StepClock(Callback):
    """The time at which each step and each epoch of a training ended.

    >>> StepClock().seconds(untimed=1)
    []
    """

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.epochs: list[float] = []

    def batch_ends(self, run: Run) -> None:
        self.steps.append(time.perf_counter())

    def epoch_ends(self, run: Run) -> None:
        self.epochs.append(time.perf_counter())

    def seconds(self, untimed: int, every: int = 1) -> list[float]:
        """Return the seconds of each `every` steps, after the first `untimed` steps."""
        return np.diff(self.steps[untimed - 1 :: every]).tolist()


def share_of_others() -> float:
    """Return the share of the cores that other programs use while this process waits.

    The average load of a minute would count the ranks of an experiment that has just ended.

    >>> 0.0 <= share_of_others() <= 1.0
    True
    """
    watch = OthersWatch()
    time.sleep(_WINDOW_S)
    return watch.share()


def _calls(work: Work, least: float, wait: Work | None) -> int:
    """Return the number of calls that take `least` seconds together; the first one warms up.

    The number follows from the best time so far: a disturbed call would make all later times too
    short.
    """
    work()
    calls, best = 1, math.inf
    while True:
        best = min(best, _seconds(work, calls, wait) / calls)
        if calls * best >= least:
            return calls
        calls = max(calls + 1, int(calls * min(16.0, 1.3 * least / max(calls * best, 1e-9))))


def _seconds(work: Work, calls: int, wait: Work | None) -> float:
    watch = Stopwatch()
    for _ in range(calls):
        work()
    if wait is not None:
        wait()
    return watch.wall


WARM_UP = 0.05
"""Seconds of calls before the clock starts; a single long call is enough."""
SHORTEST = 2e-3
"""Seconds below which several calls are timed together, so that the clock does not matter."""
CARD_SHORTEST = 20e-3
"""The same on a GPU, where waiting for the last call costs another tens of microseconds."""


@dataclass
class Times:
    """Seconds a step, taken again and again.

    >>> Times([0.1, 0.1], [0.1, 0.1]).lost
    0.0
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of all threads of this process: what else runs here is not in it."""
    lost: float = 0.0
    """Share of its cores' time that other programs used during the measurement."""


def first_call(task: BenchTask) -> float:
    """Return the seconds of a call, including compilation."""
    return _seconds_of(task, 1)[0]


def timed(task: BenchTask, seconds: float, least: int = 3, *, shortest: float = SHORTEST) -> Times:
    """Measure steps repeatedly for about `seconds`, and at least `least` times.

    Each time is measured over enough calls to take `shortest` seconds together, with a single wait.
    """
    together = max(1, int(shortest / max(_warmed_up(task), 1e-7)))
    # A call with a separate wait can take longer than one of many calls.
    while (found := _seconds_of(task, together)[0]) < shortest:
        together = max(together + 1, int(together * min(16.0, 1.2 * shortest / found)))
    times, steps = Times(), together * task.steps_per_call
    watch = OthersWatch()
    end = time.perf_counter() + seconds
    while len(times.wall) < least or time.perf_counter() < end:
        wall, cpu = _seconds_of(task, together)
        times.wall.append(wall / steps)
        times.cpu.append(cpu / steps)
    times.lost = watch.share()
    return times


def _seconds_of(task: BenchTask, calls: int) -> tuple[float, float]:
    """Return wall and CPU seconds of these calls."""
    watch = Stopwatch()
    for _ in range(calls):
        task.call()
    task.wait()
    return watch.wall, watch.cpu


def _warmed_up(task: BenchTask) -> float:
    """Return seconds of a call, once it is no longer the first after a pause."""
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
    """Release unused memory, and reset the peak where the system supports it.

    Memory that a peer's worker needed to build the network in Caldera is not the peer's memory.
    """
    forget_plans()
    gc.collect()
    device("cpu").pool.trim()
    trim_heap(always=True)
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def _status(name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
