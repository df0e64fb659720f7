"""Cases for losses."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops import loss
from tests.unit.ops.case import Case, numbers

_LABELS = np.array([2, 0])
_PIXELS = np.array([[[0, 2], [1, 1]], [[2, 2], [0, 1]]], np.uint8)
# Targets that do not add up to 1 show that the gradient uses their sum.
_TARGETS = numbers(2, 3, low=0.1, high=1.0, seed=5)


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def _cross_entropy(x: np.ndarray, labels: np.ndarray, axis: int = -1) -> np.ndarray:
    chosen = np.take_along_axis(_log_softmax(x, axis), np.expand_dims(labels, axis), axis)
    return -chosen.squeeze(axis)


def _weighted(x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (weights * _cross_entropy(x, labels)).sum() / weights.sum()


_LOGITS = numbers(2, 3)
CASES = [
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y),
        (_LOGITS, _LABELS),
        lambda x, y: _cross_entropy(x, y).mean(),
        order=2,
        name="mean",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y, "sum"),
        (_LOGITS, _LABELS),
        lambda x, y: _cross_entropy(x, y).sum(),
        name="sum",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y, "none"),
        (_LOGITS, _LABELS),
        _cross_entropy,
        name="none",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x * x, y),
        (_LOGITS, _LABELS),
        lambda x, y: _cross_entropy(x * x, y).mean(),
        order=2,
        name="of a square",
    ),
    Case(
        "cross_entropy",
        lambda x, y, w: op.cross_entropy(x, y, weights=w),
        (_LOGITS, _LABELS, np.array([1.0, 3.0])),
        _weighted,
        name="weights",
    ),
    Case(
        "cross_entropy",
        lambda x, y, w: op.cross_entropy(x, y, "none", weights=w),
        (_LOGITS, _LABELS, np.array([1.0, 3.0])),
        lambda x, y, w: w * _cross_entropy(x, y),
        name="weights none",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y, "none", axis=1),
        (numbers(2, 3, 2, 2), _PIXELS),
        lambda x, y: _cross_entropy(x, y, 1),
        name="images",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y, "none", axis=0),
        (numbers(3, 2), _LABELS),
        lambda x, y: _cross_entropy(x, y, 0),
        order=2,
        name="axis 0",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y),
        (numbers(3), np.array(1)),
        _cross_entropy,
        order=2,
        name="one sample",
    ),
    Case(
        "cross_entropy",
        lambda x, y: op.cross_entropy(x, y, "none"),
        (numbers(0, 3), np.zeros(0, int)),
        lambda x, y: np.zeros(0),
        name="no samples",
    ),
    Case(
        "cross_entropy_grad",
        lambda g, x, y: Expr(loss.cross_entropy_grad(g.node, x.node, y.node, axis=1)),
        (numbers(2, seed=3), _LOGITS, _LABELS),
        lambda g, x, y: g[:, None] * (np.exp(_log_softmax(x, 1)) - np.eye(3)[y]),
        order=2,
    ),
    Case(
        "cross_entropy_probabilities",
        lambda x, y: op.cross_entropy(x, y, "none"),
        (_LOGITS, _TARGETS),
        lambda x, y: -(y * _log_softmax(x, 1)).sum(1),
        order=2,
    ),
    Case(
        "cross_entropy_probabilities",
        lambda x, y: op.cross_entropy(x, y),
        (_LOGITS, np.eye(3)[_LABELS]),
        lambda x, y: -(y * _log_softmax(x, 1)).sum(1).mean(),
        name="one hot",
    ),
    Case(
        "cross_entropy_probabilities",
        lambda x, y: op.cross_entropy(x, y, axis=0),
        (numbers(3, 2), np.eye(3, 2)),
        lambda x, y: -(y * _log_softmax(x, 0)).sum(0).mean(),
        name="axis 0",
    ),
    Case(
        "cross_entropy_probabilities_grad",
        lambda g, x, y: Expr(loss.cross_entropy_probabilities_grad(g.node, x.node, y.node, axis=1)),
        (numbers(2, seed=3), _LOGITS, _TARGETS),
        lambda g, x, y: g[:, None] * (np.exp(_log_softmax(x, 1)) * y.sum(1, keepdims=True) - y),
        order=2,
    ),
    Case(
        "cross_entropy_epsilon",
        lambda p, y: op.cross_entropy_epsilon(p, y),
        (_TARGETS, np.eye(3)[_LABELS]),
        lambda p, y: -(y * np.log(p + 1e-8)).sum() / 2,
        order=2,
        name="mean",
    ),
    Case(
        "cross_entropy_epsilon",
        lambda p, y: op.cross_entropy_epsilon(p, y, epsilon=0.1, reduction="none", axis=0),
        (_TARGETS.T.copy(), numbers(3, 2)),
        lambda p, y: -(y * np.log(p + 0.1)).sum(0),
        order=2,
        name="axis 0",
    ),
    Case(
        "cross_entropy_epsilon",
        lambda p, y: op.cross_entropy_epsilon(p, y, reduction="sum"),
        (_TARGETS, _LABELS),
        lambda p, y: -np.log(p[[0, 1], y] + 1e-8).sum(),
        name="indices",
    ),
    Case(
        "kl_divergence",
        lambda x, t: op.kl_divergence(op.log_softmax(x), t),
        (_LOGITS, _TARGETS),
        lambda x, t: (t * (np.log(t) - _log_softmax(x, 1))).sum() / 2,
        order=2,
        name="mean",
    ),
    Case(
        "kl_divergence",
        lambda x, t: op.kl_divergence(x, t, "none", axis=0),
        (_LOGITS, _TARGETS),
        lambda x, t: (t * (np.log(t) - x)).sum(0),
        name="axis 0",
    ),
]


def _binary(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-x))
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


def _huber(p: np.ndarray, t: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(p - t)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


_A, _B = numbers(2, 3), numbers(2, 3, seed=7)
_SIGNS = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
_ELEMENTWISE = [
    ("binary_cross_entropy", op.binary_cross_entropy, (_A, _TARGETS), _binary, 2),
    ("squared_error", op.mean_squared_error, (_A, _B), lambda p, t: (p - t) ** 2, 2),
    ("absolute_error", op.mean_absolute_error, (_A, _B), lambda p, t: np.abs(p - t), 1),
    ("huber", op.huber, (_A, _B), lambda p, t: _huber(p, t, 1.0), 2),
    ("hinge", op.hinge, (_A, _SIGNS), lambda p, t: np.maximum(0, 1 - t * p), 1),
]
_REDUCTIONS = {"mean": np.mean, "sum": np.sum, "none": np.asarray}
CASES += [
    Case(
        name,
        lambda p, t, f=function, r=reduction: f(p, t, reduction=r),
        inputs,
        lambda p, t, f=expected, r=reduction: _REDUCTIONS[r](f(p, t)),
        order=order,
        name=reduction,
    )
    for name, function, inputs, expected, order in _ELEMENTWISE
    for reduction in _REDUCTIONS
]
CASES += [
    Case(
        "huber",
        lambda p, t: op.huber(p, t, delta=0.5, reduction="none"),
        (_A, _B),
        lambda p, t: _huber(p, t, 0.5),
        order=2,
        name="delta",
    ),
    Case(
        "squared_error",
        lambda p, t: op.mean_squared_error(p, t, "sum"),
        (numbers(0, 3), numbers(0, 3)),
        lambda p, t: 0.0,
        name="no samples",
    ),
]
# The ops themselves broadcast, as element-wise ops do; the public functions want equal shapes.
CASES += [
    Case(
        name,
        lambda p, t, n=name, k=attrs: Expr(getattr(loss, n)(p.node, t.node, **k)),
        (numbers(2, 3), targets),
        expected,
        order=2 if name != "hinge" else 1,
        name="broadcast",
    )
    for name, attrs, targets, expected in [
        ("binary_cross_entropy", {}, np.array([0.2, 1.0, 0.0]), _binary),
        ("huber", {"delta": 1.0}, np.array([[0.2], [-0.3]]), lambda p, t: _huber(p, t, 1.0)),
        ("hinge", {}, np.array(1.0), lambda p, t: np.maximum(0, 1 - t * p)),
    ]
]
