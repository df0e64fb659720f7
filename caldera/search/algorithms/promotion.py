"""Successive halving that goes on with what it has stopped: the kind of ASHA that promotes."""

from __future__ import annotations

import math
from dataclasses import replace

from caldera.errors import ConfigError
from caldera.search.method import Method, Proposal, as_proposal, methods
from caldera.search.trial import STOPPED, Row, Trial
from caldera.train.arguments import whole_number


@methods.register("promotion")
class Promotion(Method):
    """Asynchronous successive halving that promotes (Li et al. 2020), beside trials that `method`
    proposes.

    Every trial trains for `least` epochs. One of `factor` that came there may go on until `factor`
    times as many, one of `factor` of those again, and so on: a trial goes on at once if it is among
    them, else its model is saved, and it goes on when worse ones have come after it. What goes on
    later is a trial of its own, whose `parent` is the one before; `trials` counts it too. A plain
    function cannot go on: it is called again, and yields again what it has yielded.

    `stop="asha"` must decide at once and for ever, so its first trials run to their ends with
    nobody to compare them with; here they wait.

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

    def ask(self, number: int) -> Proposal | None:
        promoted = self._promoted()
        if promoted is not None:
            return promoted
        self._follow()
        asked = self._proposer.ask(number)
        return None if asked is None else replace(as_proposal(asked), keep=True)

    def _promoted(self) -> Proposal | None:
        """The trial to go on with, if one waits that may; the farthest first."""
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
                    # Only a model knows how many epochs it has behind it.
                    left = self.epochs - came if "epochs" in waiting.results else None
                    return Proposal(dict(waiting.point), left, waiting.number, keep=True)
            rung //= self.factor
        return None

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        number, losses = self._first(trial).number, self._heard(trial)
        before = len(self._losses.get(number, ()))
        if len(losses) > before:
            self._losses[number] = losses
        is_rung = self._is_rung(len(losses)) and len(losses) > before
        return is_rung and number not in self._best_at(len(losses))

    def _is_rung(self, step: int) -> bool:
        while step > self.least and step % self.factor == 0:
            step //= self.factor
        return step == self.least

    def _best_at(self, rung: int) -> list[int]:
        """The settings that may go on from here, the best first."""
        came = [number for number, losses in self._losses.items() if len(losses) >= rung]
        came.sort(key=lambda number: (self._loss_at(number, rung), number))
        return came[: len(came) // self.factor]

    def _loss_at(self, number: int, rung: int) -> float:
        losses = self._losses[number][:rung]
        chosen = losses if getattr(self.objective, "at", "last") == "best" else losses[-1:]
        return min((each for each in chosen if not math.isnan(each)), default=math.inf)

    def tell(self, trial: Trial) -> None:
        losses, number = self._heard(trial), self._first(trial).number
        if len(losses) >= len(self._losses.get(number, ())):
            self._losses[number] = losses
        self._follow()
        # To the one that proposed it, it is the same trial, which has come farther.
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
        """Who proposes trials knows those that were not promoted."""
        self._proposer.trials[:] = [trial for trial in self.trials if trial.parent is None]

    # --- the trials of one setting

    def _first(self, trial: Trial) -> Trial:
        while trial.parent is not None:
            trial = self.trials[trial.parent]
        return trial

    def _curve(self, trial: Trial) -> list[Row]:
        """What a setting has reported from its first epoch on."""
        if trial.parent is None or "epochs" not in trial.results:
            return trial.curve
        return self._curve(self.trials[trial.parent]) + trial.curve

    def _heard(self, trial: Trial) -> list[float]:
        return [self.objective.loss(row) for row in self._curve(trial)]
