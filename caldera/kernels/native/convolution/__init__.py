"""Convolutions compiled to machine code: direct, or as products of matrices."""

from __future__ import annotations

from caldera.graph.node import Node
from caldera.kernels.native.convolution import columns, direct, weight_gradient
from caldera.kernels.native.convolution.estimate import columns_seconds, direct_seconds
from caldera.kernels.native.convolution.geometry import Geometry
from caldera.kernels.table import TABLE, Kernel

PRIORITY = 12
"""Of all ways to convolve: which of them is tried first is a matter of their estimates."""


def _is_usual(node: Node) -> bool:
    return Geometry.of(node).is_usual


def _is_product(node: Node) -> bool:
    return columns.is_offered(node) and Geometry.of(node).is_pointwise


def _needs_columns(node: Node) -> bool:
    geometry = Geometry.of(node)
    return columns.is_offered(node) and not geometry.is_pointwise and not geometry.is_depthwise


for _op, _direct in (
    ("conv2d", direct), ("conv2d_input", direct), ("conv2d_weight", weight_gradient)
):  # fmt: skip
    for _kernel in (
        Kernel(_op, "cpu", "direct", _direct.bind, _is_usual, _direct.workspace, PRIORITY,
               estimate=direct_seconds),
        Kernel(_op, "cpu", "1x1 product", columns.bind, _is_product, columns.workspace, PRIORITY,
               estimate=columns_seconds),
        Kernel(_op, "cpu", "im2col", columns.bind, _needs_columns, columns.workspace, PRIORITY,
               estimate=columns_seconds),
    ):  # fmt: skip
        TABLE.add(_kernel)
