"""Optuna's samplers: CMA-ES, a Gaussian process, quasi-random numbers, NSGA-II.

TPE is in a separate file.

A sampler works on a study in memory, to which every trial is added. The folder of the study
contains plain facts only, so the state of a sampler is never loaded from a file. A resumed study
continues as if it had not been interrupted: each trial has its seed, or the sampler proposes all
earlier trials again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeGuard

import numpy as np

from caldera.base.registry import optional_import
from caldera.errors import ConfigError
from caldera.search.dimension import Dimension, Stored, Uniform
from caldera.search.method import Method, methods
from caldera.search.record import import_optuna, quiet_optuna
from caldera.search.space import Point
from caldera.search.trial import DONE, STOPPED, Trial

_CONSTRAINT = "constraint"


class OptunaMethod(Method, ABC):
    """Base class of methods that wrap a sampler of Optuna."""

    asks_ahead = True
    has_state: ClassVar[bool] = False
    """True if proposals depend on earlier proposals, not only on the results of trials."""
    takes_several: ClassVar[bool] = True
    """True if the sampler supports several objectives."""

    @abstractmethod
    def sampler(self, samplers: Any, seed: int) -> Any:
        """Return the sampler, with a seed."""

    def prepare(self) -> None:
        if len(self.objective.modes) > 1 and not self.takes_several:
            raise ConfigError.build(
                repr(self),
                expected="one objective",
                got=", ".join(self.objective.names()),
                hint='method="nsga2" or "tpe" takes several',
            )
        self._optuna = import_optuna(repr(self))
        self._asked: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        """What Optuna calls the trials that it knows."""
        directions = ["maximize" if mode == "max" else "minimize" for mode in self.objective.modes]
        with quiet_optuna(self._optuna):
            self._study = self._optuna.create_study(
                directions=directions, sampler=self._seeded(self.seed)
            )

    def _seed_of(self, *seed: int) -> int:
        return int(np.random.SeedSequence(seed).generate_state(1)[0])

    def _seeded(self, *seed: int) -> Any:
        with quiet_optuna(self._optuna):
            return self.sampler(self._optuna.samplers, self._seed_of(*seed))

    def ask(self, number: int) -> Point | None:
        if not self.has_state:
            self._study.sampler = self._seeded(self.seed, number)
        with quiet_optuna(self._optuna):
            trial = self._study.ask()
            self._asked[number], self._numbers[number] = trial, trial.number
            return self.space.walk(lambda path, each: self._suggested(trial, path, each))[0]

    def _suggested(self, trial: Any, path: str, dimension: Dimension) -> Stored:
        kind = self._distribution(dimension)
        if isinstance(kind, self._optuna.distributions.CategoricalDistribution):
            found = trial.suggest_categorical(path, kind.choices)
        elif isinstance(kind, self._optuna.distributions.IntDistribution):
            found = trial.suggest_int(path, kind.low, kind.high, step=kind.step, log=kind.log)
        else:
            found = trial.suggest_float(path, kind.low, kind.high, step=kind.step, log=kind.log)
        return self._stored(dimension, found)

    def _stored(self, dimension: Dimension, suggested: Any) -> Stored:
        return dimension.at(suggested) if _has_steps(dimension) else suggested

    def _suggestions(self, point: Point) -> tuple[Point, dict[str, Any]]:
        """Return Optuna's values and distributions for a point."""
        values: Point = {}
        distributions: dict[str, Any] = {}

        def pick(path: str, dimension: Dimension) -> Stored:
            kept: Any = point[path]
            distributions[path] = self._distribution(dimension)
            values[path] = dimension.index(kept) if _has_steps(dimension) else kept
            return point[path]

        self.space.walk(pick)
        return values, distributions

    def _distribution(self, dimension: Dimension) -> Any:
        """Return Optuna's distribution of a dimension; of step indices if it has steps.

        Integers are stored exactly, so a resumed study reads the suggested value.
        """
        if _has_steps(dimension):
            return self._optuna.distributions.IntDistribution(0, dimension.steps)
        return dimension.distribution(self._optuna)

    def tell(self, trial: Trial) -> None:
        asked = self._asked.pop(trial.number, None)
        with quiet_optuna(self._optuna):
            if asked is None:
                self._add_trial(trial)
                return
            if trial.violations:
                asked.set_user_attr(_CONSTRAINT, [float(len(trial.violations))])
            state, values, steps = self._end_of(trial)
            for step, value in steps.items():
                asked.report(value, step)
            self._study.tell(asked, values if not steps else None, state=state)

    def _end_of(self, trial: Trial) -> tuple[Any, list[float] | None, dict[int, float]]:
        """Return Optuna's state, values and intermediate steps for a finished trial."""
        states = self._optuna.trial.TrialState
        if trial.state == DONE and trial.values is not None:
            return states.COMPLETE, list(trial.values), {}
        if trial.state == STOPPED and len(self.objective.modes) == 1 and trial.curve:
            value = self.objective.measure(trial.curve[-1])
            return states.PRUNED, [value], {len(trial.curve): value}
        return states.FAIL, None, {}

    def _add_trial(self, trial: Trial) -> None:
        """Add a trial of another program or method, or update one that has trained further."""
        made = self._optuna_trial(trial)
        known = self._study.get_trials(deepcopy=False)
        if trial.number not in self._numbers:
            self._numbers[trial.number] = len(known)
            self._study.add_trial(made)
            return
        kept = known[self._numbers[trial.number]]
        kept.state, kept.values = made.state, made.values
        kept.intermediate_values = made.intermediate_values

    def _optuna_trial(self, trial: Trial) -> Any:
        """Return Optuna's record of a trial that this sampler did not propose."""
        state, values, steps = self._end_of(trial)
        parameters, distributions = self._suggestions(trial.point)
        return self._optuna.trial.create_trial(
            state=state,
            values=values,
            params=parameters,
            distributions=distributions,
            intermediate_values=steps,
            # Where Optuna keeps what `constraints_func` said of a trial that it has asked for.
            system_attrs={"constraints": [float(len(trial.violations))]},
        )

    def restore(self) -> None:
        """Replay all trials; a sampler with internal state also repeats its proposals, in order."""
        if not self.has_state:
            super().restore()
            return
        waiting = self.told()
        told = 0
        for trial in list(self.trials):
            while told < trial.after and waiting:
                self.tell(waiting.pop(0))
                told += 1
            if self.ask(trial.number) != trial.point:
                # Another method asked for it, or another version of Optuna.
                del self._asked[trial.number], self._numbers[trial.number]
        for trial in waiting:
            self.tell(trial)


