"""Reading and writing at positions, sorting, and choosing elements."""

from __future__ import annotations

import math

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import is_float
from caldera.errors import ConfigError
from caldera.onnx.operators.registry import Value, axis_of, evaluated, integer, known, operator


@operator("Gather", moves=True)
def gather(x: Value, indices: Value, *, axis: int = 0) -> Expr:
    """The parts of x at these positions of an axis."""
    return op.gather(x, indices, axis)


@operator("GatherElements", moves=True)
def gather_elements(x: Value, indices: Value, *, axis: int = 0) -> Expr:
    """For each index, the element of x at that position of the axis."""
    position = axis_of(axis, len(x.shape))
    # Indices may cover a part of the other axes.
    kept = [None if each == position else n for each, n in enumerate(indices.shape)]
    return op.take_along_axis(op.slice(x, [None] * len(kept), kept), indices, position)


def _flat(indices: Value, shape: tuple[int, ...]) -> Expr:
    """Tuples of positions (on the last axis) as positions in the flattened axes."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    counted = op.cast(indices, "int64")
    counted = op.where(op.less(counted, 0), op.add(counted, np.array(shape)), counted)
    return op.sum(op.mul(counted, np.array(strides)), -1)


@operator("GatherND", moves=True)
def gather_nd(x: Value, indices: Value, *, batch_dims: int = 0) -> Expr:
    """The parts of x at tuples of positions, in each sample those of the sample."""
    depth = indices.shape[-1]
    batch = x.shape[:batch_dims]
    inner = x.shape[batch_dims : batch_dims + depth]
    rest = x.shape[batch_dims + depth :]
    samples, elements = math.prod(batch), math.prod(inner)
    places = op.reshape(_flat(indices, inner), (samples, -1))
    own = op.add(places, np.arange(samples)[:, None] * elements)
    parts = op.gather(op.reshape(x, (samples * elements, *rest)), own)
    return op.reshape(parts, (*batch, *indices.shape[batch_dims:-1], *rest))


@operator("OneHot")
def one_hot(indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Expr:
    """The second value at each index of a new axis, and the first elsewhere."""
    classes = integer(depth, "the number of classes")
    whole = op.cast(indices, "int64")
    counted = op.where(op.less(whole, 0), op.add(whole, classes), whole)
    chosen = op.one_hot(counted, classes, "bool")
    rank = len(indices.shape) + 1
    order = list(range(rank - 1))
    order.insert(axis_of(axis, rank), rank - 1)
    off, on = op.split(values, 2)
    return op.where(op.transpose(chosen, order), op.reshape(on, ()), op.reshape(off, ()))


@operator("TopK")
def top_k(
    x: Value, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Expr, Expr]:
    """The largest or smallest elements along an axis, and where they were."""
    count = integer(k, "how many")
    if largest and is_float(x.dtype):
        return op.top_k(x, count, axis)
    position = axis_of(axis, len(x.shape))
    order = op.argsort(x, position, bool(largest))
    places = op.slice(order, [None] * (position + 1), [None] * position + [count])
    return op.take_along_axis(x, places, position), places


@operator("ScatterElements", "Scatter")
def scatter_elements(
    x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    """x with elements replaced, or changed, at positions of an axis."""
    position = axis_of(axis, len(x.shape))
    if reduction == "add":
        return _added(x, indices, updates, position)
    places = np.array(known(indices, "positions"))
    places[places < 0] += x.shape[position]
    whole: list[np.ndarray] = list(np.indices(places.shape))
    whole[position] = places
    flat = np.ravel_multi_index(tuple(whole), x.shape).reshape(-1)
    changed = _scattered(op.reshape(x, (-1,)), flat, op.reshape(updates, (-1,)), reduction)
    return op.reshape(changed, x.shape)


def _added(x: Value, indices: Value, updates: Value, axis: int) -> Expr:
    """Updates added: those places that no index reaches get 0."""
    widths = [
        (0, 0) if each == axis else (0, have - given)
        for each, (have, given) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    return op.put_along_axis_add(x, op.pad(indices, widths), op.pad(updates, widths), axis)


@operator("ScatterND")
def scatter_nd(x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """x with parts replaced, or changed, at tuples of positions."""
    depth = indices.shape[-1]
    inner, rest = x.shape[:depth], x.shape[depth:]
    rows = op.reshape(x, (math.prod(inner), *rest))
    places = _flat(indices, inner)
    flat = op.reshape(places, (-1,))
    parts = op.reshape(updates, (flat.shape[0], *rest))
    if reduction == "add":
        return op.reshape(op.scatter_add(rows, flat, parts), x.shape)
    return op.reshape(_scattered(rows, known(flat, "positions"), parts, reduction), x.shape)


def _scattered(rows: Value, places: np.ndarray, parts: Value, reduction: str) -> Expr:
    """Rows changed at places that are known: one read for each time that a place is named."""
    combine = {"add": op.add, "mul": op.mul, "max": op.maximum, "min": op.minimum}.get(reduction)
    if combine is None and reduction != "none":
        raise ConfigError.build("onnx scatter", expected="a reduction", got=repr(reduction))
    order = np.argsort(places, kind="stable")
    turn = np.empty(len(places), np.int64)
    named = places[order]
    starts = np.searchsorted(named, named, side="left")
    turn[order] = np.arange(len(places)) - starts
    result = rows
    for number in range(int(turn.max(initial=-1)) + 1):
        chosen = np.flatnonzero(turn == number)
        source = np.zeros(rows.shape[0], np.int64)
        source[places[chosen]] = chosen
        is_changed = np.zeros((rows.shape[0], *(1,) * (len(rows.shape) - 1)), np.bool_)
        is_changed[places[chosen]] = True
        new = op.gather(parts, source)
        result = op.where(is_changed, new if combine is None else combine(result, new), result)
    return result


@evaluated("NonZero")
def non_zero(x: np.ndarray) -> np.ndarray:
    """The positions of elements that are not zero, one row an axis."""
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


@evaluated("Compress")
def compress(x: np.ndarray, condition: np.ndarray, *, axis: int | None = None) -> np.ndarray:
    """The parts of x for which the condition holds."""
    return np.compress(condition, x, axis)


@evaluated("Unique")
def unique(
    x: np.ndarray, *, axis: int | None = None, sorted: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Different elements or parts, where each is first, which one each is, and how often."""
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)
