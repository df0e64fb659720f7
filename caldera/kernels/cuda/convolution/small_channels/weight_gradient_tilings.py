"""Distribution of a filter gradient with few channels among the blocks of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.cuda.convolution.small_channels.tilings import (
    BYTES_A_CLOCK,
    PRODUCT_CLOCKS,
    START_CLOCKS,
    STEP_CLOCKS,
    PixelTiles,
    best_tilings,
    pixel_tilings,
)
from caldera.kernels.cuda.runtime.device import CardProperties

MOST_SUMS = 112
"""Registers of a thread for sums."""


@dataclass(frozen=True)
class WeightGradientTiling:
    """Tiling of the gradient: `share` warps of a block have `tiles` x 8 terms each.

    A block has `split` groups of these warps, which split the pixels. All warps have all results.
    """

    pixel_tiles: PixelTiles
    itemsize: int
    tiles: int
    share: int
    split: int
    buffers: int
    blocks: int
    """Blocks among which tiles of pixels are shared out."""
    card: CardProperties

    @property
    def work(self) -> Correlation:
        """The convolution whose gradient it is."""
        return self.pixel_tiles.work

    @property
    def rows(self) -> int:
        """Results by 16."""
        return -(-self.work.results // 16)

    @property
    def terms(self) -> int:
        """Numbers of a filter."""
        return self.work.channels * size(self.work.taps)

    @property
    def width(self) -> int:
        """Numbers of a filter, rounded up to whole tiles."""
        return -(-self.terms // 8) * 8

    @property
    def parts(self) -> int:
        """Blocks that share the terms."""
        return -(-self.width // (8 * self.tiles * self.share))

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return 32 * self.share * self.split

    @property
    def depth(self) -> int:
        """Pixels of a step."""
        return 32 // self.itemsize

    @property
    def lines(self) -> int:
        """Pixels of a tile in whole steps."""
        return -(-self.pixel_tiles.pixels // self.depth) * self.depth

    @property
    def pitch(self) -> int:
        """Bytes between the gradients of neighbouring pixels, such that lanes access different
        banks.
        """
        return self.rows * 16 * self.itemsize + (16 if self.itemsize == 2 else 32)

    @property
    def is_turned(self) -> bool:
        """True if warps read rows of 16 bytes."""
        return self.itemsize == 2 and self.work.channels % 8 == 0

    @property
    def constants(self) -> dict[str, int]:
        """Constants that the kernel is compiled with."""
        work = self.work
        return {
            "CHANNELS": work.channels,
            "RESULTS": work.results,
            "TAPS_Y": work.taps[0],
            "TAPS_X": work.taps[1],
            "ROWS": self.rows,
            "TILES": self.tiles,
            "SHARE": self.share,
            "SPLIT": self.split,
            "THREADS": self.threads,
            "BUFFERS": self.buffers,
            "PIXEL": self.pixel_tiles.pixel,
            "DEPTH": self.depth,
            "GRADIENT_PITCH": self.pitch,
            "TERMS": self.terms,
            "WIDTH": self.width,
            "IS_TURNED": int(self.is_turned),
        }

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        places = -(-self.lines * 4 // 16) * 16
        stages = self.buffers * (self.lines * self.pitch + self.pixel_tiles.seen)
        sums = self.rows * 16 * (self.share * self.tiles * 8 + 8) * 4 if self.split > 1 else 0
        return places + max(stages, sums)

    @cached_property
    def resident(self) -> int:
        """Blocks on one multiprocessor."""
        listed = self.tiles // 2 if self.is_turned else self.tiles
        registers = 40 + self.rows * (4 * self.tiles + 4) + listed
        return self.card.resident_blocks(self.shared, self.threads, min(255, registers))

    @property
    def least_resident(self) -> int:
        """Blocks that the compiler shall leave room for."""
        return max(1, min(self.resident, self.card.threads // 2 // self.threads))

    @property
    def partial(self) -> int:
        """Number of sums of a block and its neighbours that share the terms."""
        return self.work.results * self.width

    def clocks(self) -> float:
        """Return an estimate of the time, in clocks."""
        if self.resident == 0:
            return float("inf")
        tiles = -(-self.pixel_tiles.tiles // self.blocks)
        steps = -(-self.lines // self.depth // self.split) * tiles
        products = self.rows * self.tiles * PRODUCT_CLOCKS
        reads = 4 if self.itemsize == 2 and not self.is_turned else 2
        reading = self.rows * 4 + self.tiles * reads
        computing = steps * self.share * self.split * max(products, reading)
        moving = tiles * (self.lines * self.pitch + self.pixel_tiles.seen) / BYTES_A_CLOCK
        ending = self.partial * 4 / self.parts * 2 / BYTES_A_CLOCK
        all_blocks = self.blocks * self.parts
        processors = self.card.multiprocessors
        beside = min(self.resident, -(-all_blocks // processors))
        rounds = -(-all_blocks // (self.resident * processors))
        busy = rounds * beside * (max(computing, moving) + ending)
        waits = START_CLOCKS * (1 + tiles / 2 / self.buffers)
        alone = rounds * (waits + steps * (STEP_CLOCKS + products) + self.split * 200)
        adding = self.blocks * self.partial * 4 / (BYTES_A_CLOCK * processors)
        return max(busy, alone) + 0.3 * min(busy, alone) + adding


def pixel_bytes(channels: int, itemsize: int) -> int:
    """Return the bytes between neighbouring pixels, such that lanes use different banks."""
    length = channels * itemsize
    if itemsize == 2:
        return length + 16 if length % 32 == 0 else length
    return length + 32 if length % 64 == 0 else length


@lru_cache(maxsize=512)
def weight_gradient_tilings(
    work: Correlation, itemsize: int, card: CardProperties
) -> tuple[WeightGradientTiling, ...]:
    """Return the best guesses, the best first."""
    return best_tilings(
        _tilings(work, itemsize, card),
        lambda each: (each.pixel_tiles.pixels, each.tiles, each.parts),
    )


def _tilings(
    work: Correlation, itemsize: int, card: CardProperties
) -> Iterator[WeightGradientTiling]:
    processors = card.multiprocessors
    rows, all_tiles = -(-work.results // 16), -(-work.channels * size(work.taps) // 8)
    most = max(1, MOST_SUMS // (4 * rows))
    counts = sorted({-(-all_tiles // n) for n in range(1, all_tiles + 1)})
    even = itemsize == 2 and work.channels % 16 == 0
    for pixel_tiles in pixel_tilings(work, pixel_bytes(work.channels, itemsize)):
        if pixel_tiles.seen > card.shared_bytes // 2:
            continue
        for tiles in (n for n in counts if n <= most and not (even and n % 2 and n > 1)):
            if tiles * 3 < min(most, all_tiles):
                continue
            for share, split in _warps(-(-all_tiles // tiles)):
                for buffers in (1, 2):
                    for often in (1, 2, 3, 4):
                        parts = -(-all_tiles // (tiles * share))
                        blocks = min(pixel_tiles.tiles, often * processors // parts)
                        if blocks < 1 or (buffers == 2 and blocks == pixel_tiles.tiles):
                            continue
                        each = WeightGradientTiling(
                            pixel_tiles, itemsize, tiles, share, split, buffers, blocks, card
                        )
                        if each.resident * processors >= blocks * parts:
                            yield each


def _warps(needed: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of warps that share terms (`needed` in all), and of warps that split
    pixels.
    """
    for parts in (1, 2, 3, 4, 6):
        share = -(-needed // parts)
        if parts > 1 and share * parts >= needed + share:
            continue
        for split in (1, 2, 4, 8):
            if 4 <= share * split <= 16:
                yield share, split
