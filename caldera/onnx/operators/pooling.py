"""Pooling operators, and the windows that convolutions share with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, is_float
from caldera.onnx.operators.registry import Value, check_size, integers, operator

Sizes = tuple[int, ...]

PLACING = ("strides", "dilations", "pads", "auto_pad")
"""The attributes that say where windows lie."""


@dataclass(frozen=True)
class AxisWindows:
    """Windows laid over the axes of an image, one entry per axis.

    `before` and `after` are the padding; `beyond` is the number of elements by which the last
    window extends past it, as happens in ceil mode.
    """

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    before: Sizes
    after: Sizes
    beyond: Sizes
    outputs: Sizes

    def padding(self) -> list[tuple[int, int]]:
        """Return padding (before, after) of each axis, including elements for the last window."""
        return [(a, b + c) for a, b, c in zip(self.before, self.after, self.beyond, strict=True)]


def _reach(kernel: Sizes, dilations: Sizes) -> Sizes:
    """Return the extent of a window, including the gaps of its dilation."""
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))


def lay_windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> AxisWindows:
    """Return the windows that ONNX's attributes describe."""
    rank = len(kernel)
    steps = tuple(strides or (1,) * rank)
    gaps = tuple(dilations or (1,) * rank)
    reach = _reach(tuple(kernel), gaps)
    given = tuple(pads or (0,) * (2 * rank))
    axes: list[tuple[int, int, int, int]] = []
    for i, n in enumerate(sizes):
        if auto_pad in ("NOTSET", ""):
            axes.append(_explicit(n, reach[i], steps[i], given[i], given[i + rank], ceil_mode))
        else:
            axes.append(_automatic(n, reach[i], steps[i], auto_pad))
    before, after, beyond, outputs = zip(*axes, strict=True)
    return AxisWindows(tuple(kernel), steps, gaps, before, after, beyond, outputs)


def _explicit(
    n: int, reach: int, stride: int, before: int, after: int, ceil_mode: int
) -> tuple[int, int, int, int]:
    room = n + before + after - reach
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    # A window that starts behind the image covers no element.
    if ceil_mode and (count - 1) * stride >= n + before:
        count -= 1
    return before, after, max((count - 1) * stride - room, 0), count


