"""The parameters of a kernel by name: one object declares them in the source and packs what a
launch passes, so that neither counts positions.

>>> import numpy as np
>>> signature = Signature({"y": pointer(np.zeros(3)), "count": i32(3)})
>>> signature.declaration
'double* y, i32 count'
>>> signature.names
'y, count'
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.kernels.cuda.codegen.dtypes import STORED

Array = np.ndarray[Any, np.dtype[Any]]
Number = ctypes.c_int | ctypes.c_uint | ctypes.c_longlong | ctypes.c_float | ctypes.c_double
Argument = Array | Number | ctypes.Structure | ctypes.Array[Any]
"""What is passed: of an array its address; numbers say how wide they are."""


@dataclass(frozen=True)
class Parameter:
    """The type of a parameter in CUDA, and what a launch passes for it."""

    kind: str
    argument: Argument


class Signature(dict[str, Parameter]):
    """Parameters by name, in the order of their declaration."""

    @property
    def declaration(self) -> str:
        """The parameter list of the kernel."""
        return ", ".join(f"{each.kind} {name}" for name, each in self.items())

    @property
    def names(self) -> str:
        """All of them as arguments of another function."""
        return ", ".join(self)

    @property
    def arguments(self) -> list[Argument]:
        """What a launch passes."""
        return [each.argument for each in self.values()]


def type_of(array: Array) -> str:
    """How the elements of an array are stored."""
    return STORED[array.dtype.name]


def pointer(array: Array, kind: str = "") -> Parameter:
    """Memory that is written; `kind` is the type of an element, if not that of the array's."""
    return Parameter(f"{kind or type_of(array)}*", array)


def const_pointer(array: Array, kind: str = "") -> Parameter:
    """Memory that is only read."""
    return Parameter(f"const {kind or type_of(array)}*", array)


def restricted(parameter: Parameter) -> Parameter:
    """Memory that nobody else reads what is written to."""
    return Parameter(f"{parameter.kind} __restrict__", parameter.argument)


def null_pointer(kind: str) -> Parameter:
    """No memory at all."""
    return Parameter(f"{kind}*", ctypes.c_longlong(0))


_NUMBERS: dict[str, type[ctypes.c_int] | type[ctypes.c_uint] | type[ctypes.c_longlong]] = {
    "i32": ctypes.c_int,
    "u32": ctypes.c_uint,
    "i64": ctypes.c_longlong,
    "u64": ctypes.c_longlong,
}


def number(kind: str, value: int) -> Number:
    """A number of a type of CUDA."""
    return _NUMBERS[kind](value)


def i32(value: int) -> Parameter:
    """A signed number of 32 bits."""
    return Parameter("i32", number("i32", value))


def u32(value: int) -> Parameter:
    """An unsigned number of 32 bits."""
    return Parameter("u32", number("u32", value))


def i64(value: int) -> Parameter:
    """A signed number of 64 bits."""
    return Parameter("i64", number("i64", value))


def u64(value: int) -> Parameter:
    """An unsigned number of 64 bits, below 2^63."""
    return Parameter("u64", number("u64", value))


def real(kind: str, value: float) -> Parameter:
    """A "float" or a "double"."""
    return Parameter(kind, ctypes.c_double(value) if kind == "double" else ctypes.c_float(value))
