"""NumPy's ufuncs on arrays of dmath: element by element, in the dtypes of NumPy's own loops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.tensor import Tensor
from caldera.dmath.numpy_functions.dispatch import (
    Function,
    apply_function,
    as_dtype,
    is_array,
    refused,
    unknown,
)
from caldera.dmath.numpy_functions.products import vecdot


def _or_truths(compute: Function, of_truths: Function) -> Function:
    """Return an arithmetic function with a separate implementation for booleans."""

    def run(*inputs: Any) -> Any:
        truths = all(_typed(each).dtype == np.bool_ for each in inputs)
        return (of_truths if truths else compute)(*inputs)

    return run


def _typed(value: Any) -> Any:
    return value if hasattr(value, "dtype") else np.asarray(value)


def _of_truths(compute: Function) -> Function:
    """Return an operation on truth values; numbers are true unless they are 0."""
    return lambda *inputs: compute(*[op.cast(each, "bool") for each in inputs])


def _on_arrays(compute: Function) -> Function:
    """Return a function that needs the dtypes of both operands; one may be a scalar."""

    def run(x: Any, y: Any) -> Any:
        dtype = x.dtype if is_array(x) else y.dtype
        x, y = (each if is_array(each) else np.asarray(each, dtype) for each in (x, y))
        return compute(x, y)

    return run


def _among_nan(choose: Function) -> Function:
    """Return fmax or fmin: the larger or smaller value, ignoring a NaN."""
    return lambda x, y: op.where(op.isnan(x), y, op.where(op.isnan(y), x, choose(x, y)))


def _fmod(x: Any, y: Any) -> Any:
    """Return the remainder with the sign of x."""
    if x.dtype.kind == "u":
        return op.mod(x, y)
    rest = op.mod(op.abs(x), op.abs(y))
    return op.where(op.less(x, 0), op.neg(rest), rest)


def _heaviside(x: Any, y: Any) -> Any:
    step = op.where(op.isnan(x), x, op.cast(op.greater(x, 0), x.dtype))
    return op.where(op.equal(x, 0), y, step)


def _comparison(compare: Function, low: bool, equal: bool) -> Function:
    """Return a comparison that is exact between int64 and uint64, which have no common dtype.

    `low` is the result if the first value is below the second's range; `equal` is True for
    symmetric comparisons.
    """

    def run(a: Any, b: Any) -> Any:
        kinds = [each.dtype.kind if is_array(each) else "" for each in (a, b)]
        if sorted(kinds) != ["i", "u"]:
            return compare(a, b)
        first_is_signed = kinds[0] == "i"
        signed = a if first_is_signed else b
        below = op.less(signed, 0)
        held = as_dtype(op.maximum(signed, 0), np.dtype(np.uint64))
        found = compare(held, b) if first_is_signed else compare(a, held)
        return op.where(below, low if first_is_signed or equal else not low, found)

    return run


UFUNCS: dict[Any, Function] = {
    np.add: _or_truths(op.add, op.logical_or),
    np.subtract: op.sub,
    np.multiply: _or_truths(op.mul, op.logical_and),
    np.divide: op.div,
    np.power: op.pow,
    np.float_power: op.pow,
    np.floor_divide: op.floor_div,
    np.mod: op.mod,
    np.fmod: _on_arrays(_fmod),
    np.divmod: lambda x, y: (op.floor_div(x, y), op.mod(x, y)),
    np.negative: op.neg,
    np.positive: op.positive,
    np.matmul: op.matmul,
    np.vecdot: _on_arrays(vecdot),
    np.maximum: op.maximum,
    np.minimum: op.minimum,
    np.fmax: _on_arrays(_among_nan(op.maximum)),
    np.fmin: _on_arrays(_among_nan(op.minimum)),
    np.equal: _comparison(op.equal, False, True),
    np.not_equal: _comparison(op.not_equal, True, True),
    np.less: _comparison(op.less, True, False),
    np.less_equal: _comparison(op.less_equal, True, False),
    np.greater: _comparison(op.greater, False, False),
    np.greater_equal: _comparison(op.greater_equal, False, False),
    np.logical_and: _of_truths(op.logical_and),
    np.logical_or: _of_truths(op.logical_or),
    np.logical_not: _of_truths(op.logical_not),
    np.logical_xor: _of_truths(op.logical_xor),
    np.bitwise_and: op.bitwise_and,
    np.bitwise_or: op.bitwise_or,
    np.bitwise_xor: op.bitwise_xor,
    np.invert: op.bitwise_invert,
    np.left_shift: op.bitwise_left_shift,
    np.right_shift: op.bitwise_right_shift,
    np.isfinite: op.isfinite,
    np.isinf: op.isinf,
    np.isnan: op.isnan,
    np.signbit: op.signbit,
    np.copysign: _on_arrays(op.copysign),
    np.heaviside: _on_arrays(_heaviside),
    np.absolute: op.abs,
    np.fabs: op.abs,
    np.exp: op.exp,
    np.exp2: op.exp2,
    np.expm1: op.expm1,
    np.log: op.log,
    np.log1p: op.log1p,
    np.log2: op.log2,
    np.log10: op.log10,
    np.sqrt: op.sqrt,
    np.square: op.square,
    np.reciprocal: op.reciprocal,
    np.sign: op.sign,
    np.sin: op.sin,
    np.cos: op.cos,
    np.tan: op.tan,
    np.tanh: op.tanh,
    np.floor: op.floor,
    np.ceil: op.ceil,
    np.rint: op.round,
    np.trunc: op.trunc,
    np.conjugate: op.conj,
    np.arcsin: op.asin,
    np.arccos: op.acos,
    np.arctan: op.atan,
    np.arctan2: op.atan2,
    np.sinh: op.sinh,
    np.cosh: op.cosh,
    np.arcsinh: op.asinh,
    np.arccosh: op.acosh,
    np.arctanh: op.atanh,
    np.hypot: op.hypot,
    np.logaddexp: op.logaddexp,
    np.degrees: lambda x: x * (180 / math.pi),
    np.rad2deg: lambda x: x * (180 / math.pi),
    np.radians: lambda x: x * (math.pi / 180),
    np.deg2rad: lambda x: x * (math.pi / 180),
}
"""Elementwise functions and products."""
REDUCTIONS: dict[Any, Function] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_and: np.all,
    np.logical_or: np.any,
}
"""Functions of `ufunc.reduce`."""
RUNNING: dict[Any, Function] = {np.add: np.cumsum, np.multiply: np.cumprod}
"""Functions of `ufunc.accumulate`."""
LOOPS = ("dtype", "signature", "casting")
"""Options that choose the dtypes of a ufunc's loop."""


