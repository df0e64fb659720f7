"""Element-wise primitives: each op's dtype rule with its gradient.

All ops broadcast as in NumPy and require equal dtypes (the public functions cast first).

Conventions where the derivative is not unique, all of them tested:

- abs and sign have derivative 0 at 0; relu has 0 at 0.
- maximum and minimum share it half and half at a tie; if an operand is NaN, both receive 0.
- floor, ceil, round and floor division have 0 everywhere, so mod has 1 and -floor(a / b).
- a**0 has 0 everywhere, at a = 0 too; 0**b has 0 with respect to b.

Floor division rounds down and mod takes the sign of the divisor, as in Python. The sign of a
complex number is the number over its magnitude; both have derivative 0 at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from caldera.core.graph import Node, Op, Spec, as_tuple, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops.base import Number, cast, conj, constant, full, real, sum_to
from caldera.core.tensor import (
    Shape,
    bool_,
    broadcast_shapes,
    is_complex,
    is_inexact,
    is_integer,
    part_of,
)
from caldera.errors import ShapeError

Gradient = tuple[Node | None, ...]


def broadcast(*specs: Spec) -> Shape:
    """Return the shape these broadcast to, or a refusal that the op turns into the user's error."""
    try:
        return broadcast_shapes(*[spec.shape for spec in specs])
    except ShapeError:
        refuse_shape("shapes that broadcast together", hint="reshape one operand, or add an axis")


def _same(*specs: Spec) -> Spec:
    first = specs[0]
    if specs.count(first) == len(specs):
        return first
    if any(spec.dtype != first.dtype for spec in specs):
        refuse_dtype("operands of the same dtype", hint="cast one operand with op.cast")
    return Spec(broadcast(*specs), first.dtype)


def _numbers(*specs: Spec) -> Spec:
    result = _same(*specs)
    if result.dtype == bool_:
        refuse_dtype("numbers, not booleans", hint="use op.cast, or op.logical_*")
    return result


def floats(*specs: Spec) -> Spec:
    """Return the rule of functions of floating-point numbers: one dtype, shapes that broadcast."""
    result = _same(*specs)
    if not is_inexact(result.dtype):
        refuse_dtype("a floating-point dtype", hint="cast it with op.cast(x, 'float32')")
    return result


def _truths(*specs: Spec) -> Spec:
    result = _same(*specs)
    if result.dtype != bool_:
        refuse_dtype("booleans", hint="compare first, for example x != 0")
    return result


def _integers(*specs: Spec) -> Spec:
    result = _same(*specs)
    if not is_integer(result.dtype):
        refuse_dtype("integers, or booleans for & | ^ ~", hint="use op.cast(x, 'int32')")
    return result


def _test(*specs: Spec) -> Spec:
    return Spec(_same(*specs).shape, bool_)


def broadcasting(rule: Callable[..., Any]) -> Callable[..., Gradient]:
    """Decorate the gradient of a broadcasting op; the gradient has the shape of the result."""

    @wraps(rule)
    def run(g: Node, y: Node, *inputs: Node, **attrs: Any) -> Gradient:
        parts = as_tuple(rule(g, y, *inputs, **attrs))
        return tuple(
            None if part is None else sum_to(part, given.shape)
            for part, given in zip(parts, inputs, strict=True)
        )

    return run


def define(
    name: str,
    rule: Callable[..., Spec],
    gradient: Callable[..., Any] | None = None,
    *,
    commutative: bool = False,
) -> Op:
    """Return an element-wise op with one of the rules above.

    `gradient(g, y, *inputs)` returns the gradient of each input in the shape of the result.
    """
    backward = None if gradient is None else broadcasting(gradient)
    return op(name, kind="elementwise", commutative=commutative, gradient=backward)(rule)


def scalar(value: Number, like: Node) -> Node:
    """Return a constant of the dtype of `like`."""
    return constant(value, like.dtype)


# --- arithmetic

