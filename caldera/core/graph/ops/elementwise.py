"""Element-wise primitives: each op's dtype rule with its gradient next to it.

All of them broadcast as NumPy does and want equal dtypes (the public functions cast first).

Conventions where the derivative is not unique, all of them tested: abs and sign have derivative 0
at 0; maximum and minimum share it half and half at a tie, and give it to neither beside a nan; relu
has 0 at 0; floor, ceil, round and floor division have 0 everywhere, so mod has 1 and -floor(a / b);
a**0 has 0 everywhere, at a = 0 too; 0**b has 0 with respect to b. Floor division rounds down and
mod takes the sign of the divisor, as in Python. The sign of a complex number is the number over its
magnitude; both have derivative 0 at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import Op, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops.base import Number, cast, conj, constant, full, real, sum_to
from caldera.core.tensor.dtype import bool_, is_complex, is_inexact, part_of
from caldera.core.tensor.shape import Shape, broadcast_shapes
from caldera.errors import ShapeError

Gradient = tuple[Node | None, ...]


def broadcast(*specs: Spec) -> Shape:
    """The shape these broadcast to, or a refusal that the op turns into the user's error."""
    try:
        return broadcast_shapes(*[spec.shape for spec in specs])
    except ShapeError:
        refuse_shape("shapes that broadcast together", hint="reshape one of them, or add an axis")


def _same(*specs: Spec) -> Spec:
    first = specs[0]
    if specs.count(first) == len(specs):
        return first
    if any(spec.dtype != first.dtype for spec in specs):
        refuse_dtype("operands of one dtype", hint="cast one of them with op.cast")
    return Spec(broadcast(*specs), first.dtype)


def _numbers(*specs: Spec) -> Spec:
    result = _same(*specs)
    if result.dtype == bool_:
        refuse_dtype("numbers, not truth values", hint="use op.cast, or op.logical_*")
    return result


def floats(*specs: Spec) -> Spec:
    """The rule of functions of floating-point numbers: one dtype, shapes that broadcast."""
    result = _same(*specs)
    if not is_inexact(result.dtype):
        refuse_dtype("a floating-point dtype", hint="cast it with op.cast(x, 'float32')")
    return result


def _magnitude(x: Spec) -> Spec:
    return Spec(_numbers(x).shape, part_of(x.dtype))


def _truths(*specs: Spec) -> Spec:
    result = _same(*specs)
    if result.dtype != bool_:
        refuse_dtype("truth values (bool)", hint="compare first, for example x != 0")
    return result


def _test(*specs: Spec) -> Spec:
    return Spec(_same(*specs).shape, bool_)


def define(name: str, rule: Callable[..., Spec], *, commutative: bool = False) -> Op:
    """An element-wise op with one of the rules above."""
    return op(name, kind="elementwise", commutative=commutative)(rule)


def scalar(value: Number, like: Node) -> Node:
    """A constant of the dtype of `like`."""
    return constant(value, like.dtype)


# --- arithmetic

add = define("add", _numbers, commutative=True)
sub = define("sub", _numbers)
mul = define("mul", _numbers, commutative=True)
div = define("div", floats)
neg = define("neg", _numbers)
pow_ = define("pow", _numbers)
floor_div = define("floor_div", _numbers)
mod = define("mod", _numbers)
maximum = define("maximum", _same, commutative=True)
minimum = define("minimum", _same, commutative=True)


@add.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return sum_to(g, a.shape), sum_to(g, b.shape)


@sub.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return sum_to(g, a.shape), sum_to(neg(g), b.shape)


@mul.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return sum_to(mul(g, b), a.shape), sum_to(mul(g, a), b.shape)


@div.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return sum_to(div(g, b), a.shape), sum_to(neg(div(mul(g, y), b)), b.shape)


@neg.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (neg(g),)


@pow_.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    if b.op.name == "constant":
        return _power_gradient(g, a, b), None
    # b a^(b - 1) is 0 * inf where both are 0; there the base is taken as 1.
    zero = equal(a, scalar(0, a))
    base = where(logical_and(zero, equal(b, scalar(0, b))), scalar(1, a), a)
    da = mul(g, mul(b, pow_(base, sub(b, scalar(1, b)))))
    # d/db = y log a; at a = 0 the limit is 0 for b > 0, where log alone would give 0 * -inf.
    safe = where(zero, scalar(1, a), a)
    db = mul(g, where(zero, full(y.shape, 0, y.dtype), mul(y, log(safe))))
    return sum_to(da, a.shape), sum_to(db, b.shape)


def _power_gradient(g: Node, a: Node, b: Node) -> Node | None:
    exponent = b.attrs["value"]
    if exponent == 0:
        return None
    return mul(g, mul(b, pow_(a, scalar(exponent - 1, b))))


@floor_div.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return None, None


