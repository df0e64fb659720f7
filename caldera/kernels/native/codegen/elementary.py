"""Elementary functions: trigonometric, hyperbolic, logarithms, powers and libm calls.

float32 is vector code that computes in float64, which leaves digits to spare; float64 calls the C
library, lane by lane. Sine, cosine and tangent are vector code, except for arguments so large that
subtracting multiples of pi / 2 needs hundreds of digits of pi: the C library computes these. Powers
cover every special case of IEEE 754.

The linker resolves C library functions by name when a compiled kernel is loaded, so kernels cached
on disk stay valid.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from functools import lru_cache

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import (
    F32,
    F64,
    I32,
    I64,
    Emitter,
    RegisterValue,
    element,
    vector,
)
from caldera.kernels.native.codegen.math import (
    LOG2_E,
    absolute,
    copy_sign,
    exp,
    expm1,
    log,
    log1p,
    minimum,
    nearest,
    sqrt,
)

NEEDED = (
    "sin",
    "cos",
    "pow",
    "fmod",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "log2",
    "log10",
    "exp2",
    "erfc",
    "lgamma",
)


@lru_cache(maxsize=1)
def has_libm() -> bool:
    """True if this process has the C library's mathematical functions under their usual names."""
    if os.name != "posix":
        return False
    everything = ctypes.CDLL(None)
    return all(hasattr(everything, name) for name in NEEDED)


def call_libm(k: Emitter, name: str, *operands: RegisterValue) -> RegisterValue:
    """A function of the C library for float64, in each lane. float32 is computed in float64."""
    kind = operands[0].type
    function = k.module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(F64, [F64] * len(operands))
        function = ir.Function(k.module, signature, name)
    if operands[0].lanes == 1:
        wide = [k.convert(each, F64) for each in operands]
        return k.convert(k.call(function, *wide), element(kind))
    # The vectors pass through memory: LLVM would keep all lanes in registers across every call.
    count = operands[0].lanes
    buffers = [k.alloca(element(kind), count) for _ in operands]
    for buffer, operand in zip(buffers, operands, strict=True):
        buffer.store(0, operand)
    with k.loop(0, count) as lane:
        wide = [k.convert(buffer.load(lane), F64) for buffer in buffers]
        buffers[0].store(lane, k.convert(k.call(function, *wide), element(kind)))
    return buffers[0].load(0, count)


def is_single(x: RegisterValue) -> bool:
    """Return True if a value is float32."""
    return element(x.type) == F32


Function = Callable[..., RegisterValue]
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
    """Return the function of a formula for float64 that is good enough for float32."""
    name = formula.__name__

    def function(k: Emitter, *operands: RegisterValue) -> RegisterValue:
        if not is_single(operands[0]):
            return call_libm(k, name, *operands)
        return k.convert(formula(k, *[k.convert(each, F64) for each in operands]), F32)

    return function


def _odd(formula: Function) -> Function:
    """Extend a formula for positive numbers to an odd function."""

    def function(k: Emitter, x: RegisterValue) -> RegisterValue:
        return copy_sign(k, formula(k, absolute(k, x)), x)

    function.__name__ = formula.__name__
    return function


def _atan_up_to_one(k: Emitter, t: RegisterValue) -> RegisterValue:
    squared = t * t
    return k.fma(t * squared, k.polynomial(squared, _ATAN), t)


def _positive_atan(k: Emitter, x: RegisterValue) -> RegisterValue:
    large = x > 1.0
    angle = _atan_up_to_one(k, k.select(large, 1.0 / x, x))
    return k.select(large, math.pi / 2 - angle, angle)


