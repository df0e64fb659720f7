"""Convolutions compiled to machine code: direct, or as products of matrices.

Forward there are products for filters of one tap alone: rows of a matrix that are made first took
1.3 to 15 times as long as the best other way at every size that was measured, see
benchmarks/results/kernels-x86_64.md. For the gradients they are ahead here and there.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.native.convolution import direct, im2col, weight_gradient
from caldera.kernels.native.convolution.cost_model import columns_seconds, direct_seconds
from caldera.kernels.table import TABLE, Kernel

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
    for _kernel in (
        Kernel(
            _op,
            "cpu",
            "direct",
            _direct.bind,
            _is_usual,
            _direct.workspace,
            PRIORITY,
            estimate=direct_seconds,
        ),
        Kernel(
            _op,
            "cpu",
            "1x1 product",
            im2col.bind,
            _is_product,
            im2col.workspace,
            PRIORITY,
            estimate=columns_seconds,
        ),
    ):
        TABLE.add(_kernel)
for _op in ("conv2d_input", "conv2d_weight"):
    TABLE.add(
        Kernel(
            _op,
            "cpu",
            "im2col",
            im2col.bind,
            _needs_columns,
            im2col.workspace,
            PRIORITY,
            estimate=columns_seconds,
        )
    )
