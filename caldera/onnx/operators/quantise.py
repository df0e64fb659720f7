"""Quantised numbers: whole numbers of few bits that stand for (number - zero point) * scale.

Products of quantised numbers are computed in float64, which holds them exactly.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import DType, float32, float64, int32, uint8
from caldera.onnx.library import dtype_of, is_ours
from caldera.onnx.operators.convolution import convolve
from caldera.onnx.operators.dtype_shape import converted
from caldera.onnx.operators.registry import Value, axis_of, operator
from caldera.onnx.operators.windows import PLACING


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
    if precision:
        working = dtype_of(precision)
    else:
        working = scale.dtype if is_ours(scale.dtype) else float32
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
    """x in 8 bits, with the scale and zero point that its own range asks for."""
    low = op.minimum(op.min(x), 0.0)
    high = op.maximum(op.max(x), 0.0)
    scale = op.div(op.sub(high, low), 255.0)
    zero_point = op.round(op.clip(op.div(op.neg(low), scale), 0.0, 255.0))
    whole = op.add(op.round(op.div(x, scale)), zero_point)
    return saturated(whole, uint8), scale, op.cast(zero_point, uint8)


def _rows(parameter: Value) -> Value:
    """One number a row: as a column."""
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
    """The product of whole numbers, each less its zero point."""
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
    """The product of quantised matrices, quantised again."""
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
    """The convolution of whole numbers, each less its zero point."""
    image = _centred(x, x_zero_point, False)
    kernel = _centred(w, _by_filter(w_zero_point, w), False)
    return op.cast(convolve(image, kernel, **how), int32)


def _by_filter(parameter: Value, w: Value) -> Value:
    """One number a filter: along the first axis of the weights."""
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
    """The convolution of quantised numbers, quantised again."""
    image = _centred(x, x_zero, False)
    kernel = _centred(w, _by_filter(w_zero, w), False)
    total = convolve(image, kernel, None if bias is None else converted(bias, float64), **how)
    filters = converted(w_scale, float64)
    if filters.shape not in ((), (1,)):
        filters = op.reshape(filters, (-1, *(1,) * (len(w.shape) - 2)))
    scale = op.mul(converted(x_scale, float64), filters)
    return _quantised(op.mul(total, scale), y_scale, y_zero)
