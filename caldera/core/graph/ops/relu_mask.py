"""A relu that keeps in bits where it let something through, and its gradient from these. Made by a
pass: the gradient reads a sixteenth of what it would of activations in half precision."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes, composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops.base import cast, constant, full, reshape, sum_
from caldera.core.graph.ops.elementwise import add, div, floor, greater, mul, relu, sub, where
from caldera.core.graph.ops.movement import concat, narrow, pad, slice_
from caldera.core.graph.ops.widening import widen
from caldera.core.tensor.dtype import float32, is_float

ROW_BITS = 128
"""Rows of a mask begin at multiples of so many bits, as cuBLASLt's do."""
_BYTE = np.dtype(np.uint8)


def mask_bytes(columns: int) -> int:
    """Bytes of a row of bits.

    >>> mask_bytes(4096), mask_bytes(130)
    (512, 32)
    """
    return -(-columns // ROW_BITS) * ROW_BITS // 8


def _check_matrix(x: Node) -> None:
    if not is_float(x.dtype):
        refuse_dtype("a floating-point dtype")
    if len(x.shape) != 2:
        refuse_shape("a matrix")


def _number(value: float) -> Node:
    return constant(value, float32)


@composite("relu_mask")
def relu_mask(x: Node) -> Nodes:
    """relu(x) of a matrix, and in bits where it is positive: those of a row side by side, the first
    one lowest in its byte."""
    _check_matrix(x)
    rows, columns = x.shape
    y = relu(x)
    bits = cast(greater(y, constant(0, y.dtype)), float32)
    length = 8 * mask_bytes(columns)
    padded = pad(bits, ((0, 0), (0, length - columns)))
    parts = [slice_(padded, ((0, rows, 1), (place, length, 8))) for place in range(8)]
    worth = [mul(part, _number(2**place)) for place, part in enumerate(parts)]
    return y, cast(reduce(add, worth), _BYTE)


@composite("relu_mask_grad")
def relu_mask_grad(g: Node, mask: Node, *, summed: bool) -> Node | Nodes:
    """g where the mask says so and 0 elsewhere; if `summed`, with the sums of its columns, in
    float32 at least."""
    _check_matrix(g)
    rows, columns = g.shape
    if (mask.shape, mask.dtype) != ((rows, mask_bytes(columns)), _BYTE):
        refuse_shape(f"a mask of {mask_bytes(columns)} bytes in each of {rows} rows")
    worth = reshape(cast(mask, float32), (*mask.shape, 1))
    halves = [floor(div(worth, _number(2**place))) for place in range(9)]
    places = [sub(low, mul(high, _number(2))) for low, high in pairwise(halves)]
    bits = concat(tuple(places), axis=2)
    flat = narrow(reshape(bits, (rows, 8 * mask_bytes(columns))), 1, 0, columns)
    masked = where(greater(flat, _number(0.5)), g, full(g.shape, 0, g.dtype))
    return (masked, sum_(widen(masked), (0,))) if summed else masked
