"""Losses for rare classes and for segmentation: focal, Tversky, Dice.

Predictions are logits. With `axis=None` each number is a separate label, as for
`binary_cross_entropy`; otherwise `axis` is the axis of the classes, as for `cross_entropy`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape
from caldera.nn.losses.base import BinaryCrossEntropy, CrossEntropy, Loss, PredictionKind, losses
from caldera.nn.sample_means import mean_by_sample

_TINY = 1e-12


class DelegatingLoss(Loss):
    """Base class of losses with the targets and the meaning of another one, `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Loss:
        """The loss for the same targets."""

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        return self.inner.target_spec(prediction_shape, dtype)

    def check_targets(self, targets: np.ndarray) -> None:
        self.inner.check_targets(targets)

    def task(self) -> PredictionKind | None:
        return self.inner.task()

    def meaning(self, prediction: Expr) -> Expr:
        return self.inner.meaning(prediction)

    def prediction_of(self, meaning: Expr) -> Expr:
        return self.inner.prediction_of(meaning)


class RegionLoss(DelegatingLoss):
    """Base class of losses of labels or classes, with the same targets as cross entropy."""

    axis: int | None

    @property
    def inner(self) -> Loss:
        """The cross entropy for the same targets."""
        return BinaryCrossEntropy() if self.axis is None else CrossEntropy(axis=self.axis)


@losses.register("focal")
@dataclass(frozen=True)
class Focal(RegionLoss):
    """Cross entropy times (1 - p) ** gamma, for the probability p of the target.

    Well-classified samples have little weight (Lin and others, 2017). `alpha` is the weight of
    label 1, and 1 - alpha the weight of label 0; with an `axis` of classes it multiplies all
    classes.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Focal
    >>> round(Focal(gamma=1.0)(cd.tensor([[0.0]]), cd.tensor([[1.0]])).item(), 4)
    0.3466
    """

    gamma: float = 2.0
    alpha: float | None = None
    axis: int | None = None

    def __post_init__(self) -> None:
        require(0 <= self.gamma < math.inf, "Focal", "gamma >= 0", self.gamma)
        require(self.alpha is None or 0 < self.alpha < 1, "Focal", "0 < alpha < 1", self.alpha)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        weight: Any = self.alpha
        if self.axis is None:
            entropy = op.binary_cross_entropy(prediction, target, reduction="none")
            yes = op.cast(target, prediction.dtype)
            missed = yes * op.sigmoid(-prediction) + (1.0 - yes) * op.sigmoid(prediction)
            weight = weight and weight * yes + (1.0 - weight) * (1.0 - yes)
        else:
            entropy = op.cross_entropy(prediction, target, reduction="none", axis=self.axis)
            missed = -op.expm1(-entropy)
        # A power has no derivative at 0 where gamma is below 1.
        values = op.maximum(missed, _TINY) ** self.gamma * entropy
        return mean_by_sample(values if weight is None else weight * values)


@losses.register("tversky")
@dataclass(frozen=True)
class Tversky(RegionLoss):
    """1 - hits / (hits + alpha * false positives + beta * false negatives), for each sample.

    Hits are sums of probabilities over all positions of a sample. Without an `axis` all numbers of
    a sample are one region; with it, the mean over the classes is taken. `smoothing` is added to
    numerator and denominator, so that an empty region that is predicted empty has no loss.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Tversky
    >>> loss = Tversky(alpha=0.3, beta=0.7)
    >>> round(loss(cd.tensor([[9.0, 9.0, -9.0]]), cd.tensor([[1.0, 0.0, 1.0]])).item(), 3)
    0.5
    """

    alpha: float = 0.5
    beta: float = 0.5
    axis: int | None = None
    smoothing: float = 1e-7

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "smoothing"):
            value = getattr(self, name)
            require(0 <= value < math.inf, "Tversky", f"{name} >= 0", value)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        p = self.meaning(prediction)
        if self.axis is None:
            y = op.cast(target, p.dtype)
        else:
            p = op.moveaxis(p, self.axis, -1)
            y = op.one_hot(target, p.shape[-1], dtype=p.dtype)
        regions = 1 if self.axis is None else p.shape[-1]
        p, y = (op.reshape(each, (p.shape[0], -1, regions)) for each in (p, y))
        hits = op.sum(p * y, axis=1)
        wrong = op.sum(p * (1.0 - y), axis=1)
        missed = op.sum((1.0 - p) * y, axis=1)
        whole = hits + self.alpha * wrong + self.beta * missed
        return 1.0 - op.mean((hits + self.smoothing) / (whole + self.smoothing), axis=1)


@losses.register("dice")
@dataclass(frozen=True)
class Dice(RegionLoss):
    """1 - 2 |A and B| / (|A| + |B|) for each sample: `Tversky` with alpha and beta of 0.5.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Dice
    >>> round(Dice()(cd.tensor([[9.0, 9.0, -9.0]]), cd.tensor([[1.0, 0.0, 0.0]])).item(), 3)
    0.333
    """

    axis: int | None = None
    smoothing: float = 1e-7

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return Tversky(0.5, 0.5, self.axis, self.smoothing).per_sample(prediction, target)
