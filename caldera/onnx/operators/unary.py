"""Functions of one argument, element by element."""

from __future__ import annotations

import math
from typing import Any

from caldera import op
from caldera.lazy import Expr
from caldera.onnx.operators.registry import operator
from caldera.onnx.operators.values import Value
from caldera.tensor.dtype import HALVES, float32, float64


def _same_dtype(function: Any) -> Any:
    return lambda x: op.cast(function(x), x.dtype)


for _name, _function in {
    "Abs": op.abs, "Neg": op.neg, "Sign": op.sign, "Exp": op.exp, "Log": op.log, "Sqrt": op.sqrt,
    "Reciprocal": op.reciprocal, "Floor": op.floor, "Ceil": op.ceil, "Round": op.round,
    "Sin": op.sin, "Cos": op.cos, "Tanh": op.tanh, "Erf": op.erf, "Sigmoid": op.sigmoid,
}.items():  # fmt: skip
    operator(_name)(_same_dtype(_function))


def _wide(function: Any) -> Any:
    """Several steps, each of which would round: halves are computed in float32."""

    def translate(x: Value) -> Expr:
        wide = op.cast(x, float32) if x.dtype in HALVES else x
        return op.cast(function(wide), x.dtype)

    return translate


@operator("Tan")
@_wide
def tan(x: Value) -> Expr:
    """The tangent."""
    return op.div(op.sin(x), op.cos(x))


@operator("Sinh")
@_wide
def sinh(x: Value) -> Expr:
    """The hyperbolic sine; expm1 keeps small arguments exact."""
    grown = op.expm1(op.abs(x))
    half = op.mul(0.5, op.add(grown, op.div(grown, op.add(grown, 1.0))))
    return op.mul(op.sign(x), op.where(op.isfinite(grown), half, grown))


@operator("Cosh")
@_wide
def cosh(x: Value) -> Expr:
    """The hyperbolic cosine."""
    return op.mul(0.5, op.add(op.exp(x), op.exp(op.neg(x))))


@operator("Asinh")
@_wide
def asinh(x: Value) -> Expr:
    """The inverse of sinh: log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))), with the sign of x."""
    size = op.abs(x)
    square = op.square(size)
    more = op.div(square, op.add(1.0, op.sqrt(op.add(square, 1.0))))
    return op.mul(op.sign(x), op.log1p(op.add(size, more)))


@operator("Acosh")
@_wide
def acosh(x: Value) -> Expr:
    """The inverse of cosh, for x >= 1."""
    less = op.sub(x, 1.0)
    return op.log1p(op.add(less, op.sqrt(op.mul(less, op.add(x, 1.0)))))


@operator("Atanh")
@_wide
def atanh(x: Value) -> Expr:
    """The inverse of tanh."""
    return op.mul(0.5, op.sub(op.log1p(x), op.log1p(op.neg(x))))


_REDUCED = math.tan(math.pi / 8)
_TERMS = {float64: 22}
"""How many terms of the arc tangent's series, up to tan(pi/8), reach the last digit."""
_TERMS_OF_OTHERS = 10


def _arctan(x: Value) -> Expr:
    """In three ranges: below tan(pi/8), around 1, and beyond its inverse."""
    size = op.abs(x)
    is_large = op.greater(size, 1 / _REDUCED)
    is_middle = op.logical_and(op.greater(size, _REDUCED), op.logical_not(is_large))
    middle = op.div(op.sub(size, 1.0), op.add(size, 1.0))
    turned = op.where(is_large, op.neg(op.reciprocal(size)), op.where(is_middle, middle, size))
    quarters = op.add(op.mul(op.cast(is_large, x.dtype), 2.0), op.cast(is_middle, x.dtype))
    square = op.square(turned)
    total: Any = 0.0
    for k in reversed(range(_TERMS.get(x.dtype, _TERMS_OF_OTHERS))):
        total = op.add(op.mul(total, square), (-1) ** k / (2 * k + 1))
    return op.mul(op.sign(x), op.add(op.mul(quarters, math.pi / 4), op.mul(turned, total)))


@operator("Atan")
@_wide
def atan(x: Value) -> Expr:
    """The inverse of the tangent."""
    return _arctan(x)


@operator("Asin")
@_wide
def asin(x: Value) -> Expr:
    """The inverse of the sine: atan(x / sqrt(1 - x^2))."""
    return _arctan(op.div(x, op.sqrt(op.mul(op.sub(1.0, x), op.add(1.0, x)))))


@operator("Acos")
@_wide
def acos(x: Value) -> Expr:
    """The inverse of the cosine: 2 atan(sqrt((1 - x) / (1 + x)))."""
    return op.mul(2.0, _arctan(op.sqrt(op.div(op.sub(1.0, x), op.add(1.0, x)))))
