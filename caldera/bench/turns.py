"""The times of short computations in one process, taken in turns."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

MORE, SHORT = 7, 1.0
"""How many times as many turns are taken of what takes no time, and seconds of all of them."""
Work = Callable[[], object]


def in_turns(
    contestants: Mapping[str, Work],
    repeats: int,
    least: float = 2e-3,
    *,
    most: float = math.inf,
    within: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> dict[str, list[float]]:
    """Seconds a call of several, taken in turns: what slows one turn slows all of them.

    A time is that of so many calls that they take `least` together. Turns that take no time are
    taken more often, so that one that was disturbed does not count; after `most` seconds two
    turns are enough. A contestant runs inside of what `within` gives for its name.

    >>> sorted(in_turns({"a": lambda: None, "b": lambda: None}, 2))
    ['a', 'b']
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    calls = {}
    for name, work in contestants.items():
        with within(name):
            calls[name] = _calls(work, least)
    start, turns = time.perf_counter(), 0
    while turns < repeats or (turns < MORE * repeats and time.perf_counter() - start < SHORT):
        if turns > 1 and time.perf_counter() - start > most:
            break
        for name, work in contestants.items():
            with within(name):
                found[name].append(_seconds(work, calls[name]) / calls[name])
        turns += 1
    return found


def best_in_turns(
    contestants: Mapping[str, Work], repeats: int, least: float = 2e-3, **options: Any
) -> dict[str, float]:
    """The best of each one's times; `options` are those of `in_turns`.

    >>> sorted(best_in_turns({"a": lambda: None, "b": lambda: None}, 2))
    ['a', 'b']
    """
    found = in_turns(contestants, repeats, least, **options)
    return {name: min(times) for name, times in found.items()}


def load_per_core() -> float:
    """Programs that want a core, for each core: times of several ranks mean little above 1/2.

    >>> load_per_core() >= 0.0
    True
    """
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0


def _calls(work: Work, least: float) -> int:
    """How many take so long together; the first one warms up.

    By the best time so far: one that was disturbed would make all later ones too short.
    """
    work()
    calls, best = 1, math.inf
    while True:
        best = min(best, _seconds(work, calls) / calls)
        if calls * best >= least:
            return calls
        calls = max(calls + 1, int(calls * min(16.0, 1.3 * least / max(calls * best, 1e-9))))


def _seconds(work: Work, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - start
