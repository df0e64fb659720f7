"""Losses for rare classes and segmentation, and of vectors that are compared.

Predictions are logits. With `axis=None` each number is a separate label, as for
`binary_cross_entropy`; otherwise `axis` is the axis of the classes, as for `cross_entropy`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape, canonical
from caldera.errors import DataError, ShapeError
from caldera.nn.losses.base import (
    REGRESSION,
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    PredictionKind,
    losses,
)
from caldera.nn.merging import unit_length
from caldera.nn.sample_means import mean_by_sample

_TINY = 1e-12


class DelegatingLoss(Loss):
    """Base class of losses that have the targets and the task of another loss, `inner`."""

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


@losses.register("cosine")
@dataclass(frozen=True)
class CosineDistance(Loss):
    """1 - the cosine between prediction and target along `axis`: 0 for one direction, at most 2.

    >>> import caldera as cd
    >>> from caldera.nn.losses import CosineDistance
    >>> CosineDistance()(cd.tensor([[3.0, 0.0]]), cd.tensor([[0.0, 1.0]])).item()
    1.0
    """

    axis: int = -1

    def task(self) -> PredictionKind | None:
        return PredictionKind(REGRESSION)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        cosines = op.sum(
            unit_length(prediction, self.axis) * unit_length(target, self.axis), self.axis
        )
        return mean_by_sample(1.0 - cosines)


class DistanceLoss(Loss):
    """Base of losses of distances: predictions (N, parts, ...), one target a sample."""

    parts: ClassVar[int]
    margin: float

    def __post_init__(self) -> None:
        require(0 < self.margin < math.inf, type(self).__name__, "margin > 0", self.margin)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        shape = tuple(prediction_shape)
        require(
            len(shape) >= 3 and shape[1] == self.parts,
            type(self).__name__,
            f"predictions (N, {self.parts}, C)",
            shape,
            "join the vectors with op.stack(vectors, axis=1)",
            ShapeError,
        )
        return shape[:1], canonical(dtype)

    def distances(self, prediction: Expr) -> list[Expr]:
        """Return the distance, of shape (N,), from the first vector to each further vector."""
        self.target_spec(prediction.shape)
        axes = tuple(range(1, prediction.ndim - 1))
        others = (prediction[:, 0] - prediction[:, i] for i in range(1, self.parts))
        # The square is bounded before its root, which has no derivative at 0.
        return [op.sqrt(op.maximum(op.sum(op.square(d), axes), 1e-12)) for d in others]


@losses.register("contrastive")
@dataclass(frozen=True)
class Contrastive(DistanceLoss):
    """distance ** 2 for pairs of target 1, max(margin - distance, 0) ** 2 for target 0.

    Predictions are pairs of vectors, (N, 2, C) (Hadsell and others, 2006).

    >>> import caldera as cd
    >>> from caldera.nn.losses import Contrastive
    >>> pairs = cd.tensor([[[0.0], [2.0]], [[0.0], [0.5]]])
    >>> Contrastive()(pairs, cd.tensor([1.0, 0.0])).item()
    2.125
    """

    parts: ClassVar[int] = 2
    margin: float = 1.0

    def check_targets(self, targets: np.ndarray) -> None:
        known = np.all((targets == 0) | (targets == 1))
        require(known, "Contrastive", "targets of 1 (alike) and 0", targets.max(), "", DataError)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        (distance,) = self.distances(prediction)
        apart = op.square(op.maximum(self.margin - distance, 0.0))
        return target * op.square(distance) + (1.0 - target) * apart


@losses.register("triplet")
@dataclass(frozen=True)
class Triplet(DistanceLoss):
    """max(distance to the second vector - distance to the third + margin, 0).

    Predictions are triplets (N, 3, C): an anchor, a vector like it and another. Targets, one for
    each sample, have no influence; zeros will do.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Triplet
    >>> triplets = cd.tensor([[[0.0], [2.0], [2.5]]])
    >>> Triplet()(triplets, cd.tensor([0.0])).item()
    0.5
    """

    parts: ClassVar[int] = 3
    margin: float = 1.0

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        alike, other = self.distances(prediction)
        return op.maximum(alike - other + self.margin, 0.0)
