"""Cases for norms, losses and gathers that round what they write, or add what they read, which
passes make."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr, wrap
from caldera.core.graph.ops.base import widen
from caldera.core.graph.ops.epilogue import (
    cross_entropy_with_gradient,
    gather_rounded,
    layer_norm_grad_residual,
    layer_norm_residual,
    layer_norm_rounded,
)
from tests.unit.ops.case import Case, numbers

EPS = 0.01
_LABELS = np.array([2, 0, 1, 2])


def _norm(*given: Expr) -> Any:
    nodes = [each.node for each in given]
    return wrap(layer_norm_rounded.outputs(*nodes, axis=(1,), eps=EPS, dtype=nodes[0].dtype))


def _normalised(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> Any:
    mean, variance = x.mean(1), x.var(1)
    unit = (x - mean[:, None]) / np.sqrt(variance + EPS)[:, None]
    return unit * scale + shift, mean, variance


def _residual(*given: Expr) -> Any:
    nodes = [each.node for each in given]
    return wrap(layer_norm_residual.outputs(*nodes, axis=(1,), eps=EPS, dtype=nodes[0].dtype))


def _added(x: np.ndarray, more: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> Any:
    return x + more, *_normalised(x + more, scale, shift)


def _gradient(g: Expr, x: Expr, scale: Expr, mean: Expr, variance: Expr, more: Expr) -> Any:
    statistics = [widen(each.node) for each in (mean, variance)]
    found = layer_norm_grad_residual.outputs(
        g.node,
        x.node,
        scale.node,
        *statistics,
        more.node,
        axis=(1,),
        eps=EPS,
        dtype=x.node.dtype,
        summed=True,
    )
    return wrap(found)


def _gradients(g: np.ndarray, x: np.ndarray, scale: np.ndarray, *rest: np.ndarray) -> Any:
    mean, variance, more = rest
    inverse = 1 / np.sqrt(variance + EPS)[:, None]
    unit, scaled = (x - mean[:, None]) * inverse, g * scale
    slant = (scaled * unit).mean(1, keepdims=True)
    dx = inverse * (scaled - scaled.mean(1, keepdims=True) - unit * slant) + more
    return dx, (g * unit).sum(0), g.sum(0), dx, dx.sum(0)


def _loss(g: Expr, x: Expr, labels: Expr) -> Any:
    return wrap(cross_entropy_with_gradient.outputs(widen(g.node), x.node, labels.node, axis=1))


def _losses(g: np.ndarray, x: np.ndarray, labels: np.ndarray) -> Any:
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    own = np.eye(x.shape[1])[labels]
    return -np.log((shares * own).sum(1)), g[:, None] * (shares - own)


def _gather(x: Expr, indices: Expr) -> Any:
    return Expr(gather_rounded(x.node, indices.node, axis=1, dtype=x.node.dtype))


CASES = [
    Case(
        "gather_rounded",
        _gather,
        (numbers(2, 5, 4), np.array([[3, 0, -1], [1, 1, 4]])),
        lambda x, indices: x[:, indices],
    ),
    Case(
        "layer_norm_rounded",
        _norm,
        (numbers(2, 5), numbers(5, seed=1), numbers(5, seed=2)),
        _normalised,
    ),
    Case(
        "layer_norm_residual",
        _residual,
        (numbers(2, 5), numbers(2, 5, seed=3), numbers(5, seed=1), numbers(5, seed=2)),
        _added,
    ),
    Case(
        "layer_norm_grad_residual",
        _gradient,
        (
            numbers(3, 5),
            numbers(3, 5, seed=3),
            numbers(5, seed=1),
            numbers(3, seed=2),
            numbers(3, seed=4, low=0.5),
            numbers(3, 5, seed=5),
        ),
        _gradients,
    ),
    Case(
        "cross_entropy_with_gradient", _loss, (numbers(4, seed=1), numbers(4, 3), _LABELS), _losses
    ),
]
