"""Element-wise ops in NumPy. Most are a ufunc, which faster kernels use with an output array."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from caldera.core.tensor.dtype import bool_
from caldera.kernels.reference.evaluation import references

# |x| <= 0.5: erf(x) = x P(x^2) / Q(x^2)
_A = (
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
    1.85777706184603153e-01,
)
_B = (
    2.36012909523441209e01,
    2.44024637934444173e02,
    1.28261652607737228e03,
    2.84423683343917062e03,
)
# 0.46875 <= |x| <= 4: erfc(x) = exp(-x^2) P(x) / Q(x)
_C = (
    5.64188496988670089e-01,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
    2.15311535474403846e-08,
)
_D = (
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function, which NumPy has not.

    Rational approximations of W. J. Cody (Mathematics of Computation 23, 1969), accurate to about
    1e-16 in float64; float32 is computed through float64.
    """
    wide = np.asarray(x, dtype=np.float64)
    magnitude = np.abs(wide)
    squared = np.square(magnitude)
    top, bottom = _A[4] * squared, squared
    for a, b in zip(_A[:3], _B[:3], strict=True):
        top = (top + a) * squared
        bottom = (bottom + b) * squared
    near = magnitude * (top + _A[3]) / (bottom + _B[3])
    # Beyond 4 the complement is below 1.6e-8, and beyond 6 it is 0 in float64: clamping keeps the
    # middle formula in the range in which it is accurate enough for 1 - erfc.
    far = np.minimum(magnitude, 6.0)
    top, bottom = _C[8] * far, far
    for c, d in zip(_C[:7], _D[:7], strict=True):
        top = (top + c) * far
        bottom = (bottom + d) * far
    beyond = 1.0 - np.exp(-np.square(far)) * (top + _C[7]) / (bottom + _D[7])
    result = np.copysign(np.where(magnitude <= 0.46875, near, beyond), wide)
    return np.where(np.isnan(wide), wide, result).astype(x.dtype, copy=False)


UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "pow": np.power,
    "floor_div": np.floor_divide,
    "mod": np.remainder,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_invert": np.bitwise_not,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
    "copysign": np.copysign,
    "isfinite": np.isfinite,
    "isnan": np.isnan,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "abs": np.absolute,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "log2": np.log2,
    "log10": np.log10,
    "exp2": np.exp2,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "conj": np.conjugate,
}


def _by_number(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of Python's that NumPy has not, number by number, in float64."""
    every = np.vectorize(function, otypes=[np.float64])
    return lambda x: every(x).astype(x.dtype)


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        # At 0 and negative integers, and for results that overflow.
        return math.inf


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number never overflows, and dividing keeps full accuracy at both ends.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


references(UFUNCS)
references(
    {
        "where": np.where,
        "erf": erf,
        "erfc": _by_number(math.erfc),
        "lgamma": _by_number(_lgamma),
        "real": np.real,
        "imag": np.imag,
        "cast": lambda x, dtype: x != 0 if dtype == bool_ else x.astype(dtype),
        "stop_gradient": lambda x: x,
        "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
        "sigmoid": _sigmoid,
        "relu": lambda x: np.maximum(x, 0),
    }
)
