"""Direct convolution of images that lie channels last: no matrix of windows, no other detour.

Filters are packed into blocks of as many output channels as a tile has; a strip of the input meets
one block after the other, and within a block one tile of pixels after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.kernels.common.geometry import Correlation, steps
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import I64, Emitter, Pointer, Value, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer, NativeCall, native_kernel
from caldera.kernels.native.convolution.microkernel import (
    Tile,
    best_shape,
    by_lanes,
    depthwise_shape,
)
from caldera.kernels.native.convolution.packing import Loop, gather
from caldera.kernels.native.convolution.strip_mining import (
    Filling,
    Strips,
    cut,
    filling,
    pixel_table,
)
from caldera.tensor.dtype import DType
from caldera.threads import thread_count

FEW, FEW_SINGLE = 12, 32
"""Inputs of a tap (or a row of taps) for which it pays to compile a kernel without inner loops,
where they are used lane by lane, and where they are loaded one by one."""
LONGEST_SUM = 512
"""Terms after which a sum is put aside, and another one begun."""
ITEMS_A_THREAD = 4
"""Strips a worker should have at least, so that all finish at about the same time."""
WORTH_SPLITTING = 1 << 17
"""Products from which on a second thread pays."""


@dataclass(frozen=True)
class Packing:
    """A correlation with the tile it is computed by, and the memory it takes."""

    work: Correlation
    dtype: DType

    @property
    def is_depthwise(self) -> bool:
        """Whether channels are the lanes of vectors on both sides."""
        return self.work.channels == self.work.results == 1 and self.work.groups > 1

    @property
    def groups(self) -> int:
        """Parts of the channels that are convolved by themselves."""
        return 1 if self.is_depthwise else self.work.groups

    @property
    def results(self) -> int:
        """Output channels of such a part."""
        return self.work.groups if self.is_depthwise else self.work.results

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return natural_lanes(computed_type(self.dtype.name))

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Pixels and vectors of output channels."""
        if self.is_depthwise:
            return depthwise_shape(self.results, self.lanes)
        pixels = max(1, self.strips.images * self.strips.rows * self.work.target[1])
        return best_shape(self.results, pixels, self.lanes)

    @property
    def width(self) -> int:
        """Output channels of a block."""
        return self.tile[1] * self.lanes

    @property
    def blocks(self) -> int:
        """Blocks of output channels in a group."""
        return -(-self.results // self.width)

    @property
    def panel(self) -> int:
        """Elements of the filters of a block."""
        return self.work.taps[0] * self.work.taps[1] * self.work.channels * self.width

    @property
    def filters(self) -> int:
        """Elements of all packed filters."""
        return self.groups * self.blocks * self.panel

    @cached_property
    def strips(self) -> Strips:
        """How the batch is cut. Vectors that hang over the last channel read what lies behind."""
        slack = 4 * self.lanes if self.is_depthwise else 0
        channels = self.work.groups * self.work.channels
        wanted = ITEMS_A_THREAD * thread_count()
        return cut(self.work, channels, self.dtype.itemsize, wanted, slack=slack)

    @property
    def reads_in_place(self) -> bool:
        """Whether strips need not be copied."""
        hangs_over = self.is_depthwise and self.results % self.width != 0
        return self.work.needs_no_padding and not hangs_over

    @property
    def chunks(self) -> int:
        """Parts that the blocks are shared out in, where there are not enough strips."""
        wanted, items = 2 * thread_count(), self.strips.items
        return 1 if items >= wanted else min(self.groups * self.blocks, -(-wanted // max(1, items)))

    @property
    def parts(self) -> int:
        """Workers that may take part, each with a strip of its own."""
        pixels = self.work.batch * self.work.target[0] * self.work.target[1]
        if pixels * self.filters < WORTH_SPLITTING:
            return 1
        return max(1, min(2 * thread_count(), self.strips.items * self.chunks))

    @property
    def scratch(self) -> int:
        """Elements of all workers' strips."""
        return 0 if self.reads_in_place else self.parts * self.strips.length


def pack_filters(
    packing: Packing, filters: np.ndarray, target: np.ndarray, strides: tuple[int, ...]
) -> NativeCall:
    """Filters as [group][block][row][column][channel][width]. `filters` begins at the first tap;
    `strides` lead to the next group, output channel, input channel, row and column of taps."""
    work = packing.work
    rows, columns = work.taps
    width = packing.width
    of_group, of_output, of_input, of_row, of_column = strides
    neighbour = of_group if packing.is_depthwise else of_output
    return gather(
        filters, target,
        (
            Loop(packing.groups, of_group, packing.blocks * packing.panel),
            Loop(work.channels, of_input, width),
            Loop(rows, of_row, columns * work.channels * width),
            Loop(columns, of_column, work.channels * width),
        ),
        length=packing.results, neighbour=neighbour, width=width, block_step=packing.panel,
        padded=True,
    )  # fmt: skip


@dataclass(frozen=True)
class _Numbers:
    """The strips, the target, the taps and the blocks of filters, in numbers and distances."""

    copied: Integer
    items: Integer
    chunks: Integer
    images: Integer
    rows: Integer
    a_image: Integer
    batch: Integer
    target_rows: Integer
    target_columns: Integer
    target_image_step: Integer
    target_row_step: Integer
    stride_rows: Integer
    reach_rows: Integer
    tap_rows: Integer
    tap_columns: Integer
    tap_row_step: Integer
    tap_column_step: Integer
    length: Integer
    blocks: Integer
    block_count: Integer
    panel: Integer
    results: Integer
    group_inputs: Integer
    block_inputs: Integer
    strip_length: Integer


def correlate(
    packing: Packing,
    source: np.ndarray,
    filters: np.ndarray,
    target: np.ndarray,
    scratch: np.ndarray,
) -> NativeCall:
    """The correlation of `source` with packed filters, written to `target`; both are images
    (N, C, H, W) whose channels lie side by side."""
    work, strips = packing.work, packing.strips
    of_source, of_target = steps(source), steps(target)
    in_place = packing.reads_in_place
    inside = (of_source[0], of_source[2], of_source[3])
    if not in_place:
        inside = (strips.image_step, strips.row_step, strips.pitch)
    channels = work.groups * work.channels
    # Along a row of taps the channels of neighbouring pixels are neighbours, if all are wanted.
    joined = work.groups == 1 and work.dilation[1] == 1 and inside[2] == channels
    by_output = (inside[0], inside[1] * work.stride[0], inside[2] * work.stride[1])
    outputs = (of_target[0], of_target[2], of_target[3])
    table = (strips.images, strips.rows, work.target[1])
    blocks = packing.groups * packing.blocks
    values = {
        "copied": not in_place, "items": strips.items, "chunks": packing.chunks,
        "images": strips.images, "rows": strips.rows, "a_image": strips.a_image,
        "batch": work.batch, "target_rows": work.target[0], "target_columns": work.target[1],
        "target_image_step": of_target[0], "target_row_step": of_target[2],
        "stride_rows": work.stride[0], "reach_rows": work.reach[0], "tap_rows": work.taps[0],
        "tap_columns": 1 if joined else work.taps[1],
        "tap_row_step": inside[1] * work.dilation[0],
        "tap_column_step": inside[2] * work.dilation[1],
        "length": work.channels * (work.taps[1] if joined else 1),
        "blocks": packing.blocks, "block_count": blocks, "panel": packing.panel,
        "results": packing.results, "group_inputs": 0 if packing.is_depthwise else work.channels,
        "block_inputs": packing.width if packing.is_depthwise else 0,
        "strip_length": strips.length,
    }  # fmt: skip
    pixels, vectors = packing.tile
    length, few = values["length"], FEW if by_lanes() else FEW_SINGLE
    is_known = length <= few and packing.panel <= LONGEST_SUM * packing.width
    return _correlate.call(
        source=source, filters=filters, target=target, scratch=scratch,
        source_places=pixel_table(*table, by_output), target_places=pixel_table(*table, outputs),
        filling=filling(
            strips, work.source, channels, (of_source[0], of_source[2], of_source[3]), work.start
        ),
        n=values, pixels=pixels, vectors=vectors, depthwise=packing.is_depthwise,
        length=length if is_known else 0, parts=packing.parts,
    )  # fmt: skip


@native_kernel
def _correlate(
    k: Emitter, source: Pointer, filters: Pointer, target: Pointer, scratch: Pointer,
    source_places: Pointer, target_places: Pointer, filling: Filling, n: _Numbers, pixels: int,
    vectors: int, depthwise: bool, length: int,
) -> None:  # fmt: skip
    """`length` is that of a run of inputs if the kernel is made for it, else 0."""
    wide = source.type
    width = vectors * natural_lanes(wide)
    aside = k.alloca(wide, pixels * width)
    strip = scratch.at(k.part * n.strip_length)
    begin, end = k.part_range(n.items * n.chunks)
    with k.loop(begin, end) as index:
        item, chunk = index // n.chunks, index % n.chunks
        image, row = item // n.a_image * n.images, item % n.a_image * n.rows
        images = k.minimum(n.images, n.batch - image)
        rows = k.minimum(n.rows, n.target_rows - row)
        count = images * rows * n.target_columns
        with k.if_then(n.copied.differs(0)):
            reached = (rows - 1) * n.stride_rows + n.reach_rows
            filling.fill(k, strip, source, image, images, row * n.stride_rows, reached)
        top = row * n.stride_rows + filling.start_row
        first = image * filling.image_step + top * filling.row_step
        in_place = source.at(first + filling.start_column * filling.pixel_step)
        start = _pick(k, n.copied.differs(0), strip, in_place)
        place = target.at(image * n.target_image_step + row * n.target_row_step)
        first_block = n.block_count * chunk // n.chunks
        with k.loop(first_block, n.block_count * (chunk + 1) // n.chunks) as block:
            group, inner = block // n.blocks, block % n.blocks
            inputs = start.at(group * n.group_inputs + inner * n.block_inputs)
            outputs = place.at(group * n.results + inner * width)
            valid = k.minimum(n.results - inner * width, width)
            panel = filters.at(block * n.panel)
            with k.loop(0, count, pixels) as pixel:
                # Tiles over the edge repeat the last pixel, and are written aside first.
                whole = (pixel + pixels <= count) & valid.equals(width)
                numbers = [k.minimum(pixel + i, count - 1) for i in range(pixels)]
                sources = [inputs.at(source_places.load(number)) for number in numbers]
                tile = Tile(k, pixels, vectors, sources)
                _taps(k, n, tile, panel, depthwise, length)
                tile.store(
                    [
                        _pick(k, whole, outputs.at(target_places.load(number)), aside.at(i * width))
                        for i, number in enumerate(numbers)
                    ]
                )
                with k.if_then(~whole), k.loop(0, k.minimum(pixels, count - pixel)) as i:
                    to = outputs.at(target_places.load(pixel + i))
                    held = aside.at(i * width)
                    k.vector_loop(0, valid, tile.lanes, lambda e, c: to.store(e, held.load(e, c)))


def _pick(k: Emitter, condition: Value, yes: Pointer, no: Pointer) -> Pointer:
    return Pointer(k, k.ir.select(condition.raw, yes.raw, no.raw), yes.type)


def _taps(
    k: Emitter, n: _Numbers, tile: Tile, panel: Pointer, depthwise: bool, length: int
) -> None:
    if depthwise or length:
        with k.loop(0, n.tap_rows) as row, k.loop(0, n.tap_columns) as column:
            place = row * n.tap_row_step + column * n.tap_column_step
            taps = panel.at((row * n.tap_columns + column) * n.length * tile.width)
            if depthwise:
                tile.add_alike(taps, place)
            else:
                tile.add_known(taps, place, length)
        return
    # Long sums are made of parts, as BLAS does, so that they round no more than there.
    is_long = n.panel > LONGEST_SUM * tile.width
    kept = k.alloca(tile.kind, tile.pixels * tile.width)
    with k.if_then(is_long):
        tile.clear(kept)
    terms = k.variable(0, I64)
    with k.loop(0, n.tap_rows) as row, k.loop(0, n.tap_columns) as column:
        place = row * n.tap_row_step + column * n.tap_column_step
        taps = panel.at((row * n.tap_columns + column) * n.length * tile.width)
        with k.loop(0, n.length, LONGEST_SUM) as first:
            count = k.minimum(n.length - first, LONGEST_SUM)
            tile.add(taps.at(first * tile.width), place + first, count)
            terms.value = terms.value + count
            with k.if_then(is_long & (terms.value + n.length > LONGEST_SUM)):
                tile.keep(kept)
                terms.value = 0
    with k.if_then(is_long):
        tile.take_back(kept)
