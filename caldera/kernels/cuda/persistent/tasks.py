"""Tasks of a persistent kernel: memory access, and tile sizes of products by estimated cost.

A task is a part of a step in equal units, each computed by one block, with the memory it touches.
Shapes and strides of arrays are numbers in the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import STORED, Array, computed_type
from caldera.kernels.cuda.persistent.fusion import meet
from caldera.kernels.cuda.runtime.driver import driver


class TileAccess:
    """The memory a kernel touches: a pointer for each array, passed as an argument."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], str] = {}
        self.arrays: list[Array] = []

    def name(self, array: Array) -> str:
        """Return the pointer to an array's first element."""
        key = (address_of(array), array.dtype.name)
        if key not in self._names:
            self._names[key] = f"p{len(self.arrays)}"
            self.arrays.append(array)
        return self._names[key]

    def element(self, array: Array, coordinates: Sequence[str]) -> str:
        """Return an element, to be read or written."""
        return f"{self.name(array)}[{offset(array, coordinates)}]"

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        """Return an element in the type that is computed with."""
        return f"({computed_type(array.dtype.name)})wide({self.element(array, coordinates)})"

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        """Return the statement that writes an element."""
        kind = STORED[array.dtype.name]
        return f"{self.element(array, coordinates)} = Stored<{kind}>::from({value});"


class DelegatingAccess(TileAccess):
    """Access to memory through another."""

    def __init__(self, places: TileAccess) -> None:
        self._places = places
        self.arrays = places.arrays

    def name(self, array: Array) -> str:
        return self._places.name(array)

    def element(self, array: Array, coordinates: Sequence[str]) -> str:
        return self._places.element(array, coordinates)

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        return self._places.load(array, coordinates)

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        return self._places.store(array, coordinates, value)


