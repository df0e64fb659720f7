"""Tree-structured Parzen estimators.

Candidates are drawn where good trials are dense. The proposal is the candidate with the highest
ratio of the density of good trials to the density of the remaining trials.

Optuna's own `TPESampler` proposes the same points and also supports several objectives and
parameters that only some trials have. It is slower. The table shows medians in milliseconds per
proposal, of plain Optuna 5.0 and of this sampler, on two cores with other work:

| parameters | trials | Optuna | here |
|---|---|---|---|
| 5 | 50, 200, 1000 | 16, 23, 75 | 1.6, 6.1, 20 |
| 20 | 50, 200, 1000 | 44, 60, 95 | 11, 19, 58 |

At 5 ms or less for Optuna's proposal this sampler would not be needed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from caldera.search.algorithms.optuna_samplers import OptunaMethod, violations_if_any
from caldera.search.dimension import Choice, Dimension, Stored
from caldera.search.method import methods
from caldera.search.space import Point
from caldera.search.trial import DONE, STOPPED, Trial

_ALL_COUNT = 25
"""Number of recent trials with full weight; earlier ones count less and less."""
_NARROWEST = 100.0
"""A kernel is no narrower than this part of the range."""
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class SearchSpace:
    """Search space built from Optuna's distributions by name.

    Numbers are in the scale in which they are searched. Choices, which are of the kind
    `categorical`, are represented by their index.
    """

    def __init__(self, distributions: Mapping[str, Any], categorical: Any) -> None:
        self.distributions = dict(distributions)
        kinds = list(self.distributions.values())
        self.choices = {
            i: len(kind.choices) for i, kind in enumerate(kinds) if isinstance(kind, categorical)
        }
        self.numbers = [i for i in range(len(kinds)) if i not in self.choices]
        ranges = [kinds[i] for i in self.numbers]
        self.is_log = np.array([each.log for each in ranges], bool)
        # A value with steps represents the interval that is rounded to it.
        self.step = np.array([each.step or 0.0 for each in ranges])
        self.are_log, self.have_steps = bool(self.is_log.any()), bool(self.step.any())
        self.first = np.array([each.low for each in ranges], float)
        self.last = np.array([each.high for each in ranges], float)
        self.low = self.scaled(self.first - self.step / 2)
        self.high = self.scaled(self.last + self.step / 2)
        self.width = self.high - self.low
        self.columns = np.arange(len(ranges))

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Return numbers in the scale of their axes, the last dimension."""
        found = np.array(values, float)
        return np.log(found, out=found, where=self.is_log) if self.are_log else found

    def row(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return a point as a row for `ParzenEstimator`."""
        found = np.array(
            [kind.to_internal_repr(values[name]) for name, kind in self.distributions.items()],
            float,
        )
        found[self.numbers] = self.scaled(found[self.numbers])
        return found

    def values(self, row: np.ndarray) -> dict[str, Any]:
        """Return the point of a row, whose numbers are not scaled."""
        return {
            name: kind.to_external_repr(each)
            for (name, kind), each in zip(self.distributions.items(), row.tolist(), strict=True)
        }


class ParzenEstimator:
    """The estimator of the points in `rows`, in the order of their trials."""

    def __init__(self, axes: SearchSpace, rows: np.ndarray) -> None:
        self._axes = axes
        count = len(rows)
        weights = np.ones(count + 1)
        if count > _ALL_COUNT:
            weights[: count - _ALL_COUNT] = np.linspace(1.0 / count, 1.0, count - _ALL_COUNT)
        self.weights = weights / weights.sum()
        self._tables = {i: _table(rows[:, i].astype(int), n) for i, n in axes.choices.items()}
        points = rows[:, axes.numbers]
        self._centres = np.empty((count + 1, len(axes.numbers)))
        self._centres[:-1], self._centres[-1] = points, 0.5 * (axes.low + axes.high)
        self._widths = np.empty_like(self._centres)
        self._widths[:-1], self._widths[-1] = _bandwidths(points, axes), axes.width
        self._lowest = (axes.low - self._centres) / self._widths
        self._highest = (axes.high - self._centres) / self._widths
        # Centres are within the range, so the subtraction loses no digits.
        self._left, self._right = _ndtr(np.array([self._lowest, -self._highest]))
        self._mass = 1.0 - self._right - self._left

    def draw(self, random: np.random.RandomState, count: int) -> np.ndarray:
        """Draw `count` points, as rows with unscaled numbers."""
        axes = self._axes
        found = np.empty((count, len(axes.distributions)))
        chosen = random.choice(len(self.weights), p=self.weights, size=count)
        for i, table in self._tables.items():
            below = np.cumsum(table[chosen, :-1], axis=1) < random.rand(count)[:, None]
            found[:, i] = below.sum(axis=1)
        if axes.numbers:
            drawn = self._truncated_normal(chosen, random.uniform(size=(len(axes.numbers), count)))
            if axes.are_log:
                np.exp(drawn, out=drawn, where=axes.is_log)
            if axes.have_steps:
                steps = np.where(axes.step > 0, axes.step, 1.0)
                rounded = axes.first + np.round((drawn - axes.first) / steps) * steps
                drawn = np.where(axes.step > 0, rounded, drawn)
            found[:, axes.numbers] = _clipped(drawn, axes.first, axes.last)
        return found

    def _truncated_normal(self, chosen: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
        mass = self._mass[chosen]
        part = quantiles.T * mass
        left = self._left[chosen] + part
        # From the nearer end: close to 1 there are no digits left.
        right = self._right[chosen] + (mass - part)
        unit = np.where(left < right, 1.0, -1.0) * _ndtri(np.minimum(left, right))
        unit = _clipped(unit, self._lowest[chosen], self._highest[chosen])
        return unit * self._widths[chosen] + self._centres[chosen]

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the logarithmic density of points returned by `draw`."""
        axes = self._axes
        found = np.empty((len(points), len(self.weights)))
        found[:] = np.log(self.weights)
        for i, table in self._tables.items():
            found += np.log(table.T[points[:, i].astype(int)])
        numbers = points[:, axes.numbers]
        smooth: Any = axes.step == 0 if axes.have_steps else slice(None)
        x = axes.scaled(numbers)[:, None, smooth]
        unit = (x - self._centres[:, smooth]) / self._widths[:, smooth]
        area = np.log(self._mass[:, smooth] * self._widths[:, smooth])
        found -= (0.5 * unit * unit + area + _LOG_SQRT_2PI).sum(axis=2)
        if axes.have_steps:
            with np.errstate(divide="ignore"):  # Masses too small for a float are 0.
                for axis in np.flatnonzero(~smooth):
                    found += np.log(self._rounded_mass(numbers[:, axis], axis))
        most = found.max(axis=1)
        return np.log(np.exp(found - most[:, None]).sum(axis=1)) + most

    def _rounded_mass(self, numbers: np.ndarray, axis: np.intp) -> np.ndarray:
        """Return the mass of each kernel that is rounded to each number on a stepped axis."""
        axes = self._axes
        # An axis with steps has few distinct numbers, and therefore few distinct kernels.
        numbers, of_number = np.unique(numbers, return_inverse=True)
        kernels = self._centres[:, axis] + 1j * self._widths[:, axis]
        kernels, of_kernel = np.unique(kernels, return_inverse=True)
        ends = np.stack([numbers - axes.step[axis] / 2, numbers + axes.step[axis] / 2])
        if axes.is_log[axis]:
            ends = np.log(ends)
        left, right = (ends[:, :, None] - kernels.real) / kernels.imag
        # In the left tail, where probabilities are small and have all their digits.
        turned = left > 0
        left, right = np.where(turned, -right, left), np.where(turned, -left, right)
        mass = np.maximum(_ndtr(right) - _ndtr(left), 0.0)[of_number][:, of_kernel]
        return mass / self._mass[:, axis]


def _elementwise(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of Python's for arrays of a few thousand numbers."""

    def applied(values: np.ndarray) -> np.ndarray:
        return np.array([function(each) for each in values.ravel().tolist()]).reshape(values.shape)

    return applied


_erfc = _elementwise(math.erfc)
_inverse = _elementwise(NormalDist().inv_cdf)


def _ndtr(values: np.ndarray) -> np.ndarray:
    """Return the normal distribution function."""
    return 0.5 * _erfc(values * -math.sqrt(0.5))


def _ndtri(probabilities: np.ndarray) -> np.ndarray:
    """Return the inverse of `_ndtr` for probabilities above 0."""
    return _inverse(np.maximum(probabilities, 1e-300))


def _table(seen: np.ndarray, choices: int) -> np.ndarray:
    """Return each kernel's probability of each choice; the last row is the prior kernel."""
    kernels = len(seen) + 1
    table = np.full((kernels, choices), 1.0 / kernels)
    table[np.arange(len(seen)), seen] += 1.0
    return table / table.sum(axis=1, keepdims=True)


def _clipped(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(values, low), high)


def _bandwidths(points: np.ndarray, axes: SearchSpace) -> np.ndarray:
    """Return bandwidths: the larger gap to a neighbour on each axis, within limits."""
    count = len(points)
    order = points.argsort(axis=0)
    ends = np.empty((count + 2, len(axes.numbers)))
    ends[0], ends[1:-1], ends[-1] = axes.low, points[order, axes.columns], axes.high
    gaps = ends[1:] - ends[:-1]
    widths = np.maximum(gaps[:-1], gaps[1:])
    if count >= 2:
        # The ends of the range are no neighbours.
        widths[0], widths[-1] = gaps[1], gaps[-2]
    found = np.empty_like(points)
    found[order, axes.columns] = widths
    return _clipped(found, axes.width / min(_NARROWEST, 2.0 + count), axes.width)


_CANDIDATES = 24
_MOST_GOOD = 25


@methods.register("tpe")
class TPE(OptunaMethod):
    """Tree-structured Parzen estimators (Bergstra et al. 2011): draws where good trials are dense.

    `startup` trials are drawn at random first.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-4, 4)}
    >>> study = search.run(lambda x: (x - 1) ** 2, space, method="tpe", trials=40, verbose=0)
    >>> study.best.value < 0.02
    True
    """

    def __init__(self, startup: int = 10) -> None:
        self.startup = startup

    def prepare(self) -> None:
        super().prepare()
        lowest = self.space.walk(lambda path, dimension: dimension.stored(0.0))[0]
        known = self.space.dimensions()
        opens = any(isinstance(each, Choice) and each.opens for each in known.values())
        is_fixed = not opens and lowest.keys() == known.keys()
        # Several objectives, and parameters that only some trials have, are left to Optuna.
        self._ranking: TrialRanking | None = None
        if is_fixed and len(self.objective.modes) == 1:
            self._kinds = {path: self._distribution(known[path]) for path in sorted(known)}
            several = {path: kind for path, kind in self._kinds.items() if not kind.single()}
            self._ranking = TrialRanking(
                SearchSpace(several, self._optuna.distributions.CategoricalDistribution)
            )
            # Optuna's kind; to seed one takes a tenth of the time that it takes to make one.
            self._random = np.random.RandomState()

    def ask(self, number: int) -> Point | None:
        if self._ranking is None:
            return super().ask(number)
        seed = self._seed_of(self.seed, number)
        values: dict[str, Any] = {}
        random: Any = None
        if self._ranking.finished < self.startup:
            random = self._optuna.samplers.RandomSampler(seed=seed)
        else:
            self._random.seed(seed)
            values = self._ranking.proposed(self._random)

        def pick(path: str, dimension: Dimension) -> Stored:
            kind = self._kinds[path]
            if kind.single():
                values[path] = self._only_value(kind)
            elif random is not None:
                # It goes by no study and no trial.
                values[path] = random.sample_independent(None, None, path, kind)
            return self._stored(dimension, values[path])

        point = self.space.walk(pick)[0]
        self._ranking.begin(number, values)
        return point

    def _only_value(self, kind: Any) -> Any:
        is_choice = isinstance(kind, self._optuna.distributions.CategoricalDistribution)
        return kind.choices[0] if is_choice else kind.low

    def tell(self, trial: Trial) -> None:
        if self._ranking is None:
            super().tell(trial)
            return
        if trial.number not in self._ranking:
            self._ranking.begin(trial.number, self._suggestions(trial.point)[0])
        self._ranking.finish(trial.number, self._rank(trial))

    def _rank(self, trial: Trial) -> tuple[float, ...] | None:
        """Return the sort key of a trial, or None for a failed one.

        Finished trials are first, by their values. Stopped trials follow, longest first. Trials
        that violate constraints are last.
        """
        if trial.state == DONE and trial.values is not None:
            rank: tuple[float, ...] = (0, *self.objective.losses(trial.values))
            if math.isnan(rank[1]):
                return None
        elif trial.state == STOPPED and trial.curve:
            loss = self.objective.loss(trial.curve[-1])
            rank = (1, -len(trial.curve), math.inf if math.isnan(loss) else loss)
        else:
            return None
        return (2, len(trial.violations)) if trial.violations else rank

    def restore(self) -> None:
        super().restore()
        if self._ranking is not None:
            for trial in self.trials:
                if not trial.is_over:
                    self._ranking.begin(trial.number, self._suggestions(trial.point)[0])

    def sampler(self, samplers: Any, seed: int) -> Any:
        return samplers.TPESampler(
            n_startup_trials=self.startup,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
            constraints_func=violations_if_any,
            warn_independent_sampling=False,
        )


class TrialRanking:
    """All trials in arrays, with the finished ones ranked from best to worst."""

    def __init__(self, axes: SearchSpace) -> None:
        self.axes = axes
        self._rows = np.empty((64, len(axes.distributions)))
        """Points, by the number of their trials."""
        self._ranks: dict[int, tuple[float, ...]] = {}
        self._sorted: list[tuple[float, ...]] = []
        """What `_ranks` has, each followed by the trial's number."""
        self._running: set[int] = set()

    @property
    def finished(self) -> int:
        """Number of ranked trials: finished, and not failed."""
        return len(self._sorted)

    def __contains__(self, number: int) -> bool:
        return number in self._running or number in self._ranks

    def begin(self, number: int, values: Point) -> None:
        """Record that a trial with these values runs."""
        while number >= len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[number] = self.axes.row(values)
        self._running.add(number)

    def finish(self, number: int, rank: tuple[float, ...] | None) -> None:
        """Update the model after a trial finished or progressed."""
        self._running.discard(number)
        if number in self._ranks:
            del self._sorted[bisect_left(self._sorted, (*self._ranks.pop(number), number))]
        if rank is not None:
            self._ranks[number] = rank
            insort(self._sorted, (*rank, number))

    def proposed(self, random: np.random.RandomState) -> Point:
        """Return the best of several candidates.

        Running trials count as bad ones, so that their points are not proposed again (a constant
        liar).
        """
        if not self.axes.distributions:
            return {}
        numbers = [int(each[-1]) for each in self._sorted]
        count = min(math.ceil(0.1 * len(numbers)), _MOST_GOOD)
        good = ParzenEstimator(self.axes, self._rows[sorted(numbers[:count])])
        others = sorted([*numbers[count:], *self._running])
        candidates = good.draw(random, _CANDIDATES)
        other = ParzenEstimator(self.axes, self._rows[others])
        gain = good.log_density(candidates) - other.log_density(candidates)
        return self.axes.values(candidates[np.argmax(gain)])