def _has_steps(dimension: Dimension) -> TypeGuard[Uniform]:
    return isinstance(dimension, Uniform) and dimension.step is not None


def _violations(frozen: Any) -> Sequence[float]:
    return frozen.user_attrs.get(_CONSTRAINT, [0.0])


def violations_if_any(frozen: Any) -> Sequence[float]:
    """Return the constraint violations, empty if none are stored.

    For samplers that require no number in that case: evaluating one takes time.
    """
    return frozen.user_attrs.get(_CONSTRAINT, ())


@methods.register("cmaes")
class CMAES(OptunaMethod):
    """Covariance matrix adaptation (Hansen and Ostermeier 2001), for numbers; choices are drawn at
    random. Needs the package cmaes.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-4, 4), "y": search.uniform(-4, 4)}
    >>> study = search.run(lambda x, y: x * x + y * y, space, method="cmaes", trials=100, verbose=0)
    >>> study.best.value < 0.01
    True
    """

    has_state = True
    takes_several = False

    def __init__(self, sigma: float | None = None, population: int | None = None) -> None:
        self.sigma, self.population = sigma, population

    def prepare(self) -> None:
        optional_import("cmaes", "cmaes", "search method cmaes")
        super().prepare()

    def sampler(self, samplers: Any, seed: int) -> Any:
        return samplers.CmaEsSampler(
            sigma0=self.sigma,
            popsize=self.population,
            seed=seed,
            warn_independent_sampling=False,
            independent_sampler=samplers.RandomSampler(seed=seed),
        )


@methods.register("gp")
class GaussianProcess(OptunaMethod):
    """Bayesian optimisation with a Gaussian process. Needs PyTorch, in which Optuna writes it.

    >>> from caldera import search
    >>> search.GaussianProcess(startup=5)
    GaussianProcess(startup=5)
    """

    def __init__(self, startup: int = 10) -> None:
        self.startup = startup

    def prepare(self) -> None:
        optional_import("torch", "torch", "search method gp, which Optuna writes in PyTorch")
        super().prepare()

    def sampler(self, samplers: Any, seed: int) -> Any:
        return samplers.GPSampler(
            n_startup_trials=self.startup,
            seed=seed,
            constraints_func=_violations,
            warn_independent_sampling=False,
        )


@methods.register("qmc")
class QuasiRandom(OptunaMethod):
    """Quasi-random points (a scrambled Sobol sequence): they fill a space more evenly than chance.

    >>> from caldera import search
    >>> space = {"x": search.uniform(0, 1)}
    >>> study = search.run(lambda x: x, space, method="qmc", trials=9, verbose=0)
    >>> sorted(int(8 * trial.parameters["x"]) for trial in study.trials[1:])
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    has_state = True

    def sampler(self, samplers: Any, seed: int) -> Any:
        return samplers.QMCSampler(
            scramble=True,
            seed=seed,
            warn_asynchronous_seeding=False,
            warn_independent_sampling=False,
            independent_sampler=samplers.RandomSampler(seed=seed),
        )


@methods.register("nsga2")
class NSGA2(OptunaMethod):
    """NSGA-II (Deb et al. 2002): generations of trials that approach the front of several
    objectives.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-2, 4)}
    >>> def both(x):
    ...     return {"first": x * x, "second": (x - 2) ** 2}
    >>> study = search.run(both, space, method="nsga2", trials=60, verbose=0,
    ...                    objective=search.pareto("first", "second", modes=["min", "min"]))
    >>> all(-0.5 < trial.parameters["x"] < 2.5 for trial in study.front)
    True
    """

    has_state = True

    def __init__(self, population: int = 20) -> None:
        self.population = population

    def sampler(self, samplers: Any, seed: int) -> Any:
        return samplers.NSGAIISampler(
            population_size=self.population, seed=seed, constraints_func=_violations
        )
