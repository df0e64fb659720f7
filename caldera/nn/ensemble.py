"""Several networks in one: dense layers with members that share weights, and their loss.

Members share a weight matrix and differ in vectors that scale its inputs and outputs: BatchEnsemble
(Wen, Tran and Ba, 2020), and TabM for tables (Gorishniy, Kotelnikov and Babenko, 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape, one, uniform
from caldera.errors import ConfigError, ShapeError
from caldera.nn.basic import (
    Sequential,
    activation_function,
    check_counts,
    check_layers,
    named_in_order,
    register,
)
from caldera.nn.initialisers import fill_or
from caldera.nn.layer import Layer
from caldera.nn.losses import Loss, losses
from caldera.nn.losses.regions import DelegatingLoss

_LEAST = 1e-9
"""Least probability of a class."""


@register
@dataclass(eq=False)
class EnsembleDense(Layer):
    """Dense layers of several members in one: (x * r) @ weight * s + bias, r and s per member.

    The input is (N, features), the same for all members, or (N, members, features); the output is
    (N, members, units). An input with fewer vectors than members is repeated in order. The first
    layer needs members that differ: `scales=cd.normal(0.0, 1.0)`.

    Args:
        units: Number of outputs of each member.
        members: Number of members.
        groups: Number of weight matrices, shared in order; if it equals `members`, each member has
            a separate one, without r and s.
        fill: Initial weights.
        scales: Initial values of r, by default 1, the initial value of s.
        activation: Name of an activation.

    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> first = nn.EnsembleDense(32, 16, activation="relu", scales=cd.normal(0.0, 1.0))
    >>> last = nn.EnsembleDense(3, 16, groups=16)
    >>> last(first(op.input("x", (5, 4)))).shape
    (5, 16, 3)
    """

    units: int
    members: int = 16
    groups: int = 1
    activation: str | None = field(default=None, kw_only=True)
    fill: Any = None
    scales: Any = None

    def __post_init__(self) -> None:
        check_counts("EnsembleDense", units=self.units, members=self.members, groups=self.groups)
        if self.members % self.groups:
            raise ConfigError.build(
                "EnsembleDense",
                expected="groups= a divisor of the number of members",
                got=f"{self.groups} for {self.members} members",
                hint="groups=1 shares one matrix, groups=members shares none",
            )
        activation_function(self.activation)  # Refused now, not when it is first called.

    def build(self, x: Expr) -> None:
        self._check(x)
        wide, units = x.shape[-1], self.units
        bound = (6 / (wide + units)) ** 0.5
        shape = (self.groups, wide, units)
        self.weight = self.parameter("weight", shape, fill_or(self.fill, uniform(-bound, bound)))
        self.scale_in: Any = None
        if self.groups < self.members:
            first = fill_or(self.scales, one())
            self.scale_in = self.parameter("scale_in", (self.members, wide), first)
            self.scale_out = self.parameter("scale_out", (self.members, units), one())
        self.offset = self.parameter("bias", (self.members, units))

    def _check(self, x: Expr) -> None:
        self.require(
            x.ndim == 2 or (x.ndim == 3 and self.members % x.shape[1] == 0),
            f"rows (N, features), or (N, {self.members}, features) of {self.members} members",
            f"shape {x.shape}",
        )

    def forward(self, x: Expr) -> Expr:
        self._check(x)
        wide = self.weight.shape[1]
        self.require(x.shape[-1] == wide, f"{wide} values on the last axis", f"{x.shape}")
        given = x if x.ndim == 3 else op.unsqueeze(x, 1)
        if given.shape[1] not in (1, self.members):
            given = op.repeat(given, self.members // given.shape[1], axis=1)
        if self.scale_in is None:
            y = self._product(given)
        else:
            y = self._product(given * self.scale_in) * self.scale_out
        return activation_function(self.activation)(y + self.offset)

    def _product(self, x: Expr) -> Expr:
        """Return each member's vectors times the matrix of its group."""
        count, members, wide = x.shape
        if self.groups == 1:
            return op.matmul(x, self.weight[0])
        if members == 1:
            # One product for all groups.
            joined = op.reshape(op.transpose(self.weight, (1, 0, 2)), (wide, -1))
            y = op.matmul(op.reshape(x, (count, wide)), joined)
            return op.reshape(y, (count, self.members, self.units))
        each = self.members // self.groups
        grouped = op.transpose(op.reshape(x, (count, self.groups, each, wide)), (1, 0, 2, 3))
        y = op.matmul(op.reshape(grouped, (self.groups, count * each, wide)), self.weight)
        y = op.transpose(op.reshape(y, (self.groups, count, each, self.units)), (1, 0, 2, 3))
        return op.reshape(y, (count, self.members, self.units))


