"""PyTorch's operators written with Caldera's: arithmetic, reductions, shapes, indices, matrices.

Each entry takes the arguments as PyTorch's function does, under PyTorch's names, and gives an
expression of Caldera, or several. What is not in its signature cannot be expressed; what is there,
but with a value that has no counterpart, raises `NotExpressed`. `tools/opinfo.py` counts both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera import op


class NotExpressed(Exception):
    """A sample that Caldera has no counterpart for; the text says why."""


def only(given: Any, expected: Any, what: str) -> None:
    """Refuse a value of an argument that Caldera has no counterpart for."""
    if isinstance(given, np.ndarray) or given != expected:
        raise NotExpressed(f"{what}={given if np.isscalar(given) else type(given).__name__}")


def axes(dim: Any) -> Any:
    """PyTorch's `dim` as Caldera's `axis`: an empty list is all axes in both None and ()."""
    return None if dim is None or dim == () or dim == [] else dim


def cast(x: Any, dtype: Any) -> Any:
    """`x` in a dtype, if one is given."""
    return x if dtype is None else op.cast(x, dtype)


def sizes(given: Sequence[Any]) -> Any:
    """Sizes written one by one, or as one sequence."""
    return tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else tuple(given)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction over `dim`, all axes if there is none."""

    def reduce(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        return function(cast(x, dtype), axes(dim), keepdim)

    return reduce


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """`var` or `std`, whose divisor PyTorch names in two ways."""

    def reduce(
        x: Any,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        correction: Any = None,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        taken = int(unbiased) if correction is None else correction
        if taken != int(taken):
            raise NotExpressed(f"correction={taken}, not a whole number")
        return function(x, axes(dim), keepdim, int(taken))

    return reduce


def with_mean(function: Callable[..., Any]) -> Callable[..., Any]:
    """`var_mean` and `std_mean`."""
    inner = spread(function)

    def reduce(x: Any, dim: Any = None, *rest: Any, keepdim: bool = False, **more: Any) -> Any:
        kept = rest[1] if len(rest) > 1 else keepdim
        if not rest[1:]:
            more["keepdim"] = keepdim
        axis = None if isinstance(dim, bool) else axes(dim)
        return inner(x, dim, *rest, **more), op.mean(x, axis, kept)

    return reduce


def largest(best: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
    """`max` and `min` along an axis, with the places."""

    def reduce(x: Any, dim: Any, keepdim: bool = False) -> Any:
        return best(x, dim, keepdim), place(x, dim, keepdim)

    return reduce


def divided(a: Any, b: Any, *, rounding_mode: Any = None) -> Any:
    """`div` and its rounding modes."""
    if rounding_mode == "floor":
        return op.floor_div(a, b)
    result = op.div(a, b)
    return op.trunc(result) if rounding_mode == "trunc" else result


def scaled(first: Any, second: Any, beta: Any, alpha: Any) -> Any:
    """beta * first + alpha * second; a beta of 0 leaves the first out, whatever it holds."""
    if beta == 0:
        first = op.where(op.isfinite(first), first, 0.0)
    return op.add(op.mul(first, beta), op.mul(second, alpha))


def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Norms of all elements along the axes as one vector."""
    if ord not in (1, 2, math.inf):
        raise NotExpressed(f"a norm of order {ord}")
    return op.norm(cast(x, dtype), float(ord), axes(dim), keepdim)


def matrix_norm(
    x: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Norms of matrices."""
    if ord == "fro":
        return op.norm(cast(x, dtype), 2, dim, keepdim)
    if ord == "nuc" and tuple(dim) == (-2, -1) and not keepdim:
        return op.sum(op.svd(cast(x, dtype))[1], -1)
    raise NotExpressed(f"a matrix norm of order {ord}")


def quantile(
    x: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """Several q come first in the result, in both."""
    if not isinstance(q, float | int):
        raise NotExpressed("q as a tensor")
    return op.quantile(x, q, dim, keepdim, interpolation)


def median(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The lower one of two in the middle."""
    return op.quantile(x, 0.5, dim, keepdim, "lower")


def chunks(x: Any, count: int, dim: int = 0) -> Any:
    """Pieces of one size, the last one smaller."""
    return pieces(x, -(-x.shape[dim] // count), dim)


def pieces(x: Any, size: Any, dim: int = 0) -> Any:
    """Pieces of this size, or of these."""
    if isinstance(size, int):
        length = x.shape[dim]
        size = [min(size, length - start) for start in range(0, length, size)]
    return op.split(x, list(size), dim)


def tensor_split(x: Any, at: Any, dim: int = 0) -> Any:
    """At positions, or into so many pieces of nearly one size, as NumPy cuts."""
    length = x.shape[dim]
    cut = at.tolist() if isinstance(at, np.ndarray) else at
    parts = np.array_split(np.arange(length), cut)
    if sum(map(len, parts)) != length:
        raise NotExpressed("positions that overlap")
    return op.split(x, [len(part) for part in parts], dim)


def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    """A part along one axis."""
    first = int(start) % x.shape[dim] if int(start) < 0 else int(start)
    return op.moveaxis(op.moveaxis(x, dim, 0)[first : first + length], 0, dim)


def slice_of(x: Any, dim: int, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """A part with a step along one axis."""
    return op.moveaxis(op.moveaxis(x, dim, 0)[start:end:step], 0, dim)


def unbind(x: Any, dim: int = 0) -> Any:
    """Each part along an axis."""
    return [op.squeeze(part, dim) for part in op.split(x, x.shape[dim], dim)]


def squeezed(x: Any, dim: Any = None) -> Any:
    """PyTorch leaves a named axis alone if it is not of size 1."""
    if dim is None:
        return op.squeeze(x)
    named = [dim] if isinstance(dim, int) else dim
    return op.squeeze(x, [axis for axis in named if x.ndim and x.shape[axis] == 1])


def flattened(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Some axes as one."""
    if not x.ndim:
        return op.flatten(x)
    first, last = start_dim % x.ndim, end_dim % x.ndim
    return op.reshape(
        x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    )


def unflattened(x: Any, dim: int, sizes: Any) -> Any:
    """One axis as several."""
    axis = dim % x.ndim
    return op.reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def expanded(x: Any, *shape: Any) -> Any:
    """-1 keeps a size."""
    wanted = sizes(shape)
    known = (1,) * (len(wanted) - x.ndim) + tuple(x.shape)
    return op.broadcast(x, tuple(k if n == -1 else n for n, k in zip(wanted, known, strict=True)))


def at_least(rank: int) -> Callable[..., Any]:
    """`atleast_1d` and its like."""

    def raised(*given: Any) -> Any:
        parts = given[0] if isinstance(given[0], list | tuple) else given
        results = []
        for x in parts:
            for _ in range(rank - x.ndim):
                x = op.unsqueeze(x, 0 if x.ndim < 2 else -1)
            results.append(x)
        return results

    return raised


def joined(rank: int, axis: int) -> Callable[..., Any]:
    """`hstack`, `vstack` and `dstack`."""

    def join(parts: Any) -> Any:
        raised = at_least(rank)(parts)
        return op.concat(raised, 0 if raised[0].ndim == 1 else axis)

    return join


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of any two axes."""
    return op.diagonal(op.moveaxis(x, (dim1, dim2), (-2, -1)), offset)


def diag(x: Any, diagonal: int = 0) -> Any:
    """A matrix from a vector, a vector from a matrix."""
    if x.ndim == 2:
        return op.diagonal(x, diagonal)
    only(diagonal, 0, "diagonal")
    return op.diagonal_matrix(x)


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Vectors on the diagonals of new matrices."""
    only(offset, 0, "offset")
    return op.moveaxis(op.diagonal_matrix(x), (-2, -1), (dim1, dim2))


def differences(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """What each element is more than the one before it."""
    if n == 0:
        return x
    parts = [part for part in (prepend, x, append) if part is not None]
    x = op.moveaxis(op.concat(parts, dim), dim, 0)
    for _ in range(n):
        x = op.sub(x[1:], x[:-1])
    return op.moveaxis(x, 0, dim)


def top(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest, or the smallest."""
    if largest:
        return op.top_k(x, k, dim)
    values, places = op.top_k(op.neg(x), k, dim)
    return op.neg(values), places


def sort(x: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Any:
    """In order, with the places."""
    return op.sort(x, dim, descending), op.argsort(x, dim, descending)


def put(x: Any, dim: int, index: Any, src: Any, *, reduce: Any = None) -> Any:
    """`scatter`: PyTorch's index may cover less of the other axes than x does."""
    function = {None: op.put_along_axis, "add": op.put_along_axis_add}.get(reduce)
    if function is None:
        raise NotExpressed(f"reduce={reduce}")
    axis = dim % max(x.ndim, 1)
    beside = [n for i, n in enumerate(x.shape) if i != axis]
    if beside != [n for i, n in enumerate(index.shape) if i != axis]:
        raise NotExpressed("an index that covers a part of the other axes")
    cut = src if np.ndim(src) == 0 else src[tuple(slice(n) for n in index.shape)]
    return function(x, index, cut, axis)


def taken(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """`gather`: PyTorch's index may cover less of the other axes than x does."""
    axis = dim % max(x.ndim, 1)
    part = tuple(slice(None if i == axis else n) for i, n in enumerate(index.shape))
    return op.take_along_axis(x[part] if x.ndim else x, index, axis)


def searched(
    ordered: Any,
    values: Any,
    *,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
    out_int32: bool = False,
) -> Any:
    """`searchsorted`."""
    if sorter is not None:
        raise NotExpressed("sorter")
    result = op.searchsorted(ordered, values, side or ("right" if right else "left"))
    return op.cast(result, "int32") if out_int32 else result


def selected_shape(shape: tuple[int, ...], dim: int, index: Any) -> tuple[int, ...]:
    """What PyTorch selects of a scalar is a scalar."""
    count = np.atleast_1d(np.asarray(index)).shape[0]
    return tuple(count if i == dim % len(shape) else n for i, n in enumerate(shape))


def nonzero(x: Any, *, as_tuple: bool = False) -> Any:
    """As many rows as PyTorch finds: Caldera's shapes do not depend on values."""
    if as_tuple and not x.shape:
        x = op.reshape(x, (1,))
    places = op.nonzero(x, int(np.count_nonzero(np.asarray(x))))[0]
    return unbind(places, 1) if as_tuple else places


def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """From the right it is the transposed problem from the left."""
    if left:
        return op.triangular_solve(a, b, not upper, False, unitriangular)
    turned = op.triangular_solve(a, op.swapaxes(b, -2, -1), not upper, True, unitriangular)
    return op.swapaxes(turned, -2, -1)


def power(a: Any, n: int) -> Any:
    """A matrix to a whole power."""
    if n < 0:
        a, n = op.inverse(a), -n
    result = op.broadcast(op.eye(a.shape[-1], dtype=str(a.dtype)), a.shape)
    for _ in range(n):
        result = op.matmul(result, a)
    return result


def chain(matrices: Sequence[Any]) -> Any:
    """A product of several matrices."""
    result = matrices[0]
    for each in matrices[1:]:
        result = op.matmul(result, each)
    return result


def covariance(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Of the rows, over the columns."""
    if fweights is not None or aweights is not None:
        raise NotExpressed("weights")
    rows = op.reshape(x, (1, -1)) if x.ndim < 2 else x
    centred = op.sub(rows, op.mean(rows, 1, True))
    other = op.conj(centred)
    result = op.div(op.matmul(centred, other, transpose_b=True), rows.shape[1] - correction)
    return op.squeeze(result) if rows.shape[0] == 1 else result


def rotated(x: Any, k: int, dims: Any) -> Any:
    """By quarters of a turn."""
    for _ in range(k % 4):
        x = op.flip(op.swapaxes(x, *dims), dims[0])
    return x


def shifted(x: Any, dim: Any, sign: int) -> Any:
    """The frequency 0 moved to the middle, or back."""
    along = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    by = [x.shape[i] // 2 if sign > 0 else -(x.shape[i] // 2) for i in along]
    return op.roll(x, by, along)


def sinc(is_zero: Any, angle: Any) -> Any:
    """sin(angle) / angle."""
    safe = op.where(is_zero, 1.0, angle)
    return op.where(is_zero, 1.0, op.div(op.sin(safe), safe))
