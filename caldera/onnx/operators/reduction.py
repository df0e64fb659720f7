"""Reductions, running sums and products, places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import HALVES, bool_, float32, int8, is_float
from caldera.onnx.operators.movement import widened
from caldera.onnx.operators.registry import Value, axis_of, integer, integers, operator

Axes = tuple[int, ...]


def _reduction(function: Any) -> Any:
    """Axes are an attribute or, in later versions, an input; none at all means every axis."""

    def translate(
        x: Value, axes: Value = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Value:
        chosen = integers(axes, "axes") if axes is not None else ()
        if not chosen and noop_with_empty_axes:
            return op.cast(function(op.unsqueeze(x, 0), (0,), False), x.dtype)
        every = tuple(range(len(x.shape)))
        over = tuple(axis_of(axis, len(every)) for axis in chosen) or every
        wide = op.cast(x, float32) if x.dtype in HALVES else x
        return op.cast(function(wide, over, bool(keepdims)), x.dtype)

    return translate


def _extreme(function: Any, is_max: bool) -> Any:
    def reduce(x: Value, axes: Axes, keepdims: bool) -> Expr:
        if 0 not in [x.shape[axis] for axis in axes]:
            wide = op.cast(x, int8) if x.dtype == bool_ else x
            return op.cast(function(wide, axes, keepdims), x.dtype)
        # Of no elements it is the number that any other one would replace.
        shape = op.sum(np.zeros(x.shape, np.int8), axes, keepdims).shape
        return op.broadcast(op.cast(_neutral(x.dtype, is_max), x.dtype), shape)

    return reduce


def _neutral(dtype: Any, is_max: bool) -> Any:
    if dtype == bool_:
        return not is_max
    if is_float(dtype):
        return -np.inf if is_max else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if is_max else limits.max)


_REDUCTIONS: dict[str, Callable[..., Expr]] = {
    "ReduceSum": op.sum,
    "ReduceMean": op.mean,
    "ReduceProd": op.prod,
    "ReduceMax": _extreme(op.max, True),
    "ReduceMin": _extreme(op.min, False),
    "ReduceL1": lambda x, *how: op.sum(op.abs(x), *how),
    "ReduceL2": lambda x, *how: op.sqrt(op.sum(op.square(x), *how)),
    "ReduceLogSum": lambda x, *how: op.log(op.sum(x, *how)),
    "ReduceLogSumExp": op.logsumexp,
    "ReduceSumSquare": lambda x, *how: op.sum(op.square(x), *how),
}
for _name, _function in _REDUCTIONS.items():
    operator(_name)(_reduction(_function))


def _place(function: Any) -> Any:
    def translate(
        x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Expr:
        if not select_last_index:
            return function(x, axis, bool(keepdims))
        position = axis_of(axis, len(x.shape))
        from_the_end = function(op.flip(x, position), position, bool(keepdims))
        return op.sub(x.shape[position] - 1, from_the_end)

    return translate


operator("ArgMax")(_place(op.argmax))
operator("ArgMin")(_place(op.argmin))


@operator("CumSum")
def cumsum(x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Expr:
    """Return the running sum, with or without the element itself."""
    return op.cast(_running(op.cumsum, x, axis, exclusive, reverse, 0), x.dtype)


@operator("CumProd")
def cumprod(x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
    """Return the running product, in log2(n) doubling steps."""
    return _running(_products, x, axis, exclusive, reverse, 1)


def _running(
    function: Callable[..., Expr], x: Value, axis: Value, exclusive: int, reverse: int, first: int
) -> Expr:
    position = axis_of(integer(axis, "axis"), len(x.shape))
    forward = op.flip(x, position) if reverse else x
    result = function(_later(forward, position, 1, first) if exclusive else forward, position)
    return op.flip(result, position) if reverse else result


def _products(x: Value, axis: int) -> Expr:
    step = 1
    while step < x.shape[axis]:
        x = op.mul(x, _later(x, axis, step, 1))
        step *= 2
    return x


def _later(x: Value, axis: int, by: int, value: int) -> Expr:
    """Moved to higher indices, with `value` in the places that come free."""
    widths = [(by, -by) if each == axis else (0, 0) for each in range(len(x.shape))]
    return widened(x, widths, value)
