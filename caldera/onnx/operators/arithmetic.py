"""Arithmetic, element by element."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import is_float
from caldera.onnx.operators.registry import evaluated, operator
from caldera.onnx.operators.values import Value, laid_along


def _binary(function: Any) -> Any:
    def translate(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Expr:
        return function(a, laid_along(a, b, axis, broadcast))

    return translate


operator("Add")(_binary(op.add))
operator("Sub")(_binary(op.sub))
operator("Mul")(_binary(op.mul))


def _quotient(a: Value, b: Value) -> Expr:
    """Integers are divided towards zero."""
    if is_float(a.dtype):
        return op.div(a, b)
    down = op.floor_div(a, b)
    inexact = op.not_equal(op.mul(down, b), a)
    is_negative = op.less(down, 0)
    return op.where(op.logical_and(inexact, is_negative), op.add(down, 1), down)


operator("Div")(_binary(_quotient))


@operator("Mod")
def mod(a: Value, b: Value, *, fmod: int = 0) -> Expr:
    """The remainder, with the sign of the divisor, or with `fmod` that of the dividend."""
    if not fmod:
        return op.mod(a, b)
    size = op.mod(op.abs(a), op.abs(b))
    return op.where(op.less(a, 0), op.neg(size), size)


@operator("Pow")
def power(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Expr:
    """a to the power of b, in the dtype of a."""
    return op.cast(op.pow(a, laid_along(a, b, axis, broadcast)), a.dtype)


def _of_all(function: Any) -> Any:
    def translate(*values: Value) -> Expr:
        return op.cast(reduce(function, values), values[0].dtype)

    return translate


operator("Sum")(_of_all(op.add))
operator("Max")(_of_all(op.maximum))
operator("Min")(_of_all(op.minimum))


@operator("Mean")
def mean(*values: Value) -> Expr:
    """The mean of several tensors."""
    return op.div(reduce(op.add, values), len(values))


@operator("Clip")
def clip(x: Value, min: Value = None, max: Value = None) -> Value:
    """x, but at least `min` and at most `max`, and that even where `min` is the larger."""
    if min is None and max is None:
        return x
    return op.cast(op.clip(x, min, max), x.dtype)


@evaluated("BitShift")
def bit_shift(x: np.ndarray, y: np.ndarray, *, direction: str) -> np.ndarray:
    """Bits moved to the left or to the right."""
    return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)


evaluated("BitwiseAnd")(lambda a, b: np.bitwise_and(a, b))
evaluated("BitwiseOr")(lambda a, b: np.bitwise_or(a, b))
evaluated("BitwiseXor")(lambda a, b: np.bitwise_xor(a, b))
evaluated("BitwiseNot")(lambda a: np.bitwise_not(a))
