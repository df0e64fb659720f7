"""What measured kernels tell about those that were not measured: a learnt model of their times.

For each kernel a Gaussian process predicts the logarithm of its seconds from the shapes of a node,
around the kernel's own estimate; for each two kernels that were measured in turns another one
predicts their ratio, which does not depend on how busy the machine was. They are trained on what
was measured on this machine, anew whenever there is more of that, and say how far off they may be:
where one does not know, its spread is wide. Ahead of a measurement they leave out the kernels of
which nothing can be expected; where there is no time to measure, or nothing to find out, they
answer instead.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.race import LOSS, expected_loss
from caldera.kernels.table import Kernel
from caldera.tensor.shape import Shape

LEAST_SAMPLES = 3
"""Measurements without which nothing is said about a kernel or a ratio."""
MOST_SAMPLES = 256
"""Measurements that are kept, the latest."""
FOLLOWING = 0.5
"""The part of a change of the yardstick that kernels follow: some of their time is memory's."""
_SPEED = 1e10
"""Operations and bytes a second of kernels that have no estimate."""
_DIMENSIONS = 4
_VECTOR = 16
"""Numbers that kernels take at a time: what is left over is computed as if it were so many."""

Group = tuple[str, str, str, str]
"""Family, op, dtype, kernel."""


@dataclass(frozen=True)
class Prior:
    """What is thought of times before any is known; standard deviations of logarithms.

    `overall`: of all from what the estimates say; `slope`: along a feature; `local`: of what is
    special about a region of shapes, which is `length` wide; `noise`: of a measurement.
    """

    overall: float
    slope: float
    local: float
    length: float
    noise: float


SECONDS = Prior(overall=2.0, slope=0.1, local=0.3, length=2.0, noise=0.12)
RATIO = Prior(overall=0.5, slope=0.03, local=0.25, length=3.0, noise=0.08)
"""Of kernels in turns, whose estimates were made to be compared."""
UNESTIMATED = Prior(overall=1.0, slope=0.1, local=0.25, length=3.0, noise=0.08)
"""The same of kernels that have no estimates."""


@dataclass(frozen=True)
class Prediction:
    """Seconds, and the standard deviation of their logarithm."""

    seconds: float
    spread: float


