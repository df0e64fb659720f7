"""Text of CUDA that reads and writes arrays whose shapes and strides are known numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.kernels.cuda.elements import STORED, computed_type
from caldera.kernels.cuda.persistent.phases import meet
from caldera.memory.device_array import address_of

Array = np.ndarray[Any, np.dtype[Any]]


class Places:
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


class Held(Places):
    """Places whose elements are read ahead of their use, into registers.

    What differs from one of a thread's elements to the next is held in arrays over `index`, the
    rest is read once. What the thread writes before it reads it is not read ahead.
    """

    def __init__(self, places: Places, index: str) -> None:
        self._names = places._names
        self.arrays = places.arrays
        self._index = index
        self._each: dict[str, tuple[str, str]] = {}
        self._once: dict[str, tuple[str, str]] = {}
        self._written: list[Array] = []

    def load(self, array: Array, coordinates: Sequence[str]) -> str:
        value = super().load(array, coordinates)
        if any(meet([array], [each]) for each in self._written):
            return value
        kind = computed_type(array.dtype.name)
        if offset(array, coordinates) == "0":
            return self._once.setdefault(value, (f"one{len(self._once)}", kind))[0]
        name, _ = self._each.setdefault(value, (f"held{len(self._each)}", kind))
        return f"{name}[{self._index}]"

    def store(self, array: Array, coordinates: Sequence[str], value: str) -> str:
        self._written.append(array)
        return super().store(array, coordinates, value)

    def declarations(self, count: str) -> list[str]:
        """The registers for what differs."""
        return [f"{kind} {name}[{count}];" for name, kind in self._each.values()]

    @property
    def once(self) -> list[str]:
        """What reads the rest."""
        return [f"{kind} {name} = {value};" for value, (name, kind) in self._once.items()]

    @property
    def statements(self) -> list[str]:
        """What reads the elements."""
        return [f"{name}[{self._index}] = {value};" for value, (name, _) in self._each.items()]


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
