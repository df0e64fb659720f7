"""Convolutions compiled to machine code: direct, or as products of matrices."""

from __future__ import annotations

from caldera.graph.node import Node
from caldera.kernels.native.convolution import columns, depthwise, direct, weight
from caldera.kernels.native.convolution.estimate import columns_seconds, direct_seconds
from caldera.kernels.native.convolution.geometry import Geometry
from caldera.kernels.table import TABLE, Call, Kernel, Runner

PRIORITY = 12
"""Of all ways to convolve: which of them is tried first is a matter of their estimates."""


def _is_usual(node: Node) -> bool:
    return Geometry.of(node).is_usual


def _is_product(node: Node) -> bool:
    return columns.is_offered(node) and Geometry.of(node).is_pointwise


def _needs_columns(node: Node) -> bool:
    geometry = Geometry.of(node)
    return columns.is_offered(node) and not geometry.is_pointwise and not geometry.is_depthwise


def _bind_direct(call: Call) -> Runner:
    if call.node.op.name != "conv2d_weight":
        return direct.bind(call)
    return (depthwise if Geometry.of(call.node).is_depthwise else weight).bind(call)


def _direct_workspace(node: Node) -> int:
    if node.op.name != "conv2d_weight":
        return direct.workspace(node)
    return (depthwise if Geometry.of(node).is_depthwise else weight).workspace(node)


for _op in ("conv2d", "conv2d_input", "conv2d_weight"):
    for _kernel in (
        Kernel(_op, "cpu", "direct", _bind_direct, _is_usual, _direct_workspace, PRIORITY,
               estimate=direct_seconds),
        Kernel(_op, "cpu", "1x1 product", columns.bind, _is_product, columns.workspace, PRIORITY,
               estimate=columns_seconds),
        Kernel(_op, "cpu", "im2col", columns.bind, _needs_columns, columns.workspace, PRIORITY,
               estimate=columns_seconds),
    ):  # fmt: skip
        TABLE.add(_kernel)
