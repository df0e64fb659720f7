"""Parzen estimators over a search space: mixtures of kernels, one for each trial and one as wide as
the space, from which candidates are drawn and by which they are judged.

The same estimator as that of Optuna 5's multivariate `TPESampler`, which draws the same candidates
from the same seed (a test compares them). Here trials stand in arrays and all kernels are evaluated
at once, where Optuna walks over all trials. Arrays are small, so what counts is how often NumPy is
called, and that its functions which are written in Python (`clip`, `vstack`) are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

_ALL_COUNT = 25
"""So many trials, the last ones, count in full; those before less and less."""
_NARROWEST = 100.0
"""A kernel is no narrower than this part of the range."""
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class SearchSpace:
    """What is searched, from Optuna's distributions by name: numbers in the scale in which they are
    searched, and choices, which are of the kind `categorical`, by their index."""

    def __init__(self, distributions: Mapping[str, Any], categorical: Any) -> None:
        self.distributions = dict(distributions)
        kinds = list(self.distributions.values())
        self.choices = {
            i: len(kind.choices) for i, kind in enumerate(kinds) if isinstance(kind, categorical)
        }
        self.numbers = [i for i in range(len(kinds)) if i not in self.choices]
        ranges = [kinds[i] for i in self.numbers]
        self.is_log = np.array([each.log for each in ranges], bool)
        # A value with steps stands for all that would be rounded to it.
        self.step = np.array([each.step or 0.0 for each in ranges])
        self.are_log, self.have_steps = bool(self.is_log.any()), bool(self.step.any())
        self.first = np.array([each.low for each in ranges], float)
        self.last = np.array([each.high for each in ranges], float)
        self.low = self.scaled(self.first - self.step / 2)
        self.high = self.scaled(self.last + self.step / 2)
        self.width = self.high - self.low
        self.columns = np.arange(len(ranges))

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Numbers in the scale of their axes, the last dimension."""
        found = np.array(values, float)
        return np.log(found, out=found, where=self.is_log) if self.are_log else found

    def row(self, values: Mapping[str, Any]) -> np.ndarray:
        """One point, as a row of what `ParzenEstimator` takes."""
        found = np.array(
            [kind.to_internal_repr(values[name]) for name, kind in self.distributions.items()],
            float,
        )
        found[self.numbers] = self.scaled(found[self.numbers])
        return found

    def values(self, row: np.ndarray) -> dict[str, Any]:
        """The point of a row, whose numbers are not scaled."""
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
        # Centres lie within the range: nothing cancels.
        self._left, self._right = _ndtr(np.array([self._lowest, -self._highest]))
        self._mass = 1.0 - self._right - self._left

    def draw(self, random: np.random.RandomState, count: int) -> np.ndarray:
        """So many points, as rows whose numbers are not scaled."""
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
        """Of points that `draw` gave."""
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
            with np.errstate(divide="ignore"):  # What is too far to be counted.
                for axis in np.flatnonzero(~smooth):
                    found += np.log(self._rounded_mass(numbers[:, axis], axis))
        most = found.max(axis=1)
        return np.log(np.exp(found - most[:, None]).sum(axis=1)) + most

    def _rounded_mass(self, numbers: np.ndarray, axis: np.intp) -> np.ndarray:
        """How much of each kernel is rounded to each number on an axis with steps."""
        axes = self._axes
        # There are few numbers, so few kernels that differ.
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
    """A function of Python's for arrays of a few thousand numbers."""

    def applied(values: np.ndarray) -> np.ndarray:
        return np.array([function(each) for each in values.ravel().tolist()]).reshape(values.shape)

    return applied


_erfc = _elementwise(math.erfc)
_inverse = _elementwise(NormalDist().inv_cdf)


def _ndtr(values: np.ndarray) -> np.ndarray:
    """The normal distribution function."""
    return 0.5 * _erfc(values * -math.sqrt(0.5))


def _ndtri(probabilities: np.ndarray) -> np.ndarray:
    """Its inverse, of what is above 0."""
    return _inverse(np.maximum(probabilities, 1e-300))


def _table(seen: np.ndarray, choices: int) -> np.ndarray:
    """Each kernel's probability of each choice, the last row that of the kernel for all."""
    kernels = len(seen) + 1
    table = np.full((kernels, choices), 1.0 / kernels)
    table[np.arange(len(seen)), seen] += 1.0
    return table / table.sum(axis=1, keepdims=True)


def _clipped(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(values, low), high)


def _bandwidths(points: np.ndarray, axes: SearchSpace) -> np.ndarray:
    """As wide as the larger gap to a neighbour on each axis, within limits."""
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
