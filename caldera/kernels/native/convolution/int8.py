"""Convolutions of bytes for inference: `int8_conv2d` with integer instructions, without a matrix.

The step of each image is computed first. A strip of the image is then rounded to bytes, with zeros
around it, into the worker's own memory. The innermost loops multiply some neighbouring pixels of a
row by some panels of filters, all taps and channels, with the sums in registers. Scale, bias, an
image to add and relu are applied before the sums leave the registers.

VNNI multiplies unsigned by signed bytes: 128 is added to the inputs, and sums begin with -128 times
the sum of their weights.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.graph.ops.int8 import GROUP, PANEL
from caldera.core.tensor import float32, uint8
from caldera.kernels.common.binding import Scratch
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.native.codegen import (
    F32,
    I32,
    Emitter,
    Integer,
    MutableRegister,
    NativeCall,
    Pointer,
    Real,
    RegisterValue,
    host_target,
    integers,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.convolution.reorder import (
    ScratchMemory,
    bind_staged,
    is_uniform,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.tiling import (
    PaddedImages,
    StripNumbers,
    StripPixels,
    Strips,
    cut,
    padded_images,
)
from caldera.kernels.native.product.int8 import (
    LONGEST,
    VNNI,
    add_products,
    instructions,
    step_of,
    to_byte,
)
from caldera.kernels.native.product.problem import contiguous, parts_for
from caldera.kernels.table import Call, Runner

OFFSET = 128
_FOUR = 0x01010101


@native_kernel
def _find_steps(
    k: Emitter, x: Pointer, steps: Pointer, images: Integer, length: Integer, step: Real | None
) -> None:
    """Write the step of each image; NaN if it has a number that is not finite."""
    with k.loop(*k.part_range(images)) as image:
        found = (
            k.convert(step, F32) if step is not None else step_of(k, x.at(image * length), length)
        )
        steps.store(image, found + (found - found))


_Numbers = Annotated[
    Any,
    integers(
        "channels columns image_step row_step rows_down tap_rows tap_columns tap_row_step "
        "tap_column_step run panels blocks target_rows target_columns filters strip_length"
    ),
]
"""Sizes, and distances in a strip in groups of four bytes."""


@native_kernel
def _convolve(
    k: Emitter,
    source: Pointer,
    steps: Pointer,
    weight: Pointer,
    scale: Pointer,
    bias: Pointer,
    more: Pointer | None,
    target: Pointer,
    scratch: Pointer,
    images: PaddedImages,
    strips: StripNumbers,
    n: _Numbers,
    way: str,
    tile: tuple[int, int],
    pixel_step: int,
    pitch: int,
    is_whole: bool,
    is_activated: bool,
) -> None:
    """Convolve the strips of this part.

    A strip has `pitch` bytes for a pixel. `pixel_step` is the distance between the inputs of
    neighbouring outputs, in groups of four bytes. `tile` is a number of pixels and one of panels;
    filters are whole panels if `is_whole`.
    """
    weight, strip = weight.cast(I32), scratch.at(k.part * n.strip_length)
    offset = OFFSET if way == VNNI else 0
    lanes = min(PANEL, natural_lanes(F32))
    pixels, wide = tile
    with k.loop(*k.part_range(strips.items)) as item:
        own = strips.pixels(k, item)
        _fill(k, strip, source, steps, images, own, n, pitch, offset)
        with k.loop(0, n.blocks) as block:
            panels = [k.minimum(block * wide + j, n.panels - 1) for j in range(wide)]
            size = n.tap_rows * n.tap_columns * n.run * PANEL
            weights = [weight.at(panel * size) for panel in panels]
            begin = _first_sums(k, weights, size, lanes, offset, way)
            places = [panel * PANEL + v for panel in panels for v in range(0, PANEL, lanes)]
            with k.loop(0, own.images) as i, k.loop(0, own.rows) as y:
                line = strip.cast(I32).at(i * n.image_step + y * n.rows_down)
                image = own.image + i
                start = (image * n.target_rows + own.row + y) * n.target_columns
                step = steps.load(image)
                with k.loop(0, n.target_columns, pixels) as wanted:
                    # The last tile may compute pixels again.
                    x = k.minimum(wanted, n.target_columns - pixels)
                    sums = [[k.variable(each.value) for each in begin] for _ in range(pixels)]
                    _add_taps(k, n, sums, line.at(x * pixel_step), weights, pixel_step, way)
                    numbers = [
                        [
                            k.convert(total.value, F32) * step * scale.load(place, lanes)
                            + bias.load(place, lanes)
                            for place, total in zip(places, totals, strict=True)
                        ]
                        for totals in sums
                    ]
                    first = (start + x) * n.filters
                    out = target.at(first), more and more.at(first)
                    if is_whole:
                        for p, found in enumerate(numbers):
                            for place, number in zip(places, found, strict=True):
                                _finish(k, number, out, place + n.filters * p, is_activated)
                    else:
                        inner = block * wide * PANEL
                        _finish_part(k, numbers, out, inner, n.filters, is_activated)


def _first_sums(
    k: Emitter, weights: list[Pointer], size: RegisterValue, lanes: int, offset: int, way: str
) -> list[MutableRegister]:
    """Return initial sums, which cancel the offset of the inputs."""
    kind = vector(I32, lanes)
    sums = [k.variable(0, kind) for _ in range(len(weights) * PANEL // lanes)]
    if offset:
        with k.loop(0, size, PANEL) as place:
            factors = _panels(weights, place, lanes)
            for total, factor in zip(sums, factors, strict=True):
                add_products(k, total, k.constant(OFFSET * _FOUR, kind), factor, way)
        for total in sums:
            total.value = k.constant(0, kind) - total.value
    return sums


def _panels(weights: list[Pointer], place: RegisterValue, lanes: int) -> list[RegisterValue]:
    return [each.load(place + v, lanes) for each in weights for v in range(0, PANEL, lanes)]


def _add_taps(
    k: Emitter,
    n: _Numbers,
    sums: list[list[MutableRegister]],
    inputs: Pointer,
    weights: list[Pointer],
    pixel_step: int,
    way: str,
) -> None:
    lanes = sums[0][0].value.lanes
    with k.loop(0, n.tap_rows) as row, k.loop(0, n.tap_columns) as column:
        taps = (row * n.tap_columns + column) * n.run * PANEL
        panels = [each.at(taps) for each in weights]
        given = inputs.at(row * n.tap_row_step + column * n.tap_column_step)
        with k.loop(0, n.run) as group:
            factors = _panels(panels, group * PANEL, lanes)
            for p, totals in enumerate(sums):
                pixel = k.splat(given.load(group + p * pixel_step), lanes)
                for total, factor in zip(totals, factors, strict=True):
                    add_products(k, total, pixel, factor, way)


_Images = tuple[Pointer, Pointer | None]
"""The output, and an image that is added to it."""


def _finish(
    k: Emitter, number: RegisterValue, images: _Images, place: RegisterValue, is_activated: bool
) -> None:
    """Add, activate and store a vector."""
    target, more = images
    total = number if more is None else number + more.load(place, number.lanes)
    # The comparison is false for NaN, which stays.
    target.store(place, k.select(total < 0.0, 0.0, total) if is_activated else total)


def _finish_part(
    k: Emitter,
    numbers: list[list[RegisterValue]],
    images: _Images,
    inner: RegisterValue,
    filters: RegisterValue,
    is_activated: bool,
) -> None:
    """The same for all pixels of a tile, whose panels from filter `inner` on may not be full."""
    lanes, width = numbers[0][0].lanes, sum(each.lanes for each in numbers[0])
    aside = k.alloca(F32, len(numbers) * width)
    for index, number in enumerate(each for line in numbers for each in line):
        aside.store(index * lanes, number)
    valid = k.minimum(filters - inner, width)
    with k.loop(0, len(numbers)) as p:
        for place, many in k.vectors(0, valid, lanes, 1):
            number = aside.load(p * width + place, many)
            _finish(k, number, images, p * filters + inner + place, is_activated)


def _fill(
    k: Emitter,
    strip: Pointer,
    source: Pointer,
    steps: Pointer,
    images: PaddedImages,
    pixels: StripPixels,
    n: _Numbers,
    pitch: int,
    offset: int,
) -> None:
    """Round the padded input rows of a strip's pixels to bytes."""
    lanes = natural_lanes(F32)
    words = strip.cast(I32)
    left, inside = images.columns(k, n.columns)
    for place, many in k.vectors(0, pixels.images * n.image_step, lanes, 1):
        words.store(place, k.constant(offset * _FOUR, vector(I32, many)))
    with k.loop(0, pixels.images) as i, k.loop(0, pixels.source_rows) as j:
        image = pixels.image + i
        row = pixels.source_row + j + images.start_row
        with k.if_then((row >= 0) & (row < images.height)):
            inverse = k.constant(1.0, F32) / steps.load(image)
            given = images.pixel(source, image, pixels.source_row + j, left)
            goal = strip.at((i * n.image_step + j * n.row_step) * GROUP + left * pitch)

            def convert(given: Pointer, goal: Pointer, count: RegisterValue) -> None:
                for place, many in k.vectors(0, count, 4 * lanes, lanes, 1):
                    goal.store(place, to_byte(k, given.load(place, many) * inverse, offset))

            with k.if_else(n.channels.equals(pitch)) as (at_once, one_by_one):
                with at_once:
                    convert(given, goal, (inside - left) * pitch)
                with one_by_one, k.loop(0, inside - left) as x:
                    convert(given.at(x * n.channels), goal.at(x * pitch), n.channels)


