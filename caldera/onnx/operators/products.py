"""Matrix products, determinants, convolutions, and their quantised forms.

A quantised number is an integer of few bits that represents (number - zero point) * scale. Products
of quantised numbers are computed in float64, which holds them exactly.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import DType, float32, float64, int32, is_float, uint8
from caldera.onnx.library import dtype_of, is_ours
from caldera.onnx.operators.dtype_shape import converted
from caldera.onnx.operators.movement import widened
from caldera.onnx.operators.pooling import (
    PLACING,
    AxisWindows,
    filtered,
    fold,
    lay_windows,
    padded,
    positions,
    unfold,
)
from caldera.onnx.operators.registry import Value, axis_of, expression, integers, operator


@operator("MatMul")
def matmul(a: Value, b: Value) -> Expr:
    """Return matrix product; integers are multiplied in float64, which represents them exactly."""
    if is_float(a.dtype):
        return op.matmul(a, b)
    return op.cast(op.matmul(op.cast(a, float64), op.cast(b, float64)), a.dtype)


@operator("Gemm")
def gemm(
    a: Value,
    b: Value,
    c: Value = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Expr:
    """alpha a b + beta c."""
    y = op.matmul(a, b, bool(transA), bool(transB))
    if alpha != 1:
        y = op.mul(y, alpha)
    if c is None or beta == 0:
        return y
    return op.add(y, c if beta == 1 else op.mul(c, beta))


@operator("Det")
def det(x: Value) -> Expr:
    """Return the determinant of each matrix."""
    return op.determinant(x)


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
    """Return images (N, C, ...) with kernels (M, C / group, ...).

    One or two axes have kernels here.
    """
    kernel = kernel_shape or w.shape[2:]
    windows = lay_windows(
        x.shape[2:], kernel, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    y = (_plane if len(kernel) <= 2 else _by_product)(x, w, windows, group)
    return y if bias is None else op.bias_add(y, bias, axis=1)


operator("Conv")(convolve)


def _plane(x: Value, w: Value, windows: AxisWindows, group: int) -> Expr:
    padding = windows.padding()
    if len(padding) == 1:
        return op.conv1d(x, w, windows.strides[0], padding[0], windows.dilations[0], group)
    return op.conv2d(x, w, windows.strides, padding, windows.dilations, group)


def _by_product(x: Value, w: Value, windows: AxisWindows, group: int) -> Expr:
    """Return the elements of all windows side by side, times the kernels."""
    return filtered(op.stack(unfold(padded(x, windows, 0.0), windows), axis=2), w, group, windows)


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
    """Return the transpose of a convolution: computed whole, then cut (or padded) to its size."""
    rank = len(x.shape) - 2
    kernel = kernel_shape or w.shape[2:]
    steps, gaps = strides or (1,) * rank, dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    reach = [gaps[i] * (kernel[i] - 1) + 1 for i in range(rank)]
    sizes = [steps[i] * (x.shape[2 + i] - 1) + reach[i] for i in range(rank)]
    if output_shape is not None or auto_pad.startswith("SAME"):
        wanted = output_shape or [x.shape[2 + i] * steps[i] for i in range(rank)]
        total = [sizes[i] + extra[i] - wanted[-rank:][i] for i in range(rank)]
        small, large = [each // 2 for each in total], [each - each // 2 for each in total]
        before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    else:
        before, after = (list((pads or (0,) * (2 * rank))[i : i + rank]) for i in (0, rank))
    whole = _transposed(x, w, steps, gaps, group, sizes)
    y = widened(whole, [(0, 0), (0, 0), *[(-before[i], extra[i] - after[i]) for i in range(rank)]])
    return y if bias is None else op.bias_add(y, bias, axis=1)


def _transposed(
    x: Value, w: Value, strides: Any, dilations: Any, group: int, sizes: list[int]
) -> Expr:
    rank = len(sizes)
    if rank == 1:
        return op.conv_transpose1d(x, w, strides[0], dilation=dilations[0], groups=group)
    if rank <= 3:
        transpose = op.conv_transpose2d if rank == 2 else op.conv_transpose3d
        return transpose(x, w, strides, dilation=dilations, groups=group)
    count, channels = x.shape[:2]
    inner, filters = channels // group, w.shape[1]
    images = op.reshape(x, (count, group, inner, math.prod(x.shape[2:])))
    parts = []
    for position in positions(w.shape[2:]):
        kernel = op.reshape(
            expression(w)[(slice(None), slice(None), *position)], (group, inner, filters)
        )
        part = op.matmul(op.transpose(kernel, (0, 2, 1)), images)
        parts.append(op.reshape(part, (count, group * filters, *x.shape[2:])))
    return fold(parts, lay_windows(sizes, w.shape[2:], strides=strides, dilations=dilations), sizes)


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
    """Return columns of windows added back to an image."""
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
    """Convolve each channel causally, with the past including steps of the last call."""
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


def _along(parameter: Value, x: Value, axis: int, block_size: int) -> Value:
    """A scale or zero point in a shape that broadcasts with x: for all, by axis, or by block."""
    if not parameter.shape or parameter.shape == (1,):
        return op.reshape(parameter, ())
    position = axis_of(axis, len(x.shape))
    if len(parameter.shape) == 1:
        return op.reshape(parameter, (-1, *(1,) * (len(x.shape) - position - 1)))
    whole = op.repeat(parameter, block_size, position)
    return op.slice(whole, [None] * (position + 1), [None] * position + [x.shape[position]])


def _limits(dtype: DType) -> tuple[int, int]:
    limits: Any = np.iinfo(dtype) if is_ours(dtype) or dtype.kind == "u" else ml_dtypes.iinfo(dtype)
    return int(limits.min), int(limits.max)


def saturated(x: Value, dtype: DType) -> Value:
    """Numbers rounded, kept within the range of a dtype, and cast to it."""
    if "float" in dtype.name:
        return converted(x, dtype)
    low, high = _limits(dtype)
    return converted(op.clip(x, float(low), float(high)), dtype)


@operator("QuantizeLinear", foreign=True)
def quantize_linear(
    x: Value,
    scale: Value,
    zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """round(x / scale) + zero point, kept within the range of its dtype."""
    wanted = zero_point.dtype if zero_point is not None else uint8
    wanted = dtype_of(output_dtype) if output_dtype else wanted
    usual = scale.dtype if is_ours(scale.dtype) else float32
    working = dtype_of(precision) if precision else usual
    factor = _along(converted(scale, working), x, axis, block_size)
    ratio = op.div(converted(x, working), factor)
    if "float" in wanted.name:
        return converted(ratio, wanted, bool(saturate))
    # Whole numbers of 16 bits are more than a half can hold.
    whole = op.cast(op.round(ratio), float32)
    if zero_point is not None:
        whole = op.add(whole, _along(converted(zero_point, float32), x, axis, block_size))
    return saturated(whole, wanted)


@operator("DequantizeLinear", foreign=True)
def dequantize_linear(
    x: Value,
    scale: Value,
    zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """(x - zero point) * scale."""
    wanted = dtype_of(output_dtype) if output_dtype else scale.dtype
    # Differences of int32 need more digits than float32 has.
    working = float64 if x.dtype == int32 else float32
    centred = converted(x, working)
    if zero_point is not None:
        centred = op.sub(centred, _along(converted(zero_point, working), x, axis, block_size))
    factor = _along(converted(scale, working), x, axis, block_size)
    return converted(op.mul(centred, factor), wanted)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Value) -> tuple[Value, Value, Value]:
    """Quantise x to 8 bits, with scale and zero point from its own range."""
    low = op.minimum(op.min(x), 0.0)
    high = op.maximum(op.max(x), 0.0)
    scale = op.div(op.sub(high, low), 255.0)
    zero_point = op.round(op.clip(op.div(op.neg(low), scale), 0.0, 255.0))
    whole = op.add(op.round(op.div(x, scale)), zero_point)
    return saturated(whole, uint8), scale, op.cast(zero_point, uint8)


def _rows(parameter: Value) -> Value:
    """Return a vector with one number per row as a column."""
    return op.reshape(parameter, (-1, 1)) if len(parameter.shape) == 1 else parameter


def _centred(x: Value, zero_point: Value, by_row: bool) -> Expr:
    wide = converted(x, float64)
    if zero_point is None:
        return wide
    offset = converted(zero_point, float64)
    return op.sub(wide, _rows(offset) if by_row and offset.shape != (1,) else offset)


@operator("MatMulInteger")
def matmul_integer(
    a: Value, b: Value, a_zero_point: Value = None, b_zero_point: Value = None
) -> Expr:
    """Return the product of whole numbers, each less its zero point."""
    product = op.matmul(_centred(a, a_zero_point, True), _centred(b, b_zero_point, False))
    return op.cast(product, int32)


@operator("QLinearMatMul", foreign=True)
def qlinear_matmul(
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    """Return the product of quantised matrices, quantised again."""
    product = op.matmul(_centred(a, a_zero, True), _centred(b, b_zero, False))
    left, right = converted(a_scale, float64), converted(b_scale, float64)
    scale = op.mul(_rows(left) if left.shape not in ((), (1,)) else left, right)
    return _quantised(op.mul(product, scale), y_scale, y_zero)


def _quantised(x: Value, scale: Value, zero_point: Value) -> Value:
    ratio = op.round(op.div(x, converted(scale, float64)))
    return saturated(op.add(ratio, converted(zero_point, float64)), zero_point.dtype)


@operator("ConvInteger", further=(*PLACING, "group", "kernel_shape"))
def conv_integer(
    x: Value, w: Value, x_zero_point: Value = None, w_zero_point: Value = None, **how: Any
) -> Expr:
    """Return the convolution of whole numbers, each less its zero point."""
    image = _centred(x, x_zero_point, False)
    kernel = _centred(w, _by_filter(w_zero_point, w), False)
    return op.cast(convolve(image, kernel, **how), int32)


def _by_filter(parameter: Value, w: Value) -> Value:
    """Return a vector with one number per filter, along the first axis of the weights."""
    if parameter is None or parameter.shape in ((), (1,)):
        return parameter
    return op.reshape(parameter, (-1, *(1,) * (len(w.shape) - 1)))


@operator("QLinearConv", further=(*PLACING, "group", "kernel_shape"))
def qlinear_conv(
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value = None,
    **how: Any,
) -> Value:
    """Return the convolution of quantised numbers, quantised again."""
    image = _centred(x, x_zero, False)
    kernel = _centred(w, _by_filter(w_zero, w), False)
    total = convolve(image, kernel, None if bias is None else converted(bias, float64), **how)
    filters = converted(w_scale, float64)
    if filters.shape not in ((), (1,)):
        filters = op.reshape(filters, (-1, *(1,) * (len(w.shape) - 2)))
    scale = op.mul(converted(x_scale, float64), filters)
    return _quantised(op.mul(total, scale), y_scale, y_zero)
