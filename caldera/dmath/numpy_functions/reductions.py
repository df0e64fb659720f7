"""Sums, products, extremes and truths over axes; positions of extremes; and without NaN."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.dmath.numpy_functions.dispatch import (
    Function,
    as_floats,
    handles,
    register,
)
from caldera.errors import DtypeError, ShapeError


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that NumPy's `axis` names, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    several = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple(int(each) % max(ndim, 1) for each in several) if ndim else ()


def kept(made: Any, shape: tuple[int, ...], axis: Any, keepdims: Any) -> Any:
    """Return a reduction's result, with axes of length 1 if `keepdims` is set."""
    if not keepdims:
        return made
    axes = axes_of(axis, len(shape))
    return op.reshape(made, tuple(1 if i in axes else n for i, n in enumerate(shape)))


def expanded(made: Any, ndim: int, axis: Any) -> Any:
    """Return a reduction's result with its axes restored, for broadcasting with the input."""
    return op.unsqueeze(made, axes_of(axis, ndim)) if ndim and axes_of(axis, ndim) else made


def _neutral(a: Any, largest: bool) -> Any:
    kind = a.dtype.kind
    if kind == "b":
        return not largest
    if kind in "iu":
        return int(np.iinfo(a.dtype).min if largest else np.iinfo(a.dtype).max)
    return -np.inf if largest else np.inf


def _reducing(function: Function, neutral: Function, join: Function) -> Function:
    """A reduction from a start, over the elements of a mask."""

    def reduce(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        if a.size == 0 and initial is not None:
            # Some reductions have no neutral element.
            shape = _reduced(a.shape, axis, keepdims)
            if 0 not in shape:
                return op.full(shape, initial, a.dtype)
        if where is not None:
            a = op.where(where, a, op.cast(op.full((), neutral(a), a.dtype), a.dtype))
        made = function(a, _plain(axis), bool(keepdims))
        return made if initial is None else join(made, np.asarray(initial).astype(made.dtype))

    return reduce


def _plain(axis: Any) -> Any:
    return axis if axis is None else tuple(axis) if isinstance(axis, list | tuple) else index(axis)


def _reduced(shape: tuple[int, ...], axis: Any, keepdims: Any) -> tuple[int, ...]:
    axes = axes_of(axis, len(shape))
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)


register(
    {
        np.sum: _reducing(op.sum, lambda a: 0, op.add),
        np.prod: _reducing(op.prod, lambda a: 1, op.mul),
    }
)


def _without_dtype(function: Function) -> Function:
    def reduce(
        a: Any, axis: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None
    ) -> Any:
        return function(a, axis, None, keepdims, initial, where)

    return reduce


_any = _without_dtype(_reducing(op.any, lambda a: False, op.logical_or))
_all = _without_dtype(_reducing(op.all, lambda a: True, op.logical_and))
_max = _without_dtype(_reducing(op.max, lambda a: _neutral(a, True), op.maximum))
_min = _without_dtype(_reducing(op.min, lambda a: _neutral(a, False), op.minimum))


@handles(np.any)
def _(a: Any, axis: Any = None, keepdims: Any = False, where: Any = None) -> Any:
    return _any(a, axis, keepdims, None, where)


@handles(np.all)
def _(a: Any, axis: Any = None, keepdims: Any = False, where: Any = None) -> Any:
    return _all(a, axis, keepdims, None, where)


register({np.max: _max, np.min: _min})


@handles(np.mean)
def mean(
    a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, where: Any = None
) -> Any:
    """Return the mean over axes, of the elements of a mask."""
    require(
        dtype is None or np.dtype(dtype).kind not in "biu" or _count(a, axis),
        "np.mean",
        "dtype= that has nan",
        dtype,
        error=DtypeError,
    )
    if where is None:
        return op.mean(as_floats(a), _plain(axis), bool(keepdims))
    flags = op.broadcast(op.cast(where, "bool"), a.shape)
    a = as_floats(a)
    total = op.sum(op.where(flags, a, op.full((), 0, a.dtype)), _plain(axis), bool(keepdims))
    return op.div(total, op.cast(op.sum(flags, _plain(axis), bool(keepdims)), total.dtype))


def variance(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    where: Any = None,
    correction: Any = None,
) -> Any:
    """Return the variance over axes: the sum of squared distances to the mean over n - ddof, or
    over 0 if that is negative, as NumPy has it."""
    require(not ddof or correction is None, "np.var", "ddof= or correction=", "both")
    require(
        dtype is None or np.dtype(dtype).kind not in "biu",
        "np.var",
        "dtype= of floats",
        dtype,
        error=DtypeError,
    )
    less, a = ddof or correction or 0, as_floats(a)
    if where is not None:
        flags = op.broadcast(op.cast(where, "bool"), a.shape)
        count: Any = op.sum(flags, _plain(axis), bool(keepdims))
    else:
        flags, count = None, _count(a, axis)
    centred = op.sub(a, mean(a, axis, None, True, where) if a.ndim else a)
    size = op.square(op.abs(centred))
    if flags is not None:
        size = op.where(flags, size, op.full((), 0, size.dtype))
    total = op.sum(size, _plain(axis), bool(keepdims))
    if flags is not None:
        left = op.maximum(op.cast(count, "float64") - less, 0)
        return op.div(total, op.cast(left, total.dtype))
    return op.div(total, op.full((), max(count - less, 0), total.dtype))


