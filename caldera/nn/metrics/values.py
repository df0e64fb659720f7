"""Metrics that compare numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.shape import size
from caldera.errors import ConfigError
from caldera.nn.losses import REGRESSION, PredictionKind, mean_by_sample
from caldera.nn.metrics.base import MeanMetric, Metric, metrics, sample_factors
from caldera.nn.metrics.decision import in_shape_of


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
                got=f"a {task.kind} one",
                hint="use metrics=['accuracy'] there",
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


@metrics.register("r2")
@dataclass(frozen=True)
class R2(ValueMetric):
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
        # With -1 a rank without samples could not tell how many values each would have.
        shape = (prediction.shape[0], size(prediction.shape[1:]))
        missed = op.reshape(_difference(self.name, prediction, target), shape)
        wanted = op.reshape(op.cast(target, "float64"), shape)
        factors = op.unsqueeze(sample_factors(weights, prediction), 1)
        parts = {"missed": op.square(missed), "target": wanted, "square": op.square(wanted)}
        counted = {
            name: op.sum(op.where(factors == 0.0, 0.0, factors * part), axis=0)
            for name, part in parts.items()
        }
        return {"weight": op.sum(factors), **counted}

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        if not sums["weight"] > 0:
            return float("nan")
        spread = sums["square"] - sums["target"] ** 2 / sums["weight"]
        # Below rounding, there is no variance to explain.
        varies = spread > 1e-14 * sums["square"]
        explained = 1 - sums["missed"] / np.where(varies, spread, 1.0)
        return float(np.where(varies, explained, sums["missed"] == 0).mean())


def _difference(where: str, prediction: Any, target: Any) -> Expr:
    wanted = op.cast(in_shape_of(where, prediction, target), "float64")
    return op.cast(prediction, "float64") - wanted
