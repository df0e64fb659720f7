"""Base classes of metrics: sums that add up over batches and ranks; and numeric metrics."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, ShapeError
from caldera.nn.losses import REGRESSION, PredictionKind
from caldera.nn.metrics.decision import in_shape_of
from caldera.nn.sample_means import mean_by_sample


class Metric(Configurable, ABC):
    """A number (or several) about predictions and targets.

    `sums` returns expressions for one batch. The sums of several batches are added, and `result`
    computes the value from the totals. For a mean over samples, `MeanMetric` is shorter.

    >>> import caldera as cd
    >>> import numpy as np
    >>> from caldera import op
    >>> from caldera.nn.metrics import Metric
    >>> class Largest(Metric):
    ...     def sums(self, prediction, target, weights=None):
    ...         return {"counts": op.sum(op.one_hot(op.argmax(prediction, axis=1), 3), axis=0)}
    ...     def result(self, sums):
    ...         return float(np.argmax(sums["counts"]))
    >>> sums = Largest().sums(cd.tensor([[0.0, 1.0, 0.0], [0.0, 2.0, 1.0]]), None)
    >>> Largest().result({"counts": sums["counts"].numpy()})
    1.0
    """

    @property
    def name(self) -> str:
        """Name in reports; by default the registered name or the class name."""
        return metrics.name_of(type(self)) or type(self).__name__

    def for_task(self, task: PredictionKind | None) -> Metric:
        """Return this metric for the targets of a loss, whose `task()` it is.

        None if that is unknown.

        One that makes no sense for them is refused.

        >>> from caldera.nn.losses import CrossEntropy
        >>> from caldera.nn.metrics import R2
        >>> R2().for_task(CrossEntropy().task())
        Traceback (most recent call last):
        caldera.errors.ConfigError: r2: expected a loss of values, got a multi-class loss; use
        metrics=['accuracy']
        """
        return self

    def about(self, centre: Expr) -> Metric:
        """Return this metric for targets whose mean is near `centre`, one number for each output.

        Subtracting the centre before squaring preserves digits. All sums that are added up need the
        same centre; the default is 0.
        """
        return self

    @abstractmethod
    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        """Return the sums to add over batches and ranks; `weights` has one per sample."""

    @abstractmethod
    def result(self, sums: Mapping[str, np.ndarray]) -> float | np.ndarray:
        """Return the value, from the sums over all batches and ranks."""


metrics: Family[Metric] = Family("metric", Metric)
"""Metrics by name."""


class MeanMetric(Metric):
    """Weighted mean of `per_sample` over samples.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.nn.metrics import MeanMetric
    >>> class Within(MeanMetric):
    ...     def per_sample(self, prediction, target):
    ...         return op.max(op.abs(prediction - target), axis=1) < 0.1
    >>> sums = Within().sums(cd.tensor([[1.0], [2.0]]), cd.tensor([[1.0], [1.0]]))
    >>> Within().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    @abstractmethod
    def per_sample(self, prediction: Any, target: Any) -> Expr:
        """Return a number or a truth value for each of the N samples, of shape (N,)."""

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        values = op.cast(self.per_sample(prediction, target), "float64")
        require(
            values.shape == tuple(prediction.shape)[:1],
            self.name,
            "one value for each sample along the first axis",
            f"values of shape {values.shape} for predictions of {prediction.shape}",
            error=ShapeError,
        )
        factors = sample_factors(weights, prediction)
        # Not a mere product: padding may have no value at all (0 * nan would be nan).
        counted = op.where(factors == 0.0, 0.0, values * factors)
        return {"sum": op.sum(counted), "weight": op.sum(factors)}

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        return float(ratio(sums["sum"], sums["weight"], empty=np.nan))


# --- what several of them need


def sample_factors(weights: Any, prediction: Any) -> Expr:
    """Return the weights of the samples in float64: 1 for all if none are given."""
    count = prediction.shape[0]
    if weights is None:
        return op.broadcast(op.cast(1.0, "float64"), (count,))
    factors = op.cast(weights, "float64")
    require(
        factors.shape == (count,),
        "weights",
        f"shape {(count,)}, one a sample",
        factors.shape,
        error=ShapeError,
    )
    return factors


def ratio(part: np.ndarray, whole: np.ndarray, empty: float = 0.0) -> np.ndarray:
    """Return part / whole, and `empty` where the whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), empty)


# --- metrics that compare numbers


class ValueMetric(Metric):
    """A metric that compares predictions with targets as numbers.

    >>> from caldera.nn.metrics import R2, ValueMetric
    >>> issubclass(R2, ValueMetric)
    True
    """

    def for_task(self, task: PredictionKind | None) -> Self:
        if task is not None and task.kind != REGRESSION:
            raise ConfigError.build(
                self.name,
                expected="a loss of values",
                got=f"a {task.kind} loss",
                hint="use metrics=['accuracy']",
            )
        return self


@metrics.register("mae", "mean_absolute")
@dataclass(frozen=True)
class MeanAbsoluteError(ValueMetric, MeanMetric):
    """The mean of |prediction - target|.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import MeanAbsoluteError
    >>> sums = MeanAbsoluteError().sums(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]]))
    >>> MeanAbsoluteError().result({name: value.numpy() for name, value in sums.items()})
    2.0
    """

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        return mean_by_sample(op.abs(_difference(self.name, prediction, target)))


@metrics.register("mse", "mean_squared")
@dataclass(frozen=True)
class MeanSquaredError(ValueMetric, MeanMetric):
    """The mean of (prediction - target) ** 2.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import MeanSquaredError
    >>> sums = MeanSquaredError().sums(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]]))
    >>> MeanSquaredError().result({name: value.numpy() for name, value in sums.items()})
    8.0
    """

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        return mean_by_sample(op.square(_difference(self.name, prediction, target)))


@metrics.register("rmse", "root_mean_squared")
@dataclass(frozen=True)
class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of (prediction - target) ** 2, in the unit of the targets.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import RootMeanSquaredError
    >>> sums = RootMeanSquaredError().sums(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]]))
    >>> round(RootMeanSquaredError().result({k: v.numpy() for k, v in sums.items()}), 4)
    2.8284
    """

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        return math.sqrt(super().result(sums))