class PrefetchingAccess(DelegatingAccess, ABC):
    """Access to elements that are prefetched; values shared by all elements are read once.

    Elements that the thread writes before it reads them are not prefetched. `mark` is part of all
    names.
    """

    def __init__(self, places: TileAccess, mark: str = "") -> None:
        super().__init__(places)
        self.tiles: list[Array] = []
        """Arrays of which a tile is brought to shared memory."""
        self._mark = mark
        self._once: dict[str, tuple[str, str]] = {}
        self._written: list[Array] = []

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        value = super().load(array, coordinates)
        if any(meet([array], [each]) for each in self._written):
            return value
        if offset(array, coordinates) == "0":
            kind = computed_type(array.dtype.name)
            name = f"one{self._mark}{len(self._once)}"
            return self._once.setdefault(value, (name, kind))[0]
        return self._ahead(array, coordinates, value)

    @abstractmethod
    def _ahead(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        """Return an element that was read before, or `value`, which reads it now."""

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        self._written.append(array)
        return super().store(array, coordinates, value)

    def statements(self, each: Sequence[str], count: str) -> list[str]:
        """Return the prefetch; `each` opens a loop over `count` elements; two brackets end it."""
        return [f"{kind} {name} = {value};" for value, (name, kind) in self._once.items()]


class RegisterPrefetch(PrefetchingAccess):
    """Prefetch to registers of values that differ between a thread's elements.

    They are arrays over `index`.
    """

    def __init__(self, places: TileAccess, index: str, mark: str = "") -> None:
        super().__init__(places, mark)
        self._index = index
        self._each: dict[str, tuple[str, str]] = {}

    def _ahead(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        kind = computed_type(array.dtype.name)
        fresh = f"held{self._mark}{len(self._each)}"
        name, _ = self._each.setdefault(value, (fresh, kind))
        return f"{name}[{self._index}]"

    def statements(self, each: Sequence[str], count: str) -> list[str]:
        lines = super().statements(each, count)
        if self._each:
            found = self._each.items()
            lines += [f"{kind} {name}[{count}] = {{}};" for _, (name, kind) in found]
            reads = [f"        {name}[{self._index}] = {value};" for value, (name, _) in found]
            lines += [*each, *reads, "    }", "}"]
        return lines


class TilePrefetch(PrefetchingAccess):
    """Access to arrays of this shape in shared memory, where `T` defines the layout of tiles."""

    def __init__(self, places: TileAccess, shape: tuple[int, ...]) -> None:
        super().__init__(places)
        self._shape = shape

    def _ahead(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        dense = array.shape == self._shape and array.strides[-1] == array.itemsize
        if array.dtype != np.float32 or not dense or list(coordinates) != ["row", "column"]:
            return value
        keys = [(address_of(each), each.strides) for each in self.tiles]
        key = (address_of(array), array.strides)
        if key not in keys:
            keys.append(key)
            self.tiles.append(array)
        return f"kept{keys.index(key)}[below * T::STRIDE + across]"


class RowPrefetch(PrefetchingAccess):
    """Prefetch, for `row`, of values that exist once per row."""

    def _ahead(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        if list(coordinates) != ["row"]:
            return value
        kind = computed_type(array.dtype.name)
        name = f"one{self._mark}{len(self._once)}"
        return self._once.setdefault(value, (name, kind))[0]


class LocalRows(DelegatingAccess):
    """Access to matrices of which some rows, from `first_row` on, are in shared memory too.

    Only the blocks with the first columns write to memory; the remaining blocks repeat the same
    work for their own use.
    """

    def __init__(self, places: TileAccess, matrices: Sequence[tuple[Array, str, int]]) -> None:
        super().__init__(places)
        self._matrices = {
            (address_of(array), array.shape): (name, stride) for array, name, stride in matrices
        }

    def element(self, array: Array, coordinates: Sequence[str]) -> str:
        found = self._matrices.get((address_of(array), array.shape))
        if found is None:
            return super().element(array, coordinates)
        name, stride = found
        return f"{name}[({coordinates[0]} - first_row) * {stride} + {coordinates[1]}]"

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        return f"({computed_type(array.dtype.name)})wide({self.element(array, coordinates)})"

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        write = f"if (first_column == 0) {super().store(array, coordinates, value)}"
        if (address_of(array), array.shape) not in self._matrices:
            return write
        kind = STORED[array.dtype.name]
        return f"{{ {self.element(array, coordinates)} = Stored<{kind}>::from({value}); {write} }}"


def offset(array: Array, coordinates: Sequence[str]) -> str:
    """Return the offset of an element, counted in elements from the first.

    >>> import numpy as np
    >>> offset(np.zeros((3, 4, 5))[:, 0], ["i", "j"])
    'i * 20 + j'
    """
    terms = []
    for length, stride, coordinate in zip(array.shape, array.strides, coordinates, strict=True):
        step = stride // array.itemsize
        if length > 1 and step:
            terms.append(coordinate if step == 1 else f"{coordinate} * {step}")
    return " + ".join(terms) or "0"


def aligned_coordinates(array: Array, coordinates: Sequence[str]) -> Sequence[str]:
    """Return the coordinates that belong to the array's own axes: the last ones."""
    return coordinates[len(coordinates) - array.ndim :]


def unravelled(index: str, shape: Sequence[int], prefix: str) -> tuple[list[str], list[str]]:
    """Return statements that split an index into coordinates, and the coordinates' names.

    >>> unravelled("e", (3, 5), "i")
    (['i32 i1 = e % 5;', 'i32 i0 = e / 5;'], ['i0', 'i1'])
    """
    statements = []
    rest = index
    step = 1
    for axis in reversed(range(len(shape))):
        above = f"{index} / {step}" if step > 1 else rest
        value = above if axis == 0 else f"{above} % {shape[axis]}"
        statements.append(f"i32 {prefix}{axis} = {value};")
        step *= max(shape[axis], 1)
    return statements, [f"{prefix}{axis}" for axis in range(len(shape))]


WARPS = 16
THREADS = 32 * WARPS
NUMBERS = 256
"""Row numbers that a part may keep in shared memory in addition to `scratch`."""
MASKS = 32
"""Words at the beginning of shared memory, with a bit for each part."""


def shared_floats() -> int:
    """Return the shared memory that a block may have: most of a multiprocessor's.

    A few KiB are left to the cache, for data outside shared memory.
    """
    return (driver().shared_bytes // (4 << 10) - 1) << 10


def dynamic_floats() -> int:
    """Return the maximum shared memory of a part."""
    return shared_floats() - NUMBERS - MASKS


Early = Callable[[Array], bool]
"""Predicate: True for arrays that are final before the previous phase has ended."""


@dataclass(frozen=True)
class TaskText:
    """Statements that compute the unit whose number is in `unit`.

    They are run by all threads of a block, so they may synchronise. `ahead` runs before the blocks
    synchronise, or even during the previous phase, and may read only early data. `late` starts to
    load the remaining data, and `main` runs after it.
    """

    main: Sequence[str]
    ahead: Sequence[str] = ()
    late: Sequence[str] = ()


@dataclass(frozen=True)
class Zones:
    """Floats of `scratch` that a part uses: from its start on, and in a second zone.

    Only prefetched data is in the second zone. `soon` permits the prefetch during the previous
    phase.
    """

    late: int = 4 * THREADS
    early: int = 0
    soon: bool = True

    def end(self, start: int | None) -> int:
        """Return the end of the zones; prefetched data starts at `start`, or after the rest."""
        return max(self.late, (self.late if start is None else start) + self.early)


Code = Callable[[TileAccess, Early, int | None], tuple[TaskText, Zones]]


@dataclass(frozen=True, eq=False)
class TileTask:
    """Part of a step: `code(places, early, start)` returns the statements and their zones of
    `scratch`.

    `start` is the offset of prefetched data, None if the code may choose it. A heavy task requires
    separate blocks. `load` is the time for which it keeps one block busy: in units, if these are
    not unusually large.
    """

    what: str
    units: int
    reads: Sequence[Array]
    writes: Sequence[Array]
    code: Code
    heavy: bool = False
    load: int = 0


def plain(lines: Callable[[TileAccess], list[str]]) -> Code:
    """Return the code of a task without prefetch."""
    return lambda places, early, start: (TaskText(lines(places)), Zones())


def assign_blocks(phase: Sequence[TileTask], blocks: int) -> list[tuple[TileTask, int, int]]:
    """Return the parts of a phase, each with its first block and its number of blocks.

    Products are first, in order; the remaining parts share the remaining blocks, unless these are
    too few.
    """
    products = [part for part in phase if part.heavy]
    others = [part for part in phase if not part.heavy]
    found = []
    used = 0
    for part in products:
        found.append((part, used % blocks, min(part.units, blocks)))
        used += part.units
    spare = max(blocks - used, 0)
    if 4 * spare < sum(part.units for part in others):
        used, spare = 0, blocks
    place = 0
    for part in others:
        span = min(part.units, spare)
        if place + span > spare:
            place = 0
        found.append((part, (used + place) % blocks, span))
        place += span
    return found


def units_of(count: int, each: int) -> int:
    """Return the number of units of `each` that `count` requires."""
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
        """Number of rows of a tile."""
        return self.warp_rows * self.down

    @property
    def columns(self) -> int:
        """Number of columns of a tile."""
        return self.warp_columns * self.across

    @property
    def each(self) -> int:
        """Elements that a thread ends with."""
        return units_of(self.rows * self.columns, THREADS)

    def units(self, rows: int, columns: int) -> int:
        """Return the number of tiles of a result."""
        return units_of(rows, self.rows) * units_of(columns, self.columns)


@dataclass(frozen=True)
class ProductSize:
    """Sizes of a product, and flags for operands that are available only when its phase starts."""

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
        """Return the estimated time in cycles, roughly, from measurements on an H200.

        Data fetched after the blocks have synchronised costs more than prefetched data.
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
    """Return all tilings, starting with the one estimated to be the fastest on this number of
    blocks.

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
