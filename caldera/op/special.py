"""Special functions, element by element: of the normal distribution and of the gamma function, and
sums that would overflow on the way. Integers are computed in float32.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr
from caldera.core.graph.ops import special
from caldera.op.arguments import float_function


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
