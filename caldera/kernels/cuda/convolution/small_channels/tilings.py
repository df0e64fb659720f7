"""Tiles of output pixels and tilings for convolutions of few channels, best guess first.

The guesses count clocks of a multiprocessor: the minimum time of its shared memory, its tensor
cores and its share of the GPU's memory bandwidth. The first few tilings are then measured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Protocol, TypeVar

from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.cuda.convolution.implicit_gemm import Divider, by_axis
from caldera.kernels.cuda.runtime.device import CardProperties

MOST_PIXELS = 1024
FEWEST_PIXELS = 32


class PixelTilesNumbers(ctypes.Structure):
    """`PixelTiles` of small_channels_tiles.cuh."""

    _fields_ = [
        *[(name, Divider) for name in ("across", "down", "width", "area", "height")],
        *[
            (name, ctypes.c_int)
            for name in (
                "tiles",
                "tile_images",
                "tile_height",
                "pixels",
                "images",
                "source_height",
                "source_width",
                "target_height",
                "target_width",
                "stride_y",
                "stride_x",
                "start_y",
                "start_x",
                "pieces",
                "pitch",
                "seen",
            )
        ],
    ]


@dataclass(frozen=True)
class PixelTiles:
    """Division of the output pixels of a correlation into tiles of the same size."""

    work: Correlation
    images: int
    height: int
    width: int
    pixel: int
    """Number of bytes between neighbouring pixels of a tile's input."""

    @cached_property
    def pixels(self) -> int:
        """Output pixels of a tile."""
        return self.images * self.height * self.width

    @cached_property
    def tiles(self) -> int:
        """Number of tiles."""
        work = self.work
        rows, columns = work.target[0] // self.height, work.target[1] // self.width
        return -(-work.batch // self.images) * rows * columns

    @property
    def sight(self) -> tuple[int, int]:
        """Rows and columns of an image that a tile sees."""
        stride, reach = self.work.stride, self.work.reach
        return (self.height - 1) * stride[0] + reach[0], (self.width - 1) * stride[1] + reach[1]

    @property
    def pitch(self) -> int:
        """Bytes of a row of a tile's input."""
        return -(-self.sight[1] * self.pixel // 4) * 4

    @cached_property
    def seen(self) -> int:
        """Bytes of all that a tile sees; words may reach beyond the last pixel."""
        return -(-(self.images * self.sight[0] * self.pitch + 4) // 16) * 16

    def numbers(self, itemsize: int) -> PixelTilesNumbers:
        """Return the numbers that are passed to kernels."""
        work, (rows, columns) = self.work, self.sight
        in_chunks = work.channels * itemsize % 16 == 0
        pieces = work.channels * itemsize // 16 if in_chunks else work.channels
        size = ("height", "width")
        return PixelTilesNumbers(
            across=Divider.by(work.target[1] // self.width),
            down=Divider.by(work.target[0] // self.height),
            width=Divider.by(self.width),
            area=Divider.by(self.height * self.width),
            height=Divider.by(rows),
            tiles=self.tiles,
            tile_images=self.images,
            tile_height=self.height,
            pixels=self.pixels,
            images=work.batch,
            **by_axis("source_", work.source, size),
            **by_axis("target_", work.target, size),
            **by_axis("stride_", work.stride),
            **by_axis("start_", work.start),
            pieces=columns * pieces,
            pitch=self.pitch,
            seen=self.seen,
        )


def pixel_tilings(work: Correlation, pixel: int) -> Iterator[PixelTiles]:
    """Yield the tiles that are worth considering: whole rows, whole images if these are small."""
    height, width = work.target
    for columns in _divisors(width):
        if columns < min(width, 32):
            continue
        for rows in _divisors(height):
            whole = rows == height and columns == width
            for images in (1, 2, 4, 8) if whole else (1,):
                pixel_tiles = PixelTiles(work, images, rows, columns, pixel)
                # Small images together, as many as there are.
                is_small = pixel_tiles.pixels < FEWEST_PIXELS and images * 2 <= work.batch * whole
                if images <= work.batch and not is_small and pixel_tiles.pixels <= MOST_PIXELS:
                    yield pixel_tiles


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


RANKS = 2
"""Maximum number of tilings to compare by time."""
BYTES_A_CLOCK = 40
"""Bytes per clock that a multiprocessor receives from the GPU's cache."""
PRODUCT_CLOCKS = 1.8
"""Clocks per tensor-core product, with all four tensor cores busy."""
STEP_CLOCKS = 30
"""Clocks from reading words to their product, during which a warp waits."""
START_CLOCKS = 1500
"""Clocks until the first bytes arrive."""


class Clocked(Protocol):
    """Tiling that estimates its time."""

    def clocks(self) -> float:
        """Return clocks of a multiprocessor."""


T = TypeVar("T", bound=Clocked)


def best_tilings(every: Iterable[T], kind: Callable[[T], Hashable]) -> tuple[T, ...]:
    """Return the first few guesses that differ in kind, the best first."""
    chosen: dict[Hashable, T] = {}
    for each in sorted(every, key=lambda tiling: tiling.clocks()):
        if len(chosen) < RANKS:
            chosen.setdefault(kind(each), each)
    return tuple(chosen.values())


# --- correlations


@dataclass(frozen=True)
class CorrelationTiling:
    """A block of a correlation: `warps` with `per` x 16 pixels each, by `across` x 8 results."""

    pixel_tiles: PixelTiles
    turned: bool
    itemsize: int
    per: int
    across: int
    warps: int
    buffers: int
    card: CardProperties

    @property
    def work(self) -> Correlation:
        """Correlation to compute."""
        return self.pixel_tiles.work

    @property
    def parts(self) -> int:
        """Blocks that share the results of a tile."""
        return -(-self.work.results // (8 * self.across))

    @property
    def is_whole(self) -> bool:
        """True if channels fill whole steps of 32 bytes."""
        return self.work.channels * self.itemsize % 32 == 0

    @property
    def line_words(self) -> int:
        """Words of a row of taps."""
        return -(-self.work.taps[1] * self.work.channels * self.itemsize // 4)

    @property
    def steps(self) -> int:
        """Steps of 8 words in each sum."""
        return -(-self.work.taps[0] * self.line_words // 8)

    @property
    def side(self) -> int:
        """Number of 8-result tiles arranged such that a lane stores up to 16 bytes per access."""
        wanted = 8 // self.itemsize
        return next(n for n in (4, 2, 1) if n <= wanted and self.across % n == 0)

    @property
    def lines(self) -> tuple[int, int, int]:
        """Filters that a block reads: their count, the numbers of each, and the stride between
        filters.
        """
        work, taps = self.work, size(self.work.taps)
        results = min(8 * self.across, work.results)
        if self.turned:
            return work.channels, results * taps, work.results * taps
        return results, work.channels * taps, work.channels * taps

    @property
    def raw_step(self) -> int:
        """Bytes of filters per copy instruction."""
        _, length, stride = (n * self.itemsize for n in self.lines)
        first = 8 * self.across * size(self.work.taps) * self.itemsize if self.turned else stride
        return next(n for n in (16, 4, 2) if length % n == stride % n == first % n == 0)

    @property
    def raw_pitch(self) -> int:
        """Bytes from one filter to the next in shared memory.

        Lanes that read the same element of several filters access different banks.
        """
        length = self.lines[1] * self.itemsize
        return -(-length // 128) * 128 + 16

    @property
    def raw_bytes(self) -> int:
        """Bytes of the filters in their memory layout."""
        return self.lines[0] * self.raw_pitch

    @property
    def ordered_bytes(self) -> int:
        """Filters in the order of the lanes: 8 bytes for each lane, step and tile."""
        return self.steps * self.across * 256

    @property
    def list_bytes(self) -> int:
        """Bytes of the list of word positions; 0 if channels fill whole steps."""
        return 0 if self.is_whole else self.steps * 64

    @property
    def constants(self) -> dict[str, int]:
        """Constants that the kernel is compiled with."""
        lines, length, stride = self.lines
        work = self.work
        return {
            "CHANNELS": work.channels,
            "RESULTS": work.results,
            "TAPS_Y": work.taps[0],
            "TAPS_X": work.taps[1],
            "TURNED": int(self.turned),
            "PER": self.per,
            "ACROSS": self.across,
            "THREADS": 32 * self.warps,
            "BUFFERS": self.buffers,
            "PIXEL": self.pixel_tiles.pixel,
            "LINE_WORDS": self.line_words,
            "STEPS": self.steps,
            "SIDE": self.side,
            "LINES": lines,
            "LENGTH": length,
            "STRIDE": stride,
            "RAW_STEP": self.raw_step,
            "RAW_PITCH": self.raw_pitch,
            "RAW_BYTES": self.raw_bytes,
            "ORDERED_BYTES": self.ordered_bytes,
            "LIST_BYTES": self.list_bytes,
            "IS_EVEN": int(self.itemsize == 4 or work.stride[1] * work.channels % 2 == 0),
            "IS_FULL": int(self.parts * 8 * self.across == work.results),
        }

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        fixed = self.ordered_bytes + self.list_bytes + self.raw_bytes
        return fixed + self.buffers * self.pixel_tiles.seen

    @cached_property
    def resident(self) -> int:
        """Blocks on one multiprocessor."""
        registers = 48 + self.per * (4 * self.across + 6)
        return self.card.resident_blocks(self.shared, 32 * self.warps, min(255, registers))

    @property
    def least_resident(self) -> int:
        """Blocks that the compiler shall leave room for."""
        return max(1, min(self.resident, self.card.threads // 2 // (32 * self.warps)))

    def grid(self) -> tuple[int, int, int]:
        """Return the grid: at most the number of blocks that are resident on the GPU
        simultaneously.
        """
        most = max(1, self.resident * self.card.multiprocessors // self.parts)
        return min(self.pixel_tiles.tiles, most), self.parts, 1

    def clocks(self) -> float:
        """Return an estimate of the time, in clocks."""
        if self.resident == 0:
            return float("inf")
        tiles = -(-self.pixel_tiles.tiles // self.grid()[0])
        groups = -(-self.pixel_tiles.pixels // (16 * self.per * self.warps)) * self.steps
        products = self.per * self.across * PRODUCT_CLOCKS
        step = max(products, self.per * (4 if self.is_whole else 6) + self.across * 2)
        computing = groups * self.warps * step
        results = min(8 * self.across, self.work.results) * self.itemsize * self.pixel_tiles.pixels
        moving = (self.pixel_tiles.seen + results) / BYTES_A_CLOCK
        waiting = groups * (STEP_CLOCKS + products)
        start = self.raw_bytes / BYTES_A_CLOCK + self.ordered_bytes / 32
        blocks = self.grid()[0] * self.parts
        beside = min(self.resident, -(-blocks // self.card.multiprocessors))
        busy = beside * (start + tiles * max(computing, moving))
        alone = START_CLOCKS + start + tiles * (START_CLOCKS / 2 / self.buffers + waiting)
        return max(busy, alone) + 0.3 * min(busy, alone)


def pixel_bytes(channels: int, itemsize: int) -> int:
    """Return the bytes between neighbouring pixels if warps read rows of 16 bytes.

    It is an odd number of such rows, so that neighbours use different banks.
    """
    length = channels * itemsize
    return length + 16 if length % 32 == 0 else length


@lru_cache(maxsize=512)
def correlation_tilings(
    work: Correlation, turned: bool, itemsize: int, card: CardProperties
) -> tuple[CorrelationTiling, ...]:
    """Return the best guesses, the best first."""
    return best_tilings(
        _tilings(work, turned, itemsize, card),
        lambda each: (each.pixel_tiles.pixels, each.per, each.across),
    )


def _tilings(
    work: Correlation, turned: bool, itemsize: int, card: CardProperties
) -> Iterator[CorrelationTiling]:
    tiles = -(-work.results // 8)
    # Tiles of results of a warp: only few different numbers, to limit the number of kernels.
    widest = next(n for n in (1, 2, 3, 4, 6, 8) if n >= tiles)
    acrosses = [widest, *(n for n in (4, 2) if widest % n == 0 and n < widest and tiles % n == 0)]
    for pixel_tiles in pixel_tilings(work, pixel_bytes(work.channels, itemsize)):
        if pixel_tiles.seen > card.shared_bytes // 2:
            continue
        for across in acrosses:
            for per in (1, 2, 4):
                if per * across > 16 or 16 * per > max(pixel_tiles.pixels, 16):
                    continue
                for warps, buffers in product((2, 4, 8), (1, 2)):
                    if 16 * per * (warps - 1) >= pixel_tiles.pixels:
                        continue
                    shape = CorrelationTiling(
                        pixel_tiles, turned, itemsize, per, across, warps, buffers, card
                    )
                    # A second buffer is for blocks that take several tiles.
                    if shape.resident and (buffers == 1 or shape.grid()[0] < pixel_tiles.tiles):
                        yield shape
