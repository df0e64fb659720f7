"""Convolution of few channels on planes: vectors are neighbouring pixels, not channels.

Kernels whose vectors are output channels leave most of a wide one empty where there are fewer
channels than lanes (LeNet-5 has 6 beside 16). Here a strip of the image is taken apart into planes
first, and what was computed is put together again, both in registers.
"""

from __future__ import annotations

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Geometry, forward, input_phases, steps
from caldera.kernels.native.codegen import (
    NativeCall,
    host_target,
    offer,
)
from caldera.kernels.native.convolution import COPY, PEAK, PRIORITY
from caldera.kernels.native.convolution.planes.kernels import (
    correlate,
    gradient_calls,
    pack_filters,
)
from caldera.kernels.native.convolution.planes.layout import PlaneCorrelation
from caldera.kernels.native.convolution.reorder import (
    ScratchMemory,
    bind_staged,
    is_uniform,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.table import Call, Runner

MOST_TERMS = 512
"""Terms of a sum: longer ones round more than other kernels' do."""
EFFICIENCY = 0.6
"""Of a tile, beside what a core can do at most."""


def _planes(node: Node) -> PlaneCorrelation:
    geometry = Geometry.of(node)
    work = forward(geometry)
    if node.op.name == "conv2d_input":
        ((_, _, work),) = input_phases(geometry)
    return PlaneCorrelation(work, geometry.dtype)


def _supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    plain = geometry.groups == 1 and geometry.stride == (1, 1) and geometry.taps != (1, 1)
    if not (host_target().has_masks and plain and geometry.is_usual):
        return False
    if not (size(geometry.image) and size(geometry.output) and size(geometry.filters)):
        return False
    planes = _planes(node)
    return planes.work.results <= planes.lanes and planes.terms <= MOST_TERMS


def _lengths(node: Node, planes: PlaneCorrelation) -> list[int]:
    """Partial sums or packed filters, and the planes of all workers."""
    if node.op.name == "conv2d_weight":
        return [planes.sums * planes.sum_size, planes.sums * planes.scratch]
    return [planes.filters, planes.parts * planes.scratch]


def _workspace(node: Node) -> int:
    lengths = _lengths(node, _planes(node))
    return scratch_bytes(lengths, Geometry.of(node).dtype) + staging_bytes(node)


def _seconds(node: Node) -> float:
    geometry, planes = Geometry.of(node), _planes(node)
    places = planes.items * planes.vectors * planes.lanes
    moved = (size(geometry.image) + size(geometry.output)) * geometry.dtype.itemsize
    flops = 2 * places * planes.terms * planes.work.results
    return flops / (PEAK * EFFICIENCY) + moved / COPY


def _bind(call: Call) -> Runner:
    op, dtype = call.node.op.name, Geometry.of(call.node).dtype
    planes = _planes(call.node)
    lengths = _lengths(call.node, planes)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        first, scratch = (workspace.array(length, dtype) for length in lengths)
        source, filters, target = arrays
        if op == "conv2d_weight":
            return gradient_calls(planes, source, filters, first, scratch, target)
        of_output, of_input, of_row, of_column = steps(filters)
        strides = (of_output, of_input, of_row, of_column)
        if op == "conv2d_input":
            # The taps in reverse order, from the last one on.
            filters = filters[:, :, filters.shape[2] - 1 :, filters.shape[3] - 1 :]
            strides = (of_input, of_output, -of_row, -of_column)
        return [
            pack_filters(planes, filters, first, strides),
            correlate(planes, source, first, target, scratch),
        ]

    return bind_staged(call, lengths, compute, is_uniform)


offer(
    ("conv2d", "conv2d_input", "conv2d_weight"),
    "planes",
    _bind,
    _supports,
    _workspace,
    PRIORITY,
    estimate=_seconds,
)
