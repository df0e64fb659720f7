"""Cases for reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers

_AXES = (None, 0, -1, (0, 2), (), (0, 1, 2))
_X = numbers(2, 3, 2)


def _lengths(x: np.ndarray, axis: Any, keepdims: bool) -> Any:
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


def _logsumexp(x: np.ndarray, axis: Any, keepdims: bool) -> Any:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


_REDUCTIONS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("sum", op.sum, np.sum),
    ("mean", op.mean, np.mean),
    ("max", op.max, np.max),
    ("min", op.min, np.min),
    ("prod", op.prod, np.prod),
    ("var", op.variance, np.var),
    ("logsumexp", op.logsumexp, _logsumexp),
    ("norm", lambda x, axis, keepdims: op.norm(x, 2, axis, keepdims), _lengths),
)

CASES = [
    Case(
        name,
        lambda x, f=function, a=axis, k=keepdims: f(x, axis=a, keepdims=k),
        (_X,),
        lambda x, f=right, a=axis, k=keepdims: f(x, axis=a, keepdims=k),
        name=f"axis {axis}",
        order=2,
    )
    for name, function, right in _REDUCTIONS
    for axis, keepdims in zip(_AXES, (False, True, False, True, False, False), strict=True)
    if not (name == "sum" and axis == ())
]
CASES += [
    Case(
        "sum",
        lambda x: op.sum(x, axis=1),
        (numbers(2, 0),),
        lambda x: x.sum(1),
        order=2,
        name="nothing",
    ),
    Case(
        "sum",
        lambda x: op.sum(x),
        (np.array([[100, 100]], "uint8"),),
        np.sum,
        differentiable=False,
        name="integers",
    ),
    Case(
        "sum",
        lambda x: op.sum(x > 0),
        (_X,),
        lambda x: np.sum(x > 0),
        differentiable=False,
        name="truths",
    ),
    Case(
        "sum",
        lambda x: op.any(x > 1.9, axis=1),
        (_X,),
        lambda x: np.any(x > 1.9, axis=1),
        differentiable=False,
        name="any",
    ),
    Case(
        "sum",
        lambda x: op.all(x > -1, axis=1),
        (_X,),
        lambda x: np.all(x > -1, axis=1),
        differentiable=False,
        name="all",
    ),
    Case(
        "mean",
        lambda x: op.mean(x, axis=0),
        (numbers(2, 0),),
        lambda x: x.mean(0),
        name="of nothing",
    ),
    Case(
        "prod",
        lambda x: op.prod(x, axis=1),
        (numbers(2, 0),),
        lambda x: x.prod(1),
        order=2,
        name="nothing",
    ),
    Case(
        "prod",
        lambda x: op.prod(x, axis=1),
        (np.array([[2.0, 0.0, 3.0], [0.0, 5.0, 0.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),),
        lambda x: x.prod(1),
        order=2,
        name="with zeros",
    ),
    Case(
        "prod",
        lambda x: op.prod(x, axis=(0, 1)),
        (np.array([[2.0, 0.0, 3.0], [1.0, 5.0, 4.0]]),),
        np.prod,
        order=2,
        name="with zeros over two axes",
    ),
    Case("prod", lambda x: op.prod(x), (numbers(9, low=0.5),), np.prod, order=2, name="long"),
    Case(
        "var",
        lambda x: op.variance(x, axis=1, correction=1),
        (_X,),
        lambda x: x.var(1, ddof=1),
        order=2,
        name="corrected",
    ),
    Case(
        "logsumexp",
        lambda x: op.logsumexp(x, axis=0),
        (numbers(2, 0),),
        lambda x: np.zeros(0),
        name="of no results",
    ),
    Case(
        "norm",
        lambda x: op.norm(x, 1, axis=0),
        (_X,),
        lambda x: np.abs(x).sum(0),
        order=2,
        name="order 1",
    ),
    Case(
        "norm",
        lambda x: op.norm(x, float("inf"), axis=(0, 1)),
        (_X,),
        lambda x: np.abs(x).max((0, 1)),
        order=2,
        name="order inf",
    ),
    Case(
        "argmax",
        lambda x: op.argmax(x, axis=1, keepdims=True),
        (_X,),
        lambda x: np.argmax(x, axis=1, keepdims=True),
        differentiable=False,
    ),
    Case("argmax", lambda x: op.argmax(x), (_X,), np.argmax, differentiable=False, name="all"),
    Case(
        "argmin",
        lambda x: op.argmin(x, axis=-1),
        (_X,),
        lambda x: np.argmin(x, axis=-1),
        differentiable=False,
    ),
    Case(
        "argmin",
        lambda x: op.argmin(x, keepdims=True),
        (_X,),
        lambda x: np.argmin(x, keepdims=True),
        differentiable=False,
        name="all",
    ),
    Case("cumsum", lambda x: op.cumsum(x, axis=1), (_X,), lambda x: np.cumsum(x, 1), order=2),
    Case(
        "cumsum",
        lambda x: op.cumsum(x, axis=-1, reverse=True),
        (_X,),
        lambda x: np.flip(np.cumsum(np.flip(x, -1), -1), -1),
        order=2,
        name="reverse",
    ),
    Case("cumsum", lambda x: op.cumsum(x, axis=0), (numbers(0, 2),), lambda x: x, name="nothing"),
    Case(
        "cumsum",
        lambda x: op.cumsum(x, axis=0),
        (np.array([100, 100, 100], "int8"),),
        lambda x: np.cumsum(x),
        differentiable=False,
        name="integers",
    ),
]
