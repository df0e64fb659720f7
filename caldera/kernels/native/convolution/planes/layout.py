"""Images as planes, one per channel with padded rows, and conversion from channels-last.

The pitch of rows is large enough that a tap has the same distance from every output. An output's
index in a plane is row * pitch + column. Between the last output of a row and the first of the next
are indices without an output: their values are never read. Conversion moves whole vectors, which
are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from llvmlite import ir

from caldera.base.threads import thread_count
from caldera.core.tensor.dtype import NAMES, DType
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.native.codegen import (
    I64,
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    computed_type,
    host_target,
    itemsize,
    natural_lanes,
    vector,
)
from caldera.kernels.native.convolution.tiling import PaddedImages

STRIP_BYTES = 1 << 17
"""Maximum bytes of the planes of a strip: they should stay in the second-level cache."""
SUMS = 16
"""Partial sums of a weight gradient; the same for any number of threads."""


@dataclass(frozen=True)
class PlaneCorrelation:
    """A correlation of stride 1 on planes (lengths in elements)."""

    work: Correlation
    dtype: DType

    @cached_property
    def lanes(self) -> int:
        """Places of a vector."""
        return natural_lanes(computed_type(NAMES[self.dtype]))

    @cached_property
    def pitch(self) -> int:
        """Stride between rows of a plane, in elements."""
        return self.work.target[1] + self.work.reach[1] - 1

    @cached_property
    def terms(self) -> int:
        """Taps of all input channels."""
        return self.work.channels * self.work.taps[0] * self.work.taps[1]

    @cached_property
    def rows(self) -> int:
        """Output rows of a strip."""
        planes = (self.work.channels + self.work.results) * self.pitch * self.dtype.itemsize
        fits = max(1, STRIP_BYTES // planes - self.work.reach[0])
        strips = -(-self.work.target[0] // fits)
        return -(-self.work.target[0] // strips)

    @property
    def a_image(self) -> int:
        """Number of strips per image."""
        return -(-self.work.target[0] // self.rows)

    @property
    def items(self) -> int:
        """Strips of the whole batch."""
        return self.work.batch * self.a_image

    @cached_property
    def vectors(self) -> int:
        """Vectors of a strip's places."""
        return -(-((self.rows - 1) * self.pitch + self.work.target[1]) // self.lanes)

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Output channels and vectors of places in a register tile of sums."""

        def cost(tile: tuple[int, int]) -> float:
            results, vectors = tile
            # Every other vector of inputs lies across two cache lines.
            cycles = max(results * vectors / 2, (results + 1.5 * vectors) / 2, 4.0) + 0.75
            return cycles * -(-self.work.results // results) * -(-self.vectors // vectors)

        return min(_tiles(), key=cost)

    @cached_property
    def sum_tile(self) -> tuple[int, int]:
        """Output channels and taps in a register tile of sums over places."""

        def cost(tile: tuple[int, int]) -> float:
            results, taps = tile
            cycles = max(results * taps / 2, (results + 1.5 * taps) / 2, 4.0) + 0.75
            return cycles * -(-self.work.results // results) * -(-self.terms // taps)

        return min(_tiles(), key=cost)

    def whole(self, tile: int) -> int:
        """Number of output channels, rounded up to whole tiles."""
        return -(-self.work.results // tile) * tile

    @cached_property
    def input_plane(self) -> int:
        """Number of elements of a channel of the input.

        It includes elements read by tiles beyond the end, and written by whole vectors behind the
        last row.
        """
        places = -(-self.vectors // self.tile[1]) * self.tile[1] * self.lanes
        reach = self.work.reach
        return _in_lines(places + (reach[0] - 1) * self.pitch + reach[1] - 1 + self.lanes)

    @cached_property
    def output_plane(self) -> int:
        """Elements of a channel of the output."""
        places = -(-self.vectors // self.tile[1]) * self.tile[1] * self.lanes
        return _in_lines(places + self.lanes)

    @property
    def filters(self) -> int:
        """Elements of packed filters, or of a partial sum for each lane."""
        return self.whole(self.tile[0]) * self.terms

    @property
    def parts(self) -> int:
        """Number of workers of a correlation, each with separate planes."""
        return max(1, min(2 * thread_count(), self.items))

    @property
    def scratch(self) -> int:
        """Planes of a worker."""
        inputs = self.work.channels * self.input_plane
        results = max(self.whole(self.tile[0]), self.whole(self.sum_tile[0]))
        return inputs + results * self.output_plane

    @property
    def sums(self) -> int:
        """Partial sums of a weight gradient."""
        return max(1, min(SUMS, self.items))

    @property
    def sum_size(self) -> int:
        """Elements of a partial sum: a vector for every product of an output channel and a tap."""
        results, taps = self.sum_tile
        return self.whole(results) * -(-self.terms // taps) * taps * self.lanes


def _in_lines(length: int) -> int:
    return -(-length // 16) * 16


def _tiles() -> Iterator[tuple[int, int]]:
    """Yield tiles that fit into the registers together with their factors."""
    registers = host_target().registers
    for one in range(1, 13):
        for other in range(1, 8):
            if one * other + other + 2 <= registers:
                yield one, other


FEW = 8
"""Maximum number of channels that are split in registers; more are read one by one."""

Pick = tuple[int, int]
"""A source and one of its lanes."""


@dataclass(frozen=True)
class PlaneFilling:
    """Arguments of filling: the planes, and the images from which they are filled."""

    channels: Integer
    plane: Integer
    pitch: Integer
    images: PaddedImages

    def fill(
        self,
        k: Emitter,
        planes: Pointer,
        images: Pointer,
        image: RegisterValue,
        first_row: RegisterValue,
        rows: RegisterValue,
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
        with k.loop(begin, k.minimum(own.height - first, rows)) as j:
            pixels = own.pixel(images, image, first_row + j, left)
            to = planes.at(j * self.pitch + left)
            if few:
                self._in_registers(k, to, pixels, count, few)
            else:
                self._one_by_one(k, to, pixels, count)

    def _in_registers(
        self, k: Emitter, to: Pointer, pixels: Pointer, count: RegisterValue, few: int
    ) -> None:
        lanes = natural_lanes(to.type)
        for first, masks in in_blocks(k, count, lanes, few):
            start = pixels.at(first * few)
            read = [start.load(m * lanes, lanes, mask) for m, mask in enumerate(masks)]
            for channel in range(few):
                picks = [divmod(x * few + channel, lanes) for x in range(lanes)]
                to.store(self.plane * channel + first, collected(k, read, picks))

    def _one_by_one(self, k: Emitter, to: Pointer, pixels: Pointer, count: RegisterValue) -> None:
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
    k: Emitter,
    planes: Pointer,
    plane: RegisterValue,
    target: Pointer,
    count: RegisterValue,
    results: int,
) -> None:
    """A row of outputs from planes, channels last."""
    lanes = natural_lanes(planes.type)
    for first, masks in in_blocks(k, count, lanes, results):
        read = [planes.load(plane * channel + first, lanes) for channel in range(results)]
        to = target.at(first * results)
        for m, mask in enumerate(masks):
            places = (divmod(m * lanes + lane, results) for lane in range(lanes))
            picks = [(channel, pixel) for pixel, channel in places]
            to.store(m * lanes, collected(k, read, picks), mask)


def in_blocks(
    k: Emitter, count: RegisterValue, lanes: int, channels: int
) -> Iterator[tuple[RegisterValue, Sequence[RegisterValue | None]]]:
    """Loop over blocks of `lanes` pixels, for a `for` statement.

    Yield (first pixel, masks of the block's vectors), with one vector per channel. The last block
    may be incomplete.
    """
    whole = count // lanes * lanes
    with k.loop(0, whole, lanes) as first:
        yield first, [None] * channels
    with k.if_then(whole < count):
        left = (count - whole) * channels
        masks: list[RegisterValue | None] = []
        for m in range(channels):
            numbers = [I64(m * lanes + lane) for lane in range(lanes)]
            places = RegisterValue(k, ir.Constant(vector(I64, lanes), numbers))
            masks.append(places < k.splat(left, lanes))
        yield whole, masks


def collected(k: Emitter, sources: Sequence[RegisterValue], picks: Sequence[Pick]) -> RegisterValue:
    """Return a vector each of whose lanes is some lane of some source."""
    lanes = sources[0].lanes
    first, *others = sorted({source for source, _ in picks})
    found = sources[first]
    if list(picks) == [(first, lane) for lane in range(lanes)]:
        return found
    if not others:
        return k.shuffle(found, None, [lane for _, lane in picks])
    # Lanes of previous sources keep their position; the lanes of this source are inserted.
    places = [lane if source == first else 0 for source, lane in picks]
    for other in others:
        own = [
            lanes + lane if source == other else place
            for (source, lane), place in zip(picks, places, strict=True)
        ]
        found = k.shuffle(found, sources[other], own)
        places = list(range(lanes))
    return found
