"""Elementwise functions of a single argument; integers are computed in float32 if needed."""

from __future__ import annotations

import math
from typing import Any

from ml_dtypes import finfo

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.opdef import Op
from caldera.core.graph.ops import base, elementwise
from caldera.core.tensor.dtype import canonical, is_complex, is_float, is_integer
from caldera.op.arguments import as_number, float_function

__all__ = [
    "abs",
    "cast",
    "ceil",
    "cos",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "log",
    "log1p",
    "log2",
    "log10",
    "nan_to_num",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "square",
    "stop_gradient",
    "tanh",
    "trunc",
]

_PARTS = base.real, base.imag


def _rounding(function: Op, x: Any) -> Expr:
    node = lift(x)
    # Integers are whole already; float32 could not hold the large ones.
    return Expr(node if is_integer(node.dtype) else function(as_float(node)))


def exp(x: Any) -> Expr:
    """Raise e to the power of `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.exp(cd.tensor([0.0])).tolist()
    [1.0]
    """
    return float_function(elementwise.exp, x)


def log(x: Any) -> Expr:
    """Return the natural logarithm: -inf at 0, nan below.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.log(cd.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return float_function(elementwise.log, x)


def log1p(x: Any) -> Expr:
    """Compute log(1 + x), exact for small `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.log1p(cd.tensor([0.0, 1e-20])).tolist()
    [0.0, 9.999999682655225e-21]
    """
    return float_function(elementwise.log1p, x)


def expm1(x: Any) -> Expr:
    """Compute exp(x) - 1, exact for small `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.expm1(cd.tensor([0.0, 1e-20])).tolist()
    [0.0, 9.999999682655225e-21]
    """
    return float_function(elementwise.expm1, x)


def log2(x: Any) -> Expr:
    """Return the logarithm to the base 2: -inf at 0, nan below.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.log2(cd.tensor([8.0, 0.5])).tolist()
    [3.0, -1.0]
    """
    return float_function(elementwise.log2, x)


def log10(x: Any) -> Expr:
    """Return the logarithm to the base 10: -inf at 0, nan below.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.log10(cd.tensor([1000.0, 1.0])).tolist()
    [3.0, 0.0]
    """
    return float_function(elementwise.log10, x)


def exp2(x: Any) -> Expr:
    """Raise 2 to the power of `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.exp2(cd.tensor([3.0, -1.0])).tolist()
    [8.0, 0.5]
    """
    return float_function(elementwise.exp2, x)


def sqrt(x: Any) -> Expr:
    """Return the square root: nan below 0, and with an infinite derivative at 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sqrt(cd.tensor([4.0, 2.25])).tolist()
    [2.0, 1.5]
    """
    return float_function(elementwise.sqrt, x)


def rsqrt(x: Any) -> Expr:
    """Return the reciprocal square root, 1 / sqrt(x).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.rsqrt(cd.tensor([4.0, 0.25])).tolist()
    [0.5, 2.0]
    """
    return float_function(elementwise.rsqrt, x)


def square(x: Any) -> Expr:
    """Multiply `x` by itself.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.square(cd.tensor([3.0, -2.0])).tolist()
    [9.0, 4.0]
    """
    return Expr(elementwise.square(lift(x)))


def reciprocal(x: Any) -> Expr:
    """Return the reciprocal, 1 / x.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.reciprocal(cd.tensor([4.0, -0.5])).tolist()
    [0.25, -2.0]
    """
    return float_function(elementwise.reciprocal, x)


def abs(x: Any) -> Expr:
    """Return the absolute value, of complex numbers their (real) distance to 0.

    Its derivative at 0 is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.abs(cd.tensor([3.0, -2.0])).tolist()
    [3.0, 2.0]
    """
    return Expr(elementwise.abs_(lift(x)))


def sign(x: Any) -> Expr:
    """Return -1, 0 or 1, for a complex number z / |z|; the derivative of real numbers is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sign(cd.tensor([3.0, 0.0, -2.0])).tolist()
    [1.0, 0.0, -1.0]
    """
    return Expr(elementwise.sign(lift(x)))


def floor(x: Any) -> Expr:
    """Return the largest integer <= `x`, in its dtype; its derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.floor(cd.tensor([1.5, -1.5])).tolist()
    [1.0, -2.0]
    """
    return _rounding(elementwise.floor, x)


def ceil(x: Any) -> Expr:
    """Return the smallest whole number that is not below `x`; its derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.ceil(cd.tensor([1.5, -1.5])).tolist()
    [2.0, -1.0]
    """
    return _rounding(elementwise.ceil, x)


def round(x: Any) -> Expr:
    """Return the nearest whole number, the even one of two; its derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.round(cd.tensor([1.5, 2.5, -0.7])).tolist()
    [2.0, 2.0, -1.0]
    """
    return _rounding(elementwise.round_, x)


def trunc(x: Any) -> Expr:
    """Remove the fraction of `x`, rounding towards 0; its derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.trunc(cd.tensor([1.5, -1.5])).tolist()
    [1.0, -1.0]
    """
    node = lift(x)
    if is_integer(node.dtype):
        return Expr(node)
    node = as_float(node)
    below = elementwise.less(node, elementwise.scalar(0, node))
    return Expr(elementwise.where(below, elementwise.ceil(node), elementwise.floor(node)))


def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Expr:
    """Replace nan and the infinities: by default by 0 and the ends of the range.

    Where a number was put in place, the derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.nan_to_num(cd.tensor([1.5, float("nan"), float("-inf")]), neginf=-9.0).tolist()
    [1.5, 0.0, -9.0]
    """
    node = lift(x)
    if is_complex(node.dtype):
        parts = [
            nan_to_num(Expr(each(node)), nan, posinf, neginf) for each in (base.real, base.imag)
        ]
        return Expr(base.complex_(*[part.node for part in parts]))
    if not is_float(node.dtype):
        return Expr(node)
    largest = float(finfo(node.dtype).max)
    for infinite, wanted in ((math.inf, posinf), (-math.inf, neginf)):
        number = math.copysign(largest, infinite) if wanted is None else wanted
        found = elementwise.equal(node, elementwise.scalar(infinite, node))
        node = elementwise.where(
            found,
            elementwise.scalar(as_number(number, "posinf and neginf", "nan_to_num"), node),
            node,
        )
    number = as_number(nan, "nan", "nan_to_num")
    return Expr(elementwise.where(elementwise.isnan(node), elementwise.scalar(number, node), node))


def sin(x: Any) -> Expr:
    """Return the sine of an angle in radians.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sin(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(elementwise.sin, x)


def cos(x: Any) -> Expr:
    """Return the cosine of an angle in radians.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.cos(cd.tensor([0.0])).tolist()
    [1.0]
    """
    return float_function(elementwise.cos, x)


def tanh(x: Any) -> Expr:
    """Return the hyperbolic tangent.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.tanh(cd.tensor([0.0, 100.0])).tolist()
    [0.0, 1.0]
    """
    return float_function(elementwise.tanh, x)


def erf(x: Any) -> Expr:
    """Return the error function, the integral of the normal distribution.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.erf(cd.tensor([0.0, 10.0])).tolist()
    [0.0, 1.0]
    """
    return float_function(elementwise.erf, x)


def sigmoid(x: Any) -> Expr:
    """Compute 1 / (1 + exp(-x)), without overflow.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sigmoid(cd.tensor([0.0, -1000.0, 1000.0])).tolist()
    [0.5, 0.0, 1.0]
    """
    return float_function(elementwise.sigmoid, x)


def cast(x: Any, dtype: Any) -> Expr:
    """Return the same values in another dtype: towards zero to integers, `x != 0` to bool.

    Complex numbers have no real value: use `op.real` or `op.abs`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.cast(cd.tensor([1.7, -1.7]), "int32").tolist()
    [1, -1]
    >>> op.cast(cd.tensor([0.0, 0.5]), "bool").tolist()
    [False, True]
    """
    return Expr(base.cast(lift(x), canonical(dtype)))


def stop_gradient(x: Any) -> Expr:
    """Return `x` as a constant to derivatives.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> float(op.grad(x * op.stop_gradient(x), x))
    3.0
    """
    return Expr(elementwise.stop_gradient(lift(x)))
