"""Convolutions over any number of axes, and what is made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.onnx.operators.registry import Value, expression, integers, operator
from caldera.onnx.operators.windows import AxisWindows, fold, lay_windows, padded, positions, unfold


def convolve(
    x: Value,
    w: Value,
    bias: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Expr:
    """Images (N, C, ...) with kernels (M, C / group, ...); one or two axes have kernels here."""
    kernel = kernel_shape or w.shape[2:]
    windows = lay_windows(
        x.shape[2:], kernel, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    if len(kernel) <= 2:
        y = _plane(x, w, windows, group)
    else:
        y = _by_product(x, w, windows, group)
    return y if bias is None else op.bias_add(y, bias, axis=1)


operator("Conv")(convolve)


def _plane(x: Value, w: Value, windows: AxisWindows, group: int) -> Expr:
    padding = windows.padding()
    if len(padding) == 1:
        return op.conv1d(x, w, windows.strides[0], padding[0], windows.dilations[0], group)
    return op.conv2d(x, w, windows.strides, padding, windows.dilations, group)


def _by_product(x: Value, w: Value, windows: AxisWindows, group: int) -> Expr:
    """The elements of all windows side by side, times the kernels."""
    count, channels = x.shape[:2]
    parts = unfold(padded(x, windows, 0.0), windows)
    spots = math.prod(windows.outputs)
    inner = channels // group
    columns = op.reshape(op.stack(parts, axis=2), (count, group, inner * len(parts), spots))
    kernels = op.reshape(w, (group, w.shape[0] // group, inner * len(parts)))
    return op.reshape(op.matmul(kernels, columns), (count, w.shape[0], *windows.outputs))


@operator("ConvTranspose")
def conv_transpose(
    x: Value,
    w: Value,
    bias: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Expr:
    """The transpose of a convolution: computed whole, then cut (or padded) to its size."""
    rank = len(x.shape) - 2
    kernel = kernel_shape or w.shape[2:]
    steps, gaps = strides or (1,) * rank, dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    reach = [gaps[i] * (kernel[i] - 1) + 1 for i in range(rank)]
    sizes = [steps[i] * (x.shape[2 + i] - 1) + reach[i] for i in range(rank)]
    if output_shape is not None or auto_pad.startswith("SAME"):
        wanted = output_shape or [x.shape[2 + i] * steps[i] for i in range(rank)]
        total = [sizes[i] + extra[i] - wanted[-rank:][i] for i in range(rank)]
        small = [each // 2 for each in total]
        large = [each - each // 2 for each in total]
        before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    else:
        given = pads or (0,) * (2 * rank)
        before, after = list(given[:rank]), list(given[rank:])
    whole = _transposed(x, w, steps, gaps, group, sizes)
    y = _resized(whole, before, [after[i] - extra[i] for i in range(rank)])
    return y if bias is None else op.bias_add(y, bias, axis=1)


def _resized(x: Expr, before: list[int], after: list[int]) -> Expr:
    """Cut at both ends; negative widths add zeros."""
    cut = [slice(None), slice(None)]
    widths = [(0, 0), (0, 0)]
    for i, (first, last) in enumerate(zip(before, after, strict=True)):
        cut.append(slice(max(first, 0), x.shape[2 + i] - max(last, 0)))
        widths.append((max(-first, 0), max(-last, 0)))
    return op.pad(x[tuple(cut)], widths)


def _transposed(
    x: Value, w: Value, strides: Any, dilations: Any, group: int, sizes: list[int]
) -> Expr:
    rank = len(sizes)
    if rank <= 2:
        # One axis is a row of two.
        lacking = 2 - rank
        image, kernel = (
            op.reshape(each, (*each.shape[:2], *(1,) * lacking, *each.shape[2:])) for each in (x, w)
        )
        one = (1,) * lacking
        y = op.conv_transpose2d(image, kernel, (*one, *strides), 0, 0, (*one, *dilations), group)
        return op.reshape(y, (*y.shape[:2], *sizes))
    count, channels = x.shape[:2]
    inner, filters = channels // group, w.shape[1]
    spots = math.prod(x.shape[2:])
    images = op.reshape(x, (count, group, inner, spots))
    parts = []
    for position in positions(w.shape[2:]):
        kernel = op.reshape(
            expression(w)[(slice(None), slice(None), *position)], (group, inner, filters)
        )
        part = op.matmul(op.transpose(kernel, (0, 2, 1)), images)
        parts.append(op.reshape(part, (count, group * filters, *x.shape[2:])))
    windows = lay_windows(sizes, w.shape[2:], strides=strides, dilations=dilations)
    return fold(parts, windows, sizes)


@operator("Col2Im")
def col2im(
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Expr:
    """Columns of windows added back to an image."""
    sizes, kernel = integers(image_shape, "sizes"), integers(block_shape, "sizes")
    windows = lay_windows(sizes, kernel, strides=strides, dilations=dilations, pads=pads)
    count = x.shape[0]
    elements = math.prod(kernel)
    columns = op.reshape(x, (count, -1, elements, *windows.outputs))
    parts = [columns[:, :, i] for i in range(elements)]
    room = [n + a + b for n, a, b in zip(sizes, windows.before, windows.after, strict=True)]
    whole = fold(parts, windows, room)
    cut = [slice(a, a + n) for a, n in zip(windows.before, sizes, strict=True)]
    return whole[(slice(None), slice(None), *cut)]


@operator("CausalConvWithState")
def causal_conv_with_state(
    x: Value, w: Value, bias: Value = None, past_state: Value = None, *, activation: str = "none"
) -> tuple[Expr, Expr]:
    """Each channel convolved with what came before it, also in the last call."""
    count, channels, length = x.shape
    before = w.shape[2] - 1
    past = np.zeros((count, channels, before), x.dtype) if past_state is None else past_state
    whole = op.concat([past, x], axis=2)
    y = op.conv1d(whole, w, groups=channels)
    if bias is not None:
        y = op.bias_add(y, bias, axis=1)
    if activation in ("silu", "swish"):
        y = op.silu(y)
    return y, whole[:, :, length:]