@metrics.register("mape", "mean_absolute_percentage")
@dataclass(frozen=True)
class MeanAbsolutePercentageError(ValueMetric, MeanMetric):
    """The mean of 100 |prediction - target| / |target|, with a target of at least 1e-7.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import MeanAbsolutePercentageError as Percentage
    >>> sums = Percentage().sums(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [4.0]]))
    >>> Percentage().result({name: value.numpy() for name, value in sums.items()})
    12.5
    """

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        size = op.abs(_difference(self.name, prediction, target))
        wanted = op.abs(op.cast(in_shape_of(self.name, prediction, target), "float64"))
        return mean_by_sample(100.0 * size / op.maximum(wanted, 1e-7))


class CentredMetric(ValueMetric):
    """Base class of metrics that sum squared differences from a centre."""

    _centre: ClassVar[Expr | None] = None

    def about(self, centre: Expr) -> Self:
        made = copy.copy(self)
        # Past the guard of frozen dataclasses.
        object.__setattr__(made, "_centre", centre)
        return made

    def centred(self, values: Expr) -> Expr:
        """Return values (N, outputs), less the centre if there is one."""
        is_known = self._centre is not None and self._centre.shape == values.shape[1:]
        return values - self._centre if is_known else values


def _rows(values: Any) -> Expr:
    # No -1: a rank's share of a batch may have no samples.
    return op.reshape(op.cast(values, "float64"), (values.shape[0], math.prod(values.shape[1:])))


def _counted(parts: Mapping[str, Expr], weights: Any, prediction: Any) -> dict[str, Expr]:
    """Return the weighted sums over samples of numbers (N, outputs), and of the weights."""
    factors = op.unsqueeze(sample_factors(weights, prediction), 1)
    counted = {
        name: op.sum(op.where(factors == 0.0, 0.0, factors * part), axis=0)
        for name, part in parts.items()
    }
    return {"weight": op.sum(factors), **counted}


@metrics.register("r2")
@dataclass(frozen=True)
class R2(CentredMetric):
    """The part of the targets' variance that predictions explain; the mean over several outputs.

    1 is perfect, 0 no better than the mean of the targets. Where targets do not vary, it is 1 if
    they are met and 0 if not.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import R2
    >>> sums = R2().sums(cd.tensor([1.0, 2.0, 4.0]), cd.tensor([1.0, 2.0, 3.0]))
    >>> R2().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        missed = _rows(_difference(self.name, prediction, target))
        wanted = self.centred(_rows(target))
        parts = {"missed": op.square(missed), "target": wanted, "square": op.square(wanted)}
        return _counted(parts, weights, prediction)

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        if not sums["weight"] > 0:
            return float("nan")
        spread = sums["square"] - sums["target"] ** 2 / sums["weight"]
        # Below rounding, there is no variance to explain.
        varies = spread > 1e-14 * sums["square"]
        explained = 1 - sums["missed"] / np.where(varies, spread, 1.0)
        return float(np.where(varies, explained, sums["missed"] == 0).mean())


@metrics.register("pearson")
@dataclass(frozen=True)
class Pearson(CentredMetric):
    """Pearson's correlation of predictions and targets; the mean over several outputs.

    It is nan for an output without variance.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import Pearson
    >>> sums = Pearson().sums(cd.tensor([1.0, 2.0, 3.0]), cd.tensor([5.0, 7.0, 9.0]))
    >>> round(Pearson().result({name: value.numpy() for name, value in sums.items()}), 6)
    1.0
    """

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        wanted = _rows(in_shape_of(self.name, prediction, target))
        x, y = self.centred(_rows(prediction)), self.centred(wanted)
        parts = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
        return _counted(parts, weights, prediction)

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        count = np.where(sums["weight"] > 0, sums["weight"], 1.0)
        joint, x, y = (
            sums[a + b] - sums[a] * sums[b] / count for a, b in (("x", "y"), ("x", "x"), ("y", "y"))
        )
        # Below rounding, there is no variance.
        varies = (x > 1e-14 * sums["xx"]) & (y > 1e-14 * sums["yy"])
        return float(np.where(varies, joint / np.sqrt(np.where(varies, x * y, 1.0)), np.nan).mean())


def _difference(where: str, prediction: Any, target: Any) -> Expr:
    wanted = op.cast(in_shape_of(where, prediction, target), "float64")
    return op.cast(prediction, "float64") - wanted
