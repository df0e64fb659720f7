"""Cases for activation functions, softmax and log-softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops import activation
from tests.unit.ops.case import Case, numbers

_erf = np.vectorize(math.erf, otypes=[float])
# Between the kinks at -3, 0 and 3, on both sides of each.
_X = np.array([[-6.0, -3.5, -2.0, -0.7], [0.3, 1.5, 2.6, 4.0]])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_FUNCTIONS: list[tuple[str, Callable[..., Expr], Callable[..., np.ndarray]]] = [
    ("relu", op.relu, lambda x: np.maximum(x, 0)),
    ("leaky_relu", op.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    ("leaky_relu", lambda x: op.leaky_relu(x, slope=0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
    ("elu", op.elu, lambda x: _elu(x, 1.0)),
    ("elu", lambda x: op.elu(x, alpha=0.4), lambda x: _elu(x, 0.4)),
    ("selu", op.selu, lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772)),
    ("gelu", op.gelu, lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    ("gelu", lambda x: op.gelu(x, approximate=True), _gelu_tanh),
    ("silu", op.silu, lambda x: x * _sigmoid(x)),
    ("softplus", op.softplus, lambda x: np.log(1 + np.exp(x))),
    ("hard_sigmoid", op.hard_sigmoid, lambda x: np.clip((x + 3) / 6, 0, 1)),
    ("hard_swish", op.hard_swish, lambda x: x * np.clip((x + 3) / 6, 0, 1)),
    ("mish", op.mish, lambda x: x * np.tanh(np.log(1 + np.exp(x)))),
    ("softsign", op.softsign, lambda x: x / (1 + np.abs(x))),
    ("rbf", op.rbf, lambda x: np.exp(-(x**2))),
    ("rbf", lambda x: op.rbf(x, eps=0.7), lambda x: np.exp(-((0.7 * x) ** 2))),
]
CASES = [
    Case(name, function, (array,), expected, order=2, name=f"form {number}")
    for number, (name, function, expected) in enumerate(_FUNCTIONS)
    for array in (_X, np.array(-1.2), np.zeros((2, 0, 3)))
]
CASES.append(
    Case(
        "prelu",
        op.prelu,
        (_X, numbers(4, low=0.1)),
        lambda x, slope: np.where(x > 0, x, slope * x),
        order=2,
    )
)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    weights = np.exp(x)
    return weights / weights.sum(axis, keepdims=True)


_SHAPES = [((4,), 0), ((2, 3), -1), ((2, 3), 0), ((2, 3, 2), 1), ((3, 1), 1), ((0, 3), 1)]
CASES += [
    Case(
        "softmax",
        lambda x, a=axis: op.softmax(x, axis=a),
        (numbers(*shape),),
        lambda x, a=axis: _softmax(x, a),
        order=2,
        name=f"axis {axis}",
    )
    for shape, axis in [*_SHAPES, ((3, 0), 1)]
]
CASES += [
    Case(
        "log_softmax",
        lambda x, a=axis: op.log_softmax(x, axis=a),
        (numbers(*shape),),
        lambda x, a=axis: np.log(_softmax(x, a)),
        order=2,
        name=f"axis {axis}",
    )
    for shape, axis in _SHAPES
]


def _softmax_grad(g: np.ndarray, y: np.ndarray) -> np.ndarray:
    rows = [(np.diag(p) - np.outer(p, p)) @ d for p, d in zip(y, g, strict=True)]
    return np.stack(rows)


CASES += [
    Case(
        "softmax_grad",
        lambda g, y: Expr(activation.softmax_grad(g.node, y.node, axis=1)),
        (numbers(2, 3), numbers(2, 3, seed=1)),
        _softmax_grad,
        order=2,
    ),
    Case(
        "log_softmax_grad",
        lambda g, y: Expr(activation.log_softmax_grad(g.node, y.node, axis=1)),
        (numbers(2, 3), numbers(2, 3, seed=1)),
        lambda g, y: g - np.exp(y) * g.sum(1, keepdims=True),
        order=2,
    ),
    # Both inputs of the gradient depend on x here, so the second derivative meets them together.
    Case(
        "softmax",
        lambda x: op.softmax(op.softmax(x, axis=0) * x),
        (numbers(2, 3),),
        lambda x: _softmax(_softmax(x, 0) * x, 1),
        order=2,
        name="twice",
    ),
    Case(
        "log_softmax",
        lambda x: op.log_softmax(x) ** 2.0,
        (numbers(2, 3),),
        lambda x: np.log(_softmax(x, 1)) ** 2,
        order=2,
        name="squared",
    ),
]
