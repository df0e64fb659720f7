"""What metrics are: sums that add up over batches and ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr
from caldera.errors import ShapeError
from caldera.nn.losses import PredictionKind


class Metric(Configurable, ABC):
    """A number (or several) about predictions and targets.

    `sums` gives expressions for one batch; sums of several batches are added, and `result` is what
    they amount to. Where a metric is the mean of something over samples, `MeanMetric` is shorter.

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
        """The name under which it is reported: that of the class unless it says otherwise."""
        return metrics.name_of(type(self)) or type(self).__name__

    def for_task(self, task: PredictionKind | None) -> Metric:
        """This metric for the targets of a loss, whose `task()` it is; None if that is unknown.

        One that makes no sense for them is refused.

        >>> from caldera.nn.losses import CrossEntropy
        >>> from caldera.nn.metrics import R2
        >>> R2().for_task(CrossEntropy().task())
        Traceback (most recent call last):
        caldera.errors.ConfigError: r2: expected a loss of values, got a multi-class one; use
        metrics=['accuracy'] there
        """
        return self

    @abstractmethod
    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        """What to add up over batches and ranks; `weights` has one number for each sample."""

    @abstractmethod
    def result(self, sums: Mapping[str, np.ndarray]) -> float | np.ndarray:
        """The value, from the sums over all batches and ranks."""


metrics: Family[Metric] = Family("metric", Metric)
"""Metrics by name."""


class MeanMetric(Metric):
    """The weighted mean over samples of what `per_sample` gives.

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
        """A number or a truth value for each of the N samples, of shape (N,)."""

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
    """The weights of the samples in float64: 1 for all if none are given."""
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
    """part / whole, and `empty` where the whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), empty)
