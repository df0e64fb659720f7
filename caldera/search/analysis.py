"""Analysis of a study: trials as columns, curves and fronts, and permutation importance.

All results derive from plain data. A study loaded from its folder, without the code that built
its models, is therefore shown as completely as one that has just run.

For the importance, a forest of random trees learns to predict the rank of a trial from its
parameters. Then the values of a parameter are shuffled among trials that the forest has not seen:
the loss of accuracy is the importance of that parameter (Breiman 2001). Ranks are used so that
one trial that diverged does not decide. The importance describes the trials that were made: a
parameter that the search soon fixed appears unimportant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.draw.axis import ChartAxis, axis_of, name_axis, whole_axis
from caldera.search.luck import Luck, accuracy_noise, luck
from caldera.search.trial import DONE, STOPPED, Trial

if TYPE_CHECKING:
    from caldera.search.study import Study


FEWEST = 10
"""Minimum number of trials for an analysis."""
_FOLDS, _TREES, _SHUFFLES = 5, 30, 4
_MOST = 400
"""Maximum number of trials used: more take longer and do not improve the result."""


@dataclass(frozen=True)
class Importance:
    """Permutation importance of a parameter.

    The value is the increase of the error in predicting ranks without the parameter, as a fraction
    of their variance.

    >>> Importance("learning_rate", 0.5, 0.4, 0.6).name
    'learning_rate'
    """

    name: str
    value: float
    low: float
    high: float
    """Bounds: two standard errors below and above the value."""


def importances(
    points: Sequence[Mapping[str, object]], values: Sequence[float]
) -> list[Importance]:
    """Return the importance of each parameter for the values, most important first.

    Trials with a non-finite value are ignored. With fewer than ten trials the result is empty.
    Parameters that only some trials have are -1 in the remaining trials.

    >>> import numpy as np
    >>> rates = np.geomspace(1e-4, 1e-1, 40)
    >>> points = [{"rate": rate, "idle": i % 7} for i, rate in enumerate(rates)]
    >>> found = importances(points, np.log(rates))
    >>> [each.name for each in found], found[1].value < 0.1 < found[0].value
    (['rate', 'idle'], True)
    """
    kept = [i for i, value in enumerate(values) if math.isfinite(value)][-_MOST:]
    names = list(dict.fromkeys(name for i in kept for name in points[i]))
    if len(kept) < FEWEST or not names:
        return []
    columns = np.stack([codes([points[i].get(name) for i in kept]) for name in names], axis=1)
    ranks = _ranks(np.asarray([values[i] for i in kept], float))
    drops = _permutation_importance(columns, ranks)
    means, errors = drops.mean(axis=0), drops.std(axis=0) / math.sqrt(len(drops))
    found = [
        Importance(name, float(mean), float(mean - 2 * error), float(mean + 2 * error))
        for name, mean, error in zip(names, means, errors, strict=True)
    ]
    return sorted(found, key=lambda each: -each.value)


def codes(values: Sequence[object]) -> np.ndarray:
    """Encode values as numbers: the index among the sorted distinct values, -1 for None.

    >>> codes([0.1, None, 10.0]).tolist(), codes(["b", "a", "b"]).tolist()
    ([0.0, -1.0, 1.0], [1.0, 0.0, 1.0])
    """
    there = {value for value in values if value is not None}
    numeric = all(isinstance(value, int | float) for value in there)
    # Trees use only the order of values, which logarithms do not change.
    order = sorted(there) if numeric else sorted(there, key=str)  # type: ignore[type-var]
    place = {value: float(index) for index, value in enumerate(order)}
    return np.array([place.get(value, -1.0) for value in values])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return places from 0 to 1; equal values have equal ones."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse] / max(len(values) - 1, 1)


def _permutation_importance(columns: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the error increase from shuffling each column, relative to the variance, by fold."""
    ensemble = optional_import("sklearn.ensemble", "scikit-learn", "importances")
    random = np.random.default_rng(0)
    folds = random.permutation(len(ranks)) % _FOLDS
    variance = float(ranks.var()) or 1.0
    found = []
    for fold in range(_FOLDS):
        train, apart = folds != fold, folds == fold
        forest = ensemble.ExtraTreesRegressor(_TREES, min_samples_leaf=2, random_state=fold)
        forest.fit(columns[train], ranks[train])
        rows, wanted = columns[apart], ranks[apart]
        # All predictions of a forest in one batch: a call costs more than its rows.
        asked = [rows]
        for column in range(columns.shape[1]):
            for _ in range(_SHUFFLES):
                shuffled = rows.copy()
                shuffled[:, column] = random.permutation(shuffled[:, column])
                asked.append(shuffled)
        given = forest.predict(np.concatenate(asked)).reshape(len(asked), -1)
        errors = ((given - wanted) ** 2).mean(axis=1) / variance
        found.append(errors[1:].reshape(-1, _SHUFFLES).mean(axis=1) - errors[0])
    return np.array(found)


