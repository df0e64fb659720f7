"""From images that lie channels last to planes, and back: whole vectors, taken apart and put
together in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import (
    I64,
    Emitter,
    Pointer,
    Value,
    itemsize,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.kernel import Integer
from caldera.kernels.native.convolution.padded_images import PaddedImages

FEW = 8
"""Channels up to which pixels are taken apart in registers; more are read one by one."""

Pick = tuple[int, int]
"""A source, and a lane of it."""


@dataclass(frozen=True)
class PlaneFilling:
    """What filling goes by: the planes, and the images that they are filled from."""

    channels: Integer
    plane: Integer
    pitch: Integer
    images: PaddedImages

    def fill(
        self,
        k: Emitter,
        planes: Pointer,
        images: Pointer,
        image: Value,
        first_row: Value,
        rows: Value,
        few: int,
    ) -> None:
        """Copy `rows` padded rows of an image, from `first_row` on; `few` is the number of channels
        if it is small. Vectors over the end of a row write zeros, where the next one follows."""
        k.clear_bytes(planes, self.channels * self.plane * itemsize(planes.type))
        own = self.images
        left, inside = own.columns(k, self.pitch)
        count = inside - left
        first = first_row + own.start_row
        begin = k.maximum(-first, 0)
        end = k.minimum(own.height - first, rows)
        with k.loop(begin, end) as j:
            pixels = own.pixel(images, image, first_row + j, left)
            to = planes.at(j * self.pitch + left)
            if few:
                self._in_registers(k, to, pixels, count, few)
            else:
                self._one_by_one(k, to, pixels, count)

    def _in_registers(
        self, k: Emitter, to: Pointer, pixels: Pointer, count: Value, few: int
    ) -> None:
        lanes = natural_lanes(to.type)

        def block(first: Value, masks: Sequence[Value | None]) -> None:
            start = pixels.at(first * few)
            read = [start.load(m * lanes, lanes, mask) for m, mask in enumerate(masks)]
            for channel in range(few):
                picks = [divmod(x * few + channel, lanes) for x in range(lanes)]
                to.store(self.plane * channel + first, collected(k, read, picks))

        in_blocks(k, count, lanes, few, block)

    def _one_by_one(self, k: Emitter, to: Pointer, pixels: Pointer, count: Value) -> None:
        lanes, step = natural_lanes(to.type), self.images.pixel_step
        whole = count // lanes * lanes
        with k.loop(0, self.channels) as channel:
            plane, start = to.at(channel * self.plane), pixels.at(channel)
            with k.loop(0, whole, lanes) as x:
                read = [start.load((x + lane) * step) for lane in range(lanes)]
                plane.store(x, k.vector_of(read))
            with k.loop(whole, count) as x:
                plane.store(x, start.load(x * step))


def write_row(
    k: Emitter, planes: Pointer, plane: Value, target: Pointer, count: Value, results: int
) -> None:
    """A row of outputs from planes, channels last."""
    lanes = natural_lanes(planes.type)

    def block(first: Value, masks: Sequence[Value | None]) -> None:
        read = [planes.load(plane * channel + first, lanes) for channel in range(results)]
        to = target.at(first * results)
        for m, mask in enumerate(masks):
            places = (divmod(m * lanes + lane, results) for lane in range(lanes))
            picks = [(channel, pixel) for pixel, channel in places]
            to.store(m * lanes, collected(k, read, picks), mask)

    in_blocks(k, count, lanes, results, block)


def in_blocks(
    k: Emitter,
    count: Value,
    lanes: int,
    channels: int,
    block: Callable[[Value, Sequence[Value | None]], None],
) -> None:
    """`block(first pixel, masks of its vectors)` for as many pixels at a time as there are lanes:
    as many vectors as channels. The last block may be cut short."""
    whole = count // lanes * lanes
    with k.loop(0, whole, lanes) as first:
        block(first, [None] * channels)
    with k.if_then(whole < count):
        left = (count - whole) * channels
        masks: list[Value | None] = []
        for m in range(channels):
            numbers = [I64(m * lanes + lane) for lane in range(lanes)]
            places = Value(k, ir.Constant(vector(I64, lanes), numbers))
            masks.append(places < k.splat(left, lanes))
        block(whole, masks)


def collected(k: Emitter, sources: Sequence[Value], picks: Sequence[Pick]) -> Value:
    """A vector each of whose lanes is some lane of some source."""
    lanes = sources[0].lanes
    first, *others = sorted({source for source, _ in picks})
    found = sources[first]
    if list(picks) == [(first, lane) for lane in range(lanes)]:
        return found
    if not others:
        return k.shuffle(found, None, [lane for _, lane in picks])
    # What came before stands at its place already, but for the first source's own lanes.
    places = [lane if source == first else 0 for source, lane in picks]
    for other in others:
        own = [
            lanes + lane if source == other else place
            for (source, lane), place in zip(picks, places, strict=True)
        ]
        found = k.shuffle(found, sources[other], own)
        places = list(range(lanes))
    return found
