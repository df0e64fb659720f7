"""Elementwise ONNX operators: arithmetic, comparison, unary functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import HALVES, bool_, float32, is_float
from caldera.onnx.operators.registry import (
    Value,
    axis_moved,
    axis_of,
    laid_along,
    operator,
)


def _binary(function: Any) -> Any:
    def translate(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Expr:
        return function(a, laid_along(a, b, axis, broadcast))

    return translate


def _quotient(a: Value, b: Value) -> Expr:
    """Integers are divided towards zero."""
    if is_float(a.dtype):
        return op.div(a, b)
    down = op.floor_div(a, b)
    inexact = op.not_equal(op.mul(down, b), a)
    return op.where(op.logical_and(inexact, op.less(down, 0)), op.add(down, 1), down)


@operator("Mod")
def mod(a: Value, b: Value, *, fmod: int = 0) -> Expr:
    """Return the remainder with the sign of the divisor, or, with `fmod`, of the dividend."""
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
    """Return the mean of several tensors."""
    return op.div(reduce(op.add, values), len(values))


@operator("Clip")
def clip(x: Value, min: Value = None, max: Value = None) -> Value:
    """x, but at least `min` and at most `max`, and that even where `min` is the larger."""
    if min is None and max is None:
        return x
    return op.cast(op.clip(x, min, max), x.dtype)


@operator("BitShift")
def bit_shift(x: Value, y: Value, *, direction: str) -> Expr:
    """Shift bits to the left or to the right."""
    return (op.bitwise_left_shift if direction == "LEFT" else op.bitwise_right_shift)(x, y)


def _same_dtype(function: Any) -> Any:
    return lambda x: op.cast(function(x), x.dtype)


for _name, _function in {
    "Abs": op.abs,
    "Neg": op.neg,
    "Sign": op.sign,
    "Exp": op.exp,
    "Log": op.log,
    "Sqrt": op.sqrt,
    "Reciprocal": op.reciprocal,
    "Floor": op.floor,
    "Ceil": op.ceil,
    "Round": op.round,
    "Sin": op.sin,
    "Cos": op.cos,
    "Tan": op.tan,
    "Asin": op.asin,
    "Acos": op.acos,
    "Atan": op.atan,
    "Sinh": op.sinh,
    "Cosh": op.cosh,
    "Tanh": op.tanh,
    "Asinh": op.asinh,
    "Acosh": op.acosh,
    "Atanh": op.atanh,
    "Erf": op.erf,
    "Sigmoid": op.sigmoid,
}.items():
    operator(_name)(_same_dtype(_function))


for _binary_name, _binary_function in {
    "Add": op.add,
    "Sub": op.sub,
    "Mul": op.mul,
    "Div": _quotient,
    "And": op.logical_and,
    "Or": op.logical_or,
    "Xor": op.logical_xor,
    "BitwiseAnd": op.bitwise_and,
    "BitwiseOr": op.bitwise_or,
    "BitwiseXor": op.bitwise_xor,
    "Less": op.less,
    "LessOrEqual": op.less_equal,
    "Greater": op.greater,
    "GreaterOrEqual": op.greater_equal,
}.items():
    operator(_binary_name)(_binary(_binary_function))

operator("Equal", numpy=np.equal)(_binary(op.equal))


@operator("IsInf")
def is_inf(x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    """Return True for infinite elements of the signs to detect."""
    never = op.broadcast(op.cast(False, bool_), x.shape)
    above = op.equal(x, np.inf) if detect_positive else never
    return op.logical_or(above, op.equal(x, -np.inf) if detect_negative else never)


@operator("Where", moves=True)
def where(condition: Value, a: Value, b: Value) -> Expr:
    """a where the condition is true, b elsewhere."""
    return op.where(condition, a, b)


@operator("PRelu")
def prelu(x: Value, slope: Value, *, opset: int) -> Expr:
    """x above 0, slope x below; before version 7 the slope was one number a channel."""
    if opset < 7 and len(slope.shape) == 1:
        slope = op.reshape(slope, (-1, *(1,) * (len(x.shape) - 2)))
    return op.where(op.less(x, 0), op.mul(x, slope), x)


FORMULAS: dict[str, Callable[..., Expr]] = {
    "Not": lambda x: op.logical_not(x),
    "BitwiseNot": lambda x: op.bitwise_invert(x),
    "IsNaN": lambda x: op.isnan(x),
    "Relu": lambda x: op.relu(x),
    "Softplus": lambda x: op.softplus(x),
    "HardSwish": lambda x: op.hard_swish(x),
    "Softsign": lambda x: op.softsign(x),
    "Mish": lambda x: op.mish(x),
    "LeakyRelu": lambda x, *, alpha=0.01: op.leaky_relu(x, alpha),
    "Elu": lambda x, *, alpha=1.0: op.elu(x, alpha),
    "Celu": lambda x, *, alpha=1.0: op.mul(op.elu(op.div(x, alpha)), alpha),
    "Selu": lambda x, *, alpha=1.6732631921768188, gamma=1.0507010221481323: op.mul(
        op.elu(x, alpha), gamma
    ),
    "ThresholdedRelu": lambda x, *, alpha=1.0: op.where(op.greater(x, alpha), x, 0.0),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: op.clip(
        op.add(op.mul(x, alpha), beta), 0.0, 1.0
    ),
    "Gelu": lambda x, *, approximate="none": op.gelu(x, approximate == "tanh"),
    "Swish": lambda x, *, alpha=1.0: op.mul(x, op.sigmoid(op.mul(x, alpha))),
    "SwiGLU": lambda gate, x, *, alpha=1.0: op.mul(FORMULAS["Swish"](gate, alpha=alpha), x),
}
"""Operators that need a single expression; their attributes are keyword arguments."""

for _formula_name, _formula in FORMULAS.items():
    operator(_formula_name)(_formula)


@operator("Shrink")
def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Expr:
    """Move x towards 0 by the bias if its magnitude exceeds lambd; return 0 otherwise."""
    inner = op.where(op.less(x, -lambd), op.add(x, bias), 0)
    return op.cast(op.where(op.greater(x, lambd), op.sub(x, bias), inner), x.dtype)


def _along_axis(function: Any) -> Any:
    def translate(x: Value, *, axis: int | None = None, opset: int) -> Expr:
        wide = op.cast(x, float32) if x.dtype in HALVES else x
        if opset >= 13:
            return op.cast(function(wide, -1 if axis is None else axis), x.dtype)
        # Before, it is taken over all axes from this one on.
        first = axis_of(1 if axis is None else axis, len(x.shape))
        rows = op.reshape(wide, (math.prod(x.shape[:first]), math.prod(x.shape[first:])))
        return op.cast(op.reshape(function(rows, 1), x.shape), x.dtype)

    return translate


def _hardmax(x: Value, axis: int) -> Expr:
    return axis_moved(op.one_hot(op.argmax(x, axis), x.shape[axis], x.dtype), -1, axis)


operator("Softmax")(_along_axis(op.softmax))
operator("LogSoftmax")(_along_axis(op.log_softmax))
operator("Hardmax")(_along_axis(_hardmax))
