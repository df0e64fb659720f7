"""Gradients of convolutions as matrix products: each row is the window of an output pixel.

Each worker builds the matrix for a block of pixels at a time, small enough to stay in the cache.
Filters with a single tap need no such matrix, see `products.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry, steps
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeKernel,
    computed_type,
    natural_lanes,
)
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.convolution.im2col_kernels import input_gradient, weight_gradient
from caldera.kernels.native.convolution.reorder import (
    ONCE,
    CopyLoop,
    ScratchMemory,
    bind_staged,
    gather,
    is_uniform,
    scatter,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.table import Call, Runner

COLUMN_BYTES = 3 << 17
"""Maximum bytes of a block of the matrix: it should stay in the second-level cache."""
FEWEST_ROWS, MOST_ROWS = 160, 2048
SUM_BYTES = 1 << 23
"""Maximum bytes of all partial sums of a weight gradient."""
MOST_SUMS = 4
PIXELS_A_SUM = 1024
"""Number of pixels of a partial sum that outweighs the cost of adding the sum."""


@dataclass(frozen=True)
class Columns:
    """Split of the pixels of a convolution into blocks (lengths in elements)."""

    geometry: Geometry
    op: str

    @property
    def filters(self) -> int:
        """Elements of the filters, as (K, R, S, C / groups)."""
        return self.geometry.filters[0] * self.geometry.terms

    @property
    def by_image(self) -> bool:
        """True if a worker has whole images, because only a single worker may add to a pixel."""
        return self.op == "conv2d_input"

    @property
    def unit(self) -> int:
        """Pixels that must stay in one worker, without pixels of other units; 0 if unrestricted."""
        return self.geometry.pixels // max(1, self.geometry.batch) if self.by_image else 0

    @property
    def rows(self) -> int:
        """Pixels of a block."""
        pixels = self.unit or max(1, self.geometry.pixels)
        fits = COLUMN_BYTES // (self.geometry.terms * self.geometry.dtype.itemsize)
        most = max(FEWEST_ROWS, min(MOST_ROWS, fits))
        if self.op == "conv2d_weight":
            most = min(most, -(-pixels // max(1, self.sums)))
        return -(-pixels // -(-pixels // max(1, most)))

    @property
    def sums(self) -> int:
        """Partial sums of a weight gradient; the same for any number of threads."""
        most = SUM_BYTES // max(1, self.filters * self.geometry.dtype.itemsize)
        wanted = min(MOST_SUMS, self.geometry.pixels // PIXELS_A_SUM)
        return max(1, min(most, wanted)) if self.geometry.pixels else 0

    @property
    def splits(self) -> int:
        """Number of parts of the output channels, for more threads than partial sums."""
        if self.op != "conv2d_weight":
            return 1
        wanted = -(-thread_count() // max(1, self.sums))
        return max(1, min(self.geometry.results, wanted))

    @property
    def blocks(self) -> int:
        """Number of blocks in the whole batch, or in an image if images are kept separate."""
        return -(-(self.unit or self.geometry.pixels) // self.rows)

    @property
    def parts(self) -> int:
        """Workers that may take part."""
        if self.op == "conv2d_weight":
            return max(1, self.sums * self.splits)
        return max(1, min(thread_count(), self.geometry.batch))

    @property
    def lengths(self) -> list[int]:
        """Scratch memory: filters, blocks of the matrix, partial sums."""
        columns = self.parts * self.rows * self.geometry.terms
        if self.op == "conv2d_weight":
            return [0, columns, self.sums * self.filters]
        return [self.filters, columns, 0]


def _call(
    columns: Columns,
    kernel: NativeKernel,
    image: np.ndarray,
    filters: np.ndarray,
    output: np.ndarray,
    scratch: np.ndarray,
) -> NativeCall:
    geometry = columns.geometry
    of_image = steps(image)
    joined = geometry.groups == 1 and geometry.dilation[1] == 1
    joined = joined and of_image[3] == geometry.channels
    known = blas()
    assert known is not None
    values = {
        "batch": geometry.batch,
        "height": geometry.image[2],
        "width": geometry.image[3],
        "channels": geometry.channels,
        "image_step": of_image[0],
        "row_step": of_image[2],
        "pixel_step": _distance(image),
        "target_rows": geometry.output[2],
        "target_columns": geometry.output[3],
        "results": geometry.results,
        "target_step": _distance(output),
        "groups": geometry.groups,
        "stride_rows": geometry.stride[0],
        "stride_columns": geometry.stride[1],
        "start_row": -geometry.origin[0],
        "start_column": -geometry.origin[1],
        "dilation_rows": geometry.dilation[0],
        "dilation_columns": geometry.dilation[1],
        "tap_rows": geometry.taps[0],
        "runs": 1 if joined else geometry.taps[1],
        "run_taps": geometry.taps[1] if joined else 1,
        "tap_length": geometry.channels,
        "terms": geometry.terms,
        "rows": columns.rows,
        "blocks": columns.blocks,
        "pixels": columns.unit or geometry.pixels,
        "sums": columns.sums,
        "splits": columns.splits,
        "filters": columns.filters,
    }
    return kernel.call(
        image=image,
        filters=filters,
        output=output,
        scratch=scratch,
        address=known.gemm(computed_type(geometry.dtype.name)),
        n=values,
        parts=columns.parts,
    )


def _distance(images: np.ndarray) -> int:
    """Return the distance between pixels, also for rows with a single pixel."""
    own = steps(images)
    lengths = images.shape
    if lengths[3] > 1:
        return own[3]
    if lengths[2] > 1:
        return own[2]
    return max(own[0], lengths[1]) if lengths[0] > 1 else lengths[1]


def _packed(columns: Columns, filters: np.ndarray, target: np.ndarray) -> list[NativeCall]:
    """Return filters as rows (r, s, c) of a matrix."""
    geometry = columns.geometry
    (rows, taps), channels = geometry.taps, geometry.channels
    of_output, of_input, of_row, of_column = steps(filters)
    width = natural_lanes(computed_type(geometry.dtype.name))
    loops = (
        CopyLoop(geometry.filters[0], of_output, geometry.terms),
        ONCE,
        CopyLoop(rows, of_row, taps * channels),
        CopyLoop(taps, of_column, channels),
    )
    return [
        gather(
            filters,
            target,
            loops,
            length=channels,
            neighbour=of_input,
            width=width,
            block_step=width,
            padded=False,
        )
    ]


def _written(columns: Columns, partial: np.ndarray, out: np.ndarray) -> list[NativeCall]:
    """Return the sum of all partial sums, rows (r, s, c) of a matrix, as (K, C, R, S)."""
    geometry = columns.geometry
    (rows, taps), channels = geometry.taps, geometry.channels
    of_output, of_input, of_row, of_column = steps(out)
    loops = (
        CopyLoop(geometry.filters[0], geometry.terms, of_output),
        ONCE,
        CopyLoop(rows, taps * channels, of_row),
        CopyLoop(taps, channels, of_column),
    )
    return [
        scatter(
            partial,
            out,
            loops,
            length=channels,
            neighbour=of_input,
            width=channels,
            block_step=0,
            sums=columns.sums,
            sum_step=columns.filters,
        )
    ]


def supports(node: Node) -> bool:
    """Return True if a BLAS is available, and windows have several pixels and channels."""
    geometry = Geometry.of(node)
    has_windows = not geometry.unstrided.is_pointwise and not geometry.is_depthwise
    return blas() is not None and geometry.is_usual and has_windows


def workspace(node: Node) -> int:
    """Bytes of filters, blocks of the matrix and partial sums, and of images to be copied."""
    geometry = Geometry.of(node)
    lengths = Columns(geometry, node.op.name).lengths
    return scratch_bytes(lengths, geometry.dtype) + staging_bytes(node)


def bind(call: Call) -> Runner:
    """Pack the filters and multiply, or multiply and add up."""
    geometry = Geometry.of(call.node)
    columns = Columns(geometry, call.node.op.name)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        first, second, out = arrays
        packed, scratch, partial = (
            workspace.array(each, geometry.dtype) for each in columns.lengths
        )
        if columns.op == "conv2d_weight":
            multiply = _call(columns, weight_gradient, first, partial, second, scratch)
            return [multiply, *_written(columns, partial, out)]
        multiply = _call(columns, input_gradient, out, packed, first, scratch)
        return [*_packed(columns, second, packed), multiply]

    return bind_staged(call, columns.lengths, compute, is_uniform)