add = define("add", _numbers, lambda g, y, a, b: (g, g), commutative=True)
sub = define("sub", _numbers, lambda g, y, a, b: (g, neg(g)))
mul: Op = define("mul", _numbers, lambda g, y, a, b: (mul(g, b), mul(g, a)), commutative=True)
div: Op = define("div", floats, lambda g, y, a, b: (div(g, b), neg(div(mul(g, y), b))))
neg: Op = define("neg", _numbers, lambda g, y, x: neg(g))
pow_ = define("pow", _numbers)
floor_div = define("floor_div", _numbers, lambda g, y, a, b: (None, None))
mod = define("mod", _numbers, lambda g, y, a, b: (g, neg(mul(g, floor_div(a, b)))))
maximum = define(
    "maximum",
    _same,
    lambda g, y, a, b: _share(g, a, b, greater(a, b), less(a, b)),
    commutative=True,
)
minimum = define(
    "minimum",
    _same,
    lambda g, y, a, b: _share(g, a, b, less(a, b), greater(a, b)),
    commutative=True,
)


@pow_.gradient
@broadcasting
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    if b.op.name == "constant":
        return _power_gradient(g, a, b), None
    # b a^(b - 1) is 0 * inf where both are 0; there the base is taken as 1.
    zero = equal(a, scalar(0, a))
    base = where(logical_and(zero, equal(b, scalar(0, b))), scalar(1, a), a)
    da = mul(g, mul(b, pow_(base, sub(b, scalar(1, b)))))
    # d/db = y log a; at a = 0 the limit is 0 for b > 0, where y log a would be 0 * -inf.
    safe = where(zero, scalar(1, a), a)
    db = mul(g, where(zero, full(y.shape, 0, y.dtype), mul(y, log(safe))))
    return da, db


def _power_gradient(g: Node, a: Node, b: Node) -> Node | None:
    exponent = b.attrs["value"]
    return mul(g, mul(b, pow_(a, scalar(exponent - 1, b)))) if exponent else None


def _share(g: Node, a: Node, b: Node, a_wins: Node, b_wins: Node) -> Gradient:
    half = mul(g, scalar(0.5, g))
    none = full(g.shape, 0, g.dtype)
    tie = equal(a, b)
    return tuple(where(tie, half, where(wins, g, none)) for wins in (a_wins, b_wins))


# --- comparison and logic: results are truth values, which have no derivative

equal = define("equal", _test, commutative=True)
not_equal = define("not_equal", _test, commutative=True)
less: Op = define("less", _test)
less_equal = define("less_equal", _test)
greater: Op = define("greater", _test)
greater_equal = define("greater_equal", _test)
logical_and = define("logical_and", _truths, commutative=True)
logical_or = define("logical_or", _truths, commutative=True)
logical_xor = define("logical_xor", _truths, commutative=True)
logical_not = define("logical_not", _truths)
isfinite = define("isfinite", _test)
isnan = define("isnan", _test)


# --- bits of integers, which have no derivative either

bitwise_and = define("bitwise_and", _integers, commutative=True)
bitwise_or = define("bitwise_or", _integers, commutative=True)
bitwise_xor = define("bitwise_xor", _integers, commutative=True)
bitwise_invert = define("bitwise_invert", _integers)
bitwise_left_shift = define("bitwise_left_shift", _integers)
bitwise_right_shift = define("bitwise_right_shift", _integers)


def _bits_or_truths(bits: Op, truths: Op) -> Callable[..., Node]:
    """Return a function that applies one op to integers and another to truth values."""
    return lambda *nodes: (truths if nodes[0].dtype == bool_ else bits)(*nodes)


and_ = _bits_or_truths(bitwise_and, logical_and)
or_ = _bits_or_truths(bitwise_or, logical_or)
xor = _bits_or_truths(bitwise_xor, logical_xor)
invert = _bits_or_truths(bitwise_invert, logical_not)
"""The operators & | ^ ~."""


