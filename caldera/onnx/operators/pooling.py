"""Pooling over any number of axes."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, is_float
from caldera.errors import ConfigError
from caldera.onnx.operators.registry import Value, check_size, integers, operator
from caldera.onnx.operators.windows import PLACING, AxisWindows, lay_windows, padded, places, unfold


def _plane(function: Any, x: Value, windows: AxisWindows, *more: Any) -> Expr:
    """Caldera's own pooling is over two axes; one axis is a row of two."""
    lacking = 2 - len(windows.kernel)
    one, none = (1,) * lacking, ((0, 0),) * lacking
    image = op.reshape(x, (*x.shape[:2], *one, *x.shape[2:]))
    padding = (*none, *windows.padding())
    y = function(image, (*one, *windows.kernel), (*one, *windows.strides), padding, *more)
    return op.reshape(y, (*x.shape[:2], *windows.outputs))


def _is_plane(windows: AxisWindows) -> bool:
    narrow = all(
        max(widths) < reach for widths, reach in zip(windows.padding(), windows.reach, strict=True)
    )
    return len(windows.kernel) <= 2 and narrow


@operator("MaxPool", further=(*PLACING, "ceil_mode"))
def max_pool(
    x: Value, *, kernel_shape: tuple[int, ...], storage_order: int = 0, wanted: int, **how: Any
) -> Any:
    """The largest element of each window and, if asked for, where it stands."""
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
    """The mean of each window, with or without its padding."""
    windows = lay_windows(x.shape[2:], kernel_shape, **how)
    if _is_plane(windows) and windows.is_plain and set(windows.dilations) == {1}:
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
    """The p-norm of each window."""
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
    """The mean of each channel."""
    return op.mean(x, _positions(x), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(x: Value) -> Expr:
    """The largest element of each channel."""
    return op.max(x, _positions(x), keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(x: Value, *, p: int = 2) -> Expr:
    """The p-norm of each channel."""
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
    """Zeros, with each element where its index says; the indices are those of the pooled image."""
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
    if any(more < have for more, have in zip(wanted, small, strict=True)):
        raise ConfigError.build("onnx MaxUnpool", expected=f"at least {small}", got=f"{wanted}")
    return op.pad(image, [(0, more - have) for more, have in zip(wanted, small, strict=True)])
