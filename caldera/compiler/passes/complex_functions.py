"""Functions of complex numbers in terms of their parts, element by element.

A number is a pair of nodes (real, imaginary). Branch cuts follow NumPy and C. Where the plain
formulas would lose digits or overflow, W. Kahan's are used (Branch cuts for complex elementary
functions, 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from caldera.compiler.passes.constants import uniform
from caldera.core.graph.node import Node
from caldera.core.graph.ops import (
    abs_,
    add,
    broadcast_to,
    copysign,
    cos,
    div,
    equal,
    exp,
    expm1,
    full,
    greater,
    greater_equal,
    isfinite,
    isnan,
    less,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    mul,
    neg,
    not_equal,
    scalar,
    sin,
    sqrt,
    square,
    sub,
    tanh,
    where,
)
from caldera.core.graph.ops.special import asinh, atan2, cosh, hypot, length_or_one, sinh, tan

Parts = tuple[Node, Node]
Function = Callable[..., Node | Parts]

LARGEST_POWER = 64
"""Whole exponents up to this are products, as in NumPy: a logarithm would round."""


def is_real(x: Parts) -> bool:
    """Return True if the imaginary part is known to be 0, which halves the work."""
    return uniform(x[1]) == 0


def _zero(like: Node) -> Node:
    return full(like.shape, 0, like.dtype)


def _scaled(x: Parts, factor: float) -> Parts:
    return mul(x[0], scalar(factor, x[0])), mul(x[1], scalar(factor, x[1]))


def _is(x: Node, value: float) -> Node:
    return equal(x, scalar(value, x))


def _endless(x: Node) -> Node:
    # Not by the magnitude: loops would share that with others, and keep it in memory.
    return logical_or(_is(x, math.inf), _is(x, -math.inf))


def _times_i(x: Parts) -> Parts:
    return neg(x[1]), x[0]


def _over_i(x: Parts) -> Parts:
    return x[1], neg(x[0])


# --- arithmetic


def _mul(x: Parts, y: Parts) -> Parts:
    (a, b), (c, d) = x, y
    if is_real(y):
        return mul(a, c), mul(b, c)
    if is_real(x):
        return mul(a, c), mul(a, d)
    return sub(mul(a, c), mul(b, d)), add(mul(a, d), mul(b, c))


def _square(x: Parts) -> Parts:
    return _mul(x, x)


def _div(x: Parts, y: Parts) -> Parts:
    """Smith's way: the squares of the divisor's parts might overflow."""
    (a, b), (c, d) = x, y
    if is_real(y):
        return div(a, c), div(b, c)
    size, other = abs_(c), abs_(d)
    first = greater_equal(size, other)
    larger, smaller = where(first, c, d), where(first, d, c)
    # By 0 the parts are divided one by one: infinity times the ratio of 0 would be nan.
    nothing = _is(add(size, other), 0)
    ratio = div(smaller, where(nothing, scalar(1, larger), larger))
    under = where(nothing, scalar(0, larger), add(larger, mul(smaller, ratio)))
    real = where(first, add(a, mul(b, ratio)), add(mul(a, ratio), b))
    imag = where(first, sub(b, mul(a, ratio)), sub(mul(b, ratio), a))
    return div(where(nothing, a, real), under), div(where(nothing, b, imag), under)


def _reciprocal(x: Parts) -> Parts:
    return _div((scalar(1, x[0]), scalar(0, x[0])), x)


def _sign(x: Parts) -> Parts:
    length = hypot(*x)
    nothing, length = _is(length, 0), length_or_one(length)
    # If one part is infinite, the second part is negligible.
    far = not_equal(_endless(x[0]), _endless(x[1]))
    along, across = (
        where(_endless(part), copysign(scalar(1, part), part), scalar(0, part)) for part in x
    )
    real, imag = (where(nothing, scalar(0, part), div(part, length)) for part in x)
    return where(far, along, real), where(far, across, imag)


def _pow(x: Parts, y: Parts) -> Parts:
    exponent = uniform(y[0]) if is_real(y) else None
    shape = mul(x[0], y[0]).shape
    if exponent is not None and float(exponent).is_integer() and abs(exponent) <= LARGEST_POWER:
        real, imag = _whole_power(x, int(exponent))
        return broadcast_to(real, shape), broadcast_to(imag, shape)
    if exponent == 0.5 and x[0].shape == shape:
        return _sqrt(x)
    real, imag = _exp(_mul(y, _log(x)))
    # 0 to a power has no logarithm: it is 1 for the power 0, and 0 for one with a positive part.
    base = logical_and(equal(x[0], scalar(0, x[0])), equal(x[1], scalar(0, x[1])))
    one = logical_and(equal(y[0], scalar(0, y[0])), equal(y[1], scalar(0, y[1])))
    zero = logical_and(base, greater(y[0], scalar(0, y[0])))
    real = where(one, scalar(1, real), where(zero, scalar(0, real), real))
    return real, where(logical_or(one, zero), scalar(0, imag), imag)


def _whole_power(x: Parts, exponent: int) -> Parts:
    result: Parts | None = None
    power = x
    for digit in reversed(bin(abs(exponent))[2:]):
        if digit == "1":
            result = power if result is None else _mul(result, power)
        power = _square(power)
    if result is None:
        return full(x[0].shape, 1, x[0].dtype), _zero(x[1])
    return _reciprocal(result) if exponent < 0 else result


# --- exponentials and logarithms


def _exp(x: Parts) -> Parts:
    size, lost = exp(x[0]), logical_not(isfinite(x[1]))
    # Of a real number, the result is: infinity times the sine of 0 would be nan. And 0 times the
    # cosine of infinity is 0.
    still, one = _is(x[1], 0), scalar(1, size)
    along = where(logical_and(lost, _endless(x[0])), one, cos(x[1]))
    across = where(logical_and(lost, _is(x[0], -math.inf)), copysign(one, x[1]), sin(x[1]))
    return where(still, size, mul(size, along)), where(still, x[1], mul(size, across))


def _expm1(x: Parts) -> Parts:
    half = sin(mul(x[1], scalar(0.5, x[1])))
    lost = mul(scalar(2, half), square(half))
    size = expm1(x[0])
    bare = logical_and(logical_not(isfinite(x[1])), _endless(x[0]))
    return where(bare, size, sub(mul(size, cos(x[1])), lost)), _exp(x)[1]


def _log(x: Parts) -> Parts:
    return _log_abs(x), atan2(x[1], x[0])


def _log_abs(x: Parts) -> Node:
    """Return log|x|, exact also near |x| = 1 by use of log1p."""
    first, second = abs_(x[0]), abs_(x[1])
    longer, shorter = maximum(first, second), minimum(first, second)
    half, one = scalar(0.5, longer), scalar(1, longer)
    beyond = add(mul(sub(longer, one), add(longer, one)), square(shorter))
    near = logical_and(greater(longer, half), less(longer, scalar(2, longer)))
    far = log(hypot(*x))
    return where(near, mul(half, log1p(where(near, beyond, scalar(0, beyond)))), far)


def _log1p(x: Parts) -> Parts:
    moved = add(x[0], scalar(1, x[0])), x[1]
    beyond = add(mul(x[0], add(x[0], scalar(2, x[0]))), square(x[1]))
    small = logical_and(less(abs_(x[0]), scalar(0.5, x[0])), less(abs_(x[1]), scalar(0.5, x[1])))
    near = mul(scalar(0.5, beyond), log1p(where(small, beyond, scalar(0, beyond))))
    return where(small, near, _log_abs(moved)), atan2(x[1], moved[0])


def _sqrt(x: Parts) -> Parts:
    half = scalar(0.5, x[0])
    root = sqrt(add(mul(half, abs_(x[0])), mul(half, hypot(*x))))
    other = div(mul(half, x[1]), length_or_one(root))
    right = greater_equal(x[0], scalar(0, x[0]))
    real = where(right, root, abs_(other))
    # The imaginary part has the sign of x's imaginary part, including negative zero.
    imag = where(right, other, copysign(root, x[1]))
    # Infinite parts: the zero part of the result is nan if the second part of x is nan.
    nothing, far = mul(abs_(x[1]), scalar(0, real)), _endless(x[0])
    real = where(far, where(right, abs_(x[0]), nothing), real)
    imag = where(far, where(right, mul(x[1], nothing), copysign(abs_(x[0]), x[1])), imag)
    return where(_endless(x[1]), abs_(x[1]), real), where(_endless(x[1]), x[1], imag)


# --- angles


def _tanh(x: Parts) -> Parts:
    along, across = tanh(x[0]), tan(x[1])
    under = add(scalar(1, along), square(mul(along, across)))
    real = div(mul(along, add(scalar(1, across), square(across))), under)
    # 1 - tanh^2, which would lose all digits far from 0.
    rest = square(div(scalar(1, along), cosh(x[0])))
    imag = where(_is(x[1], 0), x[1], div(mul(across, rest), under))
    far, nothing = _endless(x[0]), scalar(0, along)
    real = where(logical_or(far, _is(x[0], 0)), along, real)
    # The sign follows the array API standard; C uses the sign of the sine of twice the angle.
    return real, where(far, copysign(nothing, x[1]), imag)


def _sinh(x: Parts) -> Parts:
    """0 times the cosine of infinity is 0, and infinity times the sine of 0."""
    lost, still = logical_not(isfinite(x[1])), _is(x[1], 0)
    bare = logical_and(lost, logical_or(_is(x[0], 0), _endless(x[0])))
    real = where(bare, x[0], mul(sinh(x[0]), cos(x[1])))
    return real, where(still, x[1], mul(cosh(x[0]), sin(x[1])))


def _cosh(x: Parts) -> Parts:
    lost, still = logical_not(isfinite(x[1])), _is(x[1], 0)
    real = mul(cosh(x[0]), cos(x[1]))
    imag = where(logical_and(lost, _is(x[0], 0)), scalar(0, x[0]), mul(sinh(x[0]), sin(x[1])))
    along = mul(copysign(scalar(1, imag), x[0]), x[1])
    return where(logical_and(lost, _endless(x[0])), abs_(x[0]), real), where(still, along, imag)


def _roots(x: Parts) -> tuple[Parts, Parts]:
    """Return the square roots of 1 - x and of 1 + x."""
    one = scalar(1, x[0])
    return _sqrt((sub(one, x[0]), neg(x[1]))), _sqrt((add(one, x[0]), x[1]))


def _asin(x: Parts) -> Parts:
    (a, b), (c, d) = _roots(x)
    real, imag = atan2(x[0], sub(mul(a, c), mul(b, d))), asinh(sub(mul(a, d), mul(b, c)))
    far = atan2(x[0], abs_(x[1])), copysign(scalar(math.inf, imag), x[1])
    return _at_ends(x, (real, imag), far, x[0])


def _acos(x: Parts) -> Parts:
    (a, b), (c, d) = _roots(x)
    real, imag = mul(scalar(2, a), atan2(a, c)), asinh(sub(mul(c, b), mul(d, a)))
    far = atan2(abs_(x[1]), x[0]), neg(copysign(scalar(math.inf, imag), x[1]))
    return _at_ends(x, (real, imag), far, scalar(math.pi / 2, real))


def _acosh(x: Parts) -> Parts:
    one = scalar(1, x[0])
    (a, b), (c, d) = _sqrt((sub(x[0], one), x[1])), _sqrt((add(x[0], one), x[1]))
    real, imag = asinh(add(mul(a, c), mul(b, d))), mul(scalar(2, b), atan2(b, c))
    right_angle = where(logical_and(isnan(x[1]), _is(x[0], 0)), scalar(math.pi / 2, imag), imag)
    return _at_ends(x, (real, right_angle), (scalar(math.inf, real), atan2(x[1], x[0])))


def _atanh(x: Parts) -> Parts:
    one = scalar(1, x[0])
    left, right = sub(one, x[0]), add(one, x[0])
    # Computed for |x|: for negative x the argument of the logarithm would be almost 0.
    side = abs_(x[0])
    under = add(square(sub(one, side)), square(x[1]))
    size = mul(scalar(0.25, left), log1p(div(mul(scalar(4, left), side), under)))
    twice = mul(scalar(2, left), x[1])
    angle = atan2(twice, sub(mul(left, right), square(x[1])))
    found = copysign(size, x[0]), mul(scalar(0.5, left), angle)
    right_angle = where(isnan(x[1]), x[1], copysign(scalar(math.pi / 2, angle), x[1]))
    return _at_ends(x, found, (copysign(scalar(0, size), x[0]), right_angle), x[0])


def _at_ends(x: Parts, found: Parts, far: Parts, real: Node | None = None) -> Parts:
    """Return a function's value where x is infinite, and `real` where x is 0 with a nan part."""
    ends = logical_or(_endless(x[0]), _endless(x[1]))
    first = where(ends, far[0], found[0])
    if real is not None:
        first = where(logical_and(isnan(x[1]), _is(x[0], 0)), real, first)
    return first, where(ends, far[1], found[1])