@op("where", kind="elementwise")
def where(condition: Spec, a: Spec, b: Spec) -> Spec:
    if condition.dtype != bool_:
        refuse_dtype("a condition of booleans", hint="compare first, for example x > 0")
    chosen = _same(a, b)
    return Spec(broadcast(condition, chosen), chosen.dtype)


@where.gradient
@broadcasting
def _(g: Node, y: Node, condition: Node, a: Node, b: Node) -> Gradient:
    none = full(g.shape, 0, g.dtype)
    return None, where(condition, g, none), where(condition, none, g)


@op("stop_gradient", kind="elementwise", gradient=lambda g, y, x: (None,))
def stop_gradient(x: Spec) -> Spec:
    return x


@op(
    "guarded",
    kind="elementwise",
    flops=lambda node: 0,
    gradient=lambda g, y, x, taken: (where(taken, g, full(g.shape, 0, g.dtype)), None),
)
def guarded(x: Spec, taken: Spec) -> Spec:
    """Return operand of a choice; its gradient is 0 where the operand is not selected.

    A derivative of 0 times an infinite or NaN derivative would be NaN.
    """
    return x


guarded.decompose = lambda x, taken: x


# --- functions of one argument

exp = define("exp", floats, lambda g, y, x: mul(g, y))
log = define("log", floats, lambda g, y, x: div(g, x))
log1p = define("log1p", floats, lambda g, y, x: div(g, add(x, scalar(1, x))))
expm1 = define("expm1", floats, lambda g, y, x: mul(g, add(y, scalar(1, y))))
log2 = define("log2", floats, lambda g, y, x: div(g, mul(x, scalar(math.log(2), x))))
log10 = define("log10", floats, lambda g, y, x: div(g, mul(x, scalar(math.log(10), x))))
exp2 = define("exp2", floats, lambda g, y, x: mul(mul(g, scalar(math.log(2), g)), y))
sqrt = define("sqrt", floats, lambda g, y, x: div(mul(g, scalar(0.5, g)), y))
rsqrt = define("rsqrt", floats, lambda g, y, x: mul(mul(g, scalar(-0.5, g)), div(y, x)))
square = define("square", _numbers, lambda g, y, x: mul(mul(g, scalar(2, g)), x))
reciprocal = define("reciprocal", floats, lambda g, y, x: neg(mul(g, square(y))))
abs_ = define(
    "abs",
    lambda x: Spec(_numbers(x).shape, part_of(x.dtype)),
    lambda g, y, x: mul(cast(g, x.dtype), sign(x)),
)
sign: Op = define("sign", _numbers)
copysign: Op = define(
    "copysign",
    floats,
    lambda g, y, a, b: (mul(g, mul(sign(a), copysign(scalar(1, b), b))), None),
)
floor = define("floor", floats, lambda g, y, x: None)
ceil = define("ceil", floats, lambda g, y, x: None)
round_ = define("round", floats, lambda g, y, x: None)
sin: Op = define("sin", floats, lambda g, y, x: mul(g, cos(x)))
cos: Op = define("cos", floats, lambda g, y, x: neg(mul(g, sin(x))))
tanh = define("tanh", floats, lambda g, y, x: mul(g, sub(scalar(1, y), square(y))))
erf = define(
    "erf",
    floats,
    lambda g, y, x: mul(mul(g, scalar(2 / math.sqrt(math.pi), g)), exp(neg(square(x)))),
)
sigmoid = define("sigmoid", floats, lambda g, y, x: mul(g, mul(y, sub(scalar(1, y), y))))
relu = define(
    "relu", _numbers, lambda g, y, x: where(greater(x, scalar(0, x)), g, full(g.shape, 0, g.dtype))
)


@sign.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    if not is_complex(x.dtype):
        return (None,)
    # The component along the number changes only its magnitude.
    along = cast(real(mul(conj(y), g)), x.dtype)
    length = abs_(x)
    safe = where(equal(length, scalar(0, length)), scalar(1, length), length)
    across = div(sub(g, mul(along, y)), cast(safe, x.dtype))
    return (where(equal(x, scalar(0, x)), scalar(0, x), across),)
