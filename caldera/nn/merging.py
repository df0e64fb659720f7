"""Layers that merge several inputs into one: sums, products, extremes, dot products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.nn.basic import WeightedLayer, check_counts, register
from caldera.nn.layer import Layer


class Merging(Layer):
    """Base class of layers that combine any number of same-shaped inputs, from left to right."""

    merge: ClassVar[Callable[..., Expr]]
    stretches: ClassVar[bool] = False
    """True if axes of length 1 are broadcast."""

    def forward(self, first: Expr, *others: Expr) -> Expr:
        for other in others:
            if other is None or not self._fits(first.shape, other.shape):
                got = "None" if other is None else f"{other.shape}"
                raise self.refuse(f"inputs of the same shape, {first.shape}", got)
        return reduce(type(self).merge, others, first)

    def _fits(self, first: tuple[int, ...], other: tuple[int, ...]) -> bool:
        if first == other or not self.stretches:
            return first == other
        pairs = zip(first[1:], other[1:], strict=False)
        is_batch = len(first) == len(other) and first[:1] == other[:1]
        return is_batch and all(a == b or 1 in (a, b) for a, b in pairs)


@register
@dataclass(eq=False)
class Add(Merging):
    """Layer that adds its inputs.

    >>> from caldera import nn
    >>> nn.Add()([1.0, 2.0], [10.0, 20.0]).tolist()
    [11.0, 22.0]
    """

    merge = staticmethod(op.add)


@register
@dataclass(eq=False)
class Subtract(Merging):
    """The first input minus the second.

    >>> from caldera import nn
    >>> nn.Subtract()([1.0, 2.0], [10.0, 20.0]).tolist()
    [-9.0, -18.0]
    """

    merge = staticmethod(op.sub)

    def forward(self, first: Expr, second: Expr) -> Expr:  # type: ignore[override]
        return super().forward(first, second)


@register
@dataclass(eq=False)
class Multiply(Merging):
    """The product of its inputs; axes of length 1 are stretched, as for gates (N, C, 1, 1).

    >>> from caldera import nn, op
    >>> nn.Multiply()([1.0, 2.0], [10.0, 20.0]).tolist()
    [10.0, 40.0]
    >>> nn.Multiply()(op.input("x", (5, 3, 7, 7)), op.input("gate", (5, 3, 1, 1))).shape
    (5, 3, 7, 7)
    """

    merge = staticmethod(op.mul)
    stretches: ClassVar[bool] = True


@register
@dataclass(eq=False)
class Average(Merging):
    """Layer that averages its inputs.

    >>> from caldera import nn
    >>> nn.Average()([1.0, 2.0], [3.0, 4.0]).tolist()
    [2.0, 3.0]
    """

    merge = staticmethod(op.add)

    def forward(self, first: Expr, *others: Expr) -> Expr:
        return super().forward(first, *others) / float(1 + len(others))


@register
@dataclass(eq=False)
class Maximum(Merging):
    """Layer that returns the largest of its inputs at each position.

    >>> from caldera import nn
    >>> nn.Maximum()([1.0, 5.0], [3.0, 4.0]).tolist()
    [3.0, 5.0]
    """

    merge = staticmethod(op.maximum)


@register
@dataclass(eq=False)
class Minimum(Merging):
    """Layer that returns the smallest of its inputs at each position.

    >>> from caldera import nn
    >>> nn.Minimum()([1.0, 5.0], [3.0, 4.0]).tolist()
    [1.0, 4.0]
    """

    merge = staticmethod(op.minimum)


@register
@dataclass(eq=False)
class Bilinear(WeightedLayer):
    """Layer of two inputs: output k is a @ weight[k] @ b + bias[k], over their last axes.

    Args:
        units: Number of outputs.
        bias: True for a trainable bias.
        fill: Initial weights: a filler, number or array; by default Glorot's uniform ones.

    >>> from caldera import nn
    >>> nn.Bilinear(1, fill=1.0)([[1.0, 2.0]], [[3.0, 4.0, 5.0]]).tolist()
    [[36.0]]
    """

    units: int
    bias: bool = True
    fill: Any = None

    def __post_init__(self) -> None:
        check_counts("Bilinear", units=self.units)

    def build(self, a: Expr, b: Expr | None = None) -> None:
        if b is None or a.ndim < 2 or a.shape[:-1] != b.shape[:-1]:
            got = f"{a.shape} and {None if b is None else b.shape}"
            raise self.refuse("two inputs with vectors along their last axes", got)
        self.make_weights((self.units, a.shape[-1], b.shape[-1]), self.units)

    def forward(self, a: Expr, b: Expr) -> Expr:
        found = op.einsum("...i,kij,...j->...k", a, self.weight, b)
        return found if self.offset is None else found + self.offset


@register
@dataclass(eq=False)
class Dot(Layer):
    """Dot products of two same-shaped inputs along `axis`; with `normalise`, cosines.

    >>> from caldera import nn
    >>> nn.Dot()([[1.0, 2.0]], [[3.0, 4.0]]).tolist()
    [11.0]
    >>> nn.Dot(normalise=True)([[3.0, 4.0]], [[6.0, 8.0]]).tolist()
    [1.0]
    """

    axis: int = -1
    normalise: bool = False

    def forward(self, a: Expr, b: Expr) -> Expr:
        got = "None" if b is None else f"{b.shape}"
        self.require(got == f"{a.shape}", f"inputs of the same shape, {a.shape}", got)
        if self.normalise:
            a, b = unit_length(a, self.axis), unit_length(b, self.axis)
        return op.sum(a * b, axis=self.axis)


def unit_length(x: Expr, axis: Any, eps: float = 1e-12) -> Expr:
    """Return vectors along `axis`, divided by their length; those shorter than sqrt(eps) by that.

    >>> import caldera as cd
    >>> unit_length(cd.tensor([[3.0, 4.0], [0.0, 0.0]]) * 1.0, 1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    # The square is bounded before its root, which has no derivative at 0.
    squares = op.sum(op.square(x), axis=axis, keepdims=True)
    return x * op.rsqrt(op.maximum(squares, eps))


@register
@dataclass(eq=False)
class UnitNorm(Layer):
    """Layer that divides each sample's vectors along `axis` by their length.

    >>> from caldera import nn, op
    >>> nn.UnitNorm()([[0.0, -2.0]]).tolist()
    [[0.0, -1.0]]
    """

    axis: int = -1

    def forward(self, x: Expr) -> Expr:
        return unit_length(x, self.axis)
