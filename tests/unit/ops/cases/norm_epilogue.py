"""Cases for batch normalisation with relu, which a pass makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr, wrap
from caldera.core.graph.ops import epilogue
from tests.unit.ops.case import Case, numbers

EPS = 0.1
_X, _MORE = numbers(4, 3, 2), numbers(4, 3, 2, seed=5)
_VECTORS = numbers(3, seed=1), numbers(3, seed=2)
_STATISTICS = numbers(3, seed=3), numbers(3, seed=4, low=0.5)


def _call(name: str) -> Any:
    def run(*given: Expr) -> Any:
        found = getattr(epilogue, name).outputs(*[each.node for each in given], axis=1, eps=EPS)
        return wrap(found) if len(found) > 1 else Expr(found[0])

    return run


def _given(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *more: np.ndarray,
) -> np.ndarray:
    column = (3, 1)
    factor = (scale / np.sqrt(variance + EPS)).reshape(column)
    y = (x - mean.reshape(column)) * factor + shift.reshape(column)
    return np.maximum(sum(more, start=y), 0)


def _batch(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, *more: np.ndarray) -> Any:
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    return _given(x, scale, shift, mean, variance, *more), mean, variance


_IMAGE, _LIKE = numbers(2, 3, 2, 2), numbers(2, 3, 2, 2, seed=6)
_FILTERS, _SLOPE = numbers(1, 3, 3, 3), numbers(2, 1, 2, 2, seed=7)


_ONE_TAP = numbers(1, 3, 1, 1)


def _how(filters: Any) -> dict[str, Any]:
    edge = (filters.shape[2] // 2,) * 2
    return {"stride": (1, 1), "padding": (edge, edge), "dilation": (1, 1), "groups": 1}


def _moments(x: Expr, w: Expr) -> Any:
    return wrap(epilogue.conv2d_moments.outputs(x.node, w.node, **_how(w)))


def _with_moments(x: np.ndarray, w: np.ndarray) -> Any:
    height, width = x.shape[2:]
    edge, taps = (w.shape[2] // 2,) * 2, range(w.shape[2])
    padded = np.pad(x, ((0, 0), (0, 0), edge, edge))
    y = sum(
        np.einsum("nchw,kc->nkhw", padded[:, :, r : r + height, s : s + width], w[:, :, r, s])
        for r in taps
        for s in taps
    )
    return y, y.mean((0, 2, 3)), y.var((0, 2, 3))


def _reduce(mask: str | None, added: bool) -> Any:
    def run(*given: Expr) -> Any:
        nodes = [each.node for each in given]
        return wrap(
            epilogue.conv2d_input_norm_reduce.outputs(
                *nodes, mask=mask, added=added, eps=EPS, shape=_IMAGE.shape, **_how(given[1])
            )
        )

    return run


_REDUCED = (_SLOPE, _FILTERS, _IMAGE, _VECTORS[0], *_STATISTICS)
_OF_ONE_TAP = (_SLOPE, _ONE_TAP, *_REDUCED[2:])

CASES = [
    Case("conv2d_moments", _moments, (_IMAGE, _FILTERS), _with_moments),
    Case("conv2d_moments", _moments, (_IMAGE, _ONE_TAP), _with_moments, name="one tap"),
    Case("conv2d_input_norm_reduce", _reduce(None, added=False), _OF_ONE_TAP, name="one tap"),
    Case(
        "conv2d_input_norm_reduce",
        _reduce("x", added=True),
        (*_REDUCED, _LIKE, _VECTORS[1]),
        name="behind a relu",
    ),
    Case("conv2d_input_norm_reduce", _reduce("y", added=False), (*_REDUCED, _LIKE), name="masked"),
    Case(
        "batch_norm_grad_elementwise",
        _call("batch_norm_grad_elementwise"),
        (_MORE, _X, _VECTORS[0], *_STATISTICS, *_VECTORS),
    ),
    Case("batch_norm_relu", _call("batch_norm_relu"), (_X, *_VECTORS), _batch, name="plain"),
    Case("batch_norm_relu", _call("batch_norm_relu"), (_X, *_VECTORS, _MORE), _batch, name="added"),
    Case(
        "batch_norm_inference_relu",
        _call("batch_norm_inference_relu"),
        (_X, *_VECTORS, *_STATISTICS),
        _given,
        name="plain",
    ),
    Case(
        "batch_norm_inference_relu",
        _call("batch_norm_inference_relu"),
        (_X, *_VECTORS, *_STATISTICS, _MORE),
        _given,
        name="added",
    ),
    Case(
        "batch_norm_relu_grad", _call("batch_norm_relu_grad"), (_MORE, _X, *_VECTORS, *_STATISTICS)
    ),
]
