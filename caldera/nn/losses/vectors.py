"""Losses of vectors that are compared with each other: cosine, contrastive, triplet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape, canonical
from caldera.errors import DataError, ShapeError
from caldera.nn.losses.base import REGRESSION, Loss, PredictionKind, losses
from caldera.nn.merging import unit_length
from caldera.nn.sample_means import mean_by_sample


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
