"""Tasks of a persistent kernel, and tile sizes of their products by estimated cost.

A task is a part of a step in equal units, each computed by one block, with the memory it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.memory_access import Access
from caldera.kernels.cuda.runtime.driver import driver

WARPS = 16
THREADS = 32 * WARPS
NUMBERS = 256
"""Row numbers that a part may keep in shared memory beside what it keeps in `scratch`."""
MASKS = 32
"""Words at the beginning of shared memory, with a bit for each part."""


def shared_floats() -> int:
    """Shared memory that a block may have: most of what a multiprocessor has.

    A few KiB are left to the cache, which has what is not in shared memory.
    """
    return (driver().shared_bytes // (4 << 10) - 1) << 10


def dynamic_floats() -> int:
    """What is left of it for a part, at most."""
    return shared_floats() - NUMBERS - MASKS


Early = Callable[[Array], bool]
"""Whether an array is as it must be before the phase before has ended."""


@dataclass(frozen=True)
class TaskText:
    """Statements that do the unit whose number is in `unit`.

    They are run by all threads of a block, so they may meet. What is `ahead` is run before the
    blocks meet, or even while the phase before is at work, and may only read what is there early;
    what is `late` begins to bring the rest, and `main` is run after that.
    """

    main: Sequence[str]
    ahead: Sequence[str] = ()
    late: Sequence[str] = ()


@dataclass(frozen=True)
class Zones:
    """How much of `scratch`, counted in floats, a part uses: from its beginning on, and elsewhere.

    Only what is brought ahead goes to the second place. `soon`: that may be done while the phase
    before is at work.
    """

    late: int = 4 * THREADS
    early: int = 0
    soon: bool = True

    def end(self, start: int | None) -> int:
        """Where the last of it ends, if what is brought ahead lies from `start` on, or after the
        rest."""
        return max(self.late, (self.late if start is None else start) + self.early)


Code = Callable[[Access, Early, int | None], tuple[TaskText, Zones]]


@dataclass(frozen=True, eq=False)
class TileTask:
    """`code(places, early, start)` gives the statements, and what they use of `scratch`.

    `start` is where what is brought ahead goes, None for a place of the code's choice. A heavy task
    wants blocks for itself. `load` is how long it keeps one block busy: in units, if these are not
    unusually large.
    """

    what: str
    units: int
    reads: Sequence[Array]
    writes: Sequence[Array]
    code: Code
    heavy: bool = False
    load: int = 0


def plain(lines: Callable[[Access], list[str]]) -> Code:
    """The code of a task that does nothing ahead."""
    return lambda places, early, start: (TaskText(lines(places)), Zones())


def units_of(count: int, each: int) -> int:
    """How many units of `each` it takes to do `count`."""
    return -(-count // each)


@dataclass(frozen=True)
class WarpTiling:
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
class ProductSize:
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

    def cycles(self, tiling: WarpTiling, blocks: int) -> float:
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
def tilings_for(size: ProductSize, blocks: int) -> list[WarpTiling]:
    """All tilings; first comes the one that is thought to be fastest on so many blocks.

    >>> tiling = tilings_for(ProductSize(100, 528, 784, late_right=False), 132)[0]
    >>> tiling.rows, tiling.columns, tiling.parts
    (16, 32, 16)
    """
    found = [
        WarpTiling(
            rows, columns, down, across, min(WARPS // (down * across), units_of(size.inner, 8))
        )
        for rows in (16, 32)
        for columns in (8, 16, 24, 32, 40)
        for down in range(1, 9)
        for across in range(1, 9)
        if down * across <= WARPS
    ]
    return sorted(found, key=lambda each: size.cycles(each, blocks))