_CURVE_METRICS = ("val_accuracy", "val_loss", "value", "loss")
"""Metrics for curves if trials do not report the objective; the first one present is used."""


class Overview:
    """Data of a study for its table, pictures and page."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.names = study.objective.names()
        self.modes = study.objective.modes
        # A copy: a page shows one moment, also of a running study.
        self.trials = list(study.trials)
        self.settings: Mapping[str, Any] = study.facts

    # --- trials

    @property
    def title(self) -> str:
        """Name of the study's folder."""
        folder = self.study.folder
        return "A study" if folder is None else folder.resolve().name

    def valued(self) -> list[Trial]:
        """Return the trials with finite values, including trials stopped early."""
        given = [trial for trial in self.trials if trial.values is not None]
        return [trial for trial in given if all(map(math.isfinite, trial.values or ()))]

    def losses(self, trial: Trial) -> tuple[float, ...]:
        """Return a trial's values as losses; infinite for a missing value."""
        found = self.study.objective.losses(trial.values)
        return tuple(each if math.isfinite(each) else math.inf for each in found)

    @cached_property
    def best(self) -> Trial | None:
        """The best trial that was trained to its end and keeps all constraints."""
        return self.study.best_or_none()

    @cached_property
    def front(self) -> list[Trial]:
        """The trials that no other beats, from the best in the first objective on."""
        return sorted(self.study.front, key=lambda trial: (self.losses(trial), trial.number))

    @property
    def wall_seconds(self) -> float:
        """From the beginning of the first trial to the end of the last one, pauses included."""
        starts = [trial.started for trial in self.trials if trial.started is not None]
        ends = [trial.ended for trial in self.trials if trial.ended is not None]
        return max(ends) - min(starts) if starts and ends else 0.0

    @property
    def steps(self) -> int:
        """Total number of steps reported by all trials, mostly epochs."""
        return sum(len(trial.curve) for trial in self.trials)

    # --- parameters

    @cached_property
    def columns(self) -> list[ParameterColumn]:
        """The parameters of the trials, in the order in which they first occur."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.point)
        logs = set(_log_names(self.settings.get("space")))
        return [
            ParameterColumn(name, [t.point.get(name) for t in self.trials], _is_log(name, logs))
            for name in names
        ]

    @cached_property
    def importances(self) -> list[Importance]:
        """Importance of each parameter for the first objective; empty if it is not computable."""
        return [] if find_spec("sklearn") is None else self.find_importances()

    def find_importances(self) -> list[Importance]:
        """Compute the importances; raise an error if scikit-learn is missing."""
        values = [
            t.values[0] if t.values is not None and t.state in (DONE, STOPPED) else math.nan
            for t in self.trials
        ]
        return importances([t.point for t in self.trials], values)

    def by_importance(self) -> list[ParameterColumn]:
        """Return the parameters, the most important first."""
        places = {each.name: place for place, each in enumerate(self.importances)}
        return sorted(self.columns, key=lambda column: places.get(column.name, len(places)))

    # --- curves

    @cached_property
    def curve_name(self) -> str:
        """Metric of the learning curves: the objective if trials report it, else a similar one."""
        there = {name for trial in self.trials for row in trial.curve for name in row}
        candidates = (*self.names, *_CURVE_METRICS, *sorted(there))
        return next((name for name in candidates if name in there), "")

    def curve(self, trial: Trial) -> list[tuple[float, float]]:
        """Return a trial's learning curve as (step, value) pairs.

        The curve of a trial that continues a parent's model starts at the last point of the parent.
        """
        parent = self._parent(trial)
        before = [] if parent is None else self._own_curve(parent)[-1:]
        return before + self._own_curve(trial)

    def whole_curve(self, trial: Trial) -> list[tuple[float, float]]:
        """Return the learning curve of a trial's model, from its first step on."""
        points: list[tuple[float, float]] = []
        here: Trial | None = trial
        while here is not None:
            points, here = self._own_curve(here) + points, self._parent(here)
        return points

    def _own_curve(self, trial: Trial) -> list[tuple[float, float]]:
        return [
            (float(step), float(row.get(self.curve_name, math.nan)))
            for step, row in enumerate(trial.curve, self._first_steps[trial.number] + 1)
        ]

    def _parent(self, trial: Trial) -> Trial | None:
        """Return the trial whose model this one continues.

        A study loaded from a file may contain any number. Only an earlier trial is valid.
        """
        parent = trial.parent
        return self.trials[parent] if parent is not None and 0 <= parent < trial.number else None

    @cached_property
    def _first_steps(self) -> list[int]:
        """Number of steps of each trial's model before the trial started."""
        found: list[int] = []
        for trial in self.trials:
            parent = self._parent(trial)
            found.append(0 if parent is None else found[parent.number] + len(parent.curve))
        return found

    # --- luck

    @cached_property
    def luck(self) -> Luck | None:
        """Estimated share of luck in the best value; None unless one objective has two values."""
        values = [trial.values[0] for trial in self.valued() if trial.values]
        if len(self.names) != 1 or len(values) < 2 or self.best is None:
            return None
        larger = self.modes[0] == "max"
        noise = None
        samples = self.settings.get("samples")
        if isinstance(samples, int) and samples > 0 and "val_accuracy" in self.best.results:
            noise = accuracy_noise(self.best.results["val_accuracy"], samples)
        return luck(values, larger_is_better=larger, noise=noise)


