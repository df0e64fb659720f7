"""Direct convolution as a kernel for the table: forward, and the input gradient by phases.

The gradient for those image pixels that lie at one place of the stride's grid is a convolution of
the output's gradient with some of the taps in reverse order; a stride of 1 has one such place.
"""

from __future__ import annotations

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry, forward, input_phases, steps
from caldera.kernels.native.codegen import NativeCall
from caldera.kernels.native.convolution.correlate import correlate, pack_filters
from caldera.kernels.native.convolution.correlation_blocking import CorrelationBlock, Packing
from caldera.kernels.native.convolution.reorder import (
    ScratchMemory,
    bind_staged,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.table import Call, Runner


def packing(node: Node) -> Packing:
    """The correlations that a convolution or its input gradient consists of."""
    geometry = Geometry.of(node)
    if node.op.name == "conv2d":
        return Packing((CorrelationBlock(forward(geometry)),), geometry.dtype)
    phases = (
        CorrelationBlock(work, (row.first, column.first), (row.step, column.step))
        for row, column, work in input_phases(geometry)
    )
    return Packing(tuple(phases), geometry.dtype)


def _lengths(packing: Packing) -> list[int]:
    """Packed filters, and strips."""
    return [packing.filters, packing.scratch]


def workspace(node: Node) -> int:
    """Bytes of packed filters and strips, and of images that have to be copied."""
    return scratch_bytes(_lengths(packing(node)), Geometry.of(node).dtype) + staging_bytes(node)


def bind(call: Call) -> Runner:
    """Pack the filters, then correlate."""
    geometry = Geometry.of(call.node)
    own = packing(call.node)
    lengths = _lengths(own)
    pack = _pack_forward if call.node.op.name == "conv2d" else _pack_phases

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        source, filters, target = arrays
        packed, scratch = (workspace.array(length, geometry.dtype) for length in lengths)
        return [
            *pack(geometry, own, filters, packed),
            correlate(own, source, packed, target, scratch),
        ]

    return bind_staged(call, lengths, compute)


def _pack_forward(
    geometry: Geometry, packing: Packing, filters: np.ndarray, packed: np.ndarray
) -> list[NativeCall]:
    of_output, of_input, of_row, of_column = steps(filters)
    strides = (geometry.results * of_output, of_output, of_input, of_row, of_column)
    return [pack_filters(packing, 0, filters, packed, strides)]


def _pack_phases(
    geometry: Geometry, packing: Packing, filters: np.ndarray, packed: np.ndarray
) -> list[NativeCall]:
    of_output, of_input, of_row, of_column = steps(filters)
    calls = []
    for part, (row, column, work) in enumerate(input_phases(geometry)):
        if not work.taps[0]:
            continue
        strides = (
            geometry.results * of_output,
            of_input,
            of_output,
            -of_row * row.tap_step,
            -of_column * column.tap_step,
        )
        taps = filters[:, :, row.last_tap :, column.last_tap :]
        calls.append(pack_filters(packing, part, taps, packed, strides))
    return calls
