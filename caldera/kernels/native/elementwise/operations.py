"""Element-wise ops on values in registers, with exactly NumPy's semantics.

NaNs win in maximum and minimum, floor division rounds down, integers wrap, and a division of
integers by 0 returns 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from caldera.core.graph.node import Node
from caldera.kernels.common.loops import LoopBody, Reference, is_computable
from caldera.kernels.native.codegen import (
    UNSIGNED,
    Emitter,
    RegisterValue,
    cast,
    constant,
    element,
    elementary,
    is_floating,
    rounded,
)
from caldera.kernels.native.codegen import math as numeric
from caldera.kernels.native.codegen.elementary import call_libm, cos, has_libm, power, sin, tan

Operation = Callable[..., RegisterValue]
"""Called as `operation(k, *values)`."""


def _one_like(k: Emitter, x: RegisterValue) -> RegisterValue:
    return k.constant(1, x.type)


def _sign(k: Emitter, x: RegisterValue) -> RegisterValue:
    one, zero = _one_like(k, x), k.constant(0, x.type)
    below = k.select(x < 0, -one, x if is_floating(x.type) else zero)
    return k.select(x > 0, one, k.select(x.equals(0), zero, below))


def _abs(k: Emitter, x: RegisterValue) -> RegisterValue:
    return numeric.absolute(k, x) if is_floating(x.type) else k.select(x < 0, -x, x)


def _maximum(k: Emitter, a: RegisterValue, b: RegisterValue) -> RegisterValue:
    return numeric.maximum(k, a, b) if is_floating(a.type) else k.maximum(a, b)


def _is_finite(k: Emitter, x: RegisterValue) -> RegisterValue:
    return numeric.absolute(k, x) < math.inf if is_floating(x.type) else x.equals(x)


# --- shifts; a count that is no bit's place, a negative one too, leaves nothing of the number


def _left_shift(k: Emitter, x: RegisterValue, count: RegisterValue) -> RegisterValue:
    within = k.compare("<", count, element(x.type).width, unsigned=True)
    zero = k.constant(0, x.type)
    return k.select(within, x << k.select(within, count, zero), zero)


def _right_shift(k: Emitter, x: RegisterValue, count: RegisterValue) -> RegisterValue:
    most = element(x.type).width - 1
    return x >> k.select(k.compare("<", count, most, unsigned=True), count, most)


def _unsigned_right_shift(k: Emitter, x: RegisterValue, count: RegisterValue) -> RegisterValue:
    within = k.compare("<", count, element(x.type).width, unsigned=True)
    zero = k.constant(0, x.type)
    return k.select(within, k.shift_right(x, k.select(within, count, zero)), zero)


# --- division that rounds down


def _whole_division(
    k: Emitter, a: RegisterValue, b: RegisterValue
) -> tuple[RegisterValue, RegisterValue]:
    """The quotient of signed integers rounded down, and the rest, which has the sign of b."""
    no_divisor = b.equals(0)
    # The least integer over -1 would trap; both cases divide by 1 instead.
    divisor = k.select(no_divisor | b.equals(-1), _one_like(k, b), b)
    quotient = a // divisor
    rest = a - quotient * divisor
    quotient = k.select(b.equals(-1), -a, quotient)
    crossed = rest.differs(0) & (rest ^ b < 0)
    quotient = k.select(crossed, quotient - 1, quotient)
    rest = k.select(crossed, rest + b, rest)
    zero = k.constant(0, a.type)
    return k.select(no_divisor, zero, quotient), k.select(no_divisor, zero, rest)


def _unsigned_division(
    k: Emitter, a: RegisterValue, b: RegisterValue
) -> tuple[RegisterValue, RegisterValue]:
    no_divisor = b.equals(0)
    divisor = k.select(no_divisor, _one_like(k, b), b)
    quotient = k.binary("", "udiv", a, divisor)
    zero = k.constant(0, a.type)
    rest = a - quotient * divisor
    return k.select(no_divisor, zero, quotient), k.select(no_divisor, zero, rest)


def _real_division(
    k: Emitter, a: RegisterValue, b: RegisterValue
) -> tuple[RegisterValue, RegisterValue]:
    ratio = a / b
    rest = call_libm(k, "fmod", a, b)
    zero = k.constant(0.0, a.type)
    crossed = ((rest < 0.0) | (rest > 0.0)) & ((b < 0.0) ^ (rest < 0.0))
    quotient = (a - rest) / b
    quotient = k.select(crossed, quotient - 1.0, quotient)
    rest = k.select(crossed, rest + b, rest)
    rest = k.select(rest.equals(0.0), numeric.copy_sign(k, zero, b), rest)
    down = numeric.floor(k, quotient)
    down = k.select(quotient - down > 0.5, down + 1.0, down)
    down = k.select(quotient.equals(0.0), numeric.copy_sign(k, zero, ratio), down)
    return k.select(b.equals(0.0), ratio, down), rest


def _division(
    k: Emitter, a: RegisterValue, b: RegisterValue
) -> tuple[RegisterValue, RegisterValue]:
    return (_real_division if is_floating(a.type) else _whole_division)(k, a, b)


_ELEMENTARY = (
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

_OPERATIONS: dict[str, Operation] = {
    "add": lambda k, a, b: a + b,
    "sub": lambda k, a, b: a - b,
    "mul": lambda k, a, b: a * b,
    "div": lambda k, a, b: a / b,
    "neg": lambda k, x: -x,
    "pow": power,
    "floor_div": lambda k, a, b: _division(k, a, b)[0],
    "mod": lambda k, a, b: _division(k, a, b)[1],
    "maximum": _maximum,
    "minimum": lambda k, a, b: numeric.minimum(k, a, b) if is_floating(a.type) else k.minimum(a, b),
    "equal": lambda k, a, b: a.equals(b),
    "not_equal": lambda k, a, b: a.differs(b),
    "less": lambda k, a, b: a < b,
    "less_equal": lambda k, a, b: a <= b,
    "greater": lambda k, a, b: a > b,
    "greater_equal": lambda k, a, b: a >= b,
    "logical_and": lambda k, a, b: a & b,
    "logical_or": lambda k, a, b: a | b,
    "logical_xor": lambda k, a, b: a ^ b,
    "logical_not": lambda k, x: ~x,
    "bitwise_and": lambda k, a, b: a & b,
    "bitwise_or": lambda k, a, b: a | b,
    "bitwise_xor": lambda k, a, b: a ^ b,
    "bitwise_invert": lambda k, x: ~x,
    "bitwise_left_shift": _left_shift,
    "bitwise_right_shift": _right_shift,
    "copysign": numeric.copy_sign,
    "isfinite": _is_finite,
    "isnan": lambda k, x: k.is_nan(x) if is_floating(x.type) else x.differs(x),
    "where": lambda k, condition, a, b: k.select(condition, a, b),
    "stop_gradient": lambda k, x: x,
    "exp": numeric.exp,
    "log": numeric.log,
    "log1p": numeric.log1p,
    "expm1": numeric.expm1,
    "sqrt": numeric.sqrt,
    "rsqrt": numeric.rsqrt,
    "square": lambda k, x: x * x,
    "reciprocal": lambda k, x: 1.0 / x,
    "abs": _abs,
    "sign": _sign,
    "floor": numeric.floor,
    "ceil": numeric.ceil,
    "round": numeric.nearest,
    "sin": sin,
    "cos": cos,
    "tanh": numeric.tanh,
    "erf": numeric.erf,
    "sigmoid": numeric.sigmoid,
    "relu": lambda k, x: _maximum(k, x, k.constant(0, x.type)),
    "tan": tan,
    **{name: getattr(elementary, name) for name in _ELEMENTARY},
}

_UNSIGNED: dict[str, Operation] = {
    "floor_div": lambda k, a, b: _unsigned_division(k, a, b)[0],
    "mod": lambda k, a, b: _unsigned_division(k, a, b)[1],
    "less": lambda k, a, b: k.compare("<", a, b, unsigned=True),
    "less_equal": lambda k, a, b: k.compare("<=", a, b, unsigned=True),
    "greater": lambda k, a, b: k.compare(">", a, b, unsigned=True),
    "greater_equal": lambda k, a, b: k.compare(">=", a, b, unsigned=True),
    "maximum": lambda k, a, b: k.select(k.compare(">", a, b, unsigned=True), a, b),
    "minimum": lambda k, a, b: k.select(k.compare("<", a, b, unsigned=True), a, b),
    "bitwise_right_shift": _unsigned_right_shift,
    "abs": lambda k, x: x,
    "relu": lambda k, x: x,
    "sign": lambda k, x: k.convert(x.differs(0), element(x.type)),
}
"""Replacements for unsigned integers and truth values."""

_BY_LIBRARY = frozenset({"sin", "cos", "tan", "pow", "floor_div", "mod", *_ELEMENTARY})


def can_apply(op: str, source: str) -> bool:
    """Return True if `apply` supports an op for operands of this dtype."""
    if op == "cast":
        return True
    floating = source.startswith(("float", "bfloat"))
    if op == "pow" and not floating:
        # NumPy rejects negative powers of integers, which requires reading all elements first.
        return False
    return op in _OPERATIONS and (op not in _BY_LIBRARY or has_libm())


def apply(
    k: Emitter, op: str, dtype: str, sources: tuple[str, ...], *values: RegisterValue
) -> RegisterValue:
    """Return the result of an op of this dtype for operands of the dtypes `sources`."""
    if op == "cast":
        return cast(k, values[0], sources[0], dtype)
    operation = _UNSIGNED.get(op) if sources[-1] in UNSIGNED else None
    return rounded(k, (operation or _OPERATIONS[op])(k, *values), dtype)


# --- reductions


def combine(k: Emitter, op: str, dtype: str, a: RegisterValue, b: RegisterValue) -> RegisterValue:
    """Combine two partial results of a reduction."""
    if dtype == "bool":
        return a | b if op in ("sum", "max") else a & b
    name = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[op]
    operation = _UNSIGNED.get(name) if dtype in UNSIGNED else None
    return (operation or _OPERATIONS[name])(k, a, b)


# --- loop bodies


def computed_values(
    loop_body: LoopBody, k: Emitter, values: list[RegisterValue], lanes: int
) -> tuple[list[RegisterValue], list[RegisterValue]]:
    """Return the values to write and the values to reduce, for these values of the operands."""
    done: list[RegisterValue] = []

    def find(reference: Reference) -> RegisterValue:
        if reference[0] == "in":
            return values[int(reference[1])]
        if reference[0] == "step":
            return done[int(reference[1])]
        _, value, dtype = reference  # type: ignore[misc]
        return constant(k, value, dtype, lanes)

    for op, dtype, sources, operands in loop_body.steps:
        done.append(apply(k, op, dtype, sources, *[find(each) for each in operands]))
    written = [find(each) for _, each in loop_body.outputs]
    return written, [find(each) for *_, each in loop_body.reductions]


def is_known(node: Node) -> bool:
    """Return True if a node's loop can be compiled."""
    return is_computable(node, can_apply)
