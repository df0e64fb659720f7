"""Angles: tangents, inverse functions, and their hyperbolic kin. Sine and cosine stand with the
element-wise primitives, which lean on nothing else.

Outside of its domain a function gives nan, as in NumPy. The derivative of atan2 at the origin,
where no direction is right, is taken as 0.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import sum_to
from caldera.core.graph.ops.elementwise import (
    Gradient,
    add,
    define,
    div,
    floats,
    mul,
    neg,
    scalar,
    sqrt,
    square,
    sub,
)
from caldera.core.graph.ops.special import hypot, length_or_one
from caldera.core.tensor.dtype import is_complex

tan = define("tan", floats)
asin = define("asin", floats)
acos = define("acos", floats)
atan = define("atan", floats)
atan2 = define("atan2", floats)
sinh = define("sinh", floats)
cosh = define("cosh", floats)
asinh = define("asinh", floats)
acosh = define("acosh", floats)
atanh = define("atanh", floats)


@tan.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, add(square(y), scalar(1, y))),)


def _sides(x: Node) -> tuple[Node, Node]:
    """1 - x and 1 + x: their product is 1 - x^2 without loss near 1."""
    one = scalar(1, x)
    return sub(one, x), add(one, x)


@asin.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, sqrt(mul(*_sides(x)))),)


@acos.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (neg(div(g, sqrt(mul(*_sides(x))))),)


@atan.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, add(square(x), scalar(1, x))),)


@atan2.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    # Divided twice by the length: its square may overflow.
    length = length_or_one(hypot(a, b))
    part = div(g, length)
    for_a, for_b = mul(part, div(b, length)), neg(mul(part, div(a, length)))
    return sum_to(for_a, a.shape), sum_to(for_b, b.shape)


@sinh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, cosh(x)),)


@cosh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, sinh(x)),)


@asinh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    one = scalar(1, x)
    return (div(g, sqrt(add(square(x), one)) if is_complex(x.dtype) else hypot(x, one)),)


@acosh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    one = scalar(1, x)
    return (div(g, mul(sqrt(sub(x, one)), sqrt(add(x, one)))),)


@atanh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, mul(*_sides(x))),)
