"""Early stopping of trials: successive halving (ASHA), Hyperband and the median rule.

ASHA, Hyperband and the median rule are for `stop=`, combined with any method; as `method=` they
draw at random. Promotion is the variant of ASHA that resumes paused trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from caldera.errors import ConfigError
from caldera.search.algorithms.basic_samplers import Random
from caldera.search.method import Method, TrialProposal, as_proposal, methods
from caldera.search.objective import Objective
from caldera.search.trial import STOPPED, Row, Trial
from caldera.train.arguments import whole_number


class _Stopper(Random):
    """Base class of stopping rules, which compare the losses of trials after a step."""

    def loss_at(self, trial: Trial, step: int) -> float:
        """Return the loss after a step, or the best loss until then for `at="best"` objectives."""
        return _loss_after([self.objective.loss(row) for row in trial.curve[:step]], self.objective)

    def rivals(self, trial: Trial) -> Iterator[Trial]:
        """Return the trials to compare with this one."""
        return (each for each in self.trials if each.number != trial.number)

    def others_at(self, trial: Trial, step: int) -> list[float]:
        """Return the losses after this step of the rivals that came so far."""
        return [self.loss_at(each, step) for each in self.rivals(trial) if len(each.curve) >= step]


def _lowest(losses: Sequence[float]) -> float:
    return min((each for each in losses if not math.isnan(each)), default=math.inf)


def _loss_after(losses: Sequence[float], objective: Objective) -> float:
    return _lowest(losses if getattr(objective, "at", "last") == "best" else losses[-1:])


def _is_rung(step: int, least: int, factor: int) -> bool:
    while step > least and step % factor == 0:
        step //= factor
    return step == least


@methods.register("asha")
class ASHA(_Stopper):
    """Asynchronous successive halving (Li et al. 2020).

    After `least` steps, and whenever a trial has trained `factor` times longer, a trial continues
    only if it is in the best 1/`factor` of the trials that reached this step.

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

    def first_rung(self, trial: Trial) -> int:
        """Return the step at which a trial is first compared."""
        return self.least

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        if not _is_rung(step, self.first_rung(trial), self.factor):
            return False
        own, others = self.loss_at(trial, step), self.others_at(trial, step)
        places = max((len(others) + 1) // self.factor, 1)
        return sum(each < own for each in others) >= places


@methods.register("hyperband")
class Hyperband(ASHA):
    """Hyperband (Li et al. 2018): successive halving that starts at different steps.

    For some trials halving starts early and for others late, since a trial that is bad at first may
    be best at the end. `most` is the number of steps of a whole trial (default: the epochs of the
    search).

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
        # Brackets are sized so that all cost about the same.
        sizes = [math.ceil(count / (s + 1) * self.factor**s) for s in range(count)]
        self._cycle = [s for s in range(count) for _ in range(sizes[s])]
        self._count = count

    def bracket(self, number: int) -> int:
        """Return the number of rungs in this trial's halving."""
        # Consecutive trials take distant positions of the cycle, so that all brackets fill
        # together.
        stride = next(k for k in (61, 59, 53, 1) if math.gcd(k, len(self._cycle)) == 1)
        return self._cycle[number * stride % len(self._cycle)]

    def first_rung(self, trial: Trial) -> int:
        return self.least * self.factor ** (self._count - 1 - self.bracket(trial.number))

    def rivals(self, trial: Trial) -> Iterator[Trial]:
        bracket = self.bracket(trial.number)
        return (each for each in super().rivals(trial) if self.bracket(each.number) == bracket)


@methods.register("median")
class Median(_Stopper):
    """The median rule (Golovin et al. 2017).

    A trial is stopped if its best loss is worse than the median loss of other trials after the same
    number of steps. The rule applies from step `least` on, once `trials` other trials have reached
    that step.

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
        return _lowest([self.objective.loss(row) for row in trial.curve[:step]]) > median(others)


@methods.register("promotion")
class Promotion(Method):
    """Asynchronous successive halving with promotion (Li et al. 2020).

    The trials are proposed by `method`. Every trial trains for `least` epochs. The best 1/`factor`
    of the trials that reached this rung may train for `factor` times as long, the best 1/`factor`
    of these again, and so on. A trial among the best continues immediately. Otherwise its model is
    saved, and it is resumed when enough worse trials have reached the rung.

    A resumed trial is a separate trial, whose `parent` is the earlier one, and counts towards
    `trials`. A plain function cannot be resumed: it is called again, and yields the same values
    again.

    `stop="asha"` must decide immediately and finally, so its first trials run to their ends without
    comparison. With promotion they wait.

    >>> from caldera import search
    >>> def steps(x):
    ...     for step in range(1, 10):
    ...         yield x + 1 / step
    >>> study = search.run(steps, {"x": search.uniform(0, 1)}, method=search.Promotion("random"),
    ...                    trials=40, epochs=9, verbose=0)
    >>> study.best.value < 0.3, any(trial.parent is not None for trial in study.trials)
    (True, True)
    """

    saves = True

    def __init__(self, method: str | Method = "tpe", least: int = 1, factor: int = 3) -> None:
        self.method = method
        self.least = whole_number(least, "least", 1, "Promotion")
        self.factor = whole_number(factor, "factor", 2, "Promotion")

    def prepare(self) -> None:
        self._proposer: Method = methods.make(self.method)
        problems = {
            f"method={self.method!r}, which saves models itself": self._proposer.saves,
            "none": self.epochs is None,
            "a mean over seeds or folds": max(self.objective.seeds, self.objective.folds) > 1,
        }
        for got, is_so in problems.items():
            if is_so:
                raise ConfigError.build(
                    repr(self),
                    expected="epochs= of the search, each a step of a trial that "
                    "another method proposes",
                    got=got,
                )
        self._losses: dict[int, list[float]] = {}
        """How each setting did after each epoch, by the number of its first trial."""
        self._proposer.begin(self.space, self.objective, self.seed, [], self.budget, self.epochs)

    def ask(self, number: int) -> TrialProposal | None:
        promoted = self._promoted()
        if promoted is not None:
            return promoted
        self._follow()
        asked = self._proposer.ask(number)
        return None if asked is None else replace(as_proposal(asked), keep=True)

    def _promoted(self) -> TrialProposal | None:
        """Return the trial to resume, farthest first; None if no waiting trial may be promoted."""
        assert self.epochs is not None
        last = {self._first(trial).number: trial for trial in self.trials}
        rung = self.least
        while rung * self.factor < self.epochs:
            rung *= self.factor
        while rung >= self.least:
            for number in self._best_at(rung):
                waiting, came = last[number], len(self._losses[number])
                # A worker may have gone a little farther before it heard that it should stop.
                if waiting.state == STOPPED and came < rung * self.factor:
                    # Only a model resumes after its epochs; a plain function starts again.
                    left = self.epochs - came if "epochs" in waiting.results else None
                    return TrialProposal(dict(waiting.point), left, waiting.number, keep=True)
            rung //= self.factor
        return None

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        number, losses = self._first(trial).number, self._heard(trial)
        before = len(self._losses.get(number, ()))
        if len(losses) > before:
            self._losses[number] = losses
        is_rung = _is_rung(len(losses), self.least, self.factor) and len(losses) > before
        return is_rung and number not in self._best_at(len(losses))

    def _best_at(self, rung: int) -> list[int]:
        """Return the settings that may continue from this rung, best first."""
        came = [number for number, losses in self._losses.items() if len(losses) >= rung]
        came.sort(key=lambda number: (self._loss_at(number, rung), number))
        return came[: len(came) // self.factor]

    def _loss_at(self, number: int, rung: int) -> float:
        return _loss_after(self._losses[number][:rung], self.objective)

    def tell(self, trial: Trial) -> None:
        losses, number = self._heard(trial), self._first(trial).number
        if len(losses) >= len(self._losses.get(number, ())):
            self._losses[number] = losses
        self._follow()
        # For the proposing method this is the same trial with more epochs.
        self._proposer.tell(replace(trial, number=number, parent=None, curve=self._curve(trial)))

    def restore(self) -> None:
        self._follow()
        self._proposer.restore()
        for trial in self.told():
            if trial.parent is None:
                self._losses[trial.number] = self._heard(trial)
            else:
                self.tell(trial)

    def _follow(self) -> None:
        """Update the trials of the proposing method, which exclude resumed trials."""
        self._proposer.trials[:] = [trial for trial in self.trials if trial.parent is None]

    # --- the trials of one setting

    def _first(self, trial: Trial) -> Trial:
        while trial.parent is not None:
            trial = self.trials[trial.parent]
        return trial

    def _curve(self, trial: Trial) -> list[Row]:
        """Return the reports of a setting from its first epoch on."""
        if trial.parent is None or "epochs" not in trial.results:
            return trial.curve
        return self._curve(self.trials[trial.parent]) + trial.curve

    def _heard(self, trial: Trial) -> list[float]:
        return [self.objective.loss(row) for row in self._curve(trial)]
