"""Cases for trigonometric, hyperbolic and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers

_EVERYWHERE = (-2.0, 2.0)
_INSIDE = (-0.9, 0.9)


def _by_number(function: Callable[[float], float]) -> Callable[..., np.ndarray]:
    return np.vectorize(function, otypes=["float64"])


def _digamma(x: float) -> float:
    """From the product of the gamma function; what is left out is added as an integral."""
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    lost = sum(1 / (x + k) for k in range(200))
    z = x + 200
    return math.log(z) - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4) - lost


def _erfinv(y: float) -> float:
    """By bisection."""
    low, high = -6.0, 6.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle) < y else (low, middle)
    return low


_FUNCTIONS: tuple[tuple[str, Callable[..., Any], tuple[float, float]], ...] = (
    ("log2", np.log2, (0.3, 3.0)),
    ("log10", np.log10, (0.3, 3.0)),
    ("exp2", np.exp2, _EVERYWHERE),
    ("tan", np.tan, (-1.2, 1.2)),
    ("asin", np.arcsin, _INSIDE),
    ("acos", np.arccos, _INSIDE),
    ("atan", np.arctan, _EVERYWHERE),
    ("sinh", np.sinh, _EVERYWHERE),
    ("cosh", np.cosh, _EVERYWHERE),
    ("asinh", np.arcsinh, _EVERYWHERE),
    ("acosh", np.arccosh, (1.2, 3.0)),
    ("atanh", np.arctanh, _INSIDE),
    ("erfc", _by_number(math.erfc), _EVERYWHERE),
    ("erfinv", _by_number(_erfinv), (-0.97, 0.97)),
    ("lgamma", _by_number(math.lgamma), (0.3, 4.0)),
    ("digamma", _by_number(_digamma), (0.3, 4.0)),
)
CASES = [
    Case(name, getattr(op, name), (numbers(2, 3, low=low, high=high),), right, order=2)
    for name, right, (low, high) in _FUNCTIONS
]
CASES += [
    Case("digamma", op.digamma, (np.array([-0.3, -1.6]),), _by_number(_digamma), name="below 0"),
    *[
        Case(name, getattr(op, name), (numbers(2, 3), numbers(3, seed=4)), right, order=2)
        for name, right in (
            ("atan2", np.arctan2),
            ("hypot", np.hypot),
            ("logaddexp", np.logaddexp),
        )
    ],
]
