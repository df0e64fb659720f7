"""Convolutions compiled to machine code: direct, or as products of matrices.

Forward there are products for filters of one tap alone: rows of a matrix that are made first took
1.3 to 15 times as long as the best other way at every size that was measured, see
benchmarks/results/kernels-x86_64.md. For the gradients they are ahead here and there.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.native.codegen import offer
from caldera.kernels.native.convolution import direct, im2col, weight_gradient
from caldera.kernels.native.convolution.cost_model import columns_seconds, direct_seconds

PRIORITY = 12
"""Of all ways to convolve: which of them is tried first is a matter of their estimates."""


def _is_usual(node: Node) -> bool:
    return Geometry.of(node).is_usual


def _is_product(node: Node) -> bool:
    return im2col.is_offered(node) and Geometry.of(node).is_pointwise


def _needs_columns(node: Node) -> bool:
    geometry = Geometry.of(node)
    return im2col.is_offered(node) and not geometry.is_pointwise and not geometry.is_depthwise


for _op, _direct in (
    ("conv2d", direct),
    ("conv2d_input", direct),
    ("conv2d_weight", weight_gradient),
):
    offer(
        _op,
        "direct",
        _direct.bind,
        _is_usual,
        _direct.workspace,
        PRIORITY,
        estimate=direct_seconds,
    )
for _op, _name, _supports in (
    ("conv2d", "1x1 product", _is_product),
    ("conv2d_input", "1x1 product", _is_product),
    ("conv2d_weight", "1x1 product", _is_product),
    ("conv2d_input", "im2col", _needs_columns),
    ("conv2d_weight", "im2col", _needs_columns),
):
    offer(
        _op,
        _name,
        im2col.bind,
        _supports,
        im2col.workspace,
        PRIORITY,
        estimate=columns_seconds,
    )