@mod.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return sum_to(g, a.shape), sum_to(neg(mul(g, floor_div(a, b))), b.shape)


def _share(g: Node, a: Node, b: Node, a_wins: Node, b_wins: Node) -> Gradient:
    half = mul(g, scalar(0.5, g))
    none = full(g.shape, 0, g.dtype)
    tie = equal(a, b)
    for_a = where(tie, half, where(a_wins, g, none))
    for_b = where(tie, half, where(b_wins, g, none))
    return sum_to(for_a, a.shape), sum_to(for_b, b.shape)


@maximum.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return _share(g, a, b, greater(a, b), less(a, b))


@minimum.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    return _share(g, a, b, less(a, b), greater(a, b))


# --- comparison and logic: results are truth values, which have no derivative

equal = define("equal", _test, commutative=True)
not_equal = define("not_equal", _test, commutative=True)
less = define("less", _test)
less_equal = define("less_equal", _test)
greater = define("greater", _test)
greater_equal = define("greater_equal", _test)
logical_and = define("logical_and", _truths, commutative=True)
logical_or = define("logical_or", _truths, commutative=True)
logical_xor = define("logical_xor", _truths, commutative=True)
logical_not = define("logical_not", _truths)
isfinite = define("isfinite", _test)
isnan = define("isnan", _test)


@op("where", kind="elementwise")
def where(condition: Spec, a: Spec, b: Spec) -> Spec:
    if condition.dtype != bool_:
        refuse_dtype("a condition of truth values (bool)", hint="compare first, for example x > 0")
    chosen = _same(a, b)
    return Spec(broadcast(condition, chosen), chosen.dtype)


@where.gradient
def _(g: Node, y: Node, condition: Node, a: Node, b: Node) -> Gradient:
    none = full(g.shape, 0, g.dtype)
    return (
        None,
        sum_to(where(condition, g, none), a.shape),
        sum_to(where(condition, none, g), b.shape),
    )


@op("stop_gradient", kind="elementwise")
def stop_gradient(x: Spec) -> Spec:
    return x


@stop_gradient.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (None,)


# --- functions of one argument

exp = define("exp", floats)
log = define("log", floats)
log1p = define("log1p", floats)
expm1 = define("expm1", floats)
log2 = define("log2", floats)
log10 = define("log10", floats)
exp2 = define("exp2", floats)
sqrt = define("sqrt", floats)
rsqrt = define("rsqrt", floats)
square = define("square", _numbers)
reciprocal = define("reciprocal", floats)
abs_ = define("abs", _magnitude)
sign = define("sign", _numbers)
floor = define("floor", floats)
ceil = define("ceil", floats)
round_ = define("round", floats)
sin = define("sin", floats)
cos = define("cos", floats)
tanh = define("tanh", floats)
erf = define("erf", floats)
sigmoid = define("sigmoid", floats)
relu = define("relu", _numbers)


@exp.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, y),)


@log.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, x),)


@log1p.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, add(x, scalar(1, x))),)


@expm1.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, add(y, scalar(1, y))),)


@log2.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, mul(x, scalar(math.log(2), x))),)


@log10.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(g, mul(x, scalar(math.log(10), x))),)


@exp2.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(mul(g, scalar(math.log(2), g)), y),)


@sqrt.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (div(mul(g, scalar(0.5, g)), y),)


@rsqrt.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(mul(g, scalar(-0.5, g)), div(y, x)),)


@square.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(mul(g, scalar(2, g)), x),)


@reciprocal.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (neg(mul(g, square(y))),)


@abs_.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(cast(g, x.dtype), sign(x)),)


@sign.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    if not is_complex(x.dtype):
        return (None,)
    # What points along the number changes its magnitude alone.
    along = cast(real(mul(conj(y), g)), x.dtype)
    length = abs_(x)
    safe = where(equal(length, scalar(0, length)), scalar(1, length), length)
    across = div(sub(g, mul(along, y)), cast(safe, x.dtype))
    return (where(equal(x, scalar(0, x)), scalar(0, x), across),)


def _no_gradient(g: Node, y: Node, x: Node) -> Gradient:
    return (None,)


floor.gradient(_no_gradient)
ceil.gradient(_no_gradient)
round_.gradient(_no_gradient)


@sin.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, cos(x)),)


@cos.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (neg(mul(g, sin(x))),)


@tanh.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, sub(scalar(1, y), square(y))),)


@erf.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(mul(g, scalar(2 / math.sqrt(math.pi), g)), exp(neg(square(x)))),)


@sigmoid.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (mul(g, mul(y, sub(scalar(1, y), y))),)


@relu.gradient
def _(g: Node, y: Node, x: Node) -> Gradient:
    return (where(greater(x, scalar(0, x)), g, full(g.shape, 0, g.dtype)),)
