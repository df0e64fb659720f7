"""Epilogues of products and convolutions: a bias, then an activation, on values in registers."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from caldera.core.graph.ops.activation import SELU_ALPHA, SELU_SCALE
from caldera.kernels.common.product import Epilogue
from caldera.kernels.native.codegen import (
    Emitter,
    Number,
    Pointer,
    RegisterValue,
    math,
)


def apply_epilogue(
    k: Emitter, epilogue: Epilogue, bias: Pointer | None, x: RegisterValue, column: Number
) -> RegisterValue:
    """`x`, from this column on, with what follows the product."""
    if bias is not None:
        x = x + bias.load(column, x.lanes)
    if epilogue.activation is None:
        return x
    return ACTIVATIONS[epilogue.activation](k, x, **dict(epilogue.attributes))


# --- the activations; `graph/ops/activation.py` says what they are and why they are clipped


def _relu(k: Emitter, x: RegisterValue) -> RegisterValue:
    return math.maximum(k, x, 0.0)


def _leaky_relu(k: Emitter, x: RegisterValue, slope: float) -> RegisterValue:
    return k.select(x > 0.0, x, x * slope)


def _elu(k: Emitter, x: RegisterValue, alpha: float) -> RegisterValue:
    below = math.expm1(k, k.select(x > 0.0, 0.0, x)) * alpha
    return k.select(x > 0.0, x, below)


def _selu(k: Emitter, x: RegisterValue) -> RegisterValue:
    return _elu(k, x, SELU_ALPHA) * SELU_SCALE


def _softplus(k: Emitter, x: RegisterValue) -> RegisterValue:
    return _relu(k, x) + math.log1p(k, math.exp_of_negative(k, -math.absolute(k, x)))


def _gelu(k: Emitter, x: RegisterValue, approximate: bool) -> RegisterValue:
    if approximate:
        inner = math.tanh(k, x * sqrt(2 / pi) * (x * x * 0.044715 + 1.0))
    else:
        inner = math.erf(k, x * sqrt(0.5))
    return math.maximum(k, x, -40.0) * (inner * 0.5 + 0.5)


def _silu(k: Emitter, x: RegisterValue) -> RegisterValue:
    return math.maximum(k, x, -1000.0) * math.sigmoid(k, x)


def _hard_sigmoid(k: Emitter, x: RegisterValue) -> RegisterValue:
    return math.minimum(k, math.maximum(k, x * (1 / 6) + 0.5, 0.0), 1.0)


def _hard_swish(k: Emitter, x: RegisterValue) -> RegisterValue:
    return math.maximum(k, x, -3.0) * _hard_sigmoid(k, x)


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": _relu,
    "sigmoid": math.sigmoid,
    "tanh": math.tanh,
    "elu": _elu,
    "gelu": _gelu,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "leaky_relu": _leaky_relu,
    "selu": _selu,
    "silu": _silu,
    "softplus": _softplus,
}
"""By the names of their ops."""
