"""Cases for element-wise ops: arithmetic, comparison, logic, and functions of one argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.elementwise import guarded
from tests.unit.ops.case import Case, numbers

_PAIRS = (((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (3,)), ((0, 3), (1, 3)))


def _binary(
    name: str, right: Callable[..., Any], low: float = -2.0, high: float = 2.0, order: int = 2
) -> list[Case]:
    function = getattr(op, name)
    return [
        Case(
            name,
            function,
            (numbers(*first, seed=1, low=low, high=high), numbers(*second, low=low, high=high)),
            right,
            order=order,
        )
        for first, second in _PAIRS
    ]


# Quotients stay away from whole numbers, where floor division jumps.
_DIVIDENDS = np.array([[5.3, -3.2, 1.1], [0.7, -7.6, 2.9]])
_DIVISORS = np.array([2.0, -1.5, 0.8])
_MIXED = np.array([1.5, -2.0, math.inf, -math.inf, math.nan, 0.0])
_LEFT = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, math.nan]])
_RIGHT = np.array([2.0, 2.0, 3.0])
_TRUTHS = np.array([[True, True], [False, False]])
_OTHERS = np.array([True, False])

CASES = [
    *_binary("add", np.add),
    *_binary("sub", np.subtract),
    *_binary("mul", np.multiply),
    *_binary("div", np.divide, low=0.5),
    *_binary("pow", np.power, low=0.5),
    *_binary("maximum", np.maximum),
    *_binary("minimum", np.minimum),
    Case(
        "add",
        lambda a, b: a + b * 2 + 1,
        (numbers(2), numbers(2, seed=3)),
        lambda a, b: a + b * 2 + 1,
        name="operators",
    ),
    Case("add", lambda x: x + x, (numbers(3),), lambda x: 2 * x, order=2, name="with itself"),
    Case("mul", lambda x: x * x * x, (numbers(3),), lambda x: x**3, order=2, name="with itself"),
    Case("div", lambda x: 1 / x, (numbers(3, low=0.5),), lambda x: 1 / x, order=2, name="below 1"),
    Case("pow", lambda x: x**3, (numbers(4),), lambda x: x**3, order=2, name="constant exponent"),
    Case(
        "pow",
        lambda x: x**-2.0,
        (numbers(4, low=0.5),),
        lambda x: x**-2.0,
        order=2,
        name="negative exponent",
    ),
    Case("pow", lambda x: 2.0**x, (numbers(4),), lambda x: 2.0**x, order=2, name="constant base"),
    Case(
        "pow",
        lambda a, b: op.pow(a, b),
        (np.array([2, -3, 0]), np.array([3, 2, 0])),
        lambda a, b: a**b,
        differentiable=False,
        name="integers",
    ),
    Case("floor_div", op.floor_div, (_DIVIDENDS, _DIVISORS), np.floor_divide, order=2),
    Case(
        "floor_div",
        op.floor_div,
        (np.array([7, -7, 7]), np.array([2, 2, -2])),
        np.floor_divide,
        differentiable=False,
        name="integers",
    ),
    Case("mod", op.mod, (_DIVIDENDS, _DIVISORS), np.remainder, order=2),
    Case(
        "mod",
        op.mod,
        (np.array([7, -7, 7]), np.array([2, 2, -2])),
        np.remainder,
        differentiable=False,
        name="integers",
    ),
    Case("neg", op.neg, (numbers(2, 3),), np.negative, order=2),
    Case(
        "minimum",
        lambda x: op.clip(x, -0.5, 0.7),
        (numbers(2, 4),),
        lambda x: np.clip(x, -0.5, 0.7),
        order=2,
        name="clip",
    ),
    Case(
        "maximum",
        lambda x, low: op.clip(x, low),
        (numbers(2, 4), numbers(2, 1, seed=5)),
        lambda x, low: np.clip(x, low, None),
        order=2,
        name="clip below",
    ),
]

for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    CASES.append(
        Case(_name, getattr(op, _name), (_LEFT, _RIGHT), getattr(np, _name), differentiable=False)
    )
_BITS = np.array([[0, 1, -1], [12, -128, 127]], np.int8)
_COUNTS = np.array([1, 7, 8], np.int8)
for _name, _right in (
    ("bitwise_and", np.bitwise_and),
    ("bitwise_or", np.bitwise_or),
    ("bitwise_xor", np.bitwise_xor),
    ("bitwise_left_shift", np.left_shift),
    ("bitwise_right_shift", np.right_shift),
):
    for _dtype in ("int8", "int64", "uint8", "uint64"):
        _operands = (_BITS.astype(_dtype), _COUNTS.astype(_dtype))
        CASES.append(
            Case(_name, getattr(op, _name), _operands, _right, differentiable=False, name=_dtype)
        )
for _name in ("logical_and", "logical_or", "logical_xor"):
    CASES.append(
        Case(
            _name, getattr(op, _name), (_TRUTHS, _OTHERS), getattr(np, _name), differentiable=False
        )
    )
CASES += [
    Case("bitwise_invert", op.bitwise_invert, (_BITS,), np.invert, differentiable=False),
    Case(
        "copysign",
        op.copysign,
        (numbers(2, 6), np.array([1.5, -2.0, np.inf, -np.inf, 0.0, -0.0])),
        np.copysign,
        differentiable=False,
    ),
    Case("copysign", op.copysign, (numbers(2, 3), numbers(3, seed=1)), np.copysign, order=2),
    Case("logical_not", op.logical_not, (_TRUTHS,), np.logical_not, differentiable=False),
    Case("isfinite", op.isfinite, (_MIXED,), np.isfinite, differentiable=False),
    Case("isnan", op.isnan, (_MIXED,), np.isnan, differentiable=False),
    Case(
        "where",
        lambda a, b: op.where(a > b, a, b * b),
        (numbers(2, 3), numbers(3, seed=2)),
        lambda a, b: np.where(a > b, a, b * b),
        order=2,
    ),
    Case(
        "where",
        op.where,
        (_OTHERS, numbers(3, 1), numbers(2)),
        np.where,
        order=2,
        name="broadcast condition",
    ),
    Case("where", op.where, (np.array(True), numbers(), numbers(0, 2)), np.where, name="empty"),
    Case(
        "guarded",
        lambda a: Expr(guarded(a.node, (op.sum(a) < 1e9).node)) * a,
        (numbers(2, 3),),
        lambda a: a * a,
        order=2,
    ),
    # Zero is where float32 can tell apart the small steps of finite differences.
    Case(
        "cast",
        lambda x: op.cast(op.cast(x, "float32"), "float64"),
        (np.zeros((2, 2)),),
        lambda x: x,
        order=2,
    ),
    Case(
        "cast",
        lambda x: op.cast(x, "int32"),
        (np.array([1.7, -1.7, 0.2]),),
        lambda x: x.astype("int32"),
        differentiable=False,
        name="to integers",
    ),
    Case(
        "cast",
        lambda x: op.cast(x, "bool"),
        (np.array([0.2, 0.0, -0.0]),),
        lambda x: x != 0,
        differentiable=False,
        name="to truth values",
    ),
    Case(
        "stop_gradient",
        lambda x: op.stop_gradient(op.floor(x)) * x,
        (numbers(3, low=0.1),),
        lambda x: np.floor(x) * x,
        order=2,
    ),
]

_EVERYWHERE = (-2.0, 2.0)
_POSITIVE = (0.3, 3.0)
_FUNCTIONS: tuple[tuple[str, Callable[..., Any], tuple[float, float]], ...] = (
    ("exp", np.exp, _EVERYWHERE),
    ("log", np.log, _POSITIVE),
    ("log1p", np.log1p, (-0.7, 2.0)),
    ("expm1", np.expm1, _EVERYWHERE),
    ("sqrt", np.sqrt, _POSITIVE),
    ("rsqrt", lambda x: 1 / np.sqrt(x), _POSITIVE),
    ("square", np.square, _EVERYWHERE),
    ("reciprocal", np.reciprocal, _POSITIVE),
    ("abs", np.abs, _EVERYWHERE),
    ("sign", np.sign, _EVERYWHERE),
    ("floor", np.floor, _EVERYWHERE),
    ("ceil", np.ceil, _EVERYWHERE),
    ("round", np.round, _EVERYWHERE),
    ("sin", np.sin, _EVERYWHERE),
    ("cos", np.cos, _EVERYWHERE),
    ("tanh", np.tanh, _EVERYWHERE),
    ("erf", np.vectorize(math.erf, otypes=["float64"]), _EVERYWHERE),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), _EVERYWHERE),
)
for _name, _right, (_low, _high) in _FUNCTIONS:
    for _shape in ((2, 3), (), (0, 2)):
        CASES.append(
            Case(
                _name,
                getattr(op, _name),
                (numbers(*_shape, low=_low, high=_high),),
                _right,
                order=2,
            )
        )