def features(node: Node, kernel: Kernel) -> list[float]:
    """What a prediction goes by: the logarithm of the estimate, then the work, the shapes, and how
    much the last vectors of their sides are left empty.

    >>> from caldera.graph.node import Spec
    >>> from caldera.graph.opdef import parameter
    >>> from caldera.graph.ops.product import matmul
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


def _sides(shape: Shape) -> list[float]:
    padded = ((1,) * _DIMENSIONS + shape)[-_DIMENSIONS:]
    batch, channels, height, width = (max(1, length) for length in padded)
    rests = [_left_empty(each) for each in (channels, height * width, width)]
    return [
        math.log(batch), math.log(channels), math.log(height * width) / 2,
        math.log(height / width), *rests,
    ]  # fmt: skip


def _left_empty(length: int) -> float:
    """The logarithm of how much longer a side becomes that is filled up to whole vectors."""
    return math.log(-(-length // _VECTOR) * _VECTOR / length) if length >= _VECTOR else 0.0


FEATURES = 3 + 3 * 7


@dataclass
class _Process:
    """A Gaussian process over what is known: features, and what is to be predicted from them."""

    prior: Prior
    samples: list[tuple[list[float], float]] = field(default_factory=list)
    _fit: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float] | None = None

    def add(self, given: list[float], value: float) -> None:
        """A measurement more."""
        self.samples.append((given, value))
        del self.samples[:-MOST_SAMPLES]
        self._fit = None

    def predict(self, given: list[float]) -> tuple[float, float]:
        """The mean and the standard deviation for these features."""
        if self._fit is None:
            # Several threads for a matrix of this size wait for each other on a busy machine.
            with single_threaded_blas:
                self._fit = self._fitted()
        middle, known, inverse, weights, wider = self._fit
        here = np.array([given[1:]]) - middle
        beside = self._covariance(here, known)[0]
        variance = float(self._covariance(here, here)[0, 0] - beside @ inverse @ beside)
        return float(beside @ weights), wider * math.sqrt(max(variance, 1e-6))

    def _fitted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        known = np.array([each[1:] for each, _ in self.samples])
        values = np.array([value for _, value in self.samples])
        middle = known.mean(0)
        known -= middle
        noise = self.prior.noise**2 * np.eye(len(known))
        inverse = np.linalg.inv(self._covariance(known, known) + noise)
        weights = inverse @ values
        # How far each sample is from what the others say of it, in spreads: on a busy machine
        # measurements are off by more than the usual noise.
        apart = weights / np.sqrt(np.diag(inverse))
        return middle, known, inverse, weights, max(1.0, math.sqrt(float(np.mean(apart**2))))

    def _covariance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """How much measurements tell about each other."""
        prior, product = self.prior, a @ b.T
        apart = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * product
        near = np.exp(-np.maximum(apart, 0.0) / (2 * prior.length**2))
        found: np.ndarray = prior.overall**2 + prior.slope**2 * product + prior.local**2 * near
        return found


@dataclass
class CostModel:
    """Predictions for all kernels, by what was measured.

    >>> model = CostModel()
    >>> model.learn("cpu", "sum", "float32", {"a": 1.0}, {"a": [0.0] * FEATURES})
    >>> model.seconds(("cpu", "sum", "float32", "a"), [0.0] * FEATURES) is None
    True
    """

    _alone: dict[Group, _Process] = field(default_factory=dict)
    _ratios: dict[tuple[Group, str], _Process] = field(default_factory=dict)
    _paces: dict[str, list[float]] = field(default_factory=dict)

    def learn(
        self, family: str, op: str, dtype: str, times: Mapping[str, float],
        rows: Mapping[str, list[float]], pace: float = 1.0,
    ) -> None:  # fmt: skip
        """Take in what was measured for a node: seconds and features of each kernel, and the
        seconds of the yardstick beside them."""
        timed = {
            name: (math.log(times[name]) - row[0], row)
            for name, row in rows.items()
            if times.get(name, 0.0) > 0
            and len(row) == FEATURES
            and all(map(math.isfinite, (*row, times[name])))
        }
        if not timed or not 0 < pace < math.inf:
            return
        load = FOLLOWING * math.log(pace)
        insort(self._paces.setdefault(family, []), load)
        for name, (value, row) in timed.items():
            group = (family, op, dtype, name)
            self._alone.setdefault(group, _Process(SECONDS)).add(row, value - load)
            for other, (beside, base) in timed.items():
                if name < other:
                    # One that has an estimate starts from it; others start from the same work.
                    prior = UNESTIMATED if row[0] == base[0] else RATIO
                    process = self._ratios.setdefault((group, other), _Process(prior))
                    process.add(row, value - beside)

    def seconds(self, group: Group, row: list[float]) -> Prediction | None:
        """The time of a kernel for a node of these features, when the machine is as busy as it
        usually was; None if too little is known of it."""
        process = self._alone.get(group)
        if process is None or len(process.samples) < LEAST_SAMPLES:
            return None
        mean, spread = process.predict(row)
        paces = self._paces[group[0]]
        return Prediction(math.exp(mean + row[0] + paces[len(paces) // 2]), spread)

    def predictions(self, node: Node, kernels: Sequence[Kernel]) -> dict[str, Prediction] | None:
        """The times of all of these kernels, the one that is expected to be fastest first; None if
        one of them is not known well enough."""
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
                found[kernel.name] = Prediction(seconds, math.hypot(alone.spread, spread))
        return found

    def promising(self, node: Node, kernels: Sequence[Kernel]) -> list[Kernel]:
        """The kernels that may be the fastest, the most likely first: those that it would cost
        something to pass over, by what is known of them and by how far that may be off."""
        rows = {kernel.name: features(node, kernel) for kernel in kernels}
        best = self._leader(node, kernels, rows)
        return [best] + [
            kernel
            for kernel in kernels
            if kernel is not best and expected_loss(*self._behind(node, kernel, best, rows)) > LOSS
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
        """The logarithm of how many times as long one kernel takes as another, and its spread."""
        if kernel.name == other.name:
            return 0.0, 0.0
        if kernel.name > other.name:
            mean, spread = self._behind(node, other, kernel, rows)
            return -mean, spread
        row, beside = rows[kernel.name], rows[other.name]
        process = self._ratios.get((group_of(node, kernel), other.name))
        if process is None or len(process.samples) < LEAST_SAMPLES:
            return 0.0, math.inf
        mean, spread = process.predict(row)
        return mean + row[0] - beside[0], spread


def group_of(node: Node, kernel: Kernel) -> Group:
    """The kernels that are predicted together."""
    return kernel.family, node.op.name, node.outputs[0].dtype.name, kernel.name
