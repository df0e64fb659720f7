"""Activation functions, and softmax."""

from __future__ import annotations

import math
from typing import Any

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import HALVES, float32
from caldera.onnx.operators.registry import operator
from caldera.onnx.operators.values import Value, axis_of

operator("Relu")(lambda x: op.relu(x))
operator("Softplus")(lambda x: op.softplus(x))
operator("HardSwish")(lambda x: op.hard_swish(x))
operator("Softsign")(lambda x: op.softsign(x))
operator("Mish")(lambda x: op.mish(x))


@operator("LeakyRelu")
def leaky_relu(x: Value, *, alpha: float = 0.01) -> Expr:
    """x above 0, alpha x below."""
    return op.leaky_relu(x, alpha)


@operator("PRelu")
def prelu(x: Value, slope: Value, *, opset: int) -> Expr:
    """x above 0, slope x below; before version 7 the slope was one number a channel."""
    if opset < 7 and len(slope.shape) == 1:
        slope = op.reshape(slope, (-1, *(1,) * (len(x.shape) - 2)))
    return op.where(op.less(x, 0), op.mul(x, slope), x)


@operator("Elu")
def elu(x: Value, *, alpha: float = 1.0) -> Expr:
    """x above 0, alpha (exp(x) - 1) below."""
    return op.elu(x, alpha)


@operator("Celu")
def celu(x: Value, *, alpha: float = 1.0) -> Expr:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return op.mul(op.elu(op.div(x, alpha)), alpha)


@operator("Selu")
def selu(x: Value, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Expr:
    """gamma times elu."""
    return op.mul(op.elu(x, alpha), gamma)


@operator("ThresholdedRelu")
def thresholded_relu(x: Value, *, alpha: float = 1.0) -> Expr:
    """x above alpha, 0 below."""
    return op.where(op.greater(x, alpha), x, 0.0)


@operator("HardSigmoid")
def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """alpha x + beta, kept between 0 and 1."""
    return op.clip(op.add(op.mul(x, alpha), beta), 0.0, 1.0)


@operator("Gelu")
def gelu(x: Value, *, approximate: str = "none") -> Expr:
    """x times the probability that a normal number lies below it."""
    return op.gelu(x, approximate == "tanh")


@operator("Swish")
def swish(x: Value, *, alpha: float = 1.0) -> Expr:
    """x sigmoid(alpha x)."""
    return op.mul(x, op.sigmoid(op.mul(x, alpha)))


@operator("SwiGLU")
def swiglu(gate: Value, x: Value, *, alpha: float = 1.0) -> Expr:
    """x times the swish of its gate."""
    return op.mul(swish(gate, alpha=alpha), x)


@operator("Shrink")
def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Expr:
    """x moved towards 0 by the bias where it lies outside of lambd, 0 inside."""
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
    position = axis_of(axis, len(x.shape))
    chosen = op.one_hot(op.argmax(x, position), x.shape[position], x.dtype)
    order = list(range(len(x.shape) - 1))
    order.insert(position, len(x.shape) - 1)
    return op.transpose(chosen, order)


operator("Softmax")(_along_axis(op.softmax))
operator("LogSoftmax")(_along_axis(op.log_softmax))
operator("Hardmax")(_along_axis(_hardmax))
