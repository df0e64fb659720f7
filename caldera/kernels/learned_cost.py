"""What measured kernels tell about those that were not measured: a learnt model of their times.

For each kernel a Gaussian process predicts the logarithm of its seconds from the shapes of a node,
around the kernel's own estimate; for each two kernels that were measured in turns another one
predicts their ratio, which does not depend on how busy the machine was. They are trained on what
was measured on this machine, anew whenever there is more of that, and say how far off they may be:
where one does not know, its spread is wide. Ahead of a measurement they leave out the kernels that
have no chance; where there is no time to measure, or nothing to find out, they answer instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.table import Kernel

LEAST_SAMPLES = 3
"""Measurements without which nothing is said about a kernel or a ratio."""
MOST_SAMPLES = 256
"""Measurements that are kept, the latest."""
OVERALL, LINEAR, LOCAL, NOISE = 2.0, 0.1, 0.3, 0.06
"""Standard deviations, in logarithms of seconds: of all predictions from the estimate, of a slope
along a feature, of what is special about a region of shapes, and of a measurement."""
LENGTH = 2.0
"""How far apart features are before shapes tell nothing about each other: a factor of 7."""
SURE = 2.5
"""Spreads by which a kernel must be behind to be left out."""
_SPEED = 1e10
"""Operations and bytes a second of kernels that have no estimate."""
_DIMENSIONS = 4

Group = tuple[str, str, str, str]
"""Family, op, dtype, kernel."""


@dataclass(frozen=True)
class Prediction:
    """Seconds, and the standard deviation of their logarithm."""

    seconds: float
    spread: float


def features(node: Node, kernel: Kernel) -> list[float]:
    """What a prediction goes by: the logarithm of the estimate, then those of work and shapes.

    >>> from caldera.graph.node import Spec
    >>> from caldera.graph.opdef import parameter
    >>> from caldera.graph.ops.product import matmul
    >>> from caldera.kernels.table import TABLE
    >>> a = parameter(0, Spec((64, 32), np.dtype("float32")))
    >>> b = parameter(1, Spec((32, 16), np.dtype("float32")))
    >>> node = matmul(a, b, ta=False, tb=False)
    >>> len(features(node, TABLE.candidates(node, "cpu")[0]))
    15
    """
    specs = [given.outputs[0] for given in node.inputs[:2]]
    specs += [specs[-1]] * (2 - len(specs)) if specs else [node.outputs[0]] * 2
    specs.append(node.outputs[0])
    flops = node.op.count_flops(node)
    nbytes = sum(spec.nbytes for spec in specs)
    base = kernel.estimate(node) or (flops + nbytes) / _SPEED
    found = [math.log(max(base, 1e-9)), math.log(flops + 1.0), math.log(nbytes + 1.0)]
    for spec in specs:
        shape = ((1,) * _DIMENSIONS + spec.shape)[-_DIMENSIONS:]
        found += [math.log(max(1, length)) for length in shape]
    return found


@dataclass
class _Process:
    """A Gaussian process over what is known: features, and what is to be predicted from them."""

    samples: list[tuple[list[float], float]] = field(default_factory=list)
    _fit: tuple[np.ndarray, np.ndarray, np.ndarray, float] | None = None

    def add(self, given: list[float], value: float) -> None:
        """A measurement more."""
        if not self.samples or len(self.samples[0][0]) == len(given):
            self.samples.append((given, value))
            del self.samples[:-MOST_SAMPLES]
            self._fit = None

    def predict(self, given: list[float]) -> tuple[float, float]:
        """The mean and the standard deviation for these features."""
        if self._fit is None:
            known = np.array([each for each, _ in self.samples])
            values = np.array([value for _, value in self.samples])
            matrix = _covariance(known, known) + NOISE**2 * np.eye(len(known))
            inverse = np.linalg.inv(matrix)
            weights = inverse @ values
            # How far each sample is from what the others say of it, in spreads: on a busy machine
            # measurements are off by more than the usual noise.
            apart = weights / np.sqrt(np.diag(inverse))
            self._fit = known, inverse, weights, max(1.0, math.sqrt(float(np.mean(apart**2))))
        known, inverse, weights, wider = self._fit
        here = np.array([given])
        beside = _covariance(here, known)[0]
        variance = _covariance(here, here)[0, 0] + NOISE**2 - beside @ inverse @ beside
        return float(beside @ weights), wider * math.sqrt(max(float(variance), NOISE**2))


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How much measurements tell about each other."""
    apart = ((a[:, None, :] - b[None, :, :]) ** 2).sum(2)
    linear = LINEAR**2 * ((a - _MIDDLE) @ (b - _MIDDLE).T)
    found: np.ndarray = OVERALL**2 + linear + LOCAL**2 * np.exp(-apart / (2 * LENGTH**2))
    return found


