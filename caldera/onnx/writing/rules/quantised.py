"""Export rule of products with weights of 8 bits.

Inputs and weights are written as unsigned bytes with the zero point 128: processors without VNNI
lose digits of products of unsigned by signed bytes in ONNX Runtime. With fixed steps, the product
is between `DequantizeLinear` and `QuantizeLinear` (QDQ), the form that tools for quantised networks
read. Steps of rows are computed, and the integers multiplied by `MatMulInteger`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.graph.ops.int8 import GROUP, LARGEST, LEAST, PANEL
from caldera.core.tensor.dtype import float32, uint8
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
        whole = rows[: x.spec.shape[1], :columns].astype(np.int16) + ZERO
        write.arrays[weight] = whole.astype(np.uint8)
    for name in (scale, *bias):
        write.arrays[name] = write.arrays[name][:columns]
    if step is None:
        found = _by_row(write, given, weight, scale)
    else:
        most, least = (write.scalar(sign * LARGEST * step, float32) for sign in (1, -1))
        how = write.scalar(step, float32), write.scalar(ZERO, uint8)
        quantised = write.add("QuantizeLinear", write.add("Clip", given, least, most), *how)
        zeros = write.array(np.full(columns, ZERO, np.uint8))
        matrix = write.add("DequantizeLinear", weight, scale, zeros, axis=1)
        found = write.add("MatMul", write.add("DequantizeLinear", quantised, *how), matrix)
    return write.add("Add", found, bias[0]) if bias else found


def _by_row(write: Any, given: str, weight: str, scale: str) -> str:
    """Write the product with a step for each row of the inputs."""
    size = write.add("ReduceMax", write.add("Abs", given), write.integers([1]), keepdims=1)
    most, least, tiny = (write.scalar(each, float32) for each in (LARGEST, -LARGEST, LEAST))
    steps = write.add("Max", write.add("Div", size, most), tiny)
    whole = write.add("Clip", write.add("Round", write.add("Div", given, steps)), least, most)
    shifted = write.add("Add", whole, write.scalar(ZERO, float32))
    zero = write.scalar(ZERO, uint8)
    inputs = write.add("Cast", shifted, to=write.element_type(uint8))
    total = write.add("MatMulInteger", inputs, weight, zero, zero)
    total = write.add("Cast", total, to=write.element_type(float32))
    return str(write.add("Mul", write.add("Mul", total, steps), scale))
