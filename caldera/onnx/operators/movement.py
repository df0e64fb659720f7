"""Shapes, concatenation, gathering and scattering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import is_float
from caldera.errors import ConfigError
from caldera.onnx.operators.registry import (
    Value,
    axis_moved,
    axis_of,
    check_size,
    evaluated,
    expression,
    integer,
    integers,
    known,
    laid_out,
    numbers,
    operator,
)


@operator("Concat", moves=True)
def concat(*parts: Value, axis: int = 1) -> Expr:
    """Concatenate the parts along an axis."""
    return op.concat(parts, axis)


def pieces(x: Value, split: Value, count: int, axis: int) -> list[int]:
    """The sizes of the pieces: those given, or `count` of which only the last may be smaller."""
    length = x.shape[axis]
    if split is not None:
        return list(integers(split, "sizes"))
    whole = -(-length // count)
    return [whole] * (count - 1) + [length - whole * (count - 1)]


@operator("Split", moves=True)
def split(
    x: Value, split: Value = None, *, axis: int = 0, num_outputs: int | None = None, wanted: int
) -> tuple[Expr, ...]:
    """x cut along an axis."""
    position = axis_of(axis, len(x.shape))
    return op.split(x, pieces(x, split, num_outputs or wanted, position), position)


@operator("Slice", moves=True)
def slice_(x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Expr:
    """Return a slice with steps along axes."""
    first, last = integers(starts, "starts"), integers(ends, "ends")
    chosen = range(len(first)) if axes is None else integers(axes, "axes")
    strides = (1,) * len(first) if steps is None else integers(steps, "steps")
    parts = [slice(None)] * len(x.shape)
    for axis, begin, end, step in zip(chosen, first, last, strides, strict=True):
        # With a negative step, an end below the first index includes the first element.
        stop = None if step < 0 and end < -x.shape[axis] else end
        parts[axis] = slice(begin, stop, step)
    return expression(x)[tuple(parts)]


@operator("Transpose", moves=True)
def transpose(x: Value, *, perm: tuple[int, ...] | None = None) -> Expr:
    """Return the axes in another order."""
    return op.transpose(x, perm)


@operator("Tile", moves=True)
def tile(x: Value, repeats: Value) -> Expr:
    """Return copies side by side."""
    return op.tile(x, integers(repeats, "repeats"))


@operator("Pad")
def pad(
    x: Value,
    pads: Value = None,
    constant_value: Value = None,
    axes: Value = None,
    *,
    mode: str = "constant",
    value: float = 0.0,
    paddings: tuple[int, ...] | None = None,
) -> Expr:
    """Pad x; negative widths crop it."""
    given = integers(pads if paddings is None else paddings, "widths")
    chosen = range(len(x.shape)) if axes is None else integers(axes, "axes")
    widths = [(0, 0)] * len(x.shape)
    for i, axis in enumerate(chosen):
        widths[axis] = (given[i], given[i + len(given) // 2])
    if mode == "constant":
        return widened(x, widths, value if constant_value is None else known(constant_value).item())
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = op.gather(x, _places(x.shape[axis], before, after, mode), axis)
    return expression(x)


def widened(x: Value, widths: Sequence[tuple[int, int]], filler: Any = 0) -> Expr:
    """Pad x by `widths`; negative widths crop."""
    parts = [
        slice(max(-before, 0), n - max(-after, 0))
        for n, (before, after) in zip(x.shape, widths, strict=True)
    ]
    more = [(max(before, 0), max(after, 0)) for before, after in widths]
    return op.pad(expression(x)[tuple(parts)], more, filler)


def _places(length: int, before: int, after: int, mode: str) -> np.ndarray:
    """Return the index of the element at each position of a padded axis."""
    check_size((length + max(before, 0) + max(after, 0),))
    wanted = np.arange(-before, length + after)
    if mode == "edge":
        return np.clip(wanted, 0, length - 1)
    if mode == "wrap":
        return wanted % length
    if mode == "reflect":
        period = max(2 * (length - 1), 1)
        wanted = wanted % period
        return np.minimum(wanted, period - wanted) if length > 1 else wanted * 0
    raise ConfigError.build("onnx Pad", expected="constant, reflect, edge or wrap", got=repr(mode))


@operator("DepthToSpace", moves=True)
def depth_to_space(x: Value, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Channels spread over blocks of the image."""
    count, channels, height, width = x.shape
    inner = channels // blocksize**2
    shape = (count, inner, height * blocksize, width * blocksize)
    if mode == "DCR":
        parts = op.reshape(x, (count, blocksize, blocksize, inner, height, width))
        return op.reshape(op.transpose(parts, (0, 3, 4, 1, 5, 2)), shape)
    parts = op.reshape(x, (count, inner, blocksize, blocksize, height, width))
    return op.reshape(op.transpose(parts, (0, 1, 4, 2, 5, 3)), shape)


