"""Products with weights of 8 bits, for inference.

A weight is an integer from -127 to 127 times a scale of its column. Each row of the inputs is
rounded to such integers as well, in steps of its largest element divided by 127, or in steps that
calibration found. The integers are multiplied and summed without rounding.

Weights are stored in panels of 16 columns. In a panel, four rows of the matrix are together, as
processors multiply bytes: shape (panels, ceil(rows / 4), 16, 4), padded with zeros. Scales and
biases are padded to whole panels. Filters of a convolution are stored the same way, tap by tap:
shape (panels, height, width, ceil(channels / 4), 16, 4).
"""

from __future__ import annotations

from typing import Any

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    Padding,
    Pair,
    abs_,
    add,
    cast,
    constant,
    conv2d,
    div,
    matmul,
    max_,
    maximum,
    minimum,
    mul,
    relu,
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
    _check_dtypes(weight, x, scale, *bias)
    steps = _steps(x, step)
    whole = _within_bytes(div(x, steps))
    matrix = reshape(transpose(weight, (1, 3, 0, 2)), (groups * GROUP, padded))
    matrix = cast(slice_(matrix, ((0, x.shape[1], 1), (0, padded, 1))), float32)
    result = mul(mul(matmul(whole, matrix, ta=False, tb=False), steps), scale)
    for each in bias:
        result = add(result, each)
    return slice_(result, ((0, x.shape[0], 1), (0, columns, 1)))


def _check_dtypes(weight: Node, *others: Node) -> None:
    if weight.dtype != int8 or any(each.dtype != float32 for each in others):
        refuse_dtype("int8 weights, and float32 inputs, scales and biases")


def _steps(x: Node, step: float | None) -> Node:
    """Return the given step, or one for each sample."""
    if step is not None:
        return constant(step, float32)
    axes = tuple(range(1, len(x.shape)))
    steps = div(max_(abs_(x), axis=axes, keepdims=True), constant(LARGEST, float32))
    return maximum(steps, constant(LEAST, float32))


def _within_bytes(x: Node) -> Node:
    most, least = (constant(sign * LARGEST, float32) for sign in (1, -1))
    return maximum(minimum(round_(x), most), least)


@composite("int8_conv2d", kind="product", differentiable=False)
def int8_conv2d(
    x: Node,
    weight: Node,
    scale: Node,
    bias: Node,
    *,
    filters: int,
    step: float | None,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
) -> Node:
    """Images (N, C, H, W) convolved with filters; `step` is None if each image has a separate
    step."""
    panels, rows, columns, groups = weight.shape[:4] if len(weight.shape) == 6 else (0, 0, 0, 0)
    expected = (panels, rows, columns, -(-x.shape[1] // GROUP), PANEL, GROUP)
    if len(x.shape) != 4 or weight.shape != expected:
        refuse_shape(
            f"images, and weights (panels, height, width, ceil(channels / {GROUP}), {PANEL}, "
            f"{GROUP})"
        )
    padded = panels * PANEL
    if not 0 < filters <= padded or any(each.shape != (padded,) for each in (scale, bias)):
        refuse_shape(f"a scale and a bias for each of {padded} filters")
    _check_dtypes(weight, x, scale, bias)
    steps = _steps(x, step)
    whole = _within_bytes(mul(x, div(constant(1.0, float32), steps)))
    taps = reshape(transpose(weight, (0, 4, 3, 5, 1, 2)), (padded, groups * GROUP, rows, columns))
    kept = ((0, filters, 1), (0, x.shape[1], 1), (0, rows, 1), (0, columns, 1))
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    sums = conv2d(whole, cast(slice_(taps, kept), float32), groups=1, **how)
    factor, offset = (
        reshape(slice_(each, ((0, filters, 1),)), (filters, 1, 1)) for each in (scale, bias)
    )
    return add(mul(mul(sums, steps), factor), offset)


@composite("int8_conv2d_relu", kind="product", differentiable=False)
def int8_conv2d_relu(
    x: Node, weight: Node, scale: Node, bias: Node, *more: Node, **how: Any
) -> Node:
    """relu(int8_conv2d(x) + more); `more` may be left out."""
    found = int8_conv2d(x, weight, scale, bias, **how)
    if len(more) > 1 or any(each.spec.logical != found.spec.logical for each in more):
        refuse_shape(f"at most one image to add, like {found.spec}")
    for each in more:
        found = add(found, each)
    return relu(found)