def _log_names(described: Any, inside: str = "") -> Iterator[str]:
    """Yield the names of all logarithmic parameters, including those opened by choices."""
    if not isinstance(described, Mapping):
        return
    for key, part in described.items():
        # A repeated part has the name of its list.
        name = inside if key == "part" else str(key)
        if isinstance(part, Mapping) and part.get("log") is True:
            yield name
        yield from _log_names(part, name)


def _is_log(path: str, names: set[str]) -> bool:
    """Return True if the parameter at this path is logarithmic.

    A path is for instance `rate`, `optimizer=sgd.rate` or `hidden.0`.
    """
    *outer, last = path.split(".")
    return last in names or (last.isdigit() and bool(outer) and outer[-1] in names)


@dataclass(frozen=True)
class ParameterColumn:
    """Values of a parameter by trial; None for trials without it."""

    name: str
    values: Sequence[Any]
    log: bool = False

    @cached_property
    def is_number(self) -> bool:
        """True if all values are numbers; booleans count as names."""
        return all(
            isinstance(v, int | float) and not isinstance(v, bool)
            for v in self.values
            if v is not None
        )

    @cached_property
    def _names(self) -> list[str]:
        return sorted({str(value) for value in self.values if value is not None})

    @cached_property
    def axis(self) -> ChartAxis:
        """An axis that has a place for each value."""
        if not self.is_number:
            return name_axis(self._names)
        numbers = [float(value) for value in self.values if value is not None]
        if not self.log and all(isinstance(v, int) for v in self.values if v is not None):
            return whole_axis([int(number) for number in numbers])
        return axis_of(numbers, log=self.log and min(numbers, default=0.0) > 0)

    @cached_property
    def places(self) -> list[float | None]:
        """The values as numbers on that axis."""
        index = {name: float(place) for place, name in enumerate(self._names)}
        return [
            None if v is None else float(v) if self.is_number else index[str(v)]
            for v in self.values
        ]
