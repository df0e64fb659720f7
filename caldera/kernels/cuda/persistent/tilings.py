"""Tiles that the blocks of a product make, chosen by what they are thought to cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from caldera.kernels.cuda.persistent.tasks import THREADS, WARPS, units_of


@dataclass(frozen=True)
class Tiling:
    """Down x across places of warp_rows x warp_columns sums; `parts` warps share each place."""

    warp_rows: int
    warp_columns: int
    down: int
    across: int
    parts: int

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.warp_rows * self.down

    @property
    def columns(self) -> int:
        """Of a tile."""
        return self.warp_columns * self.across

    @property
    def each(self) -> int:
        """Elements that a thread ends with."""
        return units_of(self.rows * self.columns, THREADS)

    def units(self, rows: int, columns: int) -> int:
        """How many tiles a result takes."""
        return units_of(rows, self.rows) * units_of(columns, self.columns)


@dataclass(frozen=True)
class Size:
    """A product, and how much of its operands is only there when its phase begins."""

    rows: int
    columns: int
    inner: int
    late_left: bool = True
    late_right: bool = True
    exact: bool = False

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.rows * self.columns * self.inner

    def cycles(self, tiling: Tiling, blocks: int) -> float:
        """What it is thought to take: from measurements on an H200, roughly.

        What must be fetched after the blocks have met counts more than what is fetched before.
        """
        waves = units_of(tiling.units(self.rows, self.columns), blocks)
        fetched = sum(
            4 * lines * self.inner / (32 if late else 64)
            for lines, late in ((tiling.rows, self.late_left), (tiling.columns, self.late_right))
        )
        steps = units_of(self.inner, 8)
        places = tiling.down * tiling.across
        banks = steps * places * (tiling.warp_rows + tiling.warp_columns) / 4
        # A multiprocessor has four schedulers, each with a tensor core.
        busiest = units_of(places * tiling.parts, 4) * units_of(steps, tiling.parts)
        multiplied = tiling.warp_rows * tiling.warp_columns / 128 * (36 if self.exact else 12)
        chain = units_of(steps, tiling.parts) * 60
        ended = tiling.each * (80 + 4 * tiling.parts)
        return waves * (1500 + fetched + max(banks, busiest * multiplied) + chain + ended)


@lru_cache(maxsize=4096)
def tilings_for(size: Size, blocks: int) -> list[Tiling]:
    """All tilings; first comes the one that is thought to be fastest on so many blocks.

    >>> tiling = tilings_for(Size(100, 528, 784, late_right=False), 132)[0]
    >>> tiling.rows, tiling.columns, tiling.parts
    (16, 32, 16)
    """
    found = [
        Tiling(rows, columns, down, across, min(WARPS // (down * across), units_of(size.inner, 8)))
        for rows in (16, 32)
        for columns in (8, 16, 24, 32, 40)
        for down in range(1, 9)
        for across in range(1, 9)
        if down * across <= WARPS
    ]
    return sorted(found, key=lambda each: size.cycles(each, blocks))
