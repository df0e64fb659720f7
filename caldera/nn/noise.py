"""Layers that add noise or drop values while training; evaluation leaves their input as it is."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.nn.basic import register
from caldera.nn.layer import Layer
from caldera.nn.tracing import context


class Noise(Layer):
    """Base of layers that act while training only: `noisy` has the random source as well."""

    rate: float
    """Fraction of the values that are dropped."""

    def __post_init__(self) -> None:
        require(0 <= self.rate < 1, type(self).__name__, "0 <= rate < 1", self.rate)

    @property
    def amount(self) -> float:
        """A rate or a deviation: 0 leaves the input as it is."""
        return self.rate

    def drawn(self, x: Expr) -> tuple[int, ...]:
        """Return the shape of the random numbers for an input."""
        return x.shape

    def forward(self, x: Expr) -> Expr:
        now = context()
        if not now.training or not self.amount:
            return x
        shape = self.drawn(x)
        return self.noisy(x, shape, now.random_source(self.path, math.prod(shape[1:])))

    @abstractmethod
    def noisy(self, x: Expr, shape: tuple[int, ...], source: dict[str, Any]) -> Expr:
        """Return the input with noise from `source`, of which numbers of `shape` are drawn."""


@register
@dataclass(eq=False)
class Dropout(Noise):
    """While training, sets a fraction `rate` of the values to zero and scales the rest up.

    Args:
        rate: Fraction of values to drop, from 0 to below 1.

    >>> from caldera import nn, op
    >>> nn.Dropout(0.5)(op.input("x", (5, 2))).shape
    (5, 2)
    """

    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rate": ("uniform", 0.0, 0.6)}

    rate: float = 0.5

    def noisy(self, x: Expr, shape: tuple[int, ...], source: dict[str, Any]) -> Expr:
        return op.dropout(x, self.rate, **source)


@register
@dataclass(eq=False)
class GaussianNoise(Noise):
    """Layer that adds normal noise of mean 0 and this `deviation` during training.

    >>> from caldera import nn
    >>> nn.GaussianNoise(0.1)([1.0, 2.0]).tolist()  # not while training
    [1.0, 2.0]
    """

    deviation: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.deviation < math.inf, "GaussianNoise", "deviation >= 0", self.deviation)

    @property
    def amount(self) -> float:
        return self.deviation

    def noisy(self, x: Expr, shape: tuple[int, ...], source: dict[str, Any]) -> Expr:
        return x + op.random_normal(shape, 0.0, self.deviation, x.dtype, **source)


@register
@dataclass(eq=False)
class GaussianDropout(Noise):
    """While training, multiplies with normal numbers of mean 1 and variance rate / (1 - rate).

    >>> from caldera import nn
    >>> nn.GaussianDropout(0.5)([1.0, 2.0]).tolist()  # not while training
    [1.0, 2.0]
    """

    rate: float = 0.5

    def noisy(self, x: Expr, shape: tuple[int, ...], source: dict[str, Any]) -> Expr:
        deviation = math.sqrt(self.rate / (1 - self.rate))
        return x * op.random_normal(shape, 1.0, deviation, x.dtype, **source)


@register
@dataclass(eq=False)
class SpatialDropout(Noise):
    """Dropout of whole channels (N, C, ...) in training; the remaining ones are scaled up.

    >>> from caldera import nn
    >>> nn.SpatialDropout(0.5)([[[1.0, 2.0]]]).tolist()  # not while training
    [[[1.0, 2.0]]]
    """

    rate: float = 0.5

    def drawn(self, x: Expr) -> tuple[int, ...]:
        self.require(x.ndim >= 2, "a batch (N, C, ...)", f"shape {x.shape}")
        return (*x.shape[:2], *(1 for _ in x.shape[2:]))

    def noisy(self, x: Expr, shape: tuple[int, ...], source: dict[str, Any]) -> Expr:
        kept = op.dropout(op.ones(shape, dtype=x.dtype), self.rate, **source)
        return x * kept


@register
@dataclass(eq=False)
class AlphaDropout(Noise):
    """Dropout for networks of SELUs: keeps mean 0 and variance 1 (Klambauer and others, 2017).

    >>> from caldera import nn
    >>> nn.AlphaDropout(0.5)([1.0, 2.0]).tolist()  # not while training
    [1.0, 2.0]
    """

    rate: float = 0.5

    def noisy(self, x: Expr, shape: tuple[int, ...], source: dict[str, Any]) -> Expr:
        keep = 1 - self.rate
        scale = (keep + LOWEST**2 * keep * self.rate) ** -0.5
        kept = op.random_uniform(shape, dtype="float32", **source) < keep
        return scale * op.where(kept, x, LOWEST) - scale * self.rate * LOWEST


@register
@dataclass(eq=False)
class FeatureAlphaDropout(AlphaDropout):
    """`nn.AlphaDropout` of whole channels (N, C, ...).

    >>> from caldera import nn
    >>> nn.FeatureAlphaDropout(0.5)([[[1.0, 2.0]]]).tolist()  # not while training
    [[[1.0, 2.0]]]
    """

    drawn = SpatialDropout.drawn


LOWEST = -1.0507009873554805 * 1.6732632423543772
"""The limit of SELU for small numbers."""