def _count(a: Any, axis: Any) -> int:
    return int(np.prod([a.shape[i] for i in axes_of(axis, a.ndim)], dtype=np.int64))


handles(np.var, aside="ddof correction where")(variance)


@handles(np.std, aside="ddof correction where")
def deviation(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    where: Any = None,
    correction: Any = None,
) -> Any:
    """Return the root of the variance."""
    return op.sqrt(variance(a, axis, dtype, ddof, keepdims, where, correction))


# --- positions


def _position(find: Function) -> Function:
    def reduce(a: Any, axis: Any = None, keepdims: Any = False) -> Any:
        if (a.shape[index(axis) % a.ndim] if axis is not None and a.ndim else a.size) == 0:
            raise ShapeError.build("np.argmax", expected="at least one element", got="none")
        return find(a, None if axis is None else index(axis), bool(keepdims))

    return reduce


register({np.argmax: _position(op.argmax), np.argmin: _position(op.argmin)})


@handles(np.count_nonzero)
def _(a: Any, axis: Any = None, keepdims: Any = False) -> Any:
    return op.sum(op.cast(op.not_equal(a, 0), "int64"), _plain(axis), bool(keepdims))


@handles(np.ptp)
def _(a: Any, axis: Any = None, keepdims: Any = False) -> Any:
    largest = op.max(a, _plain(axis), bool(keepdims))
    return op.sub(largest, op.min(a, _plain(axis), bool(keepdims)))


# --- without nan


def present(a: Any) -> Any:
    """Return True for elements that are not nan."""
    return op.logical_not(op.isnan(a)) if a.dtype.kind in "fc" else op.full(a.shape, True, "bool")


def filled(a: Any, value: Any) -> Any:
    """Return the elements, with a value in place of nan."""
    return op.where(op.isnan(a), op.full((), value, a.dtype), a) if a.dtype.kind in "fc" else a


def both(where: Any, a: Any) -> Any:
    """Return the caller's mask without NaN elements."""
    return present(a) if where is None else op.logical_and(present(a), where)


def _nan_reducing(function: Function, value: Any) -> Function:
    def reduce(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        return function(filled(a, value), axis, dtype, keepdims, initial, where)

    return reduce


register(
    {
        np.nansum: _nan_reducing(_reducing(op.sum, lambda a: 0, op.add), 0),
        np.nanprod: _nan_reducing(_reducing(op.prod, lambda a: 1, op.mul), 1),
    }
)


def _nan_extreme(function: Function, largest: bool) -> Function:
    def reduce(
        a: Any, axis: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None
    ) -> Any:
        if a.dtype.kind != "f":
            return function(a, axis, keepdims, initial, where)
        if a.size == 0:
            return function(a, axis, keepdims, initial, where)
        made = function(filled(a, _neutral(a, largest)), axis, keepdims, initial, where)
        counts = present(a)
        if where is not None:
            # NumPy fills NaN first: elements outside the mask must not raise a warning.
            counts = op.logical_or(counts, op.logical_not(where))
        some = op.any(counts, _plain(axis), bool(keepdims))
        return op.where(some, made, op.full((), np.nan, a.dtype))

    return reduce


register({np.nanmax: _nan_extreme(_max, True), np.nanmin: _nan_extreme(_min, False)})


@handles(np.nanmean)
def _(a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, where: Any = None) -> Any:
    return mean(filled(a, 0), axis, dtype, keepdims, both(where, a))


def _nan_variance(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    where: Any = None,
    correction: Any = None,
) -> Any:
    if a.dtype.kind not in "fc":
        return variance(a, axis, dtype, ddof, keepdims, where, correction)
    mask = both(where, a)
    made = variance(filled(a, 0), axis, dtype, ddof, keepdims, mask, correction)
    count = op.sum(mask, _plain(axis), bool(keepdims))
    return op.where(
        op.less_equal(count, ddof or correction or 0), op.full((), np.nan, made.dtype), made
    )


handles(np.nanvar, aside="ddof correction where", floats=False)(_nan_variance)


@handles(np.nanstd, aside="ddof correction where", floats=False)
def _(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    where: Any = None,
    correction: Any = None,
) -> Any:
    return op.sqrt(_nan_variance(a, axis, dtype, ddof, keepdims, where, correction))


def _nan_position(find: Function, largest: bool) -> Function:
    def reduce(a: Any, axis: Any = None, keepdims: Any = False) -> Any:
        if a.dtype.kind == "f" and a.size:
            empty = op.logical_not(op.any(present(a), _plain(axis)))
            if bool(op.any(Expr(empty.node))):
                raise ShapeError.build(
                    "np.nanargmax", expected="a number in each slice", got="only nan in one"
                )
            a = filled(a, _neutral(a, largest))
        return _position(find)(a, axis, keepdims)

    return reduce


register(
    {np.nanargmax: _nan_position(op.argmax, True), np.nanargmin: _nan_position(op.argmin, False)}
)
