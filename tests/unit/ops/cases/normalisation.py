"""Cases for normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, wrap
from caldera.core.graph.ops import normalisation
from tests.unit.ops.case import Case, numbers

EPS = 0.01


def _normalised(x: np.ndarray, over: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean, variance = x.mean(over, keepdims=True), x.var(over, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPS), mean.squeeze(over), variance.squeeze(over)


def batch(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, axis: int = 1
) -> tuple[np.ndarray, ...]:
    axis %= x.ndim
    unit, *statistics = _normalised(x, tuple(i for i in range(x.ndim) if i != axis))
    aligned = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    return unit * scale.reshape(aligned) + shift.reshape(aligned), *statistics


_S, _T = numbers(3, seed=1), numbers(3, seed=2)
_M, _V = numbers(3, seed=3), numbers(3, seed=4, low=0.5)
CASES = [
    Case(
        "batch_norm",
        lambda x, s, t, a=axis: op.batch_norm(x, s, t, eps=EPS, axis=a),
        (numbers(*shape), _S, _T),
        lambda x, s, t, a=axis: batch(x, s, t, a),
        order=2,
        name=f"axis {axis}",
    )
    for shape, axis in [((4, 3), 1), ((2, 3, 2), 1), ((2, 2, 3), -1), ((3, 4), 0)]
]
CASES += [
    Case(
        "batch_norm",
        lambda x, s, t: op.batch_norm(x, s, t, eps=EPS)[0],
        (numbers(2, 3, 2), _S, _T),
        lambda x, s, t: batch(x, s, t)[0],
        order=2,
        name="only y",
    ),
    Case(
        "batch_norm",
        lambda x, s, t: op.batch_norm(x, s, t, eps=EPS)[1:],
        (numbers(2, 3, 2), _S, _T),
        lambda x, s, t: batch(x, s, t)[1:],
        order=2,
        name="only statistics",
    ),
    Case(
        "batch_norm",
        lambda x, s, t: op.batch_norm(x, s, t, eps=EPS)[0] ** 2.0,
        (numbers(3, 3), _S, _T),
        lambda x, s, t: batch(x, s, t)[0] ** 2,
        order=2,
        name="squared",
    ),
    Case(
        "batch_norm",
        lambda x, s, t: op.batch_norm(x, s, t, eps=EPS)[0],
        (numbers(0, 3), _S, _T),
        lambda x, s, t: np.zeros((0, 3)),
        name="no samples",
    ),
    Case(
        "batch_norm_inference",
        lambda *a: op.batch_norm(*a, eps=EPS),
        (numbers(2, 3, 2), _S, _T, _M, _V),
        lambda x, s, t, m, v: ((x.swapaxes(1, 2) - m) / np.sqrt(v + EPS) * s + t).swapaxes(1, 2),
        order=2,
    ),
    Case(
        "batch_norm_inference",
        lambda *a: op.batch_norm(*a, eps=EPS, axis=-1),
        (numbers(2, 3), _S, _T, _M, _V),
        lambda x, s, t, m, v: (x - m) / np.sqrt(v + EPS) * s + t,
        name="axis -1",
    ),
]


def _layer(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, axes: tuple[int, ...]) -> Any:
    aligned = [n if i in axes else 1 for i, n in enumerate(x.shape)]
    return _normalised(x, axes)[0] * scale.reshape(aligned) + shift.reshape(aligned)


CASES += [
    Case(
        "layer_norm",
        lambda x, s, t, a=axes: op.layer_norm(x, s, t, axis=a, eps=EPS),
        (numbers(*shape), *[numbers(*[shape[i] for i in axes], seed=k) for k in (1, 2)]),
        lambda x, s, t, a=axes: _layer(x, s, t, a),
        order=2,
        name=f"axes {axes}",
    )
    for shape, axes in [
        ((2, 3), (1,)),
        ((2, 3, 2), (2,)),
        ((2, 3, 2), (1, 2)),
        ((3, 2), (0,)),
        ((2, 2, 3), (0, 2)),
        ((0, 3), (1,)),
    ]
]


def _group(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, groups: int) -> np.ndarray:
    result = np.empty_like(x)
    each = x.shape[1] // groups
    for n in range(x.shape[0]):
        for start in range(0, x.shape[1], each):
            part = x[n, start : start + each]
            result[n, start : start + each] = (part - part.mean()) / np.sqrt(part.var() + EPS)
    aligned = (-1,) + (1,) * (x.ndim - 2)
    return result * scale.reshape(aligned) + shift.reshape(aligned)


CASES += [
    Case(
        "group_norm",
        lambda x, s, t, g=groups: op.group_norm(x, g, s, t, eps=EPS),
        (numbers(*shape), numbers(shape[1], seed=1), numbers(shape[1], seed=2)),
        lambda x, s, t, g=groups: _group(x, s, t, g),
        order=2,
        name=f"groups {groups}",
    )
    for shape, groups in [((2, 4), 2), ((1, 4, 2), 1), ((2, 2, 3), 2), ((1, 4, 1, 2), 2)]
]


# The gradients as functions of their own: that of y alone, with the statistics given.
def _grad_case(
    name: str, shape: tuple[int, ...], statistics: tuple[int, ...], **attrs: Any
) -> Case:
    function = getattr(normalisation, name)
    return Case(
        name,
        lambda *a: wrap(function.outputs(*[each.node for each in a], eps=EPS, **attrs)),
        (
            numbers(*shape),
            numbers(*shape, seed=1),
            numbers(shape[1], seed=2),
            numbers(*statistics, seed=3),
            numbers(*statistics, seed=4, low=0.5),
        ),
        order=2,
    )


CASES += [
    _grad_case("batch_norm_grad", (2, 2, 2), (2,), axis=1),
    _grad_case("layer_norm_grad", (2, 3), (2,), axis=(1,)),
    _grad_case("group_norm_grad", (2, 4), (2, 2), groups=2),
]


def _local(x: np.ndarray, size: int, alpha: float, beta: float, k: float) -> np.ndarray:
    result = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]
        result[:, c] = x[:, c] / (k + alpha / size * (near**2).sum(1)) ** beta
    return result


_LOCAL = {"alpha": 0.8, "beta": 0.75, "k": 1.5}
CASES += [
    Case(
        "local_response_norm",
        lambda x, n=size: op.local_response_norm(x, n, **_LOCAL),
        (numbers(*shape),),
        lambda x, n=size: _local(x, n, **_LOCAL),
        order=2,
        name=f"size {size}",
    )
    for shape, size in [((2, 4, 2), 3), ((1, 5), 2), ((1, 3, 1, 2), 5), ((2, 3), 1), ((0, 3), 3)]
]
CASES += [
    Case(
        "local_response_norm",
        op.local_response_norm,
        (numbers(1, 6, 2, seed=1, high=9.0),),
        lambda x: _local(x, 5, 1e-4, 0.75, 1.0),
        name="defaults",
    ),
    Case(
        "local_response_norm_grad",
        lambda g, x: Expr(
            normalisation.local_response_norm_grad(g.node, x.node, window=2, **_LOCAL)
        ),
        (numbers(2, 4), numbers(2, 4, seed=1)),
        order=2,
    ),
]
