"""Stopping trials early: successive halving (ASHA), Hyperband, and the median rule.

They are for `stop=`, beside any method; as `method=` they draw at random.
"""

from __future__ import annotations

import math
from statistics import median

from caldera.errors import ConfigError
from caldera.search.algorithms.random import Random
from caldera.search.method import methods
from caldera.search.trial import Trial
from caldera.train.arguments import whole_number


class _Stopper(Random):
    """What they share: the losses of other trials after a step."""

    def loss_at(self, trial: Trial, step: int) -> float:
        """The loss after a step (or the best until then, if the objective is that of the best)."""
        rows = trial.curve[:step]
        chosen = rows if getattr(self.objective, "at", "last") == "best" else rows[-1:]
        losses = [self.objective.loss(row) for row in chosen]
        return min((each for each in losses if not math.isnan(each)), default=math.inf)

    def others_at(self, trial: Trial, step: int) -> list[float]:
        """The losses after this step of all other trials that came so far."""
        others = (each for each in self.trials if each.number != trial.number)
        return [self.loss_at(each, step) for each in others if len(each.curve) >= step]


def _is_rung(step: int, least: int, factor: int) -> bool:
    while step > least and step % factor == 0:
        step //= factor
    return step == least


@methods.register("asha")
class ASHA(_Stopper):
    """Asynchronous successive halving (Li et al. 2020): after `least` steps, and each time a trial
    has come `factor` times as far, only the best of `factor` trials that came there go on.

    >>> from caldera import search
    >>> def steps(x):
    ...     for step in range(1, 10):
    ...         yield x + 1 / step
    >>> study = search.run(steps, {"x": search.uniform(0, 1)}, stop="asha", trials=30, verbose=0)
    >>> study.counts()["stopped"] > 10
    True
    """

    def __init__(self, least: int = 1, factor: int = 3) -> None:
        self.least = whole_number(least, "least", 1, "ASHA")
        self.factor = whole_number(factor, "factor", 2, "ASHA")

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        if not _is_rung(step, self.least, self.factor):
            return False
        return self.is_beaten(self.loss_at(trial, step), self.others_at(trial, step))

    def is_beaten(self, own: float, others: list[float]) -> bool:
        """Whether a trial is not among the best of those that came to a rung."""
        places = max((len(others) + 1) // self.factor, 1)
        return sum(each < own for each in others) >= places


@methods.register("hyperband")
class Hyperband(ASHA):
    """Hyperband (Li et al. 2018): successive halving that begins early for some trials and late for
    others, since what is bad at first may be best at the end. `most` are the steps of a whole
    trial (the epochs of the search, unless given).

    >>> from caldera import search
    >>> search.Hyperband(least=1, factor=3, most=27)
    Hyperband(least=1, factor=3, most=27)
    """

    def __init__(self, least: int = 1, factor: int = 3, most: int | None = None) -> None:
        super().__init__(least, factor)
        self.most = most

    def prepare(self) -> None:
        most = self.most or self.epochs
        if most is None:
            raise ConfigError.build(
                repr(self),
                expected="most= the steps of a whole trial, or epochs= of the search",
                got="neither",
            )
        count = 1
        while self.least * self.factor**count <= most:
            count += 1
        # As many trials to a bracket as its steps allow for, so that all cost about the same.
        sizes = [math.ceil(count / (s + 1) * self.factor**s) for s in range(count)]
        self._cycle = [s for s in range(count) for _ in range(sizes[s])]
        self._count = count

    def bracket(self, number: int) -> int:
        """How many rungs the halving of this trial has."""
        # Far apart numbers of the cycle follow each other, so that all brackets fill together.
        stride = next(k for k in (61, 59, 53, 1) if math.gcd(k, len(self._cycle)) == 1)
        return self._cycle[number * stride % len(self._cycle)]

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        bracket = self.bracket(trial.number)
        least = self.least * self.factor ** (self._count - 1 - bracket)
        if not _is_rung(step, least, self.factor):
            return False
        others = [
            self.loss_at(each, step)
            for each in self.trials
            if each.number != trial.number
            and len(each.curve) >= step
            and self.bracket(each.number) == bracket
        ]
        return self.is_beaten(self.loss_at(trial, step), others)


@methods.register("median")
class Median(_Stopper):
    """The median rule (Golovin et al. 2017): a trial whose best is worse than the median of others
    after as many steps is stopped, from step `least` on and once `trials` others came there.

    >>> from caldera import search
    >>> search.Median(least=2)
    Median(least=2)
    """

    def __init__(self, least: int = 1, trials: int = 5) -> None:
        self.least = whole_number(least, "least", 1, "Median")
        self.startup = whole_number(trials, "trials", 1, "Median")

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        others = self.others_at(trial, step)
        if step < self.least or len(others) < self.startup:
            return False
        losses = [self.objective.loss(row) for row in trial.curve[:step]]
        return min((n for n in losses if not math.isnan(n)), default=math.inf) > median(others)
