"""Convolution by Fourier transforms, for large filters: forward and both gradients.

Tiles of the image are transformed, multiplied with the transformed filters frequency by frequency,
and transformed back. Work hardly grows with the filter, so it pays from 7x7 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.graph import NHWC, Node, dense_strides, laid_out
from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeKernel,
    computed_type,
    offer,
)
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.convolution import PRIORITY
from caldera.kernels.native.convolution.fourier import kernels
from caldera.kernels.native.convolution.fourier.kernels import (
    LENGTHS,
    FourierMatrices,
    FourierTiling,
    frequencies,
    matrices,
)
from caldera.kernels.native.convolution.reorder import (
    ScratchMemory,
    bind_staged,
    copy_image,
    scratch_bytes,
    staging_bytes,
    write_image,
)
from caldera.kernels.native.product.problem import copied
from caldera.kernels.table import Call, Runner

FEWEST_TAPS = 7
"""Filters with fewer rows or columns are convolved faster in other ways."""
FEWEST_CHANNELS = 16
"""With fewer on either side the transforms cost more than they save."""


def _supports(node: Node) -> bool:
    geometry = FourierTiling(node).geometry
    large = min(geometry.taps) >= FEWEST_TAPS and 2 * max(geometry.taps) <= LENGTHS[-1]
    plain = geometry.stride == geometry.dilation == (1, 1) and geometry.groups == 1
    enough = min(geometry.channels, geometry.results) >= FEWEST_CHANNELS and geometry.batch > 0
    return large and plain and enough and blas() is not None


def _workspace(node: Node) -> int:
    layout = FourierTiling(node)
    return scratch_bytes(layout.lengths, layout.geometry.dtype) + staging_bytes(node)


class _Calls:
    """The calls for one node, bound to its arrays and memory."""

    def __init__(self, layout: FourierTiling, workspace: ScratchMemory) -> None:
        geometry = layout.geometry
        known = blas()
        assert known is not None
        self.layout = layout
        self.gemm = known.gemm(computed_type(geometry.dtype.name))
        self.filters, self.points, self.others, self.workspace = (
            workspace.array(length, geometry.dtype) for length in layout.lengths
        )
        self.constants: FourierMatrices = matrices(
            layout.length, geometry.taps, layout.is_gradient, geometry.dtype
        )

    def transform(
        self,
        kernel: NativeKernel,
        image: np.ndarray,
        block: tuple[int, int],
        *,
        padding: tuple[int, int],
        is_other: bool,
    ) -> NativeCall:
        """Transform the tiles of a block from an image to frequencies or back."""
        layout, constants = self.layout, self.constants
        _, channels, height, width = image.shape
        steps_of_tiles = layout.steps(layout.length)
        sides = steps_of_tiles if is_other else (layout.length, layout.length)
        is_back = kernel is kernels.inverse_transform
        values = {
            "image": image,
            "image_step": steps(image)[0],
            "row_step": width * channels,
            "channels": channels,
            "height": height,
            "width": width,
            "top": padding[0],
            "left": padding[1],
            "tile_rows": steps_of_tiles[0],
            "tile_columns": steps_of_tiles[1],
            "side_rows": sides[0],
            "side_columns": sides[1],
            "gemm": self.gemm,
            "down": layout.grid(layout.length)[0],
            "across": layout.grid(layout.length)[1],
            "first": block[0],
            "end": block[1],
            "matrix": constants.back_down if is_back else constants.down,
            "other_matrix": constants.back_across if is_back else constants.across,
            "length": layout.length,
            "half": frequencies(layout.length),
            "points": self.others if is_other else self.points,
            "step": layout.other_step if is_other else layout.step,
            "workspace": self.workspace,
            "workspace_step": layout.workspace,
        }
        return kernel.call(given=values, parts=layout.workers)

    def product(
        self, kernel: NativeKernel, block: tuple[int, int], **parameters: Any
    ) -> NativeCall:
        """Compute the products of a block."""
        layout = self.layout
        values = {
            "gemm": self.gemm,
            "pairs": layout.points // 2,
            "tiles": block[1] - block[0],
            "inner": layout.inner,
            "columns": layout.columns,
            "filters": self.filters,
            "filter_step": layout.filter_step,
            "points": self.points,
            "step": layout.step,
            "others": self.others,
            "other_step": layout.other_step,
            "is_first": block[0] == 0,
        }
        return kernel.call(given=values, parts=layout.points // 2, **parameters)

    def transform_filters(self, kernel: NativeKernel, filters: np.ndarray) -> NativeCall:
        """Return filters to points, or points to filters."""
        layout, constants = self.layout, self.constants
        taps = layout.geometry.taps
        is_back = kernel is kernels.filter_taps
        values = {
            "gemm": self.gemm,
            "filters": filters,
            "points": self.filters,
            "step": layout.filter_step,
            "rows": layout.points,
            "matrix": constants.taps if is_back else constants.filters,
            "count": layout.inner * layout.columns,
            "taps": taps[0] * taps[1],
        }
        return kernel.call(given=values, parts=layout.workers)

    def blocks(self) -> list[tuple[int, int]]:
        """Return first and last tile of each block."""
        layout = self.layout
        starts = range(0, layout.tiles, layout.block)
        return [(start, min(start + layout.block, layout.tiles)) for start in starts]

    def convolution(
        self, source: np.ndarray, filters: np.ndarray, target: np.ndarray
    ) -> list[NativeCall]:
        """Return a convolution or an input gradient."""
        layout = self.layout
        calls = [self.transform_filters(kernels.filter_points, filters)]
        for block in self.blocks():
            calls += [
                self.transform(
                    kernels.transform_tiles, source, block, padding=layout.padding, is_other=False
                ),
                self.product(kernels.multiply, block, transposed=not layout.is_gradient),
                self.transform(
                    kernels.inverse_transform, target, block, padding=(0, 0), is_other=True
                ),
            ]
        return calls

    def weight_gradient(
        self, image: np.ndarray, gradient: np.ndarray, result: np.ndarray
    ) -> list[NativeCall]:
        """Return the gradient of the filters."""
        layout = self.layout
        calls = []
        for block in self.blocks():
            calls += [
                self.transform(
                    kernels.transform_tiles, image, block, padding=layout.padding, is_other=False
                ),
                self.transform(
                    kernels.transform_tiles, gradient, block, padding=(0, 0), is_other=True
                ),
                self.product(kernels.add, block),
            ]
        return [*calls, self.transform_filters(kernels.filter_taps, result)]


def _bind(call: Call) -> Runner:
    layout = FourierTiling(call.node)
    filters = 2 if layout.is_sum else 1

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        calls = _Calls(layout, workspace)
        before: list[NativeCall] = []
        after: list[NativeCall] = []
        used = []
        for index, array in enumerate(arrays):
            fit = _dense(array, index == filters, layout)
            used.append(fit)
            if fit is array:
                continue
            if index == filters:
                after += copied(fit, array) if layout.is_sum else []
                before += [] if layout.is_sum else copied(array, fit)
            elif index == 2:
                after.append(write_image(fit, array))
            else:
                before.append(copy_image(array, fit))
        middle = calls.weight_gradient(*used) if layout.is_sum else calls.convolution(*used)
        return [*before, *middle, *after]

    return bind_staged(call, layout.lengths, compute)


def _dense(array: np.ndarray, is_filter: bool, layout: FourierTiling) -> np.ndarray:
    """Return the array itself if BLAS can take its rows as they lie, else memory for a copy."""
    order = None if is_filter else NHWC
    strides = dense_strides(array.shape, order, array.itemsize)
    # Images may lie anywhere, one by one.
    start = 0 if is_filter else 1
    fits = all(
        a == b or n == 1
        for a, b, n in zip(array.strides[start:], strides[start:], array.shape[start:], strict=True)
    )
    if fits and array.dtype == layout.geometry.dtype:
        return array
    return laid_out(np.empty(array.size, layout.geometry.dtype), array.shape, order)


offer(
    ("conv2d", "conv2d_input", "conv2d_weight"),
    "fourier",
    _bind,
    _supports,
    _workspace,
    PRIORITY,
    estimate=lambda node: FourierTiling(node).seconds,
)
