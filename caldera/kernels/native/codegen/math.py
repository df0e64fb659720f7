"""Unary functions as vector code, for float32 and float64 and any number of lanes.

Errors are at most a few units in the last place; the tests state the bounds. Infinite arguments
give the limit, a nan stays a nan, denormals count as arguments and come out as results, and zeros
keep their sign. No instruction here becomes a call of a library, and none needs a fused
multiply-add to be right; the polynomials and quotients are near-minimax fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import (
    F32,
    I32,
    I64,
    Emitter,
    RegisterValue,
    element,
    vector,
)
from caldera.kernels.native.codegen.target import host_target
from caldera.kernels.native.codegen.values import itemsize

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class _Format:
    """Constants that differ between float32 and float64."""

    integer: ir.Type
    mantissa: int
    bias: int
    ln2_high: float
    """ln 2 in two parts: the first is short enough that its product with any exponent is exact."""
    ln2_low: float
    overflow: float
    """From here on exp is infinite; below `underflow` it is 0."""
    underflow: float
    exp: tuple[float, ...]
    """(exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2."""

    @property
    def magic(self) -> float:
        """Constant whose addition rounds to an integer, leaving that integer in the lowest bits."""
        return 1.5 * 2.0**self.mantissa


_SINGLE = _Format(
    I32,
    23,
    127,
    0.693145751953125,
    1.428606765330187e-06,
    89.0,
    -104.0,
    (
        0.001382104237563908,
        0.00836867094039917,
        0.04166826233267784,
        0.1666652113199234,
        0.4999999403953552,
    ),
)
_DOUBLE = _Format(
    I64,
    52,
    1023,
    0.6931471803691238,
    1.9082149292705877e-10,
    710.0,
    -746.0,
    (
        2.500691194083367e-08,
        2.7630215730525823e-07,
        2.7557559776781763e-06,
        2.48014931173414e-05,
        0.0001984126954429409,
        0.0013888888943744547,
        0.008333333333471445,
        0.041666666666528684,
        0.16666666666666463,
        0.5000000000000011,
    ),
)


def _format(x: RegisterValue) -> _Format:
    return _SINGLE if element(x.type) == F32 else _DOUBLE


def _integers(x: RegisterValue) -> ir.Type:
    return vector(_format(x).integer, x.lanes)


# --- simple pieces


def absolute(k: Emitter, x: RegisterValue) -> RegisterValue:
    """|x|."""
    return k.intrinsic("llvm.fabs", x)


def copy_sign(k: Emitter, magnitude: RegisterValue, sign: RegisterValue) -> RegisterValue:
    """`magnitude` with the sign of `sign`."""
    return k.intrinsic("llvm.copysign", magnitude, sign)


def sqrt(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the square root, rounded correctly."""
    return k.intrinsic("llvm.sqrt", x)


def rsqrt(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the reciprocal square root."""
    return 1.0 / sqrt(k, x)


def minimum(k: Emitter, x: RegisterValue, limit: RegisterValue | float) -> RegisterValue:
    """Return the minimum of x and the limit; NaN if either is NaN."""
    return _extreme(k, "llvm.minimum", "<", x, limit)


def maximum(k: Emitter, x: RegisterValue, limit: RegisterValue | float) -> RegisterValue:
    """x, but no less than the limit; a nan in either stays one."""
    return _extreme(k, "llvm.maximum", ">", x, limit)


def _extreme(
    k: Emitter, instruction: str, sign: str, x: RegisterValue, limit: RegisterValue | float
) -> RegisterValue:
    if host_target().triple.startswith(("aarch64", "arm64")):
        return k.intrinsic(instruction, x, k.constant(limit, x.type))
    if isinstance(limit, RegisterValue):
        chosen = k.select(k.compare(sign, limit, x), limit, x)
        return k.select(k.is_nan(limit), limit, chosen)
    # If one operand is a NaN, x86's single instruction returns the second operand.
    return k.select(k.compare(sign, limit, x), k.constant(limit, x.type), x)


def nearest(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Round to the nearest integer, ties to even."""
    # From this magnitude on, all floats are integers. Adding and subtracting it rounds smaller
    # values.
    whole = 2.0 ** _format(x).mantissa
    magnitude = absolute(k, x)
    rounded = copy_sign(k, (magnitude + whole) - whole, x)
    return k.select(magnitude < whole, rounded, x)


def floor(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the largest integer that is not above x."""
    near = nearest(k, x)
    return copy_sign(k, near - _one_where(k, near > x, x), x)


def ceil(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the smallest integer that is not below x."""
    near = nearest(k, x)
    return copy_sign(k, near + _one_where(k, near < x, x), x)


def _one_where(k: Emitter, condition: RegisterValue, like: RegisterValue) -> RegisterValue:
    return k.select(condition, k.constant(1.0, like.type), 0.0)


# --- exponentials


def _reduced(k: Emitter, x: RegisterValue) -> tuple[RegisterValue, RegisterValue, RegisterValue]:
    """(r, n, n as an integer) with x = r + n ln 2 and |r| <= ln(2) / 2."""
    kind = _format(x)
    shifted = k.fma(x, LOG2_E, kind.magic)
    count = shifted - kind.magic
    magic_bits = k.bitcast(k.constant(kind.magic, x.type), _integers(x))
    rest = k.fma(count, -kind.ln2_low, k.fma(count, -kind.ln2_high, x))
    return rest, count, k.bitcast(shifted, _integers(x)) - magic_bits


def _power_of_two(k: Emitter, n: RegisterValue, like: RegisterValue) -> RegisterValue:
    """2^n for exponents of normal numbers."""
    kind = _format(like)
    return k.bitcast((n + kind.bias) << kind.mantissa, like.type)


def _expm1_of_rest(k: Emitter, rest: RegisterValue) -> RegisterValue:
    return k.fma(rest * rest, k.polynomial(rest, _format(rest).exp), rest)


def _exp_of_rest(k: Emitter, rest: RegisterValue) -> RegisterValue:
    return _expm1_of_rest(k, rest) + 1.0


def exp(k: Emitter, x: RegisterValue) -> RegisterValue:
    """e^x."""
    return exp_of_negative(k, minimum(k, x, _format(x).overflow))


def exp_of_negative(k: Emitter, x: RegisterValue) -> RegisterValue:
    """e^x for x that is not positive (or not too large for a finite result)."""
    x = maximum(k, x, _format(x).underflow)
    rest, count, n = _reduced(k, x)
    value = _exp_of_rest(k, rest)
    if host_target().scales_vectors and x.lanes % host_target().lanes(itemsize(x.type)) == 0:
        return _scaled(k, value, count)
    # In two steps, because 2^n may be too large or too small for a normal number.
    half = n >> 1
    return value * _power_of_two(k, half, x) * _power_of_two(k, n - half, x)


def _scaled(k: Emitter, value: RegisterValue, count: RegisterValue) -> RegisterValue:
    """value 2^count, rounded once, by an instruction of AVX-512 for each register."""
    kind = element(value.type)
    lanes = host_target().lanes(itemsize(kind))
    full, mask = vector(kind, lanes), ir.IntType(lanes)
    name = "llvm.x86.avx512.mask.scalef." + ("ps.512" if kind == F32 else "pd.512")
    function = k.declared(name, ir.FunctionType(full, [full, full, full, mask, I32]))
    every, as_set = RegisterValue(k, mask(-1)), RegisterValue(k, I32(4))
    parts = []
    for start in range(0, value.lanes, lanes):
        picks = tuple(range(start, start + lanes))
        a, b = (k.shuffle(each, each, picks) for each in (value, count))
        parts.append(k.call(function, a, b, a, every, as_set))
    while len(parts) > 1:
        # Products sum in three registers a row, for example.
        parts += parts[-1:] * (len(parts) % 2)
        together = tuple(range(2 * parts[0].lanes))
        parts = [k.shuffle(a, b, together) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    (whole,) = parts
    return whole if whole.lanes == value.lanes else k.shuffle(whole, whole, range(value.lanes))


def _exp_of_moderate(k: Emitter, x: RegisterValue) -> RegisterValue:
    """e^x for x that is not positive, where a result below 1e-17 may as well be that."""
    rest, _, n = _reduced(k, maximum(k, x, -40.0))
    return _exp_of_rest(k, rest) * _power_of_two(k, n, x)


def _expm1_of_moderate(k: Emitter, x: RegisterValue) -> RegisterValue:
    """e^x - 1, accurate near 0, for |x| below 80."""
    rest, _, n = _reduced(k, x)
    scale = _power_of_two(k, n, x)
    return k.fma(_expm1_of_rest(k, rest), scale, scale - 1.0)


def expm1(k: Emitter, x: RegisterValue) -> RegisterValue:
    """e^x - 1, accurate near 0."""
    kind = _format(x)
    # Below the lower end the result is -1 to the last bit.
    near = maximum(k, minimum(k, x, kind.overflow), -1.5 * (kind.mantissa + 1))
    rest, _, n = _reduced(k, near)
    curve = _expm1_of_rest(k, rest)
    # Half of the scale first: 2^n may be the power just beyond the largest.
    scale = _power_of_two(k, n - 1, x)
    result = k.fma(curve, scale, scale - 0.5) * 2.0
    return k.select(absolute(k, x) < 2.0 ** -(kind.mantissa + 2), x, result)


def sigmoid(k: Emitter, x: RegisterValue) -> RegisterValue:
    """1 / (1 + e^-x), accurate at both ends."""
    small = exp_of_negative(k, -absolute(k, x))
    top = k.select(x < 0.0, small, k.constant(1.0, x.type))
    return top / (small + 1.0)


# From here on tanh is 1 to the last bit.
_TANH_END_SINGLE, _TANH_END = 9.1, 19.1


def tanh(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the hyperbolic tangent."""
    end = _TANH_END_SINGLE if element(x.type) == F32 else _TANH_END
    grown = _expm1_of_moderate(k, minimum(k, absolute(k, x), end) * 2.0)
    return copy_sign(k, grown / (grown + 2.0), x)


# --- the error function

# For float32: erf(x) = 1 - exp(-x - x P(x)).
_ERF = (
    -9.256265002477448e-06,
    0.00011764126975322142,
    -0.000632836832664907,
    0.00166702747810632,
    -0.00016039606998674572,
    -0.019153064116835594,
    0.10277783125638962,
    0.6366193890571594,
    0.12837916612625122,
)
_ERF_END = 3.93
# W. J. Cody, Mathematics of Computation 23 (1969): x P(x^2) / Q(x^2) up to 0.46875, and beyond
# 1 - exp(-x^2) P(x) / Q(x).
_CODY_MIDDLE = 0.46875
_CODY_NEAR_TOP = (
    1.85777706184603153e-01,
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
)
_CODY_NEAR_BOTTOM = (
    1.0,
    2.36012909523441209e01,
    2.44024637934444173e02,
    1.28261652607737228e03,
    2.84423683343917062e03,
)
_CODY_FAR_TOP = (
    2.15311535474403846e-08,
    5.64188496988670089e-01,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
)
_CODY_FAR_BOTTOM = (
    1.0,
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)


def erf(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the error function."""
    if element(x.type) == F32:
        return _erf_single(k, x)
    squared = x * x
    near = x * k.polynomial(squared, _CODY_NEAR_TOP) / k.polynomial(squared, _CODY_NEAR_BOTTOM)
    magnitude = absolute(k, x)
    # Beyond 6 the result is 1 to the last bit.
    clipped = minimum(k, magnitude, 6.0)
    tail = k.polynomial(clipped, _CODY_FAR_TOP) / k.polynomial(clipped, _CODY_FAR_BOTTOM)
    far = copy_sign(k, 1.0 - _exp_of_moderate(k, -(clipped * clipped)) * tail, x)
    return k.select(magnitude < _CODY_MIDDLE, near, far)


def _erf_single(k: Emitter, x: RegisterValue) -> RegisterValue:
    clipped = minimum(k, absolute(k, x), _ERF_END)
    power = k.fma(clipped, k.polynomial(clipped, _ERF), clipped)
    return copy_sign(k, _expm1_of_moderate(k, -power), x)


# --- logarithms

# log(1 + f) = f - f^2 / 2 + f^3 P(f) between sqrt(1/2) and sqrt(2), for float32.
_LOG = (
    -0.07861663401126862,
    0.12882941961288452,
    -0.13128504157066345,
    0.14180947840213776,
    -0.16624557971954346,
    0.20002301037311554,
    -0.25000810623168945,
    0.33333316445350647,
)
# log(1 + f) = 2 s + s^3 P(s^2) with s = f / (2 + f), for float64.
_ATANH = (
    0.14795721921493404,
    0.15314077138575963,
    0.1818356310358913,
    0.2222219860123097,
    0.28571428742054267,
    0.3999999999941658,
    0.6666666666666734,
)


def _split(k: Emitter, x: RegisterValue) -> tuple[RegisterValue, RegisterValue]:
    """(f, e) with x = (1 + f) 2^e and 1 + f between sqrt(1/2) and sqrt(2), for normal x > 0."""
    kind = _format(x)
    bits = k.bitcast(x, _integers(x))
    root = k.bitcast(k.constant(math.sqrt(0.5), x.type), _integers(x))
    offset = bits - root
    exponent = offset >> kind.mantissa
    fraction = k.bitcast(bits - (exponent << kind.mantissa), x.type)
    return fraction - 1.0, k.convert(exponent, element(x.type))


def _log_near_one(k: Emitter, f: RegisterValue, extra: RegisterValue) -> RegisterValue:
    """Return log(1 + f) + extra, where extra is 0 or small compared with f."""
    halved = f * f * 0.5
    if element(f.type) == F32:
        curve = k.polynomial(f, _LOG) * (f * f)
        return f - (halved - k.fma(curve, f, extra))
    s = f / (f + 2.0)
    z = s * s
    return f - (halved - k.fma(s, k.fma(z, k.polynomial(z, _ATANH), halved), extra))


def _special_logs(k: Emitter, x: RegisterValue, result: RegisterValue) -> RegisterValue:
    """-inf at 0, inf at inf, nan below 0 and at nan."""
    infinity = k.constant(math.inf, x.type)
    result = k.select(x < infinity, result, x)
    result = k.select(x.equals(0.0), -infinity, result)
    return k.select(x < 0.0, k.constant(math.nan, x.type), result)


def log(k: Emitter, x: RegisterValue) -> RegisterValue:
    """Return the natural logarithm."""
    kind = _format(x)
    smallest = 2.0 ** (1 - kind.bias)
    is_small = x < smallest
    shift = float(kind.mantissa + 1)
    normal = k.select(is_small, x * 2.0**shift, x)
    f, exponent = _split(k, normal)
    exponent = exponent - k.select(is_small, k.constant(shift, x.type), 0.0)
    near = _log_near_one(k, f, exponent * kind.ln2_low)
    return _special_logs(k, x, k.fma(exponent, kind.ln2_high, near))


def log1p(k: Emitter, x: RegisterValue) -> RegisterValue:
    """log(1 + x), accurate near 0."""
    kind = _format(x)
    u = x + 1.0
    f, exponent = _split(k, u)
    # The rounding error of 1 + x; the larger operand determines how to compute it.
    lost = k.select(x < 1.0, x - (u - 1.0), 1.0 - (u - x)) / u
    near = _log_near_one(k, f, k.fma(exponent, kind.ln2_low, lost))
    result = _special_logs(k, u, k.fma(exponent, kind.ln2_high, near))
    return k.select(absolute(k, x) < 2.0 ** -(kind.mantissa + 2), x, result)