def _work(node: Node) -> Correlation:
    (images, channels, *source), (_, rows, columns, *_) = (each.shape for each in node.inputs[:2])
    attrs = node.attrs
    (top, _), (left, _) = attrs["padding"]
    return Correlation(
        images,
        (source[0], source[1]),
        (node.shape[2], node.shape[3]),
        (rows, columns),
        attrs["stride"],
        attrs["dilation"],
        (-top, -left),
        1,
        channels,
        attrs["filters"],
    )


def _workers(node: Node) -> int:
    work = _work(node)
    return parts_for(node.spec.size * work.channels * work.taps[0] * work.taps[1] // 2)


def _strips(node: Node) -> Strips:
    pitch = node.inputs[1].shape[3] * GROUP
    return cut(_work(node), pitch, 1, _workers(node), pitch=pitch)


def _lengths(node: Node) -> list[int]:
    """Return the number of 4-byte elements of the steps and of the strips."""
    strips = _strips(node)
    workers = min(_workers(node), strips.items)
    return [node.inputs[0].shape[0], workers * _strip_bytes(strips) // GROUP]


def _strip_bytes(strips: Strips) -> int:
    return -(-strips.length // 64) * 64


def _tile(columns: int, panels: int) -> tuple[int, int]:
    """Return pixels and panels whose sums fit into the registers, with the weights of a step."""
    vectors = PANEL // min(PANEL, natural_lanes(F32))
    room = host_target().registers - 2

    def cycles(tile: tuple[int, int]) -> float:
        pixels, wide = tile
        products = pixels * wide * vectors
        # Two products or two loads a cycle; a sum can take its next term after five cycles. Weights
        # come from the second-level cache.
        step = max(products / 2, (pixels + wide * vectors) / 2, 5.0) + 0.5 + wide * vectors / 2
        return step * -(-columns // pixels) * -(-panels // wide)

    tiles = product(range(1, min(columns, room) + 1), range(1, min(panels, 8) + 1))
    fitting = [
        (pixels, wide)
        for pixels, wide in tiles
        if pixels * wide * vectors + wide * vectors + (wide * vectors > 1) <= room
    ]
    return min(fitting or [(1, 1)], key=cycles)


def _numbers(node: Node, work: Correlation, strips: Strips, wide: int) -> dict[str, int]:
    """Return `_Numbers` for blocks of `wide` panels."""
    panels, _, _, groups = node.inputs[1].shape[:4]
    # The bytes of neighbouring taps are neighbours as well.
    is_joined = work.dilation[1] == 1
    row_step = strips.source_columns * groups
    return {
        "channels": work.channels,
        "columns": strips.source_columns,
        "image_step": strips.source_rows * row_step,
        "row_step": row_step,
        "rows_down": row_step * work.stride[0],
        "tap_rows": work.taps[0],
        "tap_columns": 1 if is_joined else work.taps[1],
        "tap_row_step": row_step * work.dilation[0],
        "tap_column_step": groups * work.dilation[1],
        "run": groups * (work.taps[1] if is_joined else 1),
        "panels": panels,
        "blocks": -(-panels // wide),
        "target_rows": work.target[0],
        "target_columns": work.target[1],
        "filters": work.results,
        "strip_length": _strip_bytes(strips),
    }


def _bind(call: Call) -> Runner:
    node = call.node
    lengths, work, strips = _lengths(node), _work(node), _strips(node)
    panels, _, _, groups = node.inputs[1].shape[:4]
    tile = _tile(work.target[1], panels)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        x, *given, out = arrays
        calls: list[NativeCall] = []
        weight, scale, bias = (contiguous(each, Scratch(None), calls) for each in given[:3])
        more = given[3:]
        steps, scratch = (workspace.array(length, float32) for length in lengths)
        found = _find_steps.call(
            x=x,
            steps=steps,
            images=work.batch,
            length=x.size // work.batch,
            step=node.attrs["step"],
            parts=min(work.batch, _workers(node)),
        )
        convolved = _convolve.call(
            source=x,
            steps=steps,
            weight=weight,
            scale=scale,
            bias=bias,
            more=more[0] if more else None,
            target=out,
            scratch=scratch.view(uint8),
            images=padded_images(x, work.start),
            strips=strips.numbers(work),
            n=_numbers(node, work, strips, tile[1]),
            way=instructions(),
            tile=tile,
            pixel_step=groups * work.stride[1],
            pitch=groups * GROUP,
            is_whole=work.results % PANEL == 0,
            is_activated=node.op.name == "int8_conv2d_relu",
            parts=min(_workers(node), strips.items),
        )
        return [*calls, found, convolved]

    return bind_staged(call, lengths, compute, is_uniform)


def _workspace(node: Node) -> int:
    return scratch_bytes(_lengths(node), float32) + staging_bytes(node)


def _supports(node: Node) -> bool:
    work = _work(node)
    return 0 < work.channels * work.taps[0] * work.taps[1] <= LONGEST


for _op in ("int8_conv2d", "int8_conv2d_relu"):
    offer(_op, "bytes", _bind, _supports, _workspace, priority=10)
