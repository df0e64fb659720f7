"""Text of CUDA that reads and writes arrays whose shapes and strides are known numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import STORED, Array, computed_type
from caldera.kernels.cuda.persistent.phases import meet


class Access:
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

    @property
    def parameters(self) -> list[str]:
        """How the pointers are declared."""
        return [f"{STORED[each.dtype.name]}* p{i}" for i, each in enumerate(self.arrays)]

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


class DelegatingAccess(Access):
    """Access to memory through another."""

    def __init__(self, places: Access) -> None:
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

    def __init__(self, places: Access, mark: str = "") -> None:
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

    def __init__(self, places: Access, index: str, mark: str = "") -> None:
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

    def __init__(self, places: Access, shape: tuple[int, ...]) -> None:
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

    def __init__(self, places: Access, matrices: Sequence[tuple[Array, str, int]]) -> None:
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
