"""Norms of vectors and matrices, and condition numbers, by NumPy's orders and axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.dmath.numpy_functions.dispatch import as_floats, handles
from caldera.dmath.numpy_functions.reductions import axes_of, kept


def _of_vectors(x: Any, order: Any, axis: int | tuple[int, ...]) -> Any:
    size = op.abs(x)
    if order is None or order == 2:
        return op.sqrt(op.sum(op.square(size), axis))
    if order == np.inf:
        return op.max(size, axis)
    if order == -np.inf:
        return op.min(size, axis)
    if order == 0:
        return op.sum(op.cast(op.not_equal(x, 0), size.dtype), axis)
    if order == 1:
        return op.sum(size, axis)
    return op.pow(op.sum(op.pow(size, float(order)), axis), 1.0 / float(order))


def _of_matrices(x: Any, order: Any, axes: tuple[int, int]) -> Any:
    row, column = axes
    if order in (None, "fro", "f"):
        return op.sqrt(op.sum(op.square(op.abs(x)), axes))
    if order in (1, -1, np.inf, -np.inf):
        first, second = (row, column) if order in (1, -1) else (column, row)
        sums = op.sum(op.abs(x), first)
        rest = second - (1 if second > first else 0)
        return op.max(sums, rest) if order > 0 else op.min(sums, rest)
    s = op.svd(op.moveaxis(x, axes, (-2, -1)))[1]
    if order == "nuc":
        return op.sum(s, -1)
    return op.max(s, -1) if order > 0 else op.min(s, -1)


@handles(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """Return the norm of vectors along an axis or of matrices along two.

    Of all elements without both.
    """
    x = as_floats(x)
    axes = axes_of(axis, x.ndim)
    if axis is None and ord is None:
        made = _of_vectors(x, None, axes) if x.ndim else op.abs(x)
    elif len(axes) == 1:
        made = _of_vectors(x, ord, axes)
    else:
        made = _of_matrices(x, ord, (axes[0], axes[1]))
    return kept(made, x.shape, axis, keepdims)


@handles(np.linalg.matrix_norm)
def _(x: Any, keepdims: Any = False, ord: Any = "fro") -> Any:
    return norm(x, ord, (-2, -1), keepdims)


@handles(np.linalg.vector_norm)
def _(x: Any, axis: Any = None, keepdims: Any = False, ord: Any = 2) -> Any:
    x = as_floats(x)
    axes = axes_of(axis, x.ndim)
    left = tuple(i for i in range(x.ndim) if i not in axes)
    shape = tuple(x.shape[i] for i in left)
    count = int(np.prod([x.shape[i] for i in axes], dtype=np.int64))
    rows = op.reshape(op.transpose(x, (*left, *axes)), (*shape, count))
    return kept(_of_vectors(rows, ord, len(shape)), x.shape, axis, keepdims)


@handles(np.linalg.cond)
def _(x: Any, p: Any = None) -> Any:
    require(x.ndim >= 2, "np.linalg.cond", "matrices", x.shape)
    x = as_floats(x)
    if p in (None, 2, -2):
        s = op.svd(x)[1]
        largest, smallest = op.max(s, -1), op.min(s, -1)
        made = op.div(smallest, largest) if p == -2 else op.div(largest, smallest)
    else:
        made = op.mul(norm(x, p, (-2, -1)), norm(op.inverse(x), p, (-2, -1)))
    # 0 / 0 means a singular matrix, unless the input contains a NaN.
    broken = op.logical_and(op.isnan(made), op.logical_not(op.any(op.isnan(x), (-2, -1))))
    return op.where(broken, op.full((), np.inf, made.dtype), made)
