"""Elementwise functions that are not ufuncs, creation functions and array properties."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.core.tensor import canonical
from caldera.dmath.numpy_functions.dispatch import (
    Function,
    as_dtype,
    as_floats,
    handles,
    is_array,
    register,
)


def _round(a: Any, decimals: Any = 0) -> Any:
    decimals = int(decimals)
    if a.dtype.kind == "c":
        return op.complex(_round(op.real(a), decimals), _round(op.imag(a), decimals))
    if a.dtype.kind == "b":
        return op.cast(a, "float16")
    if a.dtype.kind not in "iu":
        unit = 10.0 ** abs(decimals)
        if decimals == 0:
            return op.round(a)
        return op.round(a * unit) / unit if decimals > 0 else op.round(a / unit) * unit
    if decimals >= 0:
        return a
    # Computed with integers: large ones are not representable as floats.
    unit = 10**-decimals
    below = op.floor_div(a, unit) * unit
    twice = 2 * (a - below)
    # Halves are rounded to even multiples.
    is_half, is_odd = op.equal(twice, unit), op.mod(op.floor_div(below, unit), 2) > 0
    is_up = op.logical_or(twice > unit, op.logical_and(is_half, is_odd))
    return below + unit * op.cast(is_up, a.dtype)


def _angle(z: Any, deg: Any = False) -> Any:
    made = op.angle(as_floats(z))
    return op.mul(made, 180 / np.pi) if deg else made


def _nan_to_num(
    x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    if not copy or x.dtype.kind not in "fc":
        require(copy, "np.nan_to_num", "copy=True", "False")
        return x
    if x.dtype.kind == "c":
        return op.complex(*[_nan_to_num(p, True, nan, posinf, neginf) for p in _parts(x)])
    info = np.finfo(x.dtype)
    ends = info.min if neginf is None else neginf, info.max if posinf is None else posinf
    made = op.where(op.isnan(x), op.full((), nan, x.dtype), x)
    for end, value in zip((-np.inf, np.inf), ends, strict=True):
        made = op.where(op.equal(x, end), op.full((), value, x.dtype), made)
    return made


def _parts(x: Any) -> tuple[Any, Any]:
    return op.real(x), op.imag(x)


def _sinc(x: Any) -> Any:
    turned = op.mul(as_floats(x), np.pi)
    at_zero = op.equal(turned, 0)
    safe = op.where(at_zero, op.full((), 1, turned.dtype), turned)
    return op.where(at_zero, op.full((), 1, turned.dtype), op.div(op.sin(safe), safe))


def _infinite(sign: float) -> Function:
    return lambda x: op.equal(as_floats(x), sign * np.inf)


register(
    {
        np.round: _round,
        np.fix: lambda x: op.trunc(x),
        np.real: lambda val: op.real(val),
        np.imag: lambda val: op.imag(val),
        np.angle: _angle,
        np.nan_to_num: _nan_to_num,
        np.sinc: _sinc,
        np.isposinf: _infinite(1),
        np.isneginf: _infinite(-1),
        np.isreal: lambda x: op.equal(op.imag(x), 0),
        np.iscomplex: lambda x: op.not_equal(op.imag(x), 0),
    }
)


def _close(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Any:
    a, b = (as_floats(each if hasattr(each, "dtype") else np.asarray(each)) for each in (a, b))
    dtype = np.result_type(a.dtype, b.dtype)
    a, b = as_dtype(a, dtype), as_dtype(b, dtype)
    return op.isclose(a, b, float(rtol), float(atol), bool(equal_nan))


@handles(np.isclose)
def _(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Any:
    return _close(a, b, rtol, atol, equal_nan)


@handles(np.allclose)
def _(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> bool:
    return bool(op.all(_close(a, b, rtol, atol, equal_nan)))


@handles(np.array_equal, ruled=False)
def _(a1: Any, a2: Any, equal_nan: Any = False) -> bool:
    first, second = (each if hasattr(each, "dtype") else np.asarray(each) for each in (a1, a2))
    return first.shape == second.shape and _all_equal(first, second, equal_nan)


@handles(np.array_equiv, ruled=False)
def _(a1: Any, a2: Any) -> bool:
    first, second = (each if hasattr(each, "dtype") else np.asarray(each) for each in (a1, a2))
    try:
        np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return False
    return _all_equal(first, second, False)


def _all_equal(first: Any, second: Any, equal_nan: Any) -> bool:
    same = np.equal(first, second)
    if equal_nan:
        nan = [op.isnan(each) for each in (first, second) if each.dtype.kind in "fc"]
        same = op.logical_or(same, op.logical_and(*nan)) if len(nan) == 2 else same
    return bool(op.all(same))


# --- like others, and what they are


def _like(value: Any) -> Function:
    def run(
        a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
    ) -> Any:
        sizes = a.shape if shape is None else tuple(np.atleast_1d(shape).tolist())
        return op.full(sizes, value, a.dtype if dtype is None else canonical(dtype))

    return run


@handles(np.full_like, ruled=False)
def _(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: Any = True,
    shape: Any = None,
) -> Any:
    kind = a.dtype if dtype is None else canonical(dtype)
    value = fill_value if hasattr(fill_value, "node") else np.asarray(fill_value)
    if value.ndim == 0 and not hasattr(value, "node"):
        return _like(value.astype(kind).item())(a, dtype, order, subok, shape)
    sizes = a.shape if shape is None else tuple(np.atleast_1d(shape).tolist())
    return op.broadcast(as_dtype(value, kind), sizes)


register({np.zeros_like: _like(0), np.ones_like: _like(1)}, ruled=False)


@handles(np.empty_like, ruled=False)
def _(
    prototype: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Any:
    return _like(0)(prototype, dtype, order, subok, shape)


register(
    {
        np.shape: lambda a: a.shape,
        np.ndim: lambda a: a.ndim,
        np.size: lambda a, axis=None: (
            a.size if axis is None else int(np.prod([a.shape[i] for i in np.atleast_1d(axis)]))
        ),
        np.result_type: lambda arrays_and_dtypes: np.result_type(
            *[each.dtype if is_array(each) else each for each in arrays_and_dtypes]
        ),
        np.iscomplexobj: lambda x: x.dtype.kind == "c",
        np.isrealobj: lambda x: x.dtype.kind != "c",
    },
    ruled=False,
)
