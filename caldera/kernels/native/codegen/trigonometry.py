"""Sine, cosine and tangent as vector code. Arguments so large that taking away multiples of pi / 2
needs hundreds of digits of pi go to the C library.
"""

from __future__ import annotations

import math

from caldera.kernels.native.codegen.emitter import (
    F32,
    F64,
    I32,
    I64,
    Emitter,
    Value,
    element,
    vector,
)
from caldera.kernels.native.codegen.libm import call_libm, is_single
from caldera.kernels.native.codegen.math import absolute

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


def sin(k: Emitter, x: Value) -> Value:
    """The sine."""
    return _near_or_far(k, x, "sin", 0)


def cos(k: Emitter, x: Value) -> Value:
    """The cosine."""
    return _near_or_far(k, x, "cos", 1)


def tan(k: Emitter, x: Value) -> Value:
    """The tangent: a quotient in float64, where rounding it to float32 is the only error."""
    wide = k.convert(x, F64)
    ratio = _near(k, wide, 0) / _near(k, wide, 1)
    return _unless_far(k, x, "tan", k.convert(ratio, element(x.type)))


def _near_or_far(k: Emitter, x: Value, name: str, turn: int) -> Value:
    return _unless_far(k, x, name, _near(k, x, turn))


def _unless_far(k: Emitter, x: Value, name: str, value: Value) -> Value:
    """A value that is right near 0, replaced by the C library's far from it."""
    near = absolute(k, x) < (_FAR_SINGLE if is_single(x) else _FAR_DOUBLE)
    result = k.variable(value)
    all_near = k.reduce_lanes(near, lambda a, b: a & b) if x.lanes > 1 else near
    with k.if_then(~all_near):
        result.value = k.select(near, result.value, call_libm(k, name, x))
    return result.value


def _near(k: Emitter, x: Value, turn: int) -> Value:
    """The sine of x + turn * pi / 2 for moderate x."""
    rest, quarter = _reduced(k, x)
    quarter = quarter + turn
    single = is_single(x)
    squared = rest * rest
    curve = k.polynomial(squared, _SIN_SINGLE if single else _SIN_DOUBLE)
    sine = k.fma(rest * squared, curve, rest)
    curve = k.polynomial(squared, _COS_SINGLE if single else _COS_DOUBLE)
    # Sums in this order round once beside 1: what 1 - r^2 / 2 lost is put back.
    halved = squared * 0.5
    most = 1.0 - halved
    cosine = most + k.fma(squared * squared, curve, (1.0 - most) - halved)
    chosen = k.select((quarter & 1).equals(0), sine, cosine)
    turned = k.select((quarter & 2).equals(0), chosen, -chosen)
    if turn == 0:
        return k.select(x.equals(0.0), x, turned)
    return turned


def _reduced(k: Emitter, x: Value) -> tuple[Value, Value]:
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
