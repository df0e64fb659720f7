"""Weights of 8 or 4 bits for products in floating point.

A weight is an integer times a scale. The weights of an output are a row of `codes`, padded to
blocks of 64 bytes. Rows of int8 hold integers from -127 to 127, with a scale for the row. Rows of
uint8 hold two integers from -8 to 7 in a byte, plus 8, with a scale for 32, 64 or 128 integers.
Bits 4 i to 4 i + 3 of the 32-bit word j are the integer 16 i + j of a block of 128: a vector of
words becomes vectors of neighbours.
"""

from __future__ import annotations

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    cast,
    concat,
    constant,
    div,
    floor,
    matmul,
    mul,
    reshape,
    slice_,
    sub,
    transpose,
)
from caldera.core.tensor.dtype import float32, int8, uint8

LANES = 16
BLOCKS = {8: 64, 4: 128}
"""Number of weights of a block, by their bits."""
LARGEST = 127.0
GROUPS = (32, 64, 128)
"""Numbers of weights of 4 bits that may share a scale."""
ZERO = 8


def padded(columns: int, bits: int) -> int:
    """Return the number of weights of a row with its padding.

    >>> padded(100, 8), padded(100, 4)
    (128, 128)
    """
    return -(-columns // BLOCKS[bits]) * BLOCKS[bits]


@composite("dequantise", differentiable=False)
def dequantise(codes: Node, scale: Node, *, columns: int) -> Node:
    """Return the matrix (outputs, columns) in float32."""
    bits = {int8: 8, uint8: 4}.get(codes.dtype, 0)
    if not bits or scale.dtype != float32:
        refuse_dtype("codes of int8 or uint8, and float32 scales")
    wide = padded(columns, bits)
    rows, groups = scale.shape if len(scale.shape) == 2 else (0, 0)
    is_grouped = groups == 1 if bits == 8 else groups in [wide // each for each in GROUPS]
    if codes.shape != (rows, wide * bits // 8) or not is_grouped:
        refuse_shape(f"codes of {columns} weights in rows, and scales of their groups")
    whole = cast(codes, float32)
    if bits == 4:
        words = transpose(reshape(whole, (rows, wide // BLOCKS[4], LANES, 4)), (0, 1, 3, 2))
        # Both halves of a byte: exact in floating point.
        sixteen = constant(16.0, float32)
        high = floor(div(words, sixteen))
        halves = (sub(words, mul(high, sixteen)), high)
        shape = (rows, wide // BLOCKS[4], 4, 1, LANES)
        whole = concat(tuple(reshape(each, shape) for each in halves), 3)
        whole = sub(whole, constant(float(ZERO), float32))
    split = reshape(whole, (rows, groups, wide // groups))
    found = reshape(mul(split, reshape(scale, (rows, groups, 1))), (rows, wide))
    return slice_(found, ((0, rows, 1), (0, columns, 1)))


@composite("few_bits_linear", kind="product", differentiable=False)
def few_bits_linear(x: Node, codes: Node, scale: Node) -> Node:
    """x @ weight.T for a matrix x, padded as the rows of weights are."""
    return matmul(x, dequantise(codes, scale, columns=x.shape[1]), ta=False, tb=True)


def quantised(weight: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and scales of a matrix (outputs, inputs); `group` counts for 4 bits.

    >>> codes, scale = quantised(np.array([[1.0, -2.0, 0.5]], np.float32), 8, 0)
    >>> codes[0, :4].tolist(), scale.tolist()
    ([64, -127, 32, 0], [[0.015748031437397003]])
    """
    rows, columns = weight.shape
    wide = np.zeros((rows, padded(columns, bits)), np.float32)
    wide[:, :columns] = weight
    split = wide.reshape(rows, -1, wide.shape[1] if bits == 8 else group)
    place = np.abs(split).argmax(2)[:, :, None]
    most = np.take_along_axis(split, place, 2)
    # The largest weight of a group becomes -8 exactly; as 7 it would waste a step.
    scale = np.abs(most) / np.float32(LARGEST) if bits == 8 else most / np.float32(-ZERO)
    whole = np.rint(np.divide(split, scale, out=np.zeros_like(split), where=scale != 0))
    if bits == 8:
        return whole.reshape(wide.shape).astype(np.int8), scale[:, :, 0]
    digits = (np.clip(whole, -ZERO, ZERO - 1) + ZERO).astype(np.uint8)
    words = digits.reshape(rows, -1, 4, 2, LANES).transpose(0, 1, 4, 2, 3)
    return (words[..., 0] | words[..., 1] << 4).reshape(rows, -1), scale[:, :, 0]
