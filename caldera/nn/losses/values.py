"""Losses of values: of relative errors, quantiles, counts, and of a mean with its variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape, as_list, canonical
from caldera.errors import DataError
from caldera.nn.losses.base import REGRESSION, ElementLoss, Hinge, Loss, PredictionKind, losses
from caldera.nn.sample_means import mean_by_sample


def _not_below(least: float, targets: np.ndarray, where: str) -> None:
    require(
        np.all(targets >= least),
        where,
        f"targets of at least {least}",
        targets.min(),
        "",
        DataError,
    )


@losses.register("log_cosh")
@dataclass(frozen=True)
class LogCosh(ElementLoss):
    """log(cosh(prediction - target)): half the square of small errors, the size of large ones.

    >>> import caldera as cd
    >>> from caldera.nn.losses import LogCosh
    >>> round(LogCosh()(cd.tensor([[1000.0]]), cd.tensor([[0.0]])).item(), 2)
    999.31
    """

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        size = op.mean_absolute_error(prediction, target, reduction="none")
        return mean_by_sample(size + op.softplus(-2.0 * size) - math.log(2.0))


@losses.register("mape", "mean_absolute_percentage")
@dataclass(frozen=True)
class MeanAbsolutePercentage(ElementLoss):
    """100 |prediction - target| / |target|, with a target of at least 1e-7.

    >>> import caldera as cd
    >>> from caldera.nn.losses import MeanAbsolutePercentage
    >>> MeanAbsolutePercentage()(cd.tensor([[3.0]]), cd.tensor([[4.0]])).item()
    25.0
    """

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        size = op.mean_absolute_error(prediction, target, reduction="none")
        return mean_by_sample(100.0 * size / op.maximum(op.abs(target), 1e-7))


@losses.register("msle", "mean_squared_logarithmic")
@dataclass(frozen=True)
class MeanSquaredLogarithmic(ElementLoss):
    """(log(1 + prediction) - log(1 + target)) ** 2, for numbers >= 0.

    >>> import caldera as cd
    >>> from caldera.nn.losses import MeanSquaredLogarithmic
    >>> MeanSquaredLogarithmic()(cd.tensor([[3.0]]), cd.tensor([[3.0]])).item()
    0.0
    """

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        given, wanted = (op.log1p(op.maximum(each, 0.0)) for each in (prediction, target))
        return mean_by_sample(op.mean_squared_error(given, wanted, reduction="none"))

    def check_targets(self, targets: np.ndarray) -> None:
        _not_below(0, targets, type(self).__name__)


@losses.register("squared_hinge")
@dataclass(frozen=True)
class SquaredHinge(Hinge):
    """max(0, 1 - target * prediction) ** 2 for targets -1 and 1.

    >>> import caldera as cd
    >>> from caldera.nn.losses import SquaredHinge
    >>> SquaredHinge()(cd.tensor([[2.0], [0.5]]), cd.tensor([[1.0], [1.0]])).item()
    0.125
    """

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return mean_by_sample(op.square(op.hinge(prediction, target, reduction="none")))


@losses.register("quantile")
@dataclass(frozen=True)
class Quantile(Loss):
    """Pinball loss, whose minimum is the quantile `level` of the targets.

    It is level * (target - prediction) for targets above the prediction, and
    (1 - level) * (prediction - target) for targets below it. With several `levels`
    predictions have one for each along their last axis, which targets do not have.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Quantile
    >>> Quantile(0.75)(cd.tensor([[1.0], [1.0]]), cd.tensor([[3.0], [0.0]])).item()
    0.875
    >>> Quantile([0.1, 0.5, 0.9]).target_spec((32, 3))
    ((32,), dtype('float32'))
    """

    levels: float | Sequence[float] = 0.5

    def __post_init__(self) -> None:
        inside = [isinstance(each, int | float) and 0 < each < 1 for each in as_list(self.levels)]
        require(inside and all(inside), "Quantile", "levels between 0 and 1", self.levels)

    def task(self) -> PredictionKind | None:
        return None if isinstance(self.levels, Sequence) else PredictionKind(REGRESSION)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        shape = tuple(prediction_shape)
        if not isinstance(self.levels, Sequence):
            return shape, canonical(dtype)
        count = len(self.levels)
        require(shape[-1] == count, "Quantile", f"predictions (N, ..., {count})", shape)
        return shape[:-1], canonical(dtype)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        several = isinstance(self.levels, Sequence)
        above = (op.unsqueeze(target, target.ndim) if several else target) - prediction
        levels = np.asarray(self.levels, prediction.dtype)
        return mean_by_sample(op.maximum(levels * above, (levels - 1) * above))


@losses.register("poisson")
@dataclass(frozen=True)
class Poisson(Loss):
    """rate - count * log(rate): the likelihood of counts, without its constant part.

    Predictions are logarithms of rates, or rates with `log_rate=False`, for a last layer whose
    results are above 0.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Poisson
    >>> Poisson()(cd.tensor([[0.0]]), cd.tensor([[3.0]])).item()
    1.0
    """

    log_rate: bool = True

    def task(self) -> PredictionKind | None:
        return None if self.log_rate else PredictionKind(REGRESSION)

    def check_targets(self, targets: np.ndarray) -> None:
        _not_below(0, targets, "Poisson")

    def meaning(self, prediction: Expr) -> Expr:
        return op.exp(prediction) if self.log_rate else prediction

    def prediction_of(self, meaning: Expr) -> Expr:
        return op.log(op.maximum(meaning, 1e-30)) if self.log_rate else meaning

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        rate = self.meaning(prediction)
        logarithm = prediction if self.log_rate else op.log(op.maximum(rate, 1e-7))
        return mean_by_sample(rate - target * logarithm)


@losses.register("gaussian_likelihood", "gaussian_nll")
@dataclass(frozen=True)
class GaussianLikelihood(Loss):
    """(log variance + (target - mean) ** 2 / variance) / 2, without the constant part.

    The first half of a prediction's last axis are means, the second half logarithms of variances;
    targets are half as wide.

    >>> import caldera as cd
    >>> from caldera.nn.losses import GaussianLikelihood
    >>> GaussianLikelihood()(cd.tensor([[1.0, 0.0]]), cd.tensor([[3.0]])).item()
    2.0
    """

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        *front, width = prediction_shape
        require(
            front and not width % 2,
            "GaussianLikelihood",
            "predictions (N, ..., 2 C): means, then logarithms of variances",
            tuple(prediction_shape),
        )
        return (*front, width // 2), canonical(dtype)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        mean, spread = op.split(prediction, 2, axis=-1)
        squares = op.mean_squared_error(mean, target, reduction="none")
        return mean_by_sample(0.5 * (spread + squares * op.exp(-spread)))