# --- parts and questions


def nonzero(x: Parts) -> Node:
    """Return True where x is not 0."""
    return logical_or(*[not_equal(part, scalar(0, part)) for part in x])


FUNCTIONS: dict[str, Function] = {
    "mul": _mul,
    "square": _square,
    "div": _div,
    "reciprocal": _reciprocal,
    "abs": lambda x: hypot(*x),
    "sign": _sign,
    "pow": _pow,
    "exp": _exp,
    "exp2": lambda x: _exp(_scaled(x, math.log(2))),
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "log2": lambda x: _scaled(_log(x), 1 / math.log(2)),
    "log10": lambda x: _scaled(_log(x), 1 / math.log(10)),
    "sqrt": _sqrt,
    "rsqrt": lambda x: _reciprocal(_sqrt(x)),
    "sin": lambda x: _over_i(_sinh(_times_i(x))),
    "cos": lambda x: _cosh(_times_i(x)),
    "tan": lambda x: _over_i(_tanh(_times_i(x))),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asin": _asin,
    "acos": _acos,
    "atan": lambda x: _over_i(_atanh(_times_i(x))),
    "asinh": lambda x: _over_i(_asin(_times_i(x))),
    "acosh": _acosh,
    "atanh": _atanh,
    "conj": lambda x: (x[0], neg(x[1])),
    "real": lambda x: x[0],
    "imag": lambda x: x[1],
    "complex": lambda real, imag: (real, imag),
    "equal": lambda x, y: logical_and(equal(x[0], y[0]), equal(x[1], y[1])),
    "not_equal": lambda x, y: logical_or(not_equal(x[0], y[0]), not_equal(x[1], y[1])),
    "isfinite": lambda x: logical_and(isfinite(x[0]), isfinite(x[1])),
    "isnan": lambda x: logical_or(isnan(x[0]), isnan(x[1])),
}
"""By the name of the op: from parts (a real operand is a node) to parts, or to a real node."""
