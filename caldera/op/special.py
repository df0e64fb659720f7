"""Trigonometric, hyperbolic and special functions, element by element.

Angles are in radians. Outside of its domain a function returns nan. Integers are computed in
float32. `op.sin`, `op.cos` and `op.tanh` are defined in `unary`.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr
from caldera.core.graph.ops import special
from caldera.op.arguments import float_function


def tan(x: Any) -> Expr:
    """The tangent of an angle.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.tan(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(special.tan, x)


def asin(x: Any) -> Expr:
    """The angle from -pi / 2 to pi / 2 that has this sine; nan outside of -1 to 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.asin(cd.tensor([0.0, 2.0])).tolist()
    [0.0, nan]
    """
    return float_function(special.asin, x)


def acos(x: Any) -> Expr:
    """The angle from 0 to pi that has this cosine; nan outside of -1 to 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.acos(cd.tensor([1.0, 2.0])).tolist()
    [0.0, nan]
    """
    return float_function(special.acos, x)


def atan(x: Any) -> Expr:
    """The angle from -pi / 2 to pi / 2 that has this tangent.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.atan(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(special.atan, x)


def atan2(y: Any, x: Any) -> Expr:
    """The angle from -pi to pi of the point (x, y), with the signs of zeros as in NumPy.

    Its derivative at the origin is taken as 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> round(op.atan2(cd.tensor([1.0]), cd.tensor([-1.0])).item(), 4)
    2.3562
    """
    return float_function(special.atan2, y, x)


def sinh(x: Any) -> Expr:
    """The hyperbolic sine, (exp(x) - exp(-x)) / 2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sinh(cd.tensor([0.0, 1000.0])).tolist()
    [0.0, inf]
    """
    return float_function(special.sinh, x)


def cosh(x: Any) -> Expr:
    """The hyperbolic cosine, (exp(x) + exp(-x)) / 2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.cosh(cd.tensor([0.0, -1000.0])).tolist()
    [1.0, inf]
    """
    return float_function(special.cosh, x)


def asinh(x: Any) -> Expr:
    """The inverse of the hyperbolic sine.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.asinh(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(special.asinh, x)


def acosh(x: Any) -> Expr:
    """The inverse of the hyperbolic cosine; nan below 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.acosh(cd.tensor([1.0, 0.0])).tolist()
    [0.0, nan]
    """
    return float_function(special.acosh, x)


def atanh(x: Any) -> Expr:
    """The inverse of the hyperbolic tangent: infinite at -1 and 1, and nan beyond.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.atanh(cd.tensor([0.0, 1.0, 2.0])).tolist()
    [0.0, inf, nan]
    """
    return float_function(special.atanh, x)


def erfc(x: Any) -> Expr:
    """1 - erf(x), exact where that is small.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.erfc(cd.tensor([0.0, 100.0])).tolist()
    [1.0, 0.0]
    """
    return float_function(special.erfc, x)


def erfinv(x: Any) -> Expr:
    """The inverse of `op.erf`: infinite at -1 and 1, and nan beyond.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.erfinv(cd.tensor([0.0, 1.0, 2.0])).tolist()
    [0.0, inf, nan]
    """
    return float_function(special.erfinv, x)


def lgamma(x: Any) -> Expr:
    """The logarithm of the magnitude of the gamma function: log((x - 1)!) for whole numbers.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.lgamma(cd.tensor([1.0, 2.0, 0.0])).tolist()
    [0.0, 0.0, inf]
    """
    return float_function(special.lgamma, x)


def digamma(x: Any) -> Expr:
    """The derivative of `op.lgamma`; nan at negative whole numbers, infinite at 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> round(op.digamma(cd.tensor([1.0])).item(), 4)
    -0.5772
    """
    return float_function(special.digamma, x)


def hypot(a: Any, b: Any) -> Expr:
    """The length sqrt(a^2 + b^2), without overflow; its derivative at the origin is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hypot(cd.tensor([3.0, 0.0]), cd.tensor([4.0, 0.0])).tolist()
    [5.0, 0.0]
    """
    return float_function(special.hypot, a, b)


def logaddexp(a: Any, b: Any) -> Expr:
    """log(exp(a) + exp(b)), without overflow.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logaddexp(cd.tensor([1000.0]), cd.tensor([0.0])).tolist()
    [1000.0]
    """
    return float_function(special.logaddexp, a, b)
