"""Intervals around predicted values: a layer that returns their ends, and its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape
from caldera.nn.basic import check_layers, register
from caldera.nn.layer import Layer
from caldera.nn.losses import Loss, losses
from caldera.nn.losses.regions import DelegatingLoss


@register
@dataclass(eq=False)
class Interval(Layer):
    """A value and the ends of its interval, (N, 3): value, low, high.

    `value` returns (N, 1). `offsets` returns the differences of both ends from the value, (N, 2) or
    (N, members, 2), whose mean is taken. `widened` has two numbers that are added to them, as a
    conformal correction.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> layer = nn.Interval(nn.Dense(1, fill=cd.one()), nn.Dense(2, fill=cd.zero()), [-0.5, 1.0])
    >>> layer(cd.tensor([[2.0]])).tolist()
    [[2.0, 1.5, 3.0]]
    """

    value: Layer
    offsets: Layer
    widened: Sequence[float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self.value, self.offsets = check_layers("Interval", [self.value, self.offsets])
        self.widened = np.asarray(self.widened, float).reshape(-1).tolist()
        are_two = len(self.widened) == 2 and np.isfinite(self.widened).all()
        require(are_two, "Interval", "widened= two finite numbers", f"{self.widened}"[:80])

    def children(self) -> Iterator[tuple[str, Layer]]:
        return iter([("value", self.value), ("offsets", self.offsets)])

    def forward(self, x: Expr) -> Expr:
        value, offsets = self.value(x), self.offsets(x)
        offsets = op.mean(offsets, axis=1) if offsets.ndim == 3 else offsets
        self.require(
            value.shape[1:] == (1,) and offsets.shape[1:] == (2,),
            "a value (N, 1) and two offsets (N, 2)",
            f"{value.shape} and {offsets.shape}",
        )
        ends = value + offsets + np.asarray(self.widened, value.dtype)
        low, high = op.min(ends, axis=1, keepdims=True), op.max(ends, axis=1, keepdims=True)
        return op.concat([value, low, high], axis=1)


@losses.register("interval")
@dataclass(frozen=True)
class IntervalLoss(DelegatingLoss):
    """Loss of the value of `nn.Interval`; the ends, which differ by offsets, follow the value.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> nn.IntervalLoss()(cd.tensor([[3.0, 2.5, 4.0]]), cd.tensor([[1.0]])).item()
    4.0
    """

    loss: Any = "mean_squared"

    @cached_property
    def inner(self) -> Loss:
        """Loss of the value."""
        return losses.make(self.loss)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return self.inner.per_sample(prediction[:, :1], target)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        return super().target_spec((prediction_shape[0], 1), dtype)

    def for_targets(self, targets: Shape, predictions: Shape) -> Self:
        return replace(self, loss=self.inner.for_targets(targets, (predictions[0], 1)))

    def judged(self, prediction: Expr) -> Expr:
        return self.inner.judged(prediction[:, :1])
