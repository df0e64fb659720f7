"""Winograd's convolution: F(2x2, 3x3) and F(4x4, 3x3), forward and both gradients.

A tile of 2x2 outputs takes 16 products a pair of channels instead of 36, one of 4x4 takes 36
instead of 144. The smaller rounds no more than a plain sum does; the larger about ten times as
much, so it is offered only where `settings.accuracy` is "fast".
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.kernels.native.codegen import (
    NativeCall,
    offer,
)
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.convolution import PRIORITY
from caldera.kernels.native.convolution.reorder import (
    ScratchMemory,
    bind_staged,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.winograd.convolution import convolution_calls
from caldera.kernels.native.convolution.winograd.layout import WinogradTiling
from caldera.kernels.native.convolution.winograd.transforms import SIZES, TAPS
from caldera.kernels.native.convolution.winograd.weight import weight_calls
from caldera.kernels.table import Call, Runner

FEWEST_CHANNELS = 8
"""With fewer on either side the transforms cost more than they save."""


def _supports(node: Node, size: int) -> bool:
    layout = WinogradTiling(node, size)
    geometry = layout.geometry
    plain = geometry.taps == (TAPS, TAPS) and geometry.stride == geometry.dilation == (1, 1)
    enough = min(geometry.channels, geometry.results) >= FEWEST_CHANNELS and layout.tiles > 0
    allowed = size == 2 or settings.accuracy == "fast"
    return plain and enough and allowed and blas() is not None


def _workspace(node: Node, size: int) -> int:
    layout = WinogradTiling(node, size)
    return scratch_bytes(layout.lengths, layout.geometry.dtype) + staging_bytes(node)


def _seconds(node: Node, size: int) -> float:
    return WinogradTiling(node, size).seconds


def bind(call: Call, size: int, sums: dict[str, Any] | None = None) -> Runner:
    """Tie the kernel to arrays; it takes `sums` of the image it writes if `takes_sums` says so."""
    layout = WinogradTiling(call.node, size)
    if layout.is_sum:
        calls_for = weight_calls
    else:
        calls_for = partial(convolution_calls, sums=sums if layout.row_block else None)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        # Groups come one after the other, so the same memory serves all of them.
        memory = [workspace.array(length, layout.geometry.dtype) for length in layout.lengths]
        groups = zip(*_in_groups(layout, arrays), strict=True)
        return [each for group in groups for each in calls_for(layout, memory, list(group))]

    return bind_staged(call, layout.lengths, compute)


def takes_sums(node: Node, size: int) -> bool:
    """Whether sums over blocks of rows are taken while the rows are written."""
    return WinogradTiling(node, size).row_block is not None


def _in_groups(layout: WinogradTiling, arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """The part of each array that belongs to each group: channels of images, or filters."""
    filters = 2 if layout.is_sum else 1
    return [
        np.split(array, layout.geometry.groups, axis=0 if index == filters else 1)
        for index, array in enumerate(arrays)
    ]


KERNELS = {f"winograd {size}x{size}": size for size in SIZES}
"""The sizes of tiles, by the names of kernels."""

for _name, _size in KERNELS.items():
    offer(
        ("conv2d", "conv2d_input", "conv2d_weight"),
        _name,
        partial(bind, size=_size),
        partial(_supports, size=_size),
        partial(_workspace, size=_size),
        PRIORITY,
        estimate=partial(_seconds, size=_size),
    )
