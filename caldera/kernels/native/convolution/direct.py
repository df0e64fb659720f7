"""Direct convolution as a kernel for the table: forward, and the input gradient by phases.

The gradient for those image pixels that lie at one place of the stride's grid is a convolution of
the output's gradient with some of the taps in reverse order; a stride of 1 has one such place.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.common.geometry import Geometry, forward, input_phases, steps
from caldera.kernels.native.codegen.program import NativeCall
from caldera.kernels.native.convolution.correlate import Packing, correlate, pack_filters
from caldera.kernels.native.convolution.reorder import (
    Workspace,
    bind_staged,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.table import Call, Runner


def packings(node: Node) -> list[Packing]:
    """The correlations that a convolution or its input gradient consists of."""
    geometry = Geometry.of(node)
    if node.op.name == "conv2d":
        return [Packing(forward(geometry), geometry.dtype)]
    return [Packing(work, geometry.dtype) for _, _, work in input_phases(geometry)]


def _lengths(parts: list[Packing]) -> list[int]:
    """Packed filters of each, and one piece of memory for the strips of all, one after another."""
    return [*(part.filters for part in parts), max(part.scratch for part in parts)]


def workspace(node: Node) -> int:
    """Bytes of packed filters and strips, and of images that have to be copied."""
    return scratch_bytes(_lengths(packings(node)), Geometry.of(node).dtype) + staging_bytes(node)


def bind(call: Call) -> Runner:
    """Pack the filters, then correlate."""
    geometry = Geometry.of(call.node)
    parts = packings(call.node)
    lengths = _lengths(parts)
    is_forward = call.node.op.name == "conv2d"

    def compute(workspace: Workspace, arrays: list[np.ndarray]) -> list[NativeCall]:
        source, filters, target = arrays
        *packed, scratch = (workspace.array(length, geometry.dtype) for length in lengths)
        if is_forward:
            return _forward_calls(parts[0], source, filters, target, packed[0], scratch)
        return _input_calls(geometry, parts, source, filters, target, packed, scratch)

    return bind_staged(call, lengths, compute)


def _forward_calls(
    packing: Packing,
    source: np.ndarray,
    filters: np.ndarray,
    target: np.ndarray,
    packed: np.ndarray,
    scratch: np.ndarray,
) -> list[NativeCall]:
    of_output, of_input, of_row, of_column = steps(filters)
    strides = (packing.work.results * of_output, of_output, of_input, of_row, of_column)
    return [
        pack_filters(packing, filters, packed, strides),
        correlate(packing, source, packed, target, scratch),
    ]


def _input_calls(
    geometry: Geometry,
    parts: list[Packing],
    source: np.ndarray,
    filters: np.ndarray,
    target: np.ndarray,
    packed: list[np.ndarray],
    scratch: np.ndarray,
) -> list[NativeCall]:
    of_output, of_input, of_row, of_column = steps(filters)
    group = geometry.results * of_output
    calls: list[tuple[NativeCall, NativeCall]] = []
    for (row, column, _), packing, own in zip(input_phases(geometry), parts, packed, strict=True):
        strides = (
            group, of_input, of_output, -of_row * row.tap_step, -of_column * column.tap_step
        )  # fmt: skip
        taps = filters[:, :, row.last_tap :, column.last_tap :]
        pixels = target[:, :, row.first :: row.step, column.first :: column.step]
        calls.append(
            (
                pack_filters(packing, taps, own, strides),
                correlate(packing, source, own, pixels, scratch),
            )
        )
    return list(chain.from_iterable(calls))
