"""Timing comparison of candidate kernels, and the time budget of measurements.

Candidates run interleaved, so a disturbance of the machine affects all of them, and the best time
of each counts: noise only ever adds. The distance between the best and the second-best time shows
the uncertainty of the best. A candidate is dropped as soon as its expected gain is small, either
because it is far behind or because it is as fast as the best.

A process may spend `settings.tune_budget_s` at once. The spent budget is restored at a tenth of a
second per second of other work. Otherwise a large network would leave no budget for those that
the same process trains after it, and their kernels would be guessed, however long they are
trained. So measuring takes a tenth of a long run at the most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from caldera.base.config import settings

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
class TuningResult:
    """Seconds a call of each kernel that is right, and what is wrong with the others.

    `pace` has those of a yardstick that was run beside them, where there is one: times of a busy
    machine are worth as much as others beside it.
    """

    times: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    pace: float = 1.0


def race(
    clocks: dict[str, Clock], outcome: TuningResult, deadline: float, *, thorough: bool = False
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


BACK_A_SECOND = 0.1
"""Seconds that come back in each second."""


class TuningBudget:
    """What measuring has taken in this process of late, and what it may still take.

    >>> from caldera.kernels.tuning import TuningBudget
    >>> budget = TuningBudget()
    >>> with budget.spending():
    ...     pass
    >>> budget.left > 4.9
    True
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Have all of it again.

        >>> TuningBudget().reset()
        """
        self._spent_s = 0.0
        self._as_of = perf_counter()

    @property
    def left(self) -> float:
        """Seconds that measuring may take now; below 0 after one that took longer than it should.

        >>> import caldera as cd
        >>> with cd.settings.override(tune_budget_s=0.0):
        ...     TuningBudget().left
        0.0
        """
        self._refill()
        return settings.tune_budget_s - self._spent_s

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What happens inside is taken from the budget.

        >>> with TuningBudget().spending():
        ...     pass
        """
        self._refill()
        try:
            yield
        finally:
            now = perf_counter()
            self._spent_s, self._as_of = self._spent_s + now - self._as_of, now

    def _refill(self) -> None:
        now = perf_counter()
        back = BACK_A_SECOND * (now - self._as_of)
        self._spent_s, self._as_of = max(self._spent_s - back, 0.0), now
