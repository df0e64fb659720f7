"""Which of several kernels is fastest: they run in turns, for as long as it matters.

Whatever disturbs the machine disturbs all of them, and the best time of each counts: noise only
ever adds. How far a best time may be off shows in how far the next best is from it. A kernel is out
as soon as little can be expected of it, whether it is far behind or just as fast as the best one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

ROUNDS = 7
SAMPLE_S = 2e-4
"""What one timing should last at least, so that the clock is fine enough."""
HOPELESS = 3.0
"""A kernel that starts this many times slower than the best is not timed any further."""
LOSS = 0.015
"""The part of its time that a choice may be expected to lose: below that nothing is found out."""
JITTER = 0.02
"""Standard deviation, in logarithms of seconds, that a best time has at least."""
Clock = Callable[[int], float]
"""Runs a kernel so many times, and gives the seconds that one run took."""


@dataclass
class Outcome:
    """Seconds a call of each kernel that is right, and what is wrong with the others.

    `pace` has those of a yardstick that was run beside them, where there is one: times of a busy
    machine are worth as much as others beside it.
    """

    times: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    pace: float = 1.0


def race(
    clocks: dict[str, Clock], outcome: Outcome, deadline: float, *, thorough: bool = False
) -> None:
    """Let kernels run in turns, and keep the best time of each; those that are in `outcome` already
    count. With `thorough` all run to the end but those that have no hope."""
    timings = {name: [outcome.times[name]] if name in outcome.times else [] for name in clocks}
    running = list(clocks)
    for turn in range(ROUNDS):
        for name in running:
            if turn > 1 and perf_counter() > deadline:
                return
            known = timings[name]
            count = max(1, int(SAMPLE_S / max(known[0], 1e-7))) if known else 1
            known.append(clocks[name](count))
            known.sort()
            outcome.times[name] = known[0]
        if turn and thorough:
            limit = HOPELESS * min((timings[name][0] for name in running), default=0.0)
            running = [name for name in running if timings[name][0] <= limit]
        elif not thorough:
            running = _undecided({name: timings[name] for name in running})
        if not running:
            return


def _undecided(timings: dict[str, list[float]]) -> list[str]:
    """The kernels of which it is worth knowing more: all that may well be the fastest."""
    if len(timings) < 2:
        return []
    best = min(timings, key=lambda name: timings[name][0])
    others = []
    for name, known in timings.items():
        behind = math.log(known[0] / timings[best][0])
        spread = math.hypot(_spread(known), _spread(timings[best]))
        if name != best and expected_loss(behind, spread) > LOSS:
            others.append(name)
    return [best, *others] if others else []


def _spread(known: list[float]) -> float:
    """How far the best of these times may be off, as a logarithm."""
    return max(JITTER, math.log(known[1] / known[0])) if len(known) > 1 else math.inf


def expected_loss(behind: float, spread: float) -> float:
    """What passing over a kernel costs on average, as a part of the time of the one that is taken.

    It seems to be `behind`, the logarithm of how many times as long it takes, and that may be off
    by `spread`.

    >>> round(expected_loss(0.0, 0.1), 3), round(expected_loss(0.3, 0.1), 3)
    (0.04, 0.0)
    """
    if math.isinf(spread):
        return math.inf
    away = behind / spread
    density = math.exp(-0.5 * away * away) / math.sqrt(2 * math.pi)
    return spread * density - behind * 0.5 * math.erfc(away / math.sqrt(2))
