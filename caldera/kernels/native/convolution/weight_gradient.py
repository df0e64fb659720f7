"""The weight gradient, direct: of a depthwise convolution, or of any other."""

from __future__ import annotations

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry, forward, seen_pixels
from caldera.kernels.native.codegen.program import NativeCall
from caldera.kernels.native.convolution import depthwise_weight, weight_kernel
from caldera.kernels.native.convolution.depthwise_weight import DepthwiseGradient
from caldera.kernels.native.convolution.reorder import (
    Workspace,
    bind_staged,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.weight_blocking import Gradient
from caldera.kernels.table import Call, Runner


def _layout(geometry: Geometry) -> DepthwiseGradient | Gradient:
    kind = DepthwiseGradient if geometry.is_depthwise else Gradient
    return kind(forward(geometry.unstrided), geometry.dtype)


def workspace(node: Node) -> int:
    """Bytes of partial sums and strips, and of images that have to be copied."""
    geometry = Geometry.of(node)
    return scratch_bytes(_layout(geometry).lengths, geometry.dtype) + staging_bytes(node)


def bind(call: Call) -> Runner:
    """Sum over strips, then add up and write row major."""
    geometry = Geometry.of(call.node)
    gradient = _layout(geometry)

    def compute(workspace: Workspace, arrays: list[np.ndarray]) -> list[NativeCall]:
        x, y, out = arrays
        x = seen_pixels(geometry, x)
        scratch = [workspace.array(length, geometry.dtype) for length in gradient.lengths]
        if isinstance(gradient, DepthwiseGradient):
            return depthwise_weight.gradient_calls(gradient, x, y, scratch, out)
        return weight_kernel.gradient_calls(gradient, x, y, scratch, out)

    return bind_staged(call, gradient.lengths, compute)
