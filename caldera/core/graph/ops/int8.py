"""Products with weights of 8 bits, for inference.

A weight is an integer from -127 to 127 times a scale of its column. Each row of the inputs is
rounded to such integers as well, in steps of its largest element divided by 127, or in steps that
calibration found. The integers are multiplied and summed without rounding.

Weights are stored in panels of 16 columns. In a panel, four rows of the matrix are together, as
processors multiply bytes: shape (panels, ceil(rows / 4), 16, 4), padded with zeros. Scales and
biases are padded to whole panels.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    abs_,
    add,
    cast,
    constant,
    div,
    matmul,
    max_,
    maximum,
    minimum,
    mul,
    reshape,
    round_,
    slice_,
    transpose,
)
from caldera.core.tensor.dtype import float32, int8

PANEL, GROUP = 16, 4
LARGEST = 127.0
LEAST = 2.0**-100
"""Smallest step: rows of smaller numbers become zeros."""


@composite("int8_linear", kind="product", differentiable=False)
def int8_linear(
    x: Node,
    weight: Node,
    scale: Node,
    *bias: Node,
    columns: int,
    step: float | None,
) -> Node:
    """x @ weight + bias for a matrix x; `step` is None if each row has a separate step."""
    panels, groups = weight.shape[:2] if len(weight.shape) == 4 else (0, 0)
    if len(x.shape) != 2 or weight.shape != (panels, -(-x.shape[1] // GROUP), PANEL, GROUP):
        refuse_shape(f"a matrix, and weights (panels, ceil(inputs / {GROUP}), {PANEL}, {GROUP})")
    padded = panels * PANEL
    if not 0 < columns <= padded or any(each.shape != (padded,) for each in (scale, *bias)):
        refuse_shape(f"a scale, and a bias if any, for each of {padded} columns")
    dtypes = [each.dtype for each in (weight, x, scale, *bias)]
    if dtypes != [int8, *[float32] * (len(dtypes) - 1)]:
        refuse_dtype("int8 weights, and float32 inputs, scales and biases")
    if step is None:
        steps = div(max_(abs_(x), axis=(1,), keepdims=True), constant(LARGEST, float32))
        steps = maximum(steps, constant(LEAST, float32))
    else:
        steps = constant(step, float32)
    most, least = (constant(sign * LARGEST, float32) for sign in (1, -1))
    whole = maximum(minimum(round_(div(x, steps)), most), least)
    matrix = reshape(transpose(weight, (1, 3, 0, 2)), (groups * GROUP, padded))
    matrix = cast(slice_(matrix, ((0, x.shape[1], 1), (0, padded, 1))), float32)
    result = mul(mul(matmul(whole, matrix, ta=False, tb=False), steps), scale)
    for each in bias:
        result = add(result, each)
    return slice_(result, ((0, x.shape[0], 1), (0, columns, 1)))
