"""Products with packed weights, and rows of packed tables, without decoding whole matrices.

A product of many rows decodes the weights first, because it reads each weight many times.
"""

from __future__ import annotations

from caldera.compiler.passes.pattern import Rules, anything, p
from caldera.core.graph import Node
from caldera.core.graph.ops import pad, reshape
from caldera.core.graph.ops.few_bits import dequantise, few_bits_linear, padded
from caldera.core.graph.ops.indexing import gather
from caldera.core.tensor import size
from caldera.core.tensor.dtype import float32, int8

MOST_ROWS = 16
"""Rows up to which weights are decoded in registers."""

x = anything("x")


def _product(x: Node, found: Node, node: Node) -> Node | None:
    weight, attrs = node.inputs[1], node.attrs
    is_turned = weight is not found
    columns, rows = found.attrs["columns"], size(x.shape[:-1])
    if attrs["ta"] or attrs["tb"] == is_turned or x.dtype != float32 or not 0 < rows <= MOST_ROWS:
        return None
    codes, scale = found.inputs
    spare = padded(columns, 8 if codes.dtype == int8 else 4) - columns
    matrix = reshape(x, (rows, columns))
    matrix = pad(matrix, ((0, 0), (0, spare))) if spare else matrix
    return reshape(few_bits_linear(matrix, codes, scale), node.shape)


def _rows(x: Node, found: Node, node: Node) -> Node | None:
    if node.attrs["axis"] != 0:
        return None
    places = reshape(x, (x.spec.size,))
    codes, scale = (gather(each, places, axis=0) for each in found.inputs)
    return reshape(dequantise(codes, scale, **found.attrs), node.shape)


_decoded = p.dequantise(..., name="found")
RULES = Rules(
    (p.matmul(x, _decoded, name="node"), _product),
    (p.matmul(x, p.transpose(_decoded), name="node"), _product),
    (p.gather(_decoded, x, name="node"), _rows),
)
