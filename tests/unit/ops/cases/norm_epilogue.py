"""Cases for batch normalisation with relu, which a pass makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.graph.ops import epilogue
from caldera.lazy import Expr, wrap
from tests.unit.ops.case import Case, numbers

EPS = 0.1
_X, _MORE = numbers(4, 3, 2), numbers(4, 3, 2, seed=5)
_VECTORS = numbers(3, seed=1), numbers(3, seed=2)
_STATISTICS = numbers(3, seed=3), numbers(3, seed=4, low=0.5)


def _call(name: str) -> Any:
    def run(*given: Expr) -> Any:
        found = getattr(epilogue, name)(*[each.node for each in given], axis=1, eps=EPS)
        return wrap(found) if isinstance(found, tuple) else Expr(found)

    return run


def _given(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, mean: np.ndarray, variance: np.ndarray,
    *more: np.ndarray,
) -> np.ndarray:  # fmt: skip
    column = (3, 1)
    factor = (scale / np.sqrt(variance + EPS)).reshape(column)
    y = (x - mean.reshape(column)) * factor + shift.reshape(column)
    return np.maximum(sum(more, start=y), 0)


def _batch(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, *more: np.ndarray) -> Any:
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    return _given(x, scale, shift, mean, variance, *more), mean, variance


CASES = [
    Case("batch_norm_relu", _call("batch_norm_relu"), (_X, *_VECTORS), _batch, name="plain"),
    Case("batch_norm_relu", _call("batch_norm_relu"), (_X, *_VECTORS, _MORE), _batch, name="added"),
    Case("batch_norm_inference_relu", _call("batch_norm_inference_relu"),
         (_X, *_VECTORS, *_STATISTICS), _given, name="plain"),
    Case("batch_norm_inference_relu", _call("batch_norm_inference_relu"),
         (_X, *_VECTORS, *_STATISTICS, _MORE), _given, name="added"),
    Case("batch_norm_relu_grad", _call("batch_norm_relu_grad"),
         (_MORE, _X, *_VECTORS, *_STATISTICS)),
]  # fmt: skip
