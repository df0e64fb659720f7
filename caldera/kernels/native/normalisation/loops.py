"""Loops of normalisation: block sums for the statistics, and their application.

Sums over blocks of rows are taken in a separate call, or by the kernel that writes the rows while
they are still in its cache. The block size depends only on the shape, so sums are the same either
way, and for any number of threads.

Forward, y = (x - mean) * factor + shift, optionally with an added image and a relu; backward, dx =
f * g - a - (x - mean) * b. Rows read their factors from memory, one of each type per channel; a
plane has one of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from caldera.kernels.native.codegen import (
    F64,
    I64,
    ElementPointer,
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    line_lanes,
    native_kernel,
    natural_lanes,
    shrinking,
)
from caldera.kernels.native.codegen.math import maximum
from caldera.kernels.native.normalisation.layout import ChannelRows
from caldera.kernels.native.normalisation.statistics import (
    BLOCK_ROWS,
    VECTORS_TOGETHER,
    Mask,
    OfRow,
    Operand,
    Place,
    Prepare,
    Terms,
    block_total,
    column_sums,
    finite_or_zero,
    masked,
    pivoted_rows,
)

MEAN, FACTOR, SHIFT = range(3)
"""Indices of the factors of a channel."""
SLOPE_FACTOR, LEVEL, SLANT, CENTRE = range(4)
"""The same for the gradient: f, a, b and the mean."""
FACTORS = 4
"""Maximum number of factors."""


def factors_of(
    factors: Pointer, channels: RegisterValue, channel: RegisterValue, which: range, count: int = 1
) -> list[RegisterValue]:
    """Load the factors `which` of `count` channels."""
    return [factors.load(channel + channels * i, count) for i in which]


def store_factors(
    k: Emitter,
    factors: Pointer,
    channels: RegisterValue,
    channel: RegisterValue,
    values: dict[int, RegisterValue],
) -> None:
    """Write some factors of a channel."""
    for index, value in values.items():
        factors.store(channel + channels * index, k.convert(value, factors.type))


# --- elements


def _normalise(
    k: Emitter,
    place: Place,
    count: int,
    factors: Sequence[RegisterValue],
    x: Operand,
    y: Operand,
    more: Operand | None,
    relu: bool,
) -> None:
    """y = (x - mean) * factor + shift, then an optional sum and relu."""
    mean, factor, shift = factors
    value = k.fma(x.load(*place, count) - mean, factor, shift)
    if more is not None:
        value = value + more.load(*place, count)
    y.store(*place, maximum(k, value, 0.0) if relu else value)


def _differentiate(
    k: Emitter,
    place: Place,
    count: int,
    factors: Sequence[RegisterValue],
    g: Operand,
    x: Operand,
    dx: Operand,
    mask: Mask | None,
) -> None:
    """dx = f * g - a - (x - mean) * b."""
    f, a, b, mean = factors
    centred = x.load(*place, count) - mean
    slope = masked(k, g.load(*place, count), centred, mask)
    dx.store(*place, k.fma(slope, f, -k.fma(centred, b, a)))


# --- rows


def over_rows(
    k: Emitter, rows: tuple[Number, Number], channels: RegisterValue, kind: ir.Type
) -> Iterator[tuple[RegisterValue, RegisterValue, int]]:
    """Yield loops over all channels of all rows, for a `for` statement: (row, channel, lanes)."""
    with k.loop(*rows) as row:
        for channel, count in k.vectors(0, channels, *shrinking(line_lanes(kind))):
            yield row, channel, count


def apply_to_rows(
    k: Emitter,
    rows: tuple[Number, Number],
    channels: RegisterValue,
    x: ChannelRows,
    y: ChannelRows,
    factors: Pointer,
    more: ChannelRows | None = None,
    *,
    relu: bool = False,
) -> None:
    """y = (x - mean) * factor + shift, then an optional sum and relu."""
    for row, channel, count in over_rows(k, rows, channels, factors.type):
        own = factors_of(factors, channels, channel, range(3), count)
        _normalise(k, (row, channel), count, own, x, y, more, relu)


def gradient_of_rows(
    k: Emitter,
    rows: tuple[Number, Number],
    channels: RegisterValue,
    g: ChannelRows,
    x: ChannelRows,
    dx: ChannelRows,
    factors: Pointer,
    given: Pointer | None = None,
) -> None:
    """dx = f * g - a - (x - mean) * b; `given` has the factors of the forward pass with a relu."""
    for row, channel, count in over_rows(k, rows, channels, factors.type):
        own = factors_of(factors, channels, channel, range(FACTORS), count)
        mask = None
        if given is not None:
            mask = own[SLOPE_FACTOR], given.load(channel + channels * SHIFT, count)
        _differentiate(k, (row, channel), count, own, g, x, dx, mask)


# --- planes


def over_plane(
    k: Emitter, count: RegisterValue, kind: ir.Type
) -> Iterator[tuple[RegisterValue, int]]:
    """Yield loops over the elements of a plane, several vectors at a time, for a `for` statement:
    (index, lanes)."""
    lanes = natural_lanes(kind)
    step = lanes * VECTORS_TOGETHER
    whole = count // step * step
    with k.loop(0, whole, step) as index:
        for i in range(VECTORS_TOGETHER):
            yield index + i * lanes, lanes
    yield from k.vectors(whole, count, *shrinking(lanes))


def apply_to_plane(
    k: Emitter,
    pixels: RegisterValue,
    x: ElementPointer,
    y: ElementPointer,
    factors: list[RegisterValue],
    more: ElementPointer | None = None,
    *,
    relu: bool = False,
) -> None:
    """y = (x - mean) * factor + shift, then an optional sum and relu."""
    own = [k.convert(each, x.computed) for each in factors]
    for index, count in over_plane(k, pixels, x.computed):
        _normalise(k, (index,), count, own, x, y, more, relu)


def gradient_of_plane(
    k: Emitter,
    pixels: RegisterValue,
    planes: list[ElementPointer],
    factors: list[RegisterValue],
    mask: Mask | None = None,
) -> None:
    """dx = f * g - a - (x - mean) * b, for the planes of g, x and dx."""
    g, x, dx = planes
    own = [k.convert(each, x.computed) for each in factors]
    for index, count in over_plane(k, pixels, x.computed):
        _differentiate(k, (index,), count, own, g, x, dx, mask)


SUMS = 3
"""Numbers for each channel of a block: two sums, and the pivot subtracted from x."""
_MOST_ROWS = 1024
"""Rows of an image that is not cut, because its height is odd, at most."""


def rows_of_image(height: int, width: int) -> int | None:
    """Return the number of image rows in a block such that all blocks are equal.

    The number is even, or the height of the image. None if there is no such number.

    >>> rows_of_image(32, 32), rows_of_image(7, 7), rows_of_image(149, 149)
    (8, 7, None)
    """
    if height * width <= BLOCK_ROWS:
        return height
    even = [n for n in range(2, height + 1, 2) if height % n == 0]
    within = [n for n in even if n * width <= BLOCK_ROWS] or even[:1]
    if within:
        return within[-1]
    return height if height * width <= _MOST_ROWS else None


@dataclass(frozen=True)
class Slopes:
    """Additional inputs of the sums of a gradient: the normalised x and its means.

    `more` is added to the gradient first. The sum is 0 where a relu was inactive: where its result
    `y` is not positive or, with the `given` factors, where its input was not positive. If it
    `writes`, the masked sum replaces the gradient.
    """

    x: ChannelRows
    means: Pointer
    more: ChannelRows | None
    y: ChannelRows | None
    given: Pointer | None
    writes: bool

    def terms(self, k: Emitter, values: ChannelRows, channels: RegisterValue) -> Prepare:
        """Return the gradient, and its product with x less the mean."""

        def prepare(channel: RegisterValue, count: int) -> OfRow:
            mean = self.means.load(channel, count)
            factors = None
            if self.given is not None:
                which = range(FACTOR, SHIFT + 1)
                factor, shift = factors_of(self.given, channels, channel, which, count)
                factors = factor, shift

            def of_row(row: RegisterValue) -> Terms:
                centred = self.x.load(row, channel, count) - mean
                slope = values.load(row, channel, count)
                if self.more is not None:
                    slope = slope + self.more.load(row, channel, count)
                slope = masked(k, slope, centred, factors)
                if self.y is not None:
                    slope = k.select(self.y.load(row, channel, count) > 0.0, slope, 0.0)
                if self.writes:
                    values.store(row, channel, slope)
                return slope, slope, centred

            return of_row

        return prepare


@dataclass(frozen=True)
class BlockSums:
    """Rows of channels, and two sums for each block of rows.

    The sums are of x less the first row of the block, and of the square of this difference. For a
    gradient, they are the sums of its terms.
    """

    values: ChannelRows
    rows: Integer
    channels: Integer
    length: Integer
    """Rows in a block; the last may have fewer."""
    partial: Pointer
    slopes: Slopes | None
    known: int
    """Number of channels if it is a compile-time constant, else 0."""

    def with_channels(self, count: int) -> BlockSums:
        """Return the same sums with the number of channels as a compile-time constant."""
        return replace(self, channels=self.partial.k.constant(count, I64), known=count)

    @property
    def blocks(self) -> RegisterValue:
        """Number of blocks."""
        return (self.rows + self.length - 1) // self.length

    @property
    def others(self) -> list[Pointer]:
        """Pointers to the images that are read in addition to the values."""
        if self.slopes is None:
            return []
        images = (self.slopes.x, self.slopes.more, self.slopes.y)
        return [image.base.place for image in images if image is not None]

    @property
    def width(self) -> RegisterValue:
        """Numbers per block in `partial`: two sums per channel, and the pivot row."""
        return self.channels * SUMS

    def add_up(self, k: Emitter, block: RegisterValue) -> None:
        """Compute the sums of a block."""
        first = block * self.length
        last = k.minimum(first + self.length, self.rows)
        place = self.partial.at(block * self.width)
        if self.slopes is not None:
            terms = self.slopes.terms(k, self.values, self.channels)
            column_sums(k, place, (first, last), self.channels, terms, self.known)
            return
        pivots = place.at(self.channels * 2)
        for channel, count in k.vectors(0, self.channels, *shrinking(line_lanes(place.type))):
            pivots.store(channel, finite_or_zero(k, self.values.load(first, channel, count)))
        terms = pivoted_rows(self.values, pivots.load)
        column_sums(k, place, (first, last), self.channels, terms, self.known)

    def total(self, k: Emitter, totals: Pointer) -> tuple[RegisterValue, RegisterValue]:
        """Store the sums of this worker's channels over all blocks in `totals`, in float64.

        Sums of x become sums of x less its first row.
        """
        lanes = 4 * natural_lanes(self.partial.type)
        begin, end = k.part_range(self.channels, lanes)
        for channel, count in k.vectors(begin, end, *shrinking(lanes)):
            if self.slopes is None:
                self._total_from_pivots(k, totals, channel, count)
                continue
            for place in (channel, channel + self.channels):
                total = block_total(k, self.partial, place, count, self.blocks, self.width)
                totals.store(place, total)
        return begin, end

    def pivot(
        self, k: Emitter, block: Number, channel: RegisterValue, count: int = 1
    ) -> RegisterValue:
        """Return the pivot that was subtracted from the rows of a block, in float64."""
        place = self.width * block + self.channels * 2 + channel
        return k.convert(self.partial.load(place, count), F64)

    def _total_from_pivots(
        self, k: Emitter, totals: Pointer, channel: RegisterValue, count: int
    ) -> None:
        common = self.pivot(k, 0, channel, count)
        one, two = (k.variable(0.0, common.type) for _ in range(2))
        with k.loop(0, self.blocks) as block:
            length = k.convert(k.minimum(self.length, self.rows - block * self.length), F64)
            place = block * self.width + channel
            a = k.convert(self.partial.load(place, count), F64)
            b = k.convert(self.partial.load(place + self.channels, count), F64)
            # From this block's pivot to the common one: less d more.
            d = self.pivot(k, block, channel, count) - common
            one.value = one.value + (a + d * length)
            two.value = two.value + (b + d * (a * 2.0 + d * length))
        totals.store(channel, one.value)
        totals.store(channel + self.channels, two.value)


@native_kernel
def sums_of_blocks(k: Emitter, sums: BlockSums) -> None:
    """The sums of all blocks."""
    with k.loop(*k.part_range(sums.blocks)) as block:
        sums.add_up(k, block)
