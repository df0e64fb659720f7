"""The weight gradient of a depthwise convolution: every channel by itself, channels as lanes.

As in the usual weight gradient, strips in blocks of channels are dealt to a fixed number of partial
sums. A tile is a few taps by a few vectors of channels: the output's gradient of a pixel is loaded
once and meets the inputs of all taps of the tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    NativeCall,
    Pointer,
    RegisterValue,
    host_target,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.convolution.correlation_blocking import (
    BlockedFilling,
    StripBlocks,
)
from caldera.kernels.native.convolution.reorder import ONCE, CopyLoop, scatter
from caldera.kernels.native.convolution.tiling import pixel_table
from caldera.kernels.native.convolution.weight_blocking import (
    GradientStrips,
    StripGradient,
    strips_wanted,
)


@dataclass(frozen=True)
class DepthwiseGradient(StripGradient):
    """The gradient with its tile, a few taps by a few vectors of channels."""

    @property
    def channels(self) -> int:
        """Channels of a pixel, on both sides."""
        return self.work.groups

    @property
    def output_channels(self) -> tuple[int, int]:
        """One group of all channels."""
        return 1, self.channels

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Taps and vectors of channels that are summed at once."""
        accumulators = 12 if host_target().registers >= 32 else 6
        vectors = min(4 if accumulators > 6 else 2, -(-self.channels // self.lanes))
        taps = self.work.taps[0] * self.work.taps[1]
        # The last tile repeats taps: as few as possible.
        most = max(1, min(accumulators // vectors, taps))
        together = min(range(max(1, most // 2), most + 1), key=lambda n: (-taps % n, -n))
        return together, vectors

    @property
    def taps(self) -> int:
        """Taps in whole tiles."""
        taps = self.work.taps[0] * self.work.taps[1]
        return -(-taps // self.tile[0]) * self.tile[0]

    @cached_property
    def input_blocks(self) -> StripBlocks:
        """Strips of the image."""
        return StripBlocks(self.strips, 1, self.channels, self.step)

    @property
    def size(self) -> int:
        """Elements of a partial sum: [block][tap][channel]."""
        return self.input_blocks.count * self.taps * self.step

    @property
    def sums(self) -> int:
        """Partial sums; the same for any number of threads."""
        return min(strips_wanted(self.work), self.strips.items)

    def tap_table(self) -> np.ndarray:
        """Where the input of each tap lies, from that of the first on; the last is repeated."""
        rows, columns = self.work.taps
        held = self.input_blocks
        steps_of = (0, held.row_step * self.work.dilation[0], held.width * self.work.dilation[1])
        places = pixel_table(1, rows, columns, steps_of)
        return np.pad(places, (0, self.taps - len(places)), mode="edge")


def gradient_calls(
    gradient: DepthwiseGradient,
    x: np.ndarray,
    y: np.ndarray,
    scratch: list[np.ndarray],
    out: np.ndarray,
) -> list[NativeCall]:
    """Partial sums, then their sum written to the filters' gradient."""
    together, vectors = gradient.tile
    return [
        _sum.call(
            **gradient.arguments(x, y, scratch),
            taps=gradient.tap_table(),
            tap_count=gradient.taps,
            together=together,
            vectors=vectors,
        ),
        _write_call(gradient, scratch[0], out),
    ]


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
    strips: GradientStrips,
    tap_count: Integer,
    together: int,
    vectors: int,
) -> None:
    wide = x.type
    width = vectors * natural_lanes(wide)
    own_x = input_scratch.at(k.part * strips.x_length)
    own_y = output_scratch.at(k.part * strips.y_length)
    with strips.of_worker(k, k.part, k.parts) as (start, own, adds):
        sums = partial.at(start)
        x_blocks.fill(k, width, own_x, x, own.image, own.images, own.source_row, own.source_rows)
        y_blocks.fill(k, width, own_y, y, own.image, own.images, own.row, own.rows)
        with k.loop(0, x_blocks.count) as block, k.loop(0, tap_count, together) as tap:
            seen = own_x.at(block * x_blocks.block_step)
            inputs = [seen.at(taps.load(tap + i)) for i in range(together)]
            given = own_y.at(block * y_blocks.block_step)
            place = sums.at((block * tap_count + tap) * width)
            count = own.images * own.rows * strips.target_columns
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
    width = gradient.step
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