def apply_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the result of a NumPy ufunc on dmath arrays."""
    name = f"np.{ufunc.__name__}"
    if method == "reduce" and ufunc in REDUCTIONS:
        return apply_function(REDUCTIONS[ufunc], inputs, {"axis": 0, **options})
    if method == "accumulate" and ufunc in RUNNING and np.ndim(inputs[0]):
        return apply_function(RUNNING[ufunc], inputs, {"axis": 0, **options})
    if method == "outer" and ufunc in UFUNCS and ufunc.nin == 2 and ufunc.signature is None:
        first, second = (x if isinstance(x, Expr) else np.asarray(x) for x in inputs)
        first = op.reshape(first, (*first.shape, *(1,) * second.ndim))
        return apply_ufunc(ufunc, "__call__", (first, second), options)
    if method != "__call__" or ufunc not in UFUNCS or options.keys() - set(LOOPS):
        others = [f" with {option}=" for option in options if option not in LOOPS]
        raise unknown((name if method == "__call__" else f"{name}.{method}") + "".join(others))
    try:
        given = [_operand(each) for each in inputs]
    except ValueError as error:
        raise refused(name, error) from None
    loop = _loop(name, ufunc, given, options)
    cast = [
        as_dtype(each, dtype) if is_array(each) else each
        for each, dtype in zip(given, loop, strict=False)
    ]
    try:
        made = UFUNCS[ufunc](*cast)
    except OverflowError as error:
        raise refused(name, error) from None
    if ufunc.nout == 1:
        return as_dtype(made, loop[-1])
    return tuple(as_dtype(x, dtype) for x, dtype in zip(made, loop[ufunc.nin :], strict=True))


def _operand(value: Any) -> Any:
    """Return distributed arrays and Python numbers unchanged, and other values as arrays."""
    if isinstance(value, Expr) or type(value) in (int, float, complex):
        return value
    return Expr(lift(value)) if isinstance(value, Tensor) else np.asarray(value)


def _loop(name: str, ufunc: Any, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the dtypes of the inputs and outputs of NumPy's loop.

    Python's numbers are weak there.
    """
    kinds = [each.dtype if is_array(each) else type(each) for each in given]
    how = dict(options)
    wanted = how.pop("dtype", None)
    if wanted is not None:
        how["signature"] = (*(None,) * ufunc.nin, *(np.dtype(wanted),) * ufunc.nout)
    try:
        return ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), **how)
    except (TypeError, ValueError) as error:
        raise refused(name, error) from None