@_of_single
@_odd
def atan(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the inverse of the tangent."""
    return _positive_atan(k, x)


@_of_single
@_odd
def asin(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the inverse of the sine."""
    return _positive_atan(k, x / sqrt(k, (1.0 - x) * (x + 1.0)))


@_of_single
def acos(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the inverse of the cosine."""
    return _positive_atan(k, sqrt(k, (1.0 - x) / (x + 1.0))) * 2.0


@_of_single
def atan2(k: Emitter, y: RegisterValue, x: RegisterValue) -> RegisterValue:
    """Return the angle of the point (x, y)."""
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
def sinh(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the hyperbolic sine."""
    grown = expm1(k, minimum(k, x, _OVERFLOW))
    return (grown + grown / (grown + 1.0)) * 0.5


@_of_single
def cosh(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the hyperbolic cosine."""
    grown = exp(k, minimum(k, absolute(k, x), _OVERFLOW))
    return (grown + 1.0 / grown) * 0.5


@_of_single
@_odd
def asinh(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the inverse of the hyperbolic sine."""
    squared = x * x
    result = log1p(k, x + squared / (sqrt(k, squared + 1.0) + 1.0))
    return k.select(x.equals(math.inf), x, result)


@_of_single
def acosh(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the inverse of the hyperbolic cosine."""
    above = x - 1.0
    # The root of a product would be a number for x below -1.
    return log1p(k, above + sqrt(k, above) * sqrt(k, x + 1.0))


@_of_single
@_odd
def atanh(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the inverse of the hyperbolic tangent."""
    return log1p(k, x * 2.0 / (1.0 - x)) * 0.5


@_of_single
def log2(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the logarithm to the base 2."""
    return log(k, x) * LOG2_E


@_of_single
def log10(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the logarithm to the base 10."""
    return log(k, x) * math.log10(math.e)


@_of_single
def exp2(k: Emitter, x: RegisterValue) -> RegisterValue:
    """2^x."""
    return exp(k, x * math.log(2))


def erfc(k: Emitter, x: RegisterValue) -> RegisterValue:
    """1 - erf(x)."""
    return call_libm(k, "erfc", x)


def lgamma(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the logarithm of the magnitude of the gamma function."""
    return call_libm(k, "lgamma", x)


# pi / 2 as 33 bits, another 33, and the rest: products with moderate integers are exact.
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_MAGIC = 1.5 * 2.0**52
_FAR_SINGLE, _FAR_DOUBLE = 500000.0, 8000.0
# sin(r) = r + r^3 P(r^2) and cos(r) = 1 - r^2 / 2 + r^4 P(r^2) for |r| <= pi / 4.
_SIN_SINGLE = (-0.0001951828453456983, 0.008332189172506332, -0.16666655242443085)
_COS_SINGLE = (2.4432561986031942e-05, -0.0013887310633435845, 0.04166664555668831)
_SIN_DOUBLE = (
    1.5895580236359482e-10,
    -2.5050736676140026e-08,
    2.755731355114393e-06,
    -0.00019841269829387414,
    0.008333333333321863,
    -0.1666666666666663,
)
_COS_DOUBLE = (
    -1.1358732739122926e-11,
    2.0875705114481112e-09,
    -2.75573142152968e-07,
    2.4801587288997478e-05,
    -0.0013888888888873338,
    0.041666666666666595,
)


def sin(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the sine."""
    return _near_or_far(k, x, "sin", 0)


def cos(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the cosine."""
    return _near_or_far(k, x, "cos", 1)


def tan(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the tangent: a quotient in float64, where rounding it to float32 is the only error."""
    wide = k.convert(x, F64)
    ratio = _near(k, wide, 0) / _near(k, wide, 1)
    return _unless_far(k, x, "tan", k.convert(ratio, element(x.type)))


def _near_or_far(k: Emitter, x: RegisterValue, name: str, turn: int) -> RegisterValue:
    return _unless_far(k, x, name, _near(k, x, turn))


def _unless_far(k: Emitter, x: RegisterValue, name: str, value: RegisterValue) -> RegisterValue:
    """Return a value that is right near 0, replaced by the C library's far from it."""
    near = absolute(k, x) < (_FAR_SINGLE if is_single(x) else _FAR_DOUBLE)
    result = k.variable(value)
    all_near = k.reduce_lanes(near, lambda a, b: a & b) if x.lanes > 1 else near
    with k.if_then(~all_near):
        result.value = k.select(near, result.value, call_libm(k, name, x))
    return result.value


def _near(k: Emitter, x: RegisterValue, turn: int) -> RegisterValue:
    """Return the sine of x + turn * pi / 2 for moderate x."""
    rest, quarter = _reduced(k, x)
    quarter = quarter + turn
    single = is_single(x)
    squared = rest * rest
    curve = k.polynomial(squared, _SIN_SINGLE if single else _SIN_DOUBLE)
    sine = k.fma(rest * squared, curve, rest)
    curve = k.polynomial(squared, _COS_SINGLE if single else _COS_DOUBLE)
    # Sums in this order round once relative to 1: the part that 1 - r^2 / 2 lost is added back.
    halved = squared * 0.5
    most = 1.0 - halved
    cosine = most + k.fma(squared * squared, curve, (1.0 - most) - halved)
    chosen = k.select((quarter & 1).equals(0), sine, cosine)
    turned = k.select((quarter & 2).equals(0), chosen, -chosen)
    return k.select(x.equals(0.0), x, turned) if turn == 0 else turned


def _reduced(k: Emitter, x: RegisterValue) -> tuple[RegisterValue, RegisterValue]:
    """(r, n) with x = r + n pi / 2 and |r| <= pi / 4. float32 takes the way through float64."""
    wide = k.convert(x, F64)
    shifted = k.fma(wide, 2 / math.pi, _MAGIC)
    count = shifted - _MAGIC
    rest = wide
    for piece in _HALF_PI:
        rest = k.fma(count, -piece, rest)
    quarter = k.bitcast(shifted, vector(I64, x.lanes))
    if element(x.type) == F32:
        return k.convert(rest, F32), k.convert(quarter, I32)
    return rest, quarter


def power(k: Emitter, a: RegisterValue, b: RegisterValue) -> RegisterValue:
    """a^b. float32 is computed as exp(b log a) in float64, which leaves digits to spare."""
    if not is_single(a):
        return call_libm(k, "pow", a, b)
    base, exponent = k.convert(a, F64), k.convert(b, F64)
    result = exp(k, exponent * log(k, absolute(k, base)))
    whole = nearest(k, exponent).equals(exponent)
    half = exponent * 0.5
    odd = whole & nearest(k, half).differs(half)
    signed = k.intrinsic("llvm.copysign", result, base)
    result = k.select(odd, signed, result)
    # A negative number has roots only if it is infinite.
    rootless = (base < 0.0) & (base > -math.inf) & ~whole
    result = k.select(rootless, k.constant(math.nan, base.type), result)
    endless = absolute(k, exponent).equals(math.inf)
    one = exponent.equals(0.0) | base.equals(1.0) | (base.equals(-1.0) & endless)
    return k.convert(k.select(one, k.constant(1.0, base.type), result), F32)
