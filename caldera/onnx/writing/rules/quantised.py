"""Export rules of products and convolutions with weights of 8 bits.

Inputs and weights are written as unsigned bytes with the zero point 128: processors without VNNI
lose digits of products of unsigned by signed bytes in ONNX Runtime. With fixed steps, the product
is between `DequantizeLinear` and `QuantizeLinear` (QDQ), the form that tools for quantised networks
read. Steps of rows and images are computed, and the integers multiplied by `MatMulInteger` and
`ConvInteger`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.graph.ops.int8 import GROUP, LARGEST, LEAST, PANEL
from caldera.core.tensor.dtype import float32, uint8
from caldera.onnx.writing.rules.layers import placing
from caldera.onnx.writing.rules.registry import writes

ZERO = 128


@writes("int8_linear")
def _int8_linear(write: Any, pair: Any) -> str:
    x, *held = pair.inputs
    if any(each.name != "variable" for each in held):
        return NotImplemented
    columns, step = pair.attrs["columns"], pair.attrs["step"]
    given, weight, scale, *bias = (write.name(each) for each in pair.inputs)
    panels = write.arrays[weight]
    if panels.ndim == 4:  # A shared layer is written once.
        rows = panels.transpose(1, 3, 0, 2).reshape(-1, panels.shape[0] * PANEL)
        assert len(rows) == panels.shape[1] * GROUP
        _hold(write, weight, rows[: x.spec.shape[1], :columns])
    for name in (scale, *bias):
        write.arrays[name] = write.arrays[name][:columns]
    if step is None:
        inputs, steps = _whole(write, given, [1])
        total = _product(write, "MatMulInteger", inputs, weight)
        found = write.add("Mul", write.add("Mul", total, steps), scale)
    else:
        matrix = _dequantised(write, weight, scale, axis=1)
        found = write.add("MatMul", _stepped(write, given, step), matrix)
    return write.add("Add", found, bias[0]) if bias else found


@writes("int8_conv2d")
def _int8_conv2d(write: Any, pair: Any) -> str:
    x, *held = pair.inputs
    if any(each.name != "variable" for each in held):
        return NotImplemented
    filters, step = pair.attrs["filters"], pair.attrs["step"]
    given, weight, scale, bias = (write.name(each) for each in pair.inputs)
    panels = write.arrays[weight]
    if panels.ndim == 6:
        taps = panels.transpose(0, 4, 3, 5, 1, 2).reshape(
            -1, panels.shape[3] * GROUP, *panels.shape[1:3]
        )
        _hold(write, weight, taps[:filters, : x.spec.shape[1]])
        for name in (scale, bias):
            write.arrays[name] = write.arrays[name][:filters]
    how = {
        "kernel_shape": list(write.arrays[weight].shape[2:]),
        "dilations": list(pair.attrs["dilation"]),
        **placing(pair),
    }
    if step is not None:
        taps = _dequantised(write, weight, scale, axis=0)
        return str(write.add("Conv", _stepped(write, given, step), taps, bias, **how))
    inputs, steps = _whole(write, given, [1, 2, 3])
    total = write.add("Mul", _product(write, "ConvInteger", inputs, weight, **how), steps)
    shape = write.integers([filters, 1, 1])
    factor, offset = (write.add("Reshape", each, shape) for each in (scale, bias))
    return str(write.add("Add", write.add("Mul", total, factor), offset))


def _hold(write: Any, name: str, weight: np.ndarray) -> None:
    """Keep the weights of an initializer as unsigned bytes."""
    write.arrays[name] = (weight.astype(np.int16) + ZERO).astype(np.uint8)


def _dequantised(write: Any, weight: str, scale: str, axis: int) -> str:
    zeros = write.array(np.full(write.arrays[scale].shape, ZERO, np.uint8))
    return str(write.add("DequantizeLinear", weight, scale, zeros, axis=axis))


def _stepped(write: Any, given: str, step: float) -> str:
    """Write inputs that are rounded to multiples of a step."""
    most, least = (write.scalar(sign * LARGEST * step, float32) for sign in (1, -1))
    how = write.scalar(step, float32), write.scalar(ZERO, uint8)
    quantised = write.add("QuantizeLinear", write.add("Clip", given, least, most), *how)
    return str(write.add("DequantizeLinear", quantised, *how))


def _whole(write: Any, given: str, axes: list[int]) -> tuple[str, str]:
    """Write inputs as bytes, in a step for each sample; return them and the steps."""
    size = write.add("ReduceMax", write.add("Abs", given), write.integers(axes), keepdims=1)
    most, least, tiny = (write.scalar(each, float32) for each in (LARGEST, -LARGEST, LEAST))
    steps = write.add("Max", write.add("Div", size, most), tiny)
    whole = write.add("Clip", write.add("Round", write.add("Div", given, steps)), least, most)
    shifted = write.add("Add", whole, write.scalar(ZERO, float32))
    return write.add("Cast", shifted, to=write.element_type(uint8)), steps


def _product(write: Any, op: str, inputs: str, weight: str, **how: Any) -> str:
    """Write a product of bytes, with its sums in float32."""
    zero = write.scalar(ZERO, uint8)
    total = write.add(op, inputs, weight, zero, zero, **how)
    return str(write.add("Cast", total, to=write.element_type(float32)))