_MIDDLE = 4.0
"""A usual logarithm, around which slopes turn."""


@dataclass
class CostModel:
    """Predictions for all kernels, by what was measured.

    >>> model = CostModel()
    >>> model.learn("cpu", "sum", "float32", {"a": 1.0}, {"a": [0.0, 1.0]})
    >>> model.seconds(("cpu", "sum", "float32", "a"), [0.0, 1.0]) is None
    True
    """

    _alone: dict[Group, _Process] = field(default_factory=dict)
    _ratios: dict[tuple[Group, str], _Process] = field(default_factory=dict)

    def learn(
        self, family: str, op: str, dtype: str, times: Mapping[str, float],
        rows: Mapping[str, list[float]],
    ) -> None:  # fmt: skip
        """Take in what was measured for a node: seconds and features of each kernel."""
        timed = {
            name: (math.log(times[name]), row)
            for name, row in rows.items()
            if times.get(name, 0.0) > 0 and row and all(map(math.isfinite, (*row, times[name])))
        }
        for name, (value, row) in timed.items():
            group = (family, op, dtype, name)
            self._alone.setdefault(group, _Process()).add(row, value - row[0])
            for other, (beside, base) in timed.items():
                if other != name:
                    ratio = (value - row[0]) - (beside - base[0])
                    self._ratios.setdefault((group, other), _Process()).add(row, ratio)

    def seconds(self, group: Group, row: list[float]) -> Prediction | None:
        """The time of a kernel for a node of these features; None if too little is known of it."""
        process = self._alone.get(group)
        if process is None or len(process.samples) < LEAST_SAMPLES:
            return None
        mean, spread = process.predict(row)
        return Prediction(math.exp(mean + row[0]), spread)

    def predictions(self, node: Node, kernels: Sequence[Kernel]) -> dict[str, Prediction] | None:
        """Those for all of these kernels; None if one of them is not known well enough."""
        found: dict[str, Prediction] = {}
        for kernel in kernels:
            prediction = self.seconds(group_of(node, kernel), features(node, kernel))
            if prediction is None:
                return None
            found[kernel.name] = prediction
        return found

    def promising(self, node: Node, kernels: Sequence[Kernel], margin: float) -> list[Kernel]:
        """The kernels that may be the fastest, the most likely first: those that are not behind it
        by the margin and more than the prediction may be off."""
        rows = {kernel.name: features(node, kernel) for kernel in kernels}
        best = kernels[0]
        for kernel in kernels[1:]:
            if self._behind(node, kernel, best, rows)[0] < 0:
                best = kernel
        others = [kernel for kernel in kernels if kernel is not best]
        near = []
        for kernel in others:
            mean, spread = self._behind(node, kernel, best, rows)
            if mean <= margin + SURE * spread:
                near.append(kernel)
        return [best, *near]

    def _behind(
        self, node: Node, kernel: Kernel, other: Kernel, rows: Mapping[str, list[float]]
    ) -> tuple[float, float]:
        """The logarithm of how many times as long one kernel takes as another, and its spread."""
        row, beside = rows[kernel.name], rows[other.name]
        process = self._ratios.get((group_of(node, kernel), other.name))
        if process is None or len(process.samples) < LEAST_SAMPLES:
            return 0.0, math.inf
        mean, spread = process.predict(row)
        return mean + row[0] - beside[0], spread


def group_of(node: Node, kernel: Kernel) -> Group:
    """The kernels that are predicted together."""
    return kernel.family, node.op.name, node.outputs[0].dtype.name, kernel.name
