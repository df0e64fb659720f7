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
        """The pointer to an array's first element."""
        key = (address_of(array), array.dtype.name)
        if key not in self._names:
            self._names[key] = f"p{len(self.arrays)}"
            self.arrays.append(array)
        return self._names[key]

    def element(self, array: Array, coordinates: Sequence[str]) -> str:
        """An element, to be read or written."""
        return f"{self.name(array)}[{offset(array, coordinates)}]"

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        """An element in the type that is computed with."""
        return f"({computed_type(array.dtype.name)})wide({self.element(array, coordinates)})"

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        """The statement that writes an element."""
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
    """Access to elements that are read ahead of their use; what is the same for all is read once.

    What the thread writes before it reads it is not read ahead. `mark` is part of all names.
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
        """An element that was read before, or `value`, which reads it now."""

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        self._written.append(array)
        return super().store(array, coordinates, value)

    def statements(self, each: Sequence[str], count: str) -> list[str]:
        """What reads ahead; `each` begins a loop over `count` elements, and two brackets end it."""
        return [f"{kind} {name} = {value};" for value, (name, kind) in self._once.items()]


class RegisterPrefetch(PrefetchingAccess):
    """What differs from one of a thread's elements to the next is held in registers.

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
    """Arrays of this shape are found in shared memory, where `T` says how tiles lie."""

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
    """What there is one of for each row is read ahead, for `row`."""

    def _ahead(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        if list(coordinates) != ["row"]:
            return value
        kind = computed_type(array.dtype.name)
        name = f"one{self._mark}{len(self._once)}"
        return self._once.setdefault(value, (name, kind))[0]


class LocalRows(DelegatingAccess):
    """Access to matrices of which some rows, from `first_row` on, are in shared memory too.

    What is written goes to memory only from the blocks with the first columns; the others do the
    same work for themselves.
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
    """Where an element lies, counted in elements from the first.

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
    """The coordinates that belong to the array's own axes: the last ones."""
    return coordinates[len(coordinates) - array.ndim :]


def unravelled(index: str, shape: Sequence[int], prefix: str) -> tuple[list[str], list[str]]:
    """Statements that split an index into coordinates, and the coordinates' names.

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


Code = Callable[[TileAccess, Early, int | None], tuple[TaskText, Zones]]


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


def plain(lines: Callable[[TileAccess], list[str]]) -> Code:
    """The code of a task that does nothing ahead."""
    return lambda places, early, start: (TaskText(lines(places)), Zones())


def assign_blocks(phase: Sequence[TileTask], blocks: int) -> list[tuple[TileTask, int, int]]:
    """The parts of a phase, each with its first block and over how many blocks it goes.

    Products come first, one after the other; what else there is goes to the blocks that are left,
    unless these are too few.
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
