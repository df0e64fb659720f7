"""Products of vectors, matrices and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.dmath.numpy_functions.dispatch import handles, register
from caldera.errors import ShapeError


def _dot(a: Any, b: Any) -> Any:
    if not a.ndim or not b.ndim:
        return op.mul(a, b)
    return _summed(a, b, (a.ndim - 1,), (max(b.ndim - 2, 0),))


def _inner(a: Any, b: Any) -> Any:
    if not a.ndim or not b.ndim:
        return op.mul(a, b)
    return _summed(a, b, (a.ndim - 1,), (b.ndim - 1,))


def _summed(a: Any, b: Any, first: tuple[int, ...], second: tuple[int, ...]) -> Any:
    """Return products summed over pairs of axes; unlike in `op`, size 1 does not broadcast."""
    sizes = [a.shape[i] for i in first], [b.shape[i] for i in second]
    if sizes[0] != sizes[1]:
        raise ShapeError.build(
            "np.tensordot", expected="axes of equal sizes", got=f"{sizes[0]} and {sizes[1]}"
        )
    return op.tensordot(a, b, axes=(first, second))


def _vdot(a: Any, b: Any) -> Any:
    require(a.size == b.size, "np.vdot", f"{a.size} elements", b.size, error=ShapeError)
    return op.sum(op.mul(op.conj(op.reshape(a, (a.size,))), op.reshape(b, (b.size,))))


def _outer(a: Any, b: Any) -> Any:
    return op.mul(op.reshape(a, (a.size, 1)), op.reshape(b, (1, b.size)))


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    if np.ndim(axes) == 0 and not isinstance(axes, list | tuple):
        count = int(axes)
        pairs = tuple(range(a.ndim - count, a.ndim)), tuple(range(count))
    else:
        first, second = (np.atleast_1d(each).tolist() for each in axes)
        pairs = tuple(i % a.ndim for i in first), tuple(i % b.ndim for i in second)
    return _summed(a, b, *pairs)


def _einsum(operands: Any, optimize: Any = False, dtype: Any = None) -> Any:
    subscripts, *arrays = operands
    require(
        isinstance(subscripts, str),
        "np.einsum",
        "subscripts as text first",
        type(subscripts).__name__,
    )
    return op.einsum(subscripts, *arrays)


def _kron(a: Any, b: Any) -> Any:
    ndim = max(a.ndim, b.ndim)
    a, b = (op.reshape(each, (1,) * (ndim - each.ndim) + each.shape) for each in (a, b))
    shape = tuple(n * m for n, m in zip(a.shape, b.shape, strict=True))
    for axis in range(ndim):
        a, b = op.unsqueeze(a, 2 * axis + 1), op.unsqueeze(b, 2 * axis)
    return op.reshape(op.mul(a, b), shape)


register(
    {
        np.dot: _dot,
        np.inner: _inner,
        np.vdot: _vdot,
        np.outer: _outer,
        np.tensordot: _tensordot,
        np.einsum: _einsum,
        np.kron: _kron,
        np.linalg.outer: lambda x1, x2: _outer(x1, x2),
        np.linalg.matmul: lambda x1, x2: op.matmul(x1, x2),
        np.linalg.tensordot: lambda x1, x2, axes=2: _tensordot(x1, x2, axes),
    }
)


@handles(np.linalg.vecdot)
def _(x1: Any, x2: Any, axis: Any = -1) -> Any:
    return vecdot(*(op.moveaxis(each, index(axis), -1) for each in (x1, x2)))


def vecdot(a: Any, b: Any) -> Any:
    """Return products of vectors along the last axis; the first factor is conjugated."""
    require(
        a.ndim and b.ndim and a.shape[-1] == b.shape[-1],
        "np.vecdot",
        "vectors of equal length",
        f"{a.shape} and {b.shape}",
        error=ShapeError,
    )
    return op.sum(op.mul(op.conj(a), b), -1)


@handles(np.linalg.multi_dot)
def _(arrays: Any) -> Any:
    shapes = [np.shape(each) for each in arrays]
    # A vector at either end is a row or a column.
    sizes = [shapes[0][0] if len(shapes[0]) > 1 else 1]
    sizes += [shape[0] for shape in shapes[1:]]
    sizes += [shapes[-1][1] if len(shapes[-1]) > 1 else 1]
    splits = _cheapest_splits(sizes)

    def product(first: int, last: int) -> Any:
        if first == last:
            return arrays[first]
        middle = splits[first, last]
        return op.matmul(product(first, middle), product(middle + 1, last))

    return product(0, len(arrays) - 1)


def _cheapest_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split a chain of products, as NumPy does: integers wrap in that order.

    >>> _cheapest_splits([2, 3, 4, 2])[0, 2]
    0
    """
    count = len(sizes) - 1
    costs = {(each, each): 0 for each in range(count)}
    splits = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs[first, last], splits[first, last] = min(
                (
                    costs[first, k]
                    + costs[k + 1, last]
                    + sizes[first] * sizes[k + 1] * sizes[last + 1],
                    k,
                )
                for k in range(first, last)
            )
    return splits


@handles(np.linalg.cross, ruled=False)
def _(x1: Any, x2: Any, axis: Any = -1) -> Any:
    return _cross(x1, x2, axis=axis)


@handles(np.cross, ruled=False)
def _cross(
    a: Any, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None
) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = op.moveaxis(a, index(axisa), -1), op.moveaxis(b, index(axisb), -1)
    require(
        a.shape[-1] == 3 and b.shape[-1] == 3,
        "np.cross",
        "three components",
        f"{a.shape[-1]} and {b.shape[-1]}",
        error=ShapeError,
    )
    (a0, a1, a2), (b0, b1, b2) = ([x[..., i] for i in range(3)] for x in (a, b))
    parts = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    return op.moveaxis(op.stack(parts, -1), -1, index(axisc))
