"""`Method`: proposes trials and may stop them. Each has its file in `algorithms`.

A custom method implements `ask` and any further hooks:

    @search.methods.register("hill")
    class HillClimbing(search.Method):
        def ask(self, number):
            random = self.random(number)
            best = self.best()
            return self.space.draw(random) if best is None else self.space.near(best.point, random)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caldera.base.configurable import Configurable, Family
from caldera.errors import ConfigError
from caldera.search.objective import Objective
from caldera.search.space import Point, Space
from caldera.search.trial import DONE, Trial


@dataclass(frozen=True)
class TrialProposal:
    """Next trial proposed by a method.

    - `epochs`: the number of epochs to train, if it differs from the search's.
    - `parent`: the number of a trial whose model is trained further.
    - `keep`: save the model, so that it can be a parent.
    - `note`: plain data that the method finds again in `trial.note`, also after a restart.

    >>> from caldera import search
    >>> search.Proposal({"x": 0.5}, note={"why": "in the middle"}).point
    {'x': 0.5}
    """

    point: Point
    epochs: int | None = None
    parent: int | None = None
    keep: bool = False
    note: dict[str, Any] = field(default_factory=dict)


class Method(Configurable):
    """Base class of methods: `ask` proposes trials, `tell` receives results, `stop` ends trials.

    A method may have any state. A resumed study gets a new method, whose `restore` is called with
    all existing trials. State derived only from `self.trials` and `self.random(number)` requires no
    such care: the same seed leads to the same trials, also after a restart.

    - `self.space`, `self.objective`, `self.seed`;
    - `self.trials`: all trials so far, including waiting and running ones;
    - `self.budget`: the planned number of trials, or None; `self.epochs`: epochs of a whole trial.

    >>> from caldera import search
    >>> class HillClimbing(search.Method):
    ...     def ask(self, number):
    ...         random, best = self.random(number), self.best()
    ...         if best is None:
    ...             return self.space.draw(random)
    ...         return self.space.near(best.point, random)
    >>> space = {"x": search.uniform(-4, 4)}
    >>> study = search.run(lambda x: x * x, space, method=HillClimbing(), trials=50, verbose=0)
    >>> study.best.value < 0.1
    True
    """

    asks_ahead: ClassVar[bool] = False
    """True if proposals are slow, and should be computed ahead while all workers are busy.

    A proposal computed ahead does not use the results that arrive in between.
    """
    ends: ClassVar[bool] = False
    """True if the method ends without a limit on trials or time."""
    saves: ClassVar[bool] = False
    """True if models must be saved, since other trials continue from them."""

    space: Space
    objective: Objective
    seed: int
    trials: list[Trial]
    budget: int | None
    epochs: int | None

    def begin(
        self,
        space: Space,
        objective: Objective,
        seed: int,
        trials: list[Trial],
        budget: int | None = None,
        epochs: int | None = None,
    ) -> None:
        """Get to know the search; called once, before anything else."""
        self.space, self.objective, self.seed = space, objective, seed
        self.trials, self.budget, self.epochs = trials, budget, epochs
        self.prepare()

    def prepare(self) -> None:
        """Prepare for the first trial, for instance check the settings."""

    def ask(self, number: int) -> TrialProposal | Point | None:
        """Return the proposal for trial `number`, or None if there is none now.

        After None, `ask` is called again when a running trial has finished. If no trial is running,
        the search ends.
        """
        raise ConfigError.build(
            "search.run",
            expected="method= a method that proposes trials",
            got=f"{type(self).__name__}, which has no `ask`",
            hint="combine a stopping rule with a method that proposes trials, for example "
            "method='random', stop='asha'; a custom method defines `ask`",
        )

    def tell(self, trial: Trial) -> None:
        """Receive each finished trial; does nothing by default."""

    def stop(self, trial: Trial, step: int, loss: float) -> bool:
        """Return True if a running trial should be stopped after its `step`th report (from 1).

        `loss` is the objective in that report, negated if larger is better.
        """
        return False

    def restore(self) -> None:
        """Rebuild the state of the method from the trials of a resumed study."""
        for trial in self.told():
            self.tell(trial)

    # --- what a method may use

    def random(self, number: int, stream: int = 0) -> np.random.Generator:
        """Return random numbers for a trial: the same for the same seed and number."""
        return np.random.default_rng([self.seed, number, stream])

    def told(self) -> list[Trial]:
        """Return the finished trials, in the order in which `tell` received them."""
        over = [trial for trial in self.trials if trial.told is not None]
        return sorted(over, key=lambda trial: trial.told or 0)

    def loss(self, trial: Trial) -> float:
        """Return the first objective as a number to minimise; infinite if there is none."""
        return self.losses(trial)[0]

    def losses(self, trial: Trial) -> tuple[float, ...]:
        """Return all objectives as numbers to minimise; infinite if there are none."""
        if not trial.is_feasible:
            return self.objective.losses(None)
        return self.objective.losses(trial.values)

    def best(self) -> Trial | None:
        """Return the best finished trial; None if there is none."""
        done = [trial for trial in self.trials if trial.state == DONE]
        good = [trial for trial in done if math.isfinite(self.loss(trial))]
        return min(good, key=lambda trial: (self.loss(trial), trial.number), default=None)


methods: Family[Method] = Family("search method", Method)
"""Methods by name: what `method=` and `stop=` may be."""


def as_proposal(given: TrialProposal | Mapping[str, Any]) -> TrialProposal:
    """Convert the result of `ask` to a proposal."""
    return given if isinstance(given, TrialProposal) else TrialProposal(dict(given))
