"""Learnt model of the times of kernels, which predicts unmeasured nodes from measured ones.

For each kernel a Gaussian process predicts the logarithm of its seconds from the shapes of a node,
around the kernel's own estimate. For each pair of kernels measured in turns, another process
predicts their ratio, which does not depend on the load of the machine. The processes are trained on
the measurements of this machine, to which each measurement adds. They also estimate their error:
far from the data, the spread is wide. Before a measurement, the model excludes kernels that cannot
be the fastest. Without time to measure, or without need, its predictions replace the measurement.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.dtype import NAMES
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import Kernel
from caldera.kernels.tuning.measure import LOSS, expected_loss

MOST_SAMPLES = 256
"""Maximum number of stored measurements; beyond it, the oldest quarter is dropped."""
FOLLOWING, FROM_MEMORY = 0.85, 0.35
"""Share of a change of the reference kernel's time that kernels follow.

The second is for kernels with operands in memory, which is equally slow on a shared core.
"""
CACHED = 1 << 22
"""Number of elements of operands and result from which on they are read from memory."""
_SPEED = 1e10
"""Operations and bytes a second of kernels that have no estimate."""
_LARGEST = 1e3
"""Limit of features, which are logarithms: larger values are not from a measurement."""
_DIMENSIONS = 4
_VECTOR = 16
"""Vector length of kernels: a remainder takes as long as a whole vector."""

Group = tuple[str, str, str, str]
"""Family, op, dtype, kernel."""


@dataclass(frozen=True)
class Prior:
    """Prior of the times before any measurement: standard deviations of logarithms.

    `overall`: of all times from the estimates; `slope`: along a feature; `local`: of deviations in
    a region of shapes, which is `length` wide; `noise`: of a measurement.
    """

    overall: float
    slope: float
    local: float
    length: float
    noise: float


SECONDS = Prior(overall=2.0, slope=0.1, local=0.3, length=2.0, noise=0.12)
RATIO = Prior(overall=0.5, slope=0.03, local=0.25, length=3.0, noise=0.08)
"""Prior for ratios of kernels timed in turns, whose estimates are meant for comparison."""
UNESTIMATED = Prior(overall=1.0, slope=0.1, local=0.25, length=3.0, noise=0.08)
"""Prior for kernels without estimates."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds, and the standard deviation of their logarithm."""

    seconds: float
    spread: float


def features(node: Node, kernel: Kernel) -> list[float]:
    """Return the features of a prediction.

    They are the logarithm of the estimate, then the work, the shapes, and the empty share of the
    last vectors of their sides.

    >>> from caldera.core.graph.node import Spec
    >>> from caldera.core.graph.opdef import parameter
    >>> from caldera.core.graph.ops.product import matmul
    >>> from caldera.kernels.table import TABLE
    >>> a = parameter(0, Spec((64, 32), np.dtype("float32")))
    >>> b = parameter(1, Spec((32, 16), np.dtype("float32")))
    >>> node = matmul(a, b, ta=False, tb=False)
    >>> len(features(node, TABLE.candidates(node, "cpu")[0])) == FEATURES
    True
    """
    specs = [given.outputs[0] for given in node.inputs[:2]]
    specs += [specs[-1]] * (2 - len(specs)) if specs else [node.outputs[0]] * 2
    specs.append(node.outputs[0])
    flops = node.op.count_flops(node)
    nbytes = sum(spec.nbytes for spec in specs)
    base = math.log(max(kernel.estimate(node) or (flops + nbytes) / _SPEED, 1e-9))
    found = [base, base / 2, math.log(flops + 1.0) - math.log(nbytes + 1.0)]
    for spec in specs:
        found += _sides(spec.shape)
    return found


@lru_cache(maxsize=4096)
def _sides(shape: Shape) -> tuple[float, ...]:
    padded = ((1,) * _DIMENSIONS + shape)[-_DIMENSIONS:]
    batch, channels, height, width = (max(1, length) for length in padded)
    rests = [_left_empty(each) for each in (channels, height * width, width)]
    return (
        math.log(batch),
        math.log(channels),
        math.log(height * width) / 2,
        math.log(height / width),
        *rests,
    )


