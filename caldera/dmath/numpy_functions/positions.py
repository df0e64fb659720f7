"""Sorting, positions and sets. Shapes that depend on values are evaluated immediately."""

from __future__ import annotations

from collections import namedtuple
from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.dmath.numpy_functions.dispatch import as_dtype, handles, register
from caldera.dmath.numpy_functions.movement import flat
from caldera.errors import ConfigError, DtypeError, ShapeError


def _nonzero(a: Any) -> Any:
    rows = _argwhere(a)
    return tuple(rows[:, axis] for axis in range(a.ndim))


def _argwhere(a: Any) -> Any:
    if not a.ndim:
        return op.full((int(bool(op.any(a))), 0), 0, "int64")
    count = int(op.sum(op.cast(op.not_equal(a, 0), "int64"))) if a.size else 0
    return op.nonzero(a, count)[0]


register(
    {
        np.nonzero: _nonzero,
        np.argwhere: _argwhere,
        np.flatnonzero: lambda a: _nonzero(flat(a))[0],
    }
)


@handles(np.where, weak=True)
def _(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        return _nonzero(condition)
    return op.where(op.cast(condition, "bool"), x, y)


KINDS = (None, "quicksort", "heapsort", "stable", "mergesort")


def _sort(a: Any, axis: Any = -1, kind: Any = None, stable: Any = None) -> Any:
    return op.sort(flat(a) if axis is None else a, -1 if axis is None else index(axis))


def _argsort(a: Any, axis: Any = -1, kind: Any = None, stable: Any = None) -> Any:
    a = a if a.ndim else flat(a)
    return op.argsort(flat(a) if axis is None else a, -1 if axis is None else index(axis))


register({np.sort: _sort, np.argsort: _argsort})


@handles(np.searchsorted, ruled=False)
def _(a: Any, v: Any, side: Any = "left") -> Any:
    v = v if hasattr(v, "dtype") else np.asarray(v)
    dtype = np.result_type(a.dtype, v.dtype)
    require(
        a.ndim == 1 and dtype.kind != "c",
        "np.searchsorted",
        "a vector of reals",
        a.shape,
        error=DtypeError,
    )
    return op.searchsorted(as_dtype(a, dtype), as_dtype(v, dtype), side)


# --- sets


def _sets(
    ar: Any, index: bool, inverse: bool, counts: bool, equal_nan: Any
) -> tuple[Any, Any, Any, Any]:
    """Return the unique elements, their first indices, the inverse, and their counts."""
    require(
        ar.dtype.kind != "c", "np.unique", "numbers with an order", ar.dtype.name, error=DtypeError
    )
    line = flat(ar)
    if line.dtype.kind == "b":
        values, *others = _sets(op.cast(line, "uint8"), index, inverse, counts, equal_nan)
        return (op.cast(values, "bool"), *others)
    values, places, often, count = op.unique(line, line.size)
    found = int(count)
    nan = int(op.sum(op.cast(op.isnan(line), "int64"))) if line.dtype.kind == "f" else 0
    if nan > 1 and equal_nan:
        found -= nan - 1
        places = op.minimum(places, found - 1)
        last = op.full((1,), nan, "int64")
        often = op.concat([often[: found - 1], last], 0)
    values, often = values[:found], often[:found]
    first: Any = None
    if index:
        # Equal elements keep their order, so that the first of a run is the first of all.
        starts = op.cumsum(often, 0) - often if found else often
        first = op.gather(op.argsort(line), starts, 0) if found else often
    return values, first, places, often


@handles(np.unique, ruled=False)
def _(
    ar: Any,
    return_index: Any = False,
    return_inverse: Any = False,
    return_counts: Any = False,
    equal_nan: Any = True,
    sorted: Any = True,
) -> Any:
    values, *others = _sets(ar, return_index, return_inverse, return_counts, equal_nan)
    others[1] = op.reshape(others[1], ar.shape)
    wanted = (return_index, return_inverse, return_counts)
    made = [each for each, asked in zip(others, wanted, strict=True) if asked]
    return (values, *made) if made else values


def _answer(function: Any, *fields: str) -> None:
    """Register one of the array API's functions of sets, with its fields."""
    answer: Any = namedtuple("answer", list(fields)) if fields else None

    def run(x: Any) -> Any:
        values, first, places, often = _sets(x, True, True, True, False)
        named = {
            "values": values,
            "indices": first,
            "inverse_indices": op.reshape(places, x.shape),
            "counts": often,
        }
        return answer(*[named[each] for each in fields]) if fields else values

    handles(function, ruled=False)(run)


_answer(np.unique_values)
_answer(np.unique_counts, "values", "counts")
_answer(np.unique_inverse, "values", "inverse_indices")
_answer(np.unique_all, "values", "indices", "inverse_indices", "counts")


@handles(np.bincount, ruled=False)
def _(x: Any, weights: Any = None, minlength: Any = 0) -> Any:
    require(
        x.ndim == 1 and x.dtype.kind in "iub",
        "np.bincount",
        "a vector of integers",
        x.dtype.name,
        error=DtypeError,
    )
    if (x.size and int(op.min(x)) < 0) or minlength < 0:
        raise ConfigError.build("np.bincount", expected="numbers >= 0", got="negative ones")
    length = max(int(op.max(x)) + 1 if x.size else 0, int(minlength))
    if not length:
        return op.full((0,), 0, "int64")
    if weights is not None:
        require(
            weights.shape == x.shape,
            "np.bincount",
            f"weights of shape {x.shape}",
            weights.shape,
            error=ShapeError,
        )
        weights = as_dtype(weights, np.dtype(np.float64))
    return op.bincount(op.cast(x, "int64"), length, weights)
