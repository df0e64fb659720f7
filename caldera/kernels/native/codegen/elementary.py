"""Angles, hyperbolic functions and other bases. float32 is vector code that computes in float64,
which leaves digits to spare; float64 is the C library's, lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from caldera.kernels.native.codegen.emitter import F32, F64, Emitter, Value
from caldera.kernels.native.codegen.libm import call_libm, is_single
from caldera.kernels.native.codegen.math import (
    LOG2_E,
    absolute,
    copy_sign,
    exp,
    expm1,
    log,
    log1p,
    minimum,
    sqrt,
)

Function = Callable[..., Value]
# atan(t) = t + t^3 P(t^2) for 0 <= t <= 1, to 9 digits.
_ATAN = (
    -0.0009605419568874111,
    0.006329437612998634,
    -0.019523064708639442,
    0.03863882467057649,
    -0.0578311372005752,
    0.07427486384937391,
    -0.09039460931437908,
    0.11105133014170113,
    -0.14285352033978949,
    0.199999913380814,
    -0.3333333329880772,
)
# The hyperbolic functions of this are infinite in float32, but not in float64.
_OVERFLOW = 100.0


def _of_single(formula: Function) -> Function:
    """The function of a formula for float64 that is good enough for float32."""
    name = formula.__name__

    def function(k: Emitter, *operands: Value) -> Value:
        if not is_single(operands[0]):
            return call_libm(k, name, *operands)
        return k.convert(formula(k, *[k.convert(each, F64) for each in operands]), F32)

    return function


def _odd(formula: Function) -> Function:
    """A formula for positive numbers, continued to negative ones."""

    def function(k: Emitter, x: Value) -> Value:
        return copy_sign(k, formula(k, absolute(k, x)), x)

    function.__name__ = formula.__name__
    return function


def _atan_up_to_one(k: Emitter, t: Value) -> Value:
    squared = t * t
    return k.fma(t * squared, k.polynomial(squared, _ATAN), t)


def _positive_atan(k: Emitter, x: Value) -> Value:
    large = x > 1.0
    angle = _atan_up_to_one(k, k.select(large, 1.0 / x, x))
    return k.select(large, math.pi / 2 - angle, angle)


@_of_single
@_odd
def atan(k: Emitter, x: Value) -> Value:
    """The inverse of the tangent."""
    return _positive_atan(k, x)


@_of_single
@_odd
def asin(k: Emitter, x: Value) -> Value:
    """The inverse of the sine."""
    return _positive_atan(k, x / sqrt(k, (1.0 - x) * (x + 1.0)))


@_of_single
def acos(k: Emitter, x: Value) -> Value:
    """The inverse of the cosine."""
    return _positive_atan(k, sqrt(k, (1.0 - x) / (x + 1.0))) * 2.0


@_of_single
def atan2(k: Emitter, y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    height, width = absolute(k, y), absolute(k, x)
    steep = height > width
    small, large = k.select(steep, width, height), k.select(steep, height, width)
    ratio = small / k.select(large.equals(0.0), 1.0, large)
    ratio = k.select(small.equals(math.inf), 1.0, ratio)
    angle = _atan_up_to_one(k, ratio)
    angle = k.select(steep, math.pi / 2 - angle, angle)
    is_left = copy_sign(k, k.constant(1.0, x.type), x) < 0.0
    angle = copy_sign(k, k.select(is_left, math.pi - angle, angle), y)
    # Comparing with a nan is false: of the two it may have gone astray.
    return k.select(k.is_nan(x), x, k.select(k.is_nan(y), y, angle))


@_of_single
@_odd
def sinh(k: Emitter, x: Value) -> Value:
    """The hyperbolic sine."""
    grown = expm1(k, minimum(k, x, _OVERFLOW))
    return (grown + grown / (grown + 1.0)) * 0.5


@_of_single
def cosh(k: Emitter, x: Value) -> Value:
    """The hyperbolic cosine."""
    grown = exp(k, minimum(k, absolute(k, x), _OVERFLOW))
    return (grown + 1.0 / grown) * 0.5


@_of_single
@_odd
def asinh(k: Emitter, x: Value) -> Value:
    """The inverse of the hyperbolic sine."""
    squared = x * x
    result = log1p(k, x + squared / (sqrt(k, squared + 1.0) + 1.0))
    return k.select(x.equals(math.inf), x, result)


@_of_single
def acosh(k: Emitter, x: Value) -> Value:
    """The inverse of the hyperbolic cosine."""
    above = x - 1.0
    # The root of a product would be a number for x below -1.
    return log1p(k, above + sqrt(k, above) * sqrt(k, x + 1.0))


@_of_single
@_odd
def atanh(k: Emitter, x: Value) -> Value:
    """The inverse of the hyperbolic tangent."""
    return log1p(k, x * 2.0 / (1.0 - x)) * 0.5


@_of_single
def log2(k: Emitter, x: Value) -> Value:
    """The logarithm to the base 2."""
    return log(k, x) * LOG2_E


@_of_single
def log10(k: Emitter, x: Value) -> Value:
    """The logarithm to the base 10."""
    return log(k, x) * math.log10(math.e)


@_of_single
def exp2(k: Emitter, x: Value) -> Value:
    """2^x."""
    return exp(k, x * math.log(2))


def erfc(k: Emitter, x: Value) -> Value:
    """1 - erf(x)."""
    return call_libm(k, "erfc", x)


def lgamma(k: Emitter, x: Value) -> Value:
    """The logarithm of the magnitude of the gamma function."""
    return call_libm(k, "lgamma", x)