def _left_empty(length: int) -> float:
    """Return the logarithm of the ratio of a side padded to whole vectors to the side itself."""
    return math.log(-(-length // _VECTOR) * _VECTOR / length) if length >= _VECTOR else 0.0


_FIRST, _PER_SHAPE = 3, 7
FEATURES = _FIRST + 3 * _PER_SHAPE


def following(row: Sequence[float]) -> float:
    """Return the part of a change of the yardstick that a node of these features follows.

    >>> following([0.0] * FEATURES) == FOLLOWING
    True
    """
    starts = range(_FIRST, FEATURES, _PER_SHAPE)
    count = sum(math.exp(row[at] + row[at + 1] + 2 * row[at + 2]) for at in starts)
    return FOLLOWING if count < CACHED else FROM_MEMORY


@dataclass(frozen=True)
class _Fit:
    """State of a Gaussian process fitted to its samples.

    `whitening` is the inverse of the Cholesky factor of their covariance. `whole` is the number of
    samples when it was last computed completely, and `middle` is the mean of their features.
    """

    middle: np.ndarray
    known: np.ndarray
    whitening: np.ndarray
    weights: np.ndarray
    wider: float
    whole: int


@dataclass
class _Process:
    """Gaussian process over samples of features and values."""

    prior: Prior
    samples: list[tuple[list[float], float]] = field(default_factory=list)
    noises: list[float] = field(default_factory=list)
    """Variance of each sample beyond the prior's noise."""
    _fit: _Fit | None = None

    def add(self, given: list[float], value: float, noise: float = 0.0) -> None:
        """Add a measurement; `noise` is its standard deviation beyond the usual one."""
        self.samples.append((given, value))
        self.noises.append(noise**2)
        if len(self.samples) > MOST_SAMPLES:
            # Many are dropped together: without the first samples the fit is recomputed.
            del self.samples[: MOST_SAMPLES // 4], self.noises[: MOST_SAMPLES // 4]
            self._fit = None

    def predict(self, given: list[float]) -> tuple[float, float]:
        """Return the mean and the standard deviation for these features."""
        fit = self._fit
        if fit is None or len(fit.known) < len(self.samples):
            # Several threads for a matrix of this size wait for each other on a busy machine.
            with single_threaded_blas:
                fit = self._fit = self._fitted(fit)
        here = np.array([given[1:]]) - fit.middle
        beside = self._covariance(here, fit.known)[0]
        explained = fit.whitening @ beside
        variance = float(self._covariance(here, here)[0, 0] - explained @ explained)
        return float(beside @ fit.weights), fit.wider * math.sqrt(max(variance, 1e-6))

    def _fitted(self, before: _Fit | None) -> _Fit:
        """Return the fit of all samples.

        New samples extend the previous fit. It is recomputed once the number of samples has doubled
        since the last complete computation.
        """
        count = len(self.samples)
        if before is None or count >= 2 * before.whole:
            known = np.array([each[1:] for each, _ in self.samples])
            middle = known.mean(0)
            known -= middle
            whitening, whole = np.linalg.inv(np.linalg.cholesky(self._noisy(known, 0))), count
        else:
            middle, whole, first = before.middle, before.whole, len(before.known)
            new = np.array([each[1:] for each, _ in self.samples[first:]]) - middle
            known = np.concatenate([before.known, new])
            whitening = self._extended(before, new)
        weights = whitening.T @ (whitening @ np.array([value for _, value in self.samples]))
        # Deviation of each sample from its prediction by the rest, in spreads: on a busy machine
        # measurements are off by more than the usual noise.
        apart = weights / np.sqrt((whitening**2).sum(0))
        wider = max(1.0, math.sqrt(float(np.mean(apart**2))))
        return _Fit(middle, known, whitening, weights, wider, whole)

    def _extended(self, before: _Fit, new: np.ndarray) -> np.ndarray:
        """Return the inverse factor with rows for new samples, from that without them."""
        count = len(before.known)
        explained = before.whitening @ self._covariance(before.known, new)
        rest = self._noisy(new, count) - explained.T @ explained
        corner = np.linalg.inv(np.linalg.cholesky(rest))
        found = np.zeros((count + len(new),) * 2)
        found[:count, :count] = before.whitening
        found[count:, :count] = -corner @ (explained.T @ before.whitening)
        found[count:, count:] = corner
        return found

    def _noisy(self, known: np.ndarray, first: int) -> np.ndarray:
        """Return the covariance of the samples from this index on, including their noise."""
        noises = np.array(self.noises[first : first + len(known)])
        return self._covariance(known, known) + np.diag(self.prior.noise**2 + noises)

    def _covariance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the covariance of measurements."""
        prior, product = self.prior, a @ b.T
        apart = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * product
        near = np.exp(-np.maximum(apart, 0.0) / (2 * prior.length**2))
        return prior.overall**2 + prior.slope**2 * product + prior.local**2 * near


@dataclass
class CostModel:
    """Predictions of the times of all kernels from measurements.

    >>> model = CostModel()
    >>> group, row = ("cpu", "sum", "float32", "a"), [0.0] * FEATURES
    >>> model.seconds(group, row) is None
    True
    >>> model.learn("cpu", "sum", "float32", {"a": 1.0}, {"a": row})
    >>> round(model.seconds(group, row).seconds)
    1
    """

    _alone: dict[Group, _Process] = field(default_factory=dict)
    _ratios: dict[tuple[Group, str], _Process] = field(default_factory=dict)
    _first_pace: dict[str, float] = field(default_factory=dict)
    _paces: dict[str, list[float]] = field(default_factory=dict)
    """Logarithms of the reference times, relative to the first."""

    def learn(
        self,
        family: str,
        op: str,
        dtype: str,
        times: Mapping[str, float],
        rows: Mapping[str, list[float]],
        pace: float = 1.0,
        noise: float = 0.0,
    ) -> None:
        """Add the measurements for a node: seconds and features of each kernel.

        `pace` is the seconds of the reference kernel measured with them, and `noise` the standard
        deviation of their logarithms beyond the usual one.
        """
        timed = {
            name: (math.log(times[name]) - row[0], row)
            for name, row in rows.items()
            if times.get(name, 0.0) > 0
            and len(row) == FEATURES
            and all(abs(each) < _LARGEST for each in row)
            and math.isfinite(times[name])
        }
        if not timed or not 0 < pace < math.inf:
            return
        load = math.log(pace / self._first_pace.setdefault(family, pace))
        insort(self._paces.setdefault(family, []), load)
        for name, (value, row) in timed.items():
            group = (family, op, dtype, name)
            value_alone = value - following(row) * load
            self._alone.setdefault(group, _Process(SECONDS)).add(row, value_alone, noise)
            for other, (beside, base) in timed.items():
                if name < other:
                    # One that has an estimate starts from it; others start from the same work.
                    prior = UNESTIMATED if row[0] == base[0] else RATIO
                    process = self._ratios.setdefault((group, other), _Process(prior))
                    process.add(row, value - beside, noise)

    def seconds(self, group: Group, row: list[float]) -> TimeEstimate | None:
        """Return the time of a kernel for a node of these features, at the usual load of the
        machine.

        Return None without measurements of the kernel.
        """
        process = self._alone.get(group)
        if process is None:
            return None
        mean, spread = process.predict(row)
        paces = self._paces[group[0]]
        usual = following(row) * paces[len(paces) // 2]
        return TimeEstimate(math.exp(mean + row[0] + usual), spread)

    def fastest_pace(self, family: str) -> float | None:
        """Return the shortest seconds of the reference kernel, None without measurements.

        >>> CostModel().fastest_pace("cpu") is None
        True
        """
        paces = self._paces.get(family)
        return self._first_pace[family] * math.exp(paces[0]) if paces else None

    def predictions(self, node: Node, kernels: Sequence[Kernel]) -> dict[str, TimeEstimate] | None:
        """Return the times of these kernels, the fastest first.

        Return None if the time of any kernel is too uncertain.
        """
        rows = {kernel.name: features(node, kernel) for kernel in kernels}
        best = self._leader(node, kernels, rows)
        alone = self.seconds(group_of(node, best), rows[best.name])
        if alone is None:
            return None
        found = {best.name: alone}
        for kernel in kernels:
            behind, spread = self._behind(node, kernel, best, rows)
            if math.isinf(spread):
                return None
            if kernel is not best:
                seconds = alone.seconds * math.exp(max(0.0, behind))
                found[kernel.name] = TimeEstimate(seconds, math.hypot(alone.spread, spread))
        return found

    def promising(self, node: Node, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Return the kernels that may be the fastest, most likely first.

        Skipping any of these kernels has an expected cost, by the predictions and their
        uncertainty.
        """
        rows = {kernel.name: features(node, kernel) for kernel in kernels}
        best = self._leader(node, kernels, rows)
        return [best] + [
            kernel
            for kernel in kernels
            if kernel is not best
            and (
                best.varies
                or kernel.varies
                or expected_loss(*self._behind(node, kernel, best, rows)) > LOSS
            )
        ]

    def _leader(
        self, node: Node, kernels: Sequence[Kernel], rows: Mapping[str, list[float]]
    ) -> Kernel:
        best = kernels[0]
        for kernel in kernels[1:]:
            if self._behind(node, kernel, best, rows)[0] < 0:
                best = kernel
        return best

    def _behind(
        self, node: Node, kernel: Kernel, other: Kernel, rows: Mapping[str, list[float]]
    ) -> tuple[float, float]:
        """Return the logarithm of the ratio of the times of two kernels, and its spread."""
        if kernel.name == other.name:
            return 0.0, 0.0
        if kernel.name > other.name:
            mean, spread = self._behind(node, other, kernel, rows)
            return -mean, spread
        row, beside = rows[kernel.name], rows[other.name]
        process = self._ratios.get((group_of(node, kernel), other.name))
        if process is None:
            return 0.0, math.inf
        mean, spread = process.predict(row)
        return mean + row[0] - beside[0], spread


def group_of(node: Node, kernel: Kernel) -> Group:
    """Return the kernels that are predicted together."""
    return kernel.family, node.op.name, NAMES[node.outputs[0].dtype], kernel.name
