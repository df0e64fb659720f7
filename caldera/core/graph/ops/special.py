"""Special and trigonometric functions, with the limits of NumPy and SciPy.

Sine and cosine are element-wise primitives (`elementwise`). The limits are:

- hypot is infinite for an infinite operand, even if the second operand is NaN.
- logaddexp of two equal infinities is that infinity.
- erfinv is infinite at -1 and 1 and NaN beyond.
- lgamma is infinite at 0 and at negative integers. digamma is NaN at negative integers, and
  infinite at 0, with the opposite sign.
- Outside its domain a trigonometric function returns NaN.

Where derivatives are not unique, hypot and atan2 have derivatives 0 at the origin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from caldera.core.graph import Node, Op, composite
from caldera.core.graph.ops import (
    Gradient,
    abs_,
    add,
    broadcasting,
    cos,
    define,
    div,
    equal,
    exp,
    floats,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_or,
    maximum,
    minimum,
    mul,
    neg,
    reciprocal,
    round_,
    scalar,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    sub,
    where,
    widened,
)
from caldera.core.tensor.dtype import float64, is_complex


def _check_floats(*nodes: Node) -> None:
    floats(*[node.spec for node in nodes])


def _polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """Evaluate a polynomial with coefficients from the highest power down."""
    result = scalar(coefficients[0], x)
    for each in coefficients[1:]:
        result = add(mul(result, x), scalar(each, x))
    return result


# --- sums that would overflow on the way


@composite("hypot", kind="elementwise")
@widened
def hypot(a: Node, b: Node) -> Node:
    """Return the length sqrt(a^2 + b^2), without overflow."""
    _check_floats(a, b)
    first, second = abs_(a), abs_(b)
    longer = maximum(first, second)
    ratio = div(minimum(first, second), length_or_one(longer))
    length = mul(longer, sqrt(add(square(ratio), scalar(1, a))))
    endless = scalar(math.inf, a)
    return where(logical_or(equal(first, endless), equal(second, endless)), endless, length)


@hypot.gradient
@widened
@broadcasting
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    length = length_or_one(y)
    return tuple(mul(g, div(each, length)) for each in (a, b))


def length_or_one(length: Node) -> Node:
    """Return a length to divide by: 1 in place of 0."""
    return where(equal(length, scalar(0, length)), scalar(1, length), length)


@composite("logaddexp", kind="elementwise")
@widened
def logaddexp(a: Node, b: Node) -> Node:
    """log(exp(a) + exp(b)), without overflow."""
    _check_floats(a, b)
    rest = log1p(exp(neg(abs_(sub(a, b)))))
    # The difference of equal infinities is nan.
    rest = where(equal(a, b), scalar(math.log(2), a), rest)
    return add(maximum(a, b), rest)


@logaddexp.gradient
@widened
@broadcasting
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    half = scalar(0.5, a)
    return tuple(
        mul(g, where(equal(a, b), half, sigmoid(difference)))
        for difference in (sub(a, b), sub(b, a))
    )


# --- the normal distribution

erfc = define(
    "erfc",
    floats,
    lambda g, y, x: mul(mul(g, scalar(-2 / math.sqrt(math.pi), g)), exp(neg(square(x)))),
)


# M. J. Wichura, Algorithm AS 241, Applied Statistics 37 (1988): the quantiles of the normal
# distribution to 16 digits, near its middle and in two parts of its tails.
_MIDDLE_TOP = (
    2.5090809287301226727e3,
    3.3430575583588128105e4,
    6.7265770927008700853e4,
    4.5921953931549871457e4,
    1.3731693765509461125e4,
    1.9715909503065514427e3,
    1.3314166789178437745e2,
    3.3871328727963666080,
)
_MIDDLE_BOTTOM = (
    5.2264952788528545610e3,
    2.8729085735721942674e4,
    3.9307895800092710610e4,
    2.1213794301586595867e4,
    5.3941960214247511077e3,
    6.8718700749205790830e2,
    4.2313330701600911252e1,
    1.0,
)
_NEAR_TOP = (
    7.74545014278341407640e-4,
    2.27238449892691845833e-2,
    2.41780725177450611770e-1,
    1.27045825245236838258,
    3.64784832476320460504,
    5.76949722146069140550,
    4.63033784615654529590,
    1.42343711074968357734,
)
_NEAR_BOTTOM = (
    1.05075007164441684324e-9,
    5.47593808499534494600e-4,
    1.51986665636164571966e-2,
    1.48103976427480074590e-1,
    6.89767334985100004550e-1,
    1.67638483018380384940,
    2.05319162663775882187,
    1.0,
)
_FAR_TOP = (
    2.01033439929228813265e-7,
    2.71155556874348757815e-5,
    1.24266094738807843860e-3,
    2.65321895265761230930e-2,
    2.96560571828504891230e-1,
    1.78482653991729133580,
    5.46378491116411436990,
    6.65790464350110377720,
)
_FAR_BOTTOM = (
    2.04426310338993978564e-15,
    1.42151175831644588870e-7,
    1.84631831751005468180e-5,
    7.86869131145613259100e-4,
    1.48753612908506148525e-2,
    1.36929880922735805310e-1,
    5.99832206555887937690e-1,
    1.0,
)


def _ratio(x: Node, top: Sequence[float], bottom: Sequence[float]) -> Node:
    return div(_polynomial(x, top), _polynomial(x, bottom))


@composite(
    "erfinv",
    kind="elementwise",
    gradient=widened(
        lambda g, x, y: (mul(mul(g, scalar(math.sqrt(math.pi) / 2, g)), exp(square(x))),)
    ),
)
@widened
def erfinv(y: Node) -> Node:
    """Return the x with erf(x) = y."""
    _check_floats(y)
    half = mul(y, scalar(0.5, y))
    inside = sub(scalar(0.180625, y), square(half))
    middle = mul(half, _ratio(inside, _MIDDLE_TOP, _MIDDLE_BOTTOM))
    # 1 - |y| is exact here, which keeps all digits in the tails.
    magnitude = abs_(y)
    tail = mul(sub(scalar(1, y), magnitude), scalar(0.5, y))
    depth = sqrt(neg(log(tail)))
    outside = _ratio(sub(depth, scalar(1.6, y)), _NEAR_TOP, _NEAR_BOTTOM)
    if y.dtype == float64:
        far = _ratio(sub(depth, scalar(5, y)), _FAR_TOP, _FAR_BOTTOM)
        outside = where(less_equal(depth, scalar(5, y)), outside, far)
    outside = where(equal(magnitude, scalar(1, y)), scalar(math.inf, y), outside)
    is_inside = less_equal(magnitude, scalar(0.85, y))
    quantile = where(is_inside, middle, mul(sign(y), outside))
    return mul(quantile, scalar(math.sqrt(0.5), y))


# --- the gamma function

lgamma = define("lgamma", floats)


# Of Stirling's series for digamma: B(2k) / 2k, the last one first.
_STIRLING = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


@composite("digamma", kind="elementwise")
@widened
def digamma(x: Node) -> Node:
    """Return the derivative of lgamma; so are its own derivatives the polygamma functions."""
    _check_floats(x)
    zero, one = scalar(0, x), scalar(1, x)
    below = less(x, zero)
    reflected = where(below, sub(one, x), x)
    # psi(z) = psi(z + n) - 1/z - ... - 1/(z + n - 1), with n so large that the series is exact.
    steps, series = (10, _STIRLING) if x.dtype == float64 else (6, _STIRLING[3:])
    lost = reciprocal(reflected)
    for step in range(1, steps):
        lost = add(lost, reciprocal(add(reflected, scalar(step, x))))
    shifted = add(reflected, scalar(steps, x))
    inverse = reciprocal(shifted)
    squared = square(inverse)
    tail = mul(squared, _polynomial(squared, series))
    value = sub(log(shifted), add(mul(inverse, scalar(0.5, x)), tail))
    # psi(x) = psi(1 - x) - pi / tan(pi x), where pi x is taken from the nearest whole number.
    apart = sub(x, round_(x))
    whole = logical_and(below, equal(apart, zero))
    angle = mul(where(below, apart, scalar(0.25, x)), scalar(math.pi, x))
    turned = where(below, div(mul(scalar(math.pi, x), cos(angle)), sin(angle)), zero)
    value = sub(sub(value, lost), turned)
    return where(whole, scalar(math.nan, x), value)


lgamma.gradient(lambda g, y, x: (mul(g, digamma(x)),))


tan = define("tan", floats, lambda g, y, x: mul(g, add(square(y), scalar(1, y))))
asin = define("asin", floats, lambda g, y, x: div(g, sqrt(mul(*_sides(x)))))
acos = define("acos", floats, lambda g, y, x: neg(div(g, sqrt(mul(*_sides(x))))))
atan = define("atan", floats, lambda g, y, x: div(g, add(square(x), scalar(1, x))))
atan2 = define("atan2", floats)
sinh: Op = define("sinh", floats, lambda g, y, x: mul(g, cosh(x)))
cosh: Op = define("cosh", floats, lambda g, y, x: mul(g, sinh(x)))
asinh = define("asinh", floats)
acosh = define(
    "acosh",
    floats,
    lambda g, y, x: div(g, mul(sqrt(sub(x, scalar(1, x))), sqrt(add(x, scalar(1, x))))),
)
atanh = define("atanh", floats, lambda g, y, x: div(g, mul(*_sides(x))))


def _sides(x: Node) -> tuple[Node, Node]:
    """1 - x and 1 + x: their product is 1 - x^2 without loss near 1."""
    one = scalar(1, x)
    return sub(one, x), add(one, x)


@atan2.gradient
@broadcasting
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    # Divided twice by the length: its square may overflow.
    length = length_or_one(hypot(a, b))
    part = div(g, length)
    return mul(part, div(b, length)), neg(mul(part, div(a, length)))


@asinh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    one = scalar(1, x)
    return (div(g, sqrt(add(square(x), one)) if is_complex(x.dtype) else hypot(x, one)),)