@losses.register("ensemble")
@dataclass(frozen=True)
class EnsembleLoss(DelegatingLoss):
    """Mean of the members' losses: each member of (N, members, ...) learns independently.

    Targets have the format that `loss` expects for a single member. Members are trained separately
    and averaged afterwards: `meaning` returns the mean of their probabilities or values.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> loss = nn.EnsembleLoss("mean_squared")
    >>> loss(cd.tensor([[[1.0], [3.0]]]), cd.tensor([[0.0]])).item()
    5.0
    >>> loss.meaning(cd.tensor([[[1.0], [3.0]]]) * 1.0).tolist()
    [[2.0]]
    """

    loss: Any = "cross_entropy"

    @cached_property
    def inner(self) -> Loss:
        """Loss for a single member."""
        return losses.make(self.loss)

    def member_losses(self, prediction: Expr, target: Expr) -> Expr:
        """Return the loss of each member on each sample, (N, members)."""
        require(
            prediction.ndim >= 3,
            "EnsembleLoss",
            "predictions (N, members, ...)",
            f"shape {prediction.shape}",
            "end the network with nn.EnsembleDense",
            error=ShapeError,
        )
        repeated = op.repeat(target, prediction.shape[1], axis=0)
        each = self.inner.per_sample(_members_as_samples(prediction), repeated)
        return op.reshape(each, prediction.shape[:2])

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return op.mean(self.member_losses(prediction, target), axis=1)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        count, _, *rest = prediction_shape
        return super().target_spec((count, *rest), dtype)

    def for_targets(self, targets: Shape, predictions: Shape) -> Self:
        one_member = (predictions[0], *predictions[2:])
        return replace(self, loss=self.inner.for_targets(targets, one_member))

    def meaning(self, prediction: Expr) -> Expr:
        each = self.inner.meaning(_members_as_samples(prediction))
        return op.mean(op.reshape(each, (*prediction.shape[:2], *each.shape[1:])), axis=1)

    def judged(self, prediction: Expr) -> Expr:
        return self.prediction_of(self.meaning(prediction))


def _members_as_samples(prediction: Expr) -> Expr:
    """Return predictions (N, members, ...) as (N * members, ...): axes as of a single network."""
    count, members, *rest = prediction.shape
    return op.reshape(prediction, (count * members, *rest))


@register
@dataclass(eq=False)
class Blend(Layer):
    """Weighted mean of several networks' predictions, each the mean of its members.

    Branches return (N, outputs) or (N, members, outputs), and have one of `weights` each. With
    `classes` they return logits; their probabilities are averaged, and the result has the logarithm
    of the mean, divided by `temperature`. Otherwise values are averaged, after
    start + factor * exp(rate * value) if `curve` is (rate, factor, start, least, most); values are
    limited to `least` and `most`.

    >>> from caldera import nn, op
    >>> both = nn.Blend([nn.Dense(3), nn.EnsembleDense(3, 4)], [0.25, 0.75], classes=True)
    >>> both(op.input("x", (5, 2))).shape
    (5, 3)
    """

    branches: Sequence[Any]
    weights: Sequence[float]
    classes: bool = field(default=False, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    curve: Sequence[float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        wrapped = [Sequential(b) if isinstance(b, list | tuple) else b for b in self.branches]
        self.branches = check_layers("Blend", wrapped)
        self.weights = np.asarray(self.weights, float).reshape(-1).tolist()
        require(
            len(self.weights) == len(self.branches) > 0 and np.isfinite(self.weights).all(),
            "Blend",
            "branches, and weights= a finite number for each",
            f"{len(self.branches)} branches and {self.weights}"[:80],
        )
        require(0 < self.temperature < math.inf, "Blend", "temperature > 0", self.temperature)
        if self.curve is not None:
            self.curve = np.asarray(self.curve, float).reshape(-1).tolist()
            require(
                len(self.curve) == 5 and np.isfinite(self.curve).all() and not self.classes,
                "Blend",
                "curve= (rate, factor, start, least, most) of values",
                f"{self.curve}"[:80],
            )

    def children(self) -> Iterator[tuple[str, Layer]]:
        return named_in_order(self.branches, "branch{index}")

    def forward(self, x: Expr) -> Expr:
        total: Any = 0.0
        for branch, weight in zip(self.branches, self.weights, strict=True):
            z = branch(x)
            self.require(z.ndim in (2, 3), "branches that return (N, members, outputs)", z.shape)
            z = op.softmax(z, axis=-1) if self.classes else z
            total = total + weight * self._curved(op.mean(z, axis=1) if z.ndim == 3 else z)
        return op.log(op.maximum(total, _LEAST)) / self.temperature if self.classes else total

    def _curved(self, z: Expr) -> Expr:
        if self.curve is None:
            return z
        rate, factor, start, least, most = self.curve
        return start + factor * op.exp(rate * op.clip(z, least, most))
