"""Direct convolution of channels-last images, without a matrix of windows.

Filters are packed into blocks with the number of output channels of a tile. A strip of the input is
processed block by block, and within a block tile by tile.

The gradient for the image pixels at one offset of the stride's grid is a convolution of the
output's gradient with some of the taps in reverse order. A stride of 1 has only one such offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry, forward, input_phases, steps
from caldera.kernels.native.codegen import (
    I64,
    Emitter,
    NativeCall,
    Pointer,
    RegisterValue,
    copy_elements,
    integers,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.native.convolution.correlation_blocking import (
    CorrelationBlock,
    Packing,
    PixelTile,
    by_lanes,
)
from caldera.kernels.native.convolution.reorder import (
    CopyLoop,
    ScratchMemory,
    bind_staged,
    gather,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.tiling import Filling, StripNumbers, filling, pixel_table
from caldera.kernels.table import Call, Runner

FEW, FEW_SINGLE = 12, 32
"""Maximum number of inputs of a tap (or row of taps) for a kernel without inner loops.

The first number is for inputs that are used lane by lane, the second for inputs loaded one by one.
"""
LONGEST_SUM = 512
"""Terms after which a sum is put aside, and another one begun."""


def pack_filters(
    packing: Packing, part: int, filters: np.ndarray, packed: np.ndarray, strides: tuple[int, ...]
) -> NativeCall:
    """Return the filters of a part as [group][block][row][column][channel][width]. `filters` begins
    at its first tap; `strides` lead to the next group, output channel, input channel, row and
    column of taps."""
    work = packing.parts[part].work
    rows, columns = work.taps
    width = packing.width
    of_group, of_output, of_input, of_row, of_column = strides
    neighbour = of_group if packing.is_depthwise else of_output
    return gather(
        filters,
        packed[packing.starts[part] : packing.starts[part + 1]],
        (
            CopyLoop(packing.groups, of_group, packing.blocks * packing.panel(work)),
            CopyLoop(work.channels, of_input, width),
            CopyLoop(rows, of_row, columns * work.channels * width),
            CopyLoop(columns, of_column, work.channels * width),
        ),
        length=packing.results,
        neighbour=neighbour,
        width=width,
        block_step=packing.panel(work),
        padded=True,
    )


_Numbers = Annotated[
    Any,
    integers(
        "copied chunks target_image_step blocks block_count results group_inputs block_inputs "
        "strip_length parts"
    ),
]
"""The target and the blocks of filters, in numbers and distances."""


@dataclass(frozen=True)
class _PartNumbers:
    """A correlation as a row of a table: its pixels, offsets and taps.

    Offsets refer to the strip, the target, the filters and the tables of pixels.
    """

    rows: RegisterValue
    columns: RegisterValue
    source_start: RegisterValue
    target_start: RegisterValue
    target_row_step: RegisterValue
    filters_start: RegisterValue
    places_start: RegisterValue
    tap_rows: RegisterValue
    tap_columns: RegisterValue
    tap_row_step: RegisterValue
    tap_column_step: RegisterValue
    length: RegisterValue
    panel: RegisterValue

    @classmethod
    def load(cls, table: Pointer, index: RegisterValue) -> _PartNumbers:
        """Return a row of the table."""
        names = [field.name for field in fields(cls)]
        row = table.at(index * len(names))
        return cls(**{name: row.load(i) for i, name in enumerate(names)})

    @classmethod
    def load_only(cls, k: Emitter, table: Pointer) -> _PartNumbers:
        """Return the only row: it begins at the beginning of everything, which saves registers."""
        zero = k.constant(0, I64)
        return replace(
            cls.load(table, zero),
            source_start=zero,
            target_start=zero,
            filters_start=zero,
            places_start=zero,
        )

    @classmethod
    def table(cls, rows: Iterable[dict[str, int]]) -> np.ndarray:
        """Return the rows as an array, with numbers in the order of the fields."""
        names = [field.name for field in fields(cls)]
        return np.array([[row[name] for name in names] for row in rows], np.int64)


def correlate(
    packing: Packing,
    source: np.ndarray,
    filters: np.ndarray,
    target: np.ndarray,
    scratch: np.ndarray,
) -> NativeCall:
    """Return the correlations of `source` with packed filters, written to `target`; both are images
    (N, C, H, W) whose channels lie side by side."""
    window, strips = packing.window, packing.strips
    of_source, of_target = steps(source), steps(target)
    in_place = packing.reads_in_place
    inside = (of_source[0], of_source[2], of_source[3])
    if not in_place:
        inside = (strips.image_step, strips.row_step, strips.pitch)
    channels = window.groups * window.channels
    values = {
        "copied": not in_place,
        "chunks": packing.chunks,
        "target_image_step": of_target[0],
        "blocks": packing.blocks,
        "block_count": packing.groups * packing.blocks,
        "results": packing.results,
        "group_inputs": 0 if packing.is_depthwise else window.channels,
        "block_inputs": packing.width if packing.is_depthwise else 0,
        "strip_length": strips.length,
        "parts": len(packing.parts),
    }
    rows: list[dict[str, int]] = []
    source_places: list[np.ndarray] = []
    target_places: list[np.ndarray] = []
    for part, start in zip(packing.parts, packing.starts, strict=False):
        work = part.work
        by_output = (inside[0], inside[1] * work.stride[0], inside[2] * work.stride[1])
        outputs = (of_target[0], of_target[2] * part.step[0], of_target[3] * part.step[1])
        starts = start, sum(map(len, source_places))
        rows.append(_part_numbers(packing, part, inside, of_target, starts))
        size = (strips.images, min(strips.rows, work.target[0]), work.target[1])
        source_places.append(pixel_table(*size, by_output))
        target_places.append(pixel_table(*size, outputs))
    pixels, vectors = packing.tile
    return _correlate.call(
        source=source,
        filters=filters,
        target=target,
        scratch=scratch,
        source_places=np.concatenate(source_places),
        target_places=np.concatenate(target_places),
        table=_PartNumbers.table(rows),
        filling=filling(strips, source, channels, window.start),
        strips=strips.numbers(window),
        n=values,
        pixels=pixels,
        vectors=vectors,
        depthwise=packing.is_depthwise,
        length=_known_length(rows, packing.width),
        several=len(rows) > 1,
        parts=packing.workers,
    )


def _part_numbers(
    packing: Packing,
    part: CorrelationBlock,
    inside: tuple[int, ...],
    of_target: tuple[int, ...],
    starts: tuple[int, int],
) -> dict[str, int]:
    """Return a row of the table: `inside` leads to the next image, row and pixel of the source."""
    work, window = part.work, packing.window
    # Along a row of taps the channels of neighbouring pixels are neighbours, if all are wanted.
    is_dense = inside[2] == window.groups * window.channels
    joined = work.groups == 1 and work.dilation[1] == 1 and is_dense
    down, right = (own - all_of_it for own, all_of_it in zip(work.start, window.start, strict=True))
    return {
        "rows": work.target[0],
        "columns": work.target[1],
        "source_start": (down * inside[1] + right * inside[2]) if work.taps[0] else 0,
        "target_start": part.first[0] * of_target[2] + part.first[1] * of_target[3],
        "target_row_step": of_target[2] * part.step[0],
        "filters_start": starts[0],
        "places_start": starts[1],
        "tap_rows": work.taps[0],
        "tap_columns": 1 if joined else work.taps[1],
        "tap_row_step": inside[1] * work.dilation[0],
        "tap_column_step": inside[2] * work.dilation[1],
        "length": work.channels * (work.taps[1] if joined else 1),
        "panel": packing.panel(work),
    }


def _known_length(rows: list[dict[str, int]], width: int) -> int:
    """Return the common length of runs of inputs if a specialised kernel pays, else 0."""
    few = FEW if by_lanes() else FEW_SINGLE
    lengths = {row["length"] for row in rows if row["tap_rows"]}
    is_known = len(lengths) == 1 and max(row["panel"] for row in rows) <= LONGEST_SUM * width
    return lengths.pop() if is_known and max(lengths) <= few else 0


@native_kernel
def _correlate(
    k: Emitter,
    source: Pointer,
    filters: Pointer,
    target: Pointer,
    scratch: Pointer,
    source_places: Pointer,
    target_places: Pointer,
    table: Pointer,
    filling: Filling,
    strips: StripNumbers,
    n: _Numbers,
    pixels: int,
    vectors: int,
    depthwise: bool,
    length: int,
    several: bool,
) -> None:
    """Convolve the strips of this part.

    `length` is the length of a run of inputs if the kernel is specialised for it, else 0. `several`
    is True if there is more than one part.
    """
    width = vectors * natural_lanes(source.type)
    aside = k.alloca(source.type, pixels * width)
    strip = scratch.at(k.part * n.strip_length)
    only = None if several else _PartNumbers.load_only(k, table)
    with k.loop(*k.part_range(strips.items * n.chunks)) as index:
        item, chunk = index // n.chunks, index % n.chunks
        own = strips.pixels(k, item)
        with k.if_then(n.copied.differs(0)):
            filling.fill(k, strip, source, own)
        in_place = filling.images.pixel(source, own.image, own.source_row, 0)
        start = k.either(n.copied.differs(0), strip, in_place)
        blocks = n.block_count * chunk // n.chunks, n.block_count * (chunk + 1) // n.chunks
        every = _parts(k, n.parts, table) if only is None else nullcontext(only)
        with every as part, k.loop(*blocks) as block:
            group, inner = block // n.blocks, block % n.blocks
            place = (
                own.image * n.target_image_step + own.row * part.target_row_step + part.target_start
            )
            outputs = target.at(place + group * n.results + inner * width)
            given = group * n.group_inputs + inner * n.block_inputs
            inputs = start.at(part.source_start + given)
            valid = k.minimum(n.results - inner * width, width)
            panel = filters.at(part.filters_start + block * part.panel)
            sources, targets = (
                each.at(part.places_start) for each in (source_places, target_places)
            )
            # A part may have fewer rows than another.
            count = own.images * k.minimum(strips.rows, part.rows - own.row) * part.columns
            with k.loop(0, count, pixels) as pixel:
                numbers = [k.minimum(pixel + i, count - 1) for i in range(pixels)]
                # Tiles over the edge repeat the last pixel, and are written aside first.
                whole = (pixel + pixels <= count) & valid.equals(width)
                tile = PixelTile(k, pixels, vectors, [inputs.at(sources.load(i)) for i in numbers])
                _taps(k, part, tile, panel, depthwise, length)
                places = [outputs.at(targets.load(number)) for number in numbers]
                held = [aside.at(i * width) for i in range(pixels)]
                tile.store([k.either(whole, *each) for each in zip(places, held, strict=True)])
                with k.if_then(~whole), k.loop(0, k.minimum(pixels, count - pixel)) as i:
                    to = outputs.at(targets.load(pixel + i))
                    copy_elements(k, to, aside.at(i * width), valid, tile.lanes)


@contextmanager
def _parts(k: Emitter, count: RegisterValue, table: Pointer) -> Iterator[_PartNumbers]:
    with k.loop(0, count) as number:
        yield _PartNumbers.load(table, number)


def _taps(
    k: Emitter, n: _PartNumbers, tile: PixelTile, panel: Pointer, depthwise: bool, length: int
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
    # Long sums are split, as in BLAS, so that rounding errors are no larger.
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


def packing(node: Node) -> Packing:
    """Return the correlations that a convolution or its input gradient consists of."""
    geometry = Geometry.of(node)
    if node.op.name == "conv2d":
        return Packing((CorrelationBlock(forward(geometry)),), geometry.dtype)
    phases = (
        CorrelationBlock(work, (row.first, column.first), (row.step, column.step))
        for row, column, work in input_phases(geometry)
    )
    return Packing(tuple(phases), geometry.dtype)


def _lengths(packing: Packing) -> list[int]:
    """Return the number of elements of the packed filters and of the strips."""
    return [packing.filters, packing.scratch]


def workspace(node: Node) -> int:
    """Return bytes of packed filters and strips, and of images that have to be copied."""
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
