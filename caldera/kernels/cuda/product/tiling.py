"""How a product is cut for a card: the size of its tiles, and how its sums are split (split-K).

A card wants more blocks than it has multiprocessors. Where the result has too few tiles for that,
tiles are made smaller, or sums are split into parts that a second launch adds up in a fixed order.
How many multiprocessors that is decides, so results differ in their last bits from card to card.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

from caldera.kernels.cuda.runtime.driver import driver

FEWEST = 64
"""Steps that a part of a split sum has at least."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ENOUGH = 4
"""Tiles for each multiprocessor from which on no sum is cut."""
LATENCY = 700
"""Cycles from asking for operands to having used them."""
SECOND_LAUNCH = 5000
"""Cycles that adding up the parts takes at least."""
BYTES_A_CYCLE = 21
"""What a multiprocessor moves."""


@dataclass(frozen=True)
class Tile:
    """A square of results, `per` x `per` a thread."""

    side: int
    per: int
    depth: int
    """Steps of the sum that are in shared memory at once."""
    resident: int
    """Blocks that a multiprocessor has room for."""
    efficiency: float
    """Of its arithmetic."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.side // self.per) ** 2

    @property
    def carried(self) -> int:
        """Elements of each operand that a thread brings to shared memory at once."""
        return self.side * self.depth // self.threads

    @property
    def text(self) -> str:
        """The tile in CUDA."""
        return f"Tile<{self.side}, {self.per}, {self.depth}>"

    def bounds(self, sums: str) -> str:
        """How many threads a block has, and how many blocks with sums of this type must fit."""
        resident = self.resident // 2 if sums == "double" else self.resident
        return f"__launch_bounds__({self.threads}, {resident})"


TILES = (Tile(128, 8, 8, 2, 0.75), Tile(64, 4, 16, 4, 0.5), Tile(32, 4, 16, 8, 0.35))


class TileSchedulerNumbers(ctypes.Structure):
    """`TileScheduler` of tiled_product.cuh."""

    _fields_ = [(name, ctypes.c_int) for name in ("across", "down", "splits", "span", "length")]


@dataclass(frozen=True)
class Tiling:
    """The tiles of `count` products, and into how many parts their sums are split."""

    tile: Tile
    across: int
    down: int
    splits: int
    span: int
    length: int
    count: int

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.across * self.down * self.splits * self.count

    @property
    def scheduler(self) -> TileSchedulerNumbers:
        """What the kernel is told."""
        return TileSchedulerNumbers(
            across=self.across,
            down=self.down,
            splits=self.splits,
            span=self.span,
            length=self.length,
        )

    def cycles(self, itemsize: int, processors: int) -> float:
        """How long it takes on so many multiprocessors, roughly."""
        steps = self.span // self.tile.depth
        rate = (128 if itemsize < 8 else 64) * self.tile.efficiency
        a_step = self.tile.side**2 * self.tile.depth / rate
        each = -(-self.blocks // processors)
        waiting = -(-each // self.tile.resident) * (steps + 1) * LATENCY
        cycles = max(waiting, each * steps * a_step)
        if self.splits > 1:
            results = self.count * self.across * self.down * self.tile.side**2
            moved = 2 * self.splits * results * itemsize
            cycles += SECOND_LAUNCH + moved / (BYTES_A_CYCLE * processors)
        return cycles


def tiling(
    rows: int, columns: int, length: int, count: int, itemsize: int, most_splits: int = SPLITS[-1]
) -> Tiling:
    """The cut that should be fastest on the card in use; `itemsize` is that of the sums."""
    return _tiling(rows, columns, length, count, itemsize, most_splits, driver().multiprocessors)


@lru_cache(maxsize=4096)
def _tiling(
    rows: int,
    columns: int,
    length: int,
    count: int,
    itemsize: int,
    most_splits: int,
    processors: int,
) -> Tiling:
    found = []
    for tile in TILES:
        if itemsize == 8 and tile.side == TILES[0].side:
            # Such tiles of doubles would not fit into shared memory.
            continue
        across, down = -(-columns // tile.side), -(-rows // tile.side)
        most = most_splits if across * down * count < ENOUGH * processors else 1
        for wanted in SPLITS:
            if wanted > 1 and (wanted > most or length < FEWEST * wanted):
                break
            span = max(1, -(-length // (wanted * tile.depth))) * tile.depth
            splits = max(1, -(-length // span))
            found.append(Tiling(tile, across, down, splits, span, length, count))
    return min(found, key=lambda each: each.cycles(itemsize, processors))
