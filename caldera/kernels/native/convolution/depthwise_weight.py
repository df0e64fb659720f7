"""The weight gradient of a depthwise convolution: every channel by itself, channels as lanes.

As in the usual weight gradient, strips in blocks of channels are dealt to a fixed number of partial
sums. A tile is a few taps by a few vectors of channels: the output's gradient of a pixel is loaded
once and meets the inputs of all taps of the tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from caldera.core.tensor.dtype import DType
from caldera.kernels.common.geometry import Correlation, steps
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    NativeCall,
    Pointer,
    RegisterValue,
    computed_type,
    host_target,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.convolution.correlation_blocking import (
    BlockedFilling,
    StripBlocks,
    filling,
)
from caldera.kernels.native.convolution.reorder import ONCE, CopyLoop, scatter
from caldera.kernels.native.convolution.tiling import Strips, cut, pixel_table
from caldera.kernels.native.convolution.weight_blocking import (
    strips_of_worker,
    strips_wanted,
    workers_of,
)


@dataclass(frozen=True)
class DepthwiseGradient:
    """The gradient with its tile and the memory it takes (lengths in elements)."""

    work: Correlation
    dtype: DType

    @property
    def channels(self) -> int:
        """Channels of a pixel, on both sides."""
        return self.work.groups

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Taps and vectors of channels that are summed at once."""
        lanes = natural_lanes(computed_type(self.dtype.name))
        accumulators = 12 if host_target().registers >= 32 else 6
        vectors = min(4 if accumulators > 6 else 2, -(-self.channels // lanes))
        taps = self.work.taps[0] * self.work.taps[1]
        # The last tile repeats taps: as few as possible.
        most = max(1, min(accumulators // vectors, taps))
        together = min(range(max(1, most // 2), most + 1), key=lambda n: (-taps % n, -n))
        return together, vectors

    @property
    def width(self) -> int:
        """Channels of a block."""
        return self.tile[1] * natural_lanes(computed_type(self.dtype.name))

    @property
    def taps(self) -> int:
        """Taps in whole tiles."""
        taps = self.work.taps[0] * self.work.taps[1]
        return -(-taps // self.tile[0]) * self.tile[0]

    @cached_property
    def strips(self) -> Strips:
        """How the batch is cut."""
        return cut(self.work, self.channels, self.dtype.itemsize, strips_wanted(self.work))

    @cached_property
    def input_blocks(self) -> StripBlocks:
        """Strips of the image."""
        return StripBlocks(self.strips, 1, self.channels, self.width)

    @cached_property
    def output_blocks(self) -> StripBlocks:
        """The same strips of the output's gradient."""
        own = replace(self.strips, source_rows=self.strips.rows, source_columns=self.work.target[1])
        return StripBlocks(own, 1, self.channels, self.width)

    @property
    def size(self) -> int:
        """Elements of a partial sum: [block][tap][channel]."""
        return self.input_blocks.count * self.taps * self.width

    @property
    def sums(self) -> int:
        """Partial sums; the same for any number of threads."""
        return min(strips_wanted(self.work), self.strips.items)

    @property
    def workers(self) -> int:
        """Workers that may take part, each with strips of its own."""
        return workers_of(self.sums)

    @property
    def lengths(self) -> list[int]:
        """Scratch memory: partial sums, strips of images and of gradients."""
        return [
            self.sums * self.size,
            self.workers * self.input_blocks.length,
            self.workers * self.output_blocks.length,
        ]

    def tap_table(self) -> np.ndarray:
        """Where the input of each tap lies, from that of the first on; the last is repeated."""
        rows, columns = self.work.taps
        held = self.input_blocks
        steps_of = (0, held.row_step * self.work.dilation[0], held.width * self.work.dilation[1])
        places = pixel_table(1, rows, columns, steps_of)
        return np.pad(places, (0, self.taps - len(places)), mode="edge")


@dataclass(frozen=True)
class _Numbers:
    """The strips, the target and the partial sums, in numbers and distances."""

    items: Integer
    images: Integer
    rows: Integer
    a_image: Integer
    batch: Integer
    target_rows: Integer
    target_columns: Integer
    stride_rows: Integer
    reach_rows: Integer
    taps: Integer
    sums: Integer
    size: Integer
    x_length: Integer
    y_length: Integer


def gradient_calls(
    gradient: DepthwiseGradient,
    x: np.ndarray,
    y: np.ndarray,
    scratch: list[np.ndarray],
    out: np.ndarray,
) -> list[NativeCall]:
    """Partial sums, then their sum written to the filters' gradient."""
    return [_sum_call(gradient, x, y, scratch), _write_call(gradient, scratch[0], out)]


def _sum_call(
    gradient: DepthwiseGradient, x: np.ndarray, y: np.ndarray, scratch: list[np.ndarray]
) -> NativeCall:
    work, strips = gradient.work, gradient.strips
    x_blocks, y_blocks = gradient.input_blocks, gradient.output_blocks
    values = {
        "items": strips.items,
        "images": strips.images,
        "rows": strips.rows,
        "a_image": strips.a_image,
        "batch": work.batch,
        "target_rows": work.target[0],
        "target_columns": work.target[1],
        "stride_rows": work.stride[0],
        "reach_rows": work.reach[0],
        "taps": gradient.taps,
        "sums": gradient.sums,
        "size": gradient.size,
        "x_length": x_blocks.length,
        "y_length": y_blocks.length,
    }
    by_output = (
        x_blocks.image_step,
        x_blocks.row_step * work.stride[0],
        x_blocks.width * work.stride[1],
    )
    table = pixel_table(strips.images, strips.rows, work.target[1], by_output)
    together, vectors = gradient.tile
    partial, input_scratch, output_scratch = scratch
    return _sum.call(
        x=x,
        y=y,
        partial=partial,
        input_scratch=input_scratch,
        output_scratch=output_scratch,
        places=table,
        taps=gradient.tap_table(),
        x_blocks=filling(x_blocks, x, work.start),
        y_blocks=filling(y_blocks, y, (0, 0)),
        n=values,
        together=together,
        vectors=vectors,
        parts=gradient.workers,
    )


@native_kernel
def _sum(
    k: Emitter,
    x: Pointer,
    y: Pointer,
    partial: Pointer,
    input_scratch: Pointer,
    output_scratch: Pointer,
    places: Pointer,
    taps: Pointer,
    x_blocks: BlockedFilling,
    y_blocks: BlockedFilling,
    n: _Numbers,
    together: int,
    vectors: int,
) -> None:
    wide = x.type
    width = vectors * natural_lanes(wide)
    own_x = input_scratch.at(k.part * n.x_length)
    own_y = output_scratch.at(k.part * n.y_length)
    with strips_of_worker(k, k.part, k.parts, n.sums, n.items) as (number, item, adds):
        sums = partial.at(number * n.size)
        image, row = item // n.a_image * n.images, item % n.a_image * n.rows
        images = k.minimum(n.images, n.batch - image)
        rows = k.minimum(n.rows, n.target_rows - row)
        reached = (rows - 1) * n.stride_rows + n.reach_rows
        x_blocks.fill(k, width, own_x, x, image, images, row * n.stride_rows, reached)
        y_blocks.fill(k, width, own_y, y, image, images, row, rows)
        with k.loop(0, x_blocks.count) as block, k.loop(0, n.taps, together) as tap:
            seen = own_x.at(block * x_blocks.block_step)
            inputs = [seen.at(taps.load(tap + i)) for i in range(together)]
            given = own_y.at(block * y_blocks.block_step)
            place = sums.at((block * n.taps + tap) * width)
            count = images * rows * n.target_columns
            _tile(k, vectors, inputs, given, places, count, place, adds)


def _tile(
    k: Emitter,
    vectors: int,
    inputs: list[Pointer],
    given: Pointer,
    places: Pointer,
    count: RegisterValue,
    place: Pointer,
    adds: RegisterValue,
) -> None:
    """Sum over `count` pixels for the taps whose inputs these are."""
    lanes = natural_lanes(given.type)
    width = vectors * lanes
    zero = k.constant(0.0, vector(given.type, lanes))
    totals = [[k.variable(zero) for _ in range(vectors)] for _ in inputs]
    with k.loop(0, count) as pixel:
        at = places.load(pixel)
        outputs = [given.load(pixel * width + j * lanes, lanes) for j in range(vectors)]
        for row, source in zip(totals, inputs, strict=True):
            for j, total in enumerate(row):
                value = source.load(at + j * lanes, lanes)
                total.value = k.fma(value, outputs[j], total.value)
    for i, row in enumerate(totals):
        for j, total in enumerate(row):
            target = place.at(i * width + j * lanes)
            before = k.select(adds, target.load(0, lanes), zero)
            target.store(0, before + total.value)


def _write_call(gradient: DepthwiseGradient, partial: np.ndarray, out: np.ndarray) -> NativeCall:
    rows, columns = gradient.work.taps
    of_channel, _, of_row, of_column = steps(out)
    width = gradient.width
    return scatter(
        partial,
        out,
        (ONCE, ONCE, CopyLoop(rows, columns * width, of_row), CopyLoop(columns, width, of_column)),
        length=gradient.channels,
        neighbour=of_channel,
        width=width,
        block_step=gradient.taps * width,
        sums=gradient.sums,
        sum_step=gradient.size,
    )