def _automatic(n: int, reach: int, stride: int, how: str) -> tuple[int, int, int, int]:
    if how == "VALID":
        return 0, 0, 0, (n - reach) // stride + 1
    require(how in ("SAME_UPPER", "SAME_LOWER"), "onnx", "a way to pad that is known", repr(how))
    count = -(-n // stride)
    total = max((count - 1) * stride + reach - n, 0)
    before = total // 2 if how == "SAME_UPPER" else total - total // 2
    return before, total - before, 0, count


def positions(kernel: Sizes) -> Iterator[Sizes]:
    """Return the elements of a window, in row-major order."""
    return itertools.product(*map(range, kernel))


def padded(x: Value, windows: AxisWindows, value: float) -> Expr:
    """Return images (N, C, ...) with padding."""
    return op.pad(x, [(0, 0), (0, 0), *windows.padding()], value)


def unfold(x: Any, windows: AxisWindows) -> list[Any]:
    """Return the covered values for each element of the window: a padded image, one value per
    window.
    """
    parts = []
    for position in positions(windows.kernel):
        cut = [slice(None), slice(None)]
        for i, place in enumerate(position):
            start = place * windows.dilations[i]
            stop = start + (windows.outputs[i] - 1) * windows.strides[i] + 1
            cut.append(slice(start, stop, windows.strides[i]))
        parts.append(x[tuple(cut)])
    return parts


def fold(parts: Sequence[Value], windows: AxisWindows, sizes: Sequence[int]) -> Expr:
    """Inverse of `unfold`: add the values of each element of the window at their positions."""
    wholes = []
    for position, part in zip(positions(windows.kernel), parts, strict=True):
        widths = [(0, 0), (0, 0)]
        for i, place in enumerate(position):
            part = _spread(part, 2 + i, windows.strides[i])
            start = place * windows.dilations[i]
            widths.append((start, sizes[i] - start - part.shape[2 + i]))
        wholes.append(op.pad(part, widths))
    return reduce(op.add, wholes)


def filtered(columns: Value, w: Value, group: int, windows: AxisWindows) -> Expr:
    """The elements of all windows, (N, C, elements, windows), times kernels (M, C / group, ...)."""
    inner, spots = math.prod(w.shape[1:]), math.prod(windows.outputs)
    grouped = op.reshape(columns, (columns.shape[0], group, inner, spots))
    kernels = op.reshape(w, (group, w.shape[0] // group, inner))
    product = op.matmul(kernels, grouped)
    return op.reshape(product, (columns.shape[0], w.shape[0], *windows.outputs))


def _spread(x: Value, axis: int, stride: int) -> Value:
    """Return zeros between the elements of an axis."""
    if stride == 1:
        return x
    shape = x.shape
    wide = op.pad(
        op.unsqueeze(x, axis + 1),
        [(0, stride - 1) if each == axis + 1 else (0, 0) for each in range(len(shape) + 1)],
    )
    length = shape[axis] * stride
    joined = op.reshape(wide, (*shape[:axis], length, *shape[axis + 1 :]))
    return op.slice(joined, [None] * (axis + 1), [None] * axis + [length - stride + 1])


def places(windows: AxisWindows, sizes: Sequence[int]) -> np.ndarray:
    """For each element of the window and each window, its place in the flattened image."""
    grids = np.indices(windows.outputs)
    found = []
    for position in positions(windows.kernel):
        index = np.zeros(windows.outputs, np.int64)
        for i, n in enumerate(sizes):
            start = position[i] * windows.dilations[i] - windows.before[i]
            index = index * n + grids[i] * windows.strides[i] + start
        found.append(index)
    return np.stack(found)


def _plane(function: Any, x: Value, windows: AxisWindows, *more: Any) -> Expr:
    """Caldera's own pooling is over two axes; one axis is a row of two."""
    lacking = 2 - len(windows.kernel)
    one, none = (1,) * lacking, ((0, 0),) * lacking
    image = op.reshape(x, (*x.shape[:2], *one, *x.shape[2:]))
    padding = (*none, *windows.padding())
    y = function(image, (*one, *windows.kernel), (*one, *windows.strides), padding, *more)
    return op.reshape(y, (*x.shape[:2], *windows.outputs))


def _is_plane(windows: AxisWindows) -> bool:
    reach = _reach(windows.kernel, windows.dilations)
    narrow = all(max(widths) < n for widths, n in zip(windows.padding(), reach, strict=True))
    return len(windows.kernel) <= 2 and narrow


@operator("MaxPool", further=(*PLACING, "ceil_mode"))
def max_pool(
    x: Value, *, kernel_shape: tuple[int, ...], storage_order: int = 0, wanted: int, **how: Any
) -> Any:
    """Return the largest element of each window and, if requested, its index."""
    windows = lay_windows(x.shape[2:], kernel_shape, **how)
    # Small whole numbers are exact in float32.
    image = x if is_float(x.dtype) else op.cast(x, float32)
    if wanted > 1:
        return _with_places(x, image, windows, storage_order)
    if _is_plane(windows):
        lacking = (1,) * (2 - len(windows.kernel))
        y = _plane(op.max_pool2d, image, windows, (*lacking, *windows.dilations))
    else:
        y = reduce(op.maximum, unfold(padded(image, windows, -math.inf), windows))
    return op.cast(y, x.dtype)


def _with_places(
    x: Value, image: Value, windows: AxisWindows, storage_order: int
) -> tuple[Expr, Expr]:
    parts = op.stack(unfold(padded(image, windows, -math.inf), windows))
    winner = op.argmax(parts, 0)
    sizes = x.shape[2:]
    where = places(windows, sizes)
    if storage_order:
        where = np.ravel_multi_index(np.unravel_index(where, sizes), sizes, order="F")
    flat = op.take_along_axis(where[:, None, None], op.unsqueeze(winner, 0), 0)[0]
    count, channels = x.shape[:2]
    start = np.arange(count * channels) * math.prod(sizes)
    first = start.reshape(count, channels, *(1,) * len(sizes))
    return op.cast(op.max(parts, 0), x.dtype), op.add(flat, first)


@operator("AveragePool", further=(*PLACING, "ceil_mode"))
def average_pool(
    x: Value, *, kernel_shape: tuple[int, ...], count_include_pad: int = 0, **how: Any
) -> Expr:
    """Return the mean of each window, with or without its padding."""
    windows = lay_windows(x.shape[2:], kernel_shape, **how)
    # Every window lies inside of the padding.
    is_plain = not any(windows.beyond)
    if _is_plane(windows) and is_plain and set(windows.dilations) == {1}:
        return _plane(op.avg_pool2d, x, windows, bool(count_include_pad))
    total = reduce(op.add, unfold(padded(x, windows, 0.0), windows))
    # What counts: the image, perhaps its padding, but never what lies beyond that.
    widths = list(zip(windows.before, windows.after, strict=True))
    counted = np.ones((1, 1, *x.shape[2:]))
    counted = np.pad(counted, [(0, 0), (0, 0), *widths], constant_values=count_include_pad)
    beyond = [(0, 0), (0, 0), *[(0, each) for each in windows.beyond]]
    share = sum(unfold(np.pad(counted, beyond), windows))
    return op.div(total, np.asarray(share).astype(x.dtype))


@operator("LpPool", further=(*PLACING, "ceil_mode"))
def lp_pool(x: Value, *, kernel_shape: tuple[int, ...], p: int = 2, **how: Any) -> Expr:
    """Return the p-norm of each window."""
    windows = lay_windows(x.shape[2:], kernel_shape, **how)
    powers = [_power(part, p) for part in unfold(padded(x, windows, 0.0), windows)]
    return _root(reduce(op.add, powers), p)


def _power(x: Value, p: int) -> Expr:
    return op.square(x) if p == 2 else op.pow(op.abs(x), float(p))


def _root(x: Value, p: int) -> Expr:
    return op.sqrt(x) if p == 2 else op.pow(x, 1.0 / p)


def _positions(x: Value) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


@operator("GlobalAveragePool")
def global_average_pool(x: Value) -> Expr:
    """Return the mean of each channel."""
    return op.mean(x, _positions(x), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(x: Value) -> Expr:
    """Return the largest element of each channel."""
    return op.max(x, _positions(x), keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(x: Value, *, p: int = 2) -> Expr:
    """Return the p-norm of each channel."""
    return _root(op.sum(_power(x, p), _positions(x), keepdims=True), p)


@operator("MaxUnpool")
def max_unpool(
    x: Value,
    indices: Value,
    output_shape: Value = None,
    *,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Expr:
    """Return zeros with each element at its index; indices refer to the pooled image."""
    rank = len(kernel_shape)
    steps, widths = strides or (1,) * rank, pads or (0,) * (2 * rank)
    sizes = tuple(
        (x.shape[2 + i] - 1) * steps[i] + kernel_shape[i] - widths[i] - widths[i + rank]
        for i in range(rank)
    )
    small = (*x.shape[:2], *sizes)
    check_size(small, x.dtype)
    flat = op.put_along_axis_add(
        np.zeros(math.prod(small), x.dtype), op.reshape(indices, (-1,)), op.reshape(x, (-1,)), 0
    )
    image = op.reshape(flat, small)
    if output_shape is None:
        return image
    wanted = integers(output_shape, "a shape")
    require(
        not any(more < have for more, have in zip(wanted, small, strict=True)),
        "onnx MaxUnpool",
        f"at least {small}",
        wanted,
    )
    return op.pad(image, [(0, more - have) for more, have in zip(wanted, small, strict=True)])