@operator("SpaceToDepth", moves=True)
def space_to_depth(x: Value, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Return blocks of the image gathered into channels."""
    count, channels, height, width = x.shape
    rows, columns = height // blocksize, width // blocksize
    parts = op.reshape(x, (count, channels, rows, blocksize, columns, blocksize))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    shape = (count, channels * blocksize**2, rows, columns)
    return op.reshape(op.transpose(parts, order), shape)


@operator("ReverseSequence", moves=True)
def reverse_sequence(x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Expr:
    """Return the first steps of each sequence in reverse order, as many as it has."""
    time = laid_out(np.arange(x.shape[time_axis]), time_axis, len(x.shape))
    real = laid_out(op.cast(lengths, "int64"), batch_axis, len(x.shape))
    places = op.where(op.less(time, real), op.sub(op.sub(real, 1), time), time)
    return op.take_along_axis(x, places, time_axis)


@operator("CenterCropPad")
def center_crop_pad(x: Value, shape: Value, *, axes: tuple[int, ...] | None = None) -> Expr:
    """Cut, or padded with zeros, to these sizes around its middle."""
    sizes = integers(shape, "sizes")
    chosen = range(len(x.shape)) if axes is None else axes
    widths = [(0, 0)] * len(x.shape)
    for axis, size in zip(chosen, sizes, strict=True):
        more = size - x.shape[axis]
        # An odd element is cropped from the right side, or added there.
        before = more // 2 if more > 0 else -(-more // 2)
        widths[axis] = (before, more - before)
    return widened(x, widths)


@operator("Upsample")
def upsample(x: Value, scales: Value, *, mode: str = "nearest") -> Expr:
    """Return elements repeated; only whole factors (it was replaced by Resize)."""
    factors = numbers(scales, "scales")
    require(
        mode == "nearest" and not any(each != int(each) for each in factors),
        "onnx Upsample",
        "nearest, by whole factors",
        mode,
    )
    for axis, factor in enumerate(factors):
        x = op.repeat(x, int(factor), axis)
    return x


@operator("Einsum")
def einsum(*operands: Value, equation: str) -> Expr:
    """Return products summed over the axes that share a letter."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    for i, letters in enumerate(parts):
        parts[i], operands = _without_diagonals(letters, i, operands)
    return op.einsum(",".join(parts) + arrow + result, *operands)


def _without_diagonals(
    letters: str, number: int, operands: tuple[Value, ...]
) -> tuple[str, tuple[Value, ...]]:
    """An operand with a letter twice (at its end) becomes its diagonal."""
    found = list(operands)
    while len(letters) > 1 and letters[-1] == letters[-2]:
        found[number] = op.diagonal(found[number])
        letters = letters[:-1]
    return letters, tuple(found)


@operator("TensorScatter")
def tensor_scatter(
    past: Value, update: Value, write_indices: Value = None, *, axis: int = -2, mode: str = "linear"
) -> Expr:
    """Write new steps to a cache, from a separate position in each sample."""
    position = axis_of(axis, len(past.shape))
    length, steps = past.shape[position], update.shape[position]
    first = np.zeros(past.shape[0], np.int64) if write_indices is None else write_indices
    start = laid_out(op.cast(first, "int64"), 0, len(past.shape))
    step = op.sub(laid_out(np.arange(length), position, len(past.shape)), start)
    if mode == "circular":
        step = op.mod(step, length)
    is_new = op.logical_and(op.greater_equal(step, 0), op.less(step, steps))
    places = op.clip(step, 0, steps - 1)
    return op.where(is_new, op.take_along_axis(update, places, position), past)


@operator("Gather", moves=True)
def gather(x: Value, indices: Value, *, axis: int = 0) -> Expr:
    """Return the parts of x at these positions of an axis."""
    return op.gather(x, indices, axis)


@operator("GatherElements", moves=True)
def gather_elements(x: Value, indices: Value, *, axis: int = 0) -> Expr:
    """Return for each index the element of x at that position of the axis."""
    position = axis_of(axis, len(x.shape))
    # Indices may cover only a part of the remaining axes.
    kept = [None if each == position else n for each, n in enumerate(indices.shape)]
    return op.take_along_axis(op.slice(x, [None] * len(kept), kept), indices, position)


def _flat(indices: Value, shape: tuple[int, ...]) -> Expr:
    """Return tuples of positions (on the last axis) as positions in the flattened axes."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    counted = op.cast(indices, "int64")
    counted = op.where(op.less(counted, 0), op.add(counted, np.array(shape)), counted)
    return op.sum(op.mul(counted, np.array(strides)), -1)


@operator("GatherND", moves=True)
def gather_nd(x: Value, indices: Value, *, batch_dims: int = 0) -> Expr:
    """Return the parts of x at tuples of positions, separately for each sample."""
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
    """Return the second value at each index of a new axis, and the first elsewhere."""
    classes = integer(depth, "the number of classes")
    whole = op.cast(indices, "int64")
    counted = op.where(op.less(whole, 0), op.add(whole, classes), whole)
    chosen = op.one_hot(counted, classes, "bool")
    off, on = op.split(values, 2)
    return op.where(axis_moved(chosen, -1, axis), op.reshape(on, ()), op.reshape(off, ()))


@operator("TopK")
def top_k(
    x: Value, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Expr, Expr]:
    """Return the largest or smallest elements along an axis, and their indices."""
    count = integer(k, "a number of elements")
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
    """Return updates added: those places that no index reaches get 0."""
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
    flat = op.reshape(_flat(indices, inner), (-1,))
    parts = op.reshape(updates, (flat.shape[0], *rest))
    if reduction == "add":
        return op.reshape(op.scatter_add(rows, flat, parts), x.shape)
    return op.reshape(_scattered(rows, known(flat, "positions"), parts, reduction), x.shape)


def _scattered(rows: Value, places: np.ndarray, parts: Value, reduction: str) -> Expr:
    """Rows changed at places that are known: one read for each time that a place is named."""
    combine = {"add": op.add, "mul": op.mul, "max": op.maximum, "min": op.minimum}.get(reduction)
    require(
        combine is not None or reduction == "none", "onnx scatter", "a reduction", repr(reduction)
    )
    order = np.argsort(places, kind="stable")
    turn = np.empty(len(places), np.int64)
    named = places[order]
    turn[order] = np.arange(len(places)) - np.searchsorted(named, named, side="left")
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
    """Return the positions of elements that are not zero, one row an axis."""
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


@evaluated("Compress")
def compress(x: np.ndarray, condition: np.ndarray, *, axis: int | None = None) -> np.ndarray:
    """Return the parts of x for which the condition is true."""
    return np.compress(condition, x, axis)


@evaluated("Unique")
def unique(
    x: np.ndarray, *, axis: int | None = None, sorted: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the unique elements or parts, their first indices, the inverse, and the counts."""
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
