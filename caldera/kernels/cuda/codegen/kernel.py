"""CUDA kernels: types of elements, parameters, source, and launches.

One signature declares the parameters in the source and packs them for a launch, by name:

>>> import numpy as np
>>> signature = KernelSignature({"y": pointer(np.zeros(3)), "count": i32(3)})
>>> signature.declaration
'double* y, i32 count'
>>> signature.names
'y, count'
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.runtime.driver import Size, driver
from caldera.kernels.table import Runner

STORED: dict[str, str] = {
    "bool": "bool",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "half_t",
    "bfloat16": "bfloat_t",
    "float32": "float",
    "float64": "double",
}
"""The type of an element in memory."""
HALVES = ("float16", "bfloat16")


def computed_type(dtype: str) -> str:
    """Return the type that arithmetic on values of a dtype uses.

    >>> computed_type("bfloat16"), computed_type("int8")
    ('float', 'i8')
    """
    return "float" if dtype in HALVES else STORED[dtype]


Array = np.ndarray[Any, np.dtype[Any]]
Number = ctypes.c_int | ctypes.c_uint | ctypes.c_longlong | ctypes.c_float | ctypes.c_double
Argument = Array | Number | ctypes.Structure | ctypes.Array[Any]
"""Argument of a launch. An array is passed as its address; numbers have the width of their type."""


@dataclass(frozen=True)
class Parameter:
    """CUDA type of a parameter, and the argument that a launch passes for it."""

    kind: str
    argument: Argument


class KernelSignature(dict[str, Parameter]):
    """Parameters by name, in the order of their declaration."""

    @property
    def declaration(self) -> str:
        """The parameter list of the kernel."""
        return ", ".join(f"{each.kind} {name}" for name, each in self.items())

    @property
    def names(self) -> str:
        """All parameter names, as the arguments of another function."""
        return ", ".join(self)

    @property
    def arguments(self) -> list[Argument]:
        """Arguments that a launch passes."""
        return [each.argument for each in self.values()]


def type_of(array: Array) -> str:
    """Return the CUDA type in which elements of an array are stored."""
    return STORED[array.dtype.name]


def pointer(array: Array, kind: str = "") -> Parameter:
    """Return a parameter for memory to write; `kind` overrides the array's element type."""
    return Parameter(f"{kind or type_of(array)}*", array)


def const_pointer(array: Array, kind: str = "") -> Parameter:
    """Return memory that is only read."""
    return Parameter(f"const {kind or type_of(array)}*", array)


def restricted(parameter: Parameter) -> Parameter:
    """Return the parameter marked `__restrict__`: memory written through it is read by no other
    pointer.
    """
    return Parameter(f"{parameter.kind} __restrict__", parameter.argument)


def null_pointer(kind: str) -> Parameter:
    """Return a null pointer as a parameter."""
    return Parameter(f"{kind}*", ctypes.c_longlong(0))


_NUMBERS: dict[str, type[ctypes.c_int] | type[ctypes.c_uint] | type[ctypes.c_longlong]] = {
    "i32": ctypes.c_int,
    "u32": ctypes.c_uint,
    "i64": ctypes.c_longlong,
    "u64": ctypes.c_longlong,
}


def number(kind: str, value: int) -> Number:
    """Return a number of a type of CUDA."""
    return _NUMBERS[kind](value)


def i32(value: int) -> Parameter:
    """Return a signed number of 32 bits."""
    return Parameter("i32", number("i32", value))


def u32(value: int) -> Parameter:
    """Return an unsigned number of 32 bits."""
    return Parameter("u32", number("u32", value))


def i64(value: int) -> Parameter:
    """Return a signed number of 64 bits."""
    return Parameter("i64", number("i64", value))


def u64(value: int) -> Parameter:
    """Return an unsigned number of 64 bits, below 2^63."""
    return Parameter("u64", number("u64", value))


def real(kind: str, value: float) -> Parameter:
    """Return a "float" or a "double"."""
    return Parameter(kind, ctypes.c_double(value) if kind == "double" else ctypes.c_float(value))


def index_type(large: bool) -> str:
    """Return the CUDA type of indices and counts."""
    return "i64" if large else "i32"


def index(value: int, large: bool) -> Parameter:
    """Return an index as a parameter of the type `index_type`."""
    return i64(value) if large else i32(value)


def indices(kind: str, values: Sequence[int], large: bool) -> Parameter:
    """Return a struct of indices as a parameter."""
    number = ctypes.c_longlong if large else ctypes.c_int
    return Parameter(kind, (number * len(values))(*values))


def counter_type(*counts: int) -> str:
    """Return the unsigned type for these counts; 32-bit divisions are several times faster."""
    return "u32" if max(counts, default=0) < 2**31 else "u64"


def counted(kind: str, value: int) -> Parameter:
    """Return a parameter of an `counter_type`."""
    return u32(value) if kind == "u32" else u64(value)


# --- launches

Bind = Callable[..., Runner]


class KernelLaunch:
    """One launch. Arrays among the arguments are passed as their addresses, and kept alive.

    `cooperative` means that all blocks must be resident simultaneously, because they wait for each
    other. `kept` are arrays that the arguments refer to only by an address inside them.
    """

    def __init__(
        self,
        source: str,
        name: str,
        grid: Size | int,
        block: Size | int,
        signature: KernelSignature,
        shared: int = 0,
        *,
        cooperative: bool = False,
        kept: Sequence[Array] = (),
    ) -> None:
        self.name = name
        self._driver = driver()
        self._function = self._driver.function(source, name)
        self._grid = _three(grid)
        self._block = _three(block)
        self._shared = shared
        self._launch = self._driver.launch_cooperative if cooperative else self._driver.launch
        self._kept = (*signature.arguments, *kept)
        self._values = [_value(each) for each in signature.arguments]
        places = [ctypes.addressof(value) for value in self._values]
        self._places = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._parameters = ctypes.addressof(self._places)

    def __call__(self) -> None:
        self._launch(self._function, self._grid, self._block, self._shared, self._parameters)


class CudaRunner:
    """Calls in order: launches, and calls of libraries."""

    def __init__(self, calls: Iterable[Any]) -> None:
        self.calls = list(calls)

    def __call__(self) -> None:
        for call in self.calls:
            call()


def unless_empty(bind: Bind) -> Bind:
    """Bind calls whose results are all empty to no launch; the call is the last argument."""

    @wraps(bind)
    def bound(*given: Any) -> Runner:
        return bind(*given) if any(each.size for each in given[-1].outputs) else CudaRunner([])

    return bound


def _three(size: Size | int) -> Size:
    return (size, 1, 1) if isinstance(size, int) else size


def _value(argument: Argument) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(address_of(argument))
    return argument


# --- source

ALWAYS_FIT = 256
"""Threads of a block for which the registers of a GPU always suffice, for any generated code."""


def flags(*values: bool) -> str:
    """Return template arguments.

    >>> flags(True, False)
    'true, false'
    """
    return ", ".join("true" if value else "false" for value in values)


def bounds_for(*block: int) -> str:
    """Return the launch bounds for a block: with many threads the compiler must use fewer
    registers.

    >>> bounds_for(32, 8), bounds_for(2, 512)
    ('', '__launch_bounds__(1024) ')
    """
    threads = prod(block)
    return f"__launch_bounds__({threads}) " if threads > ALWAYS_FIT else ""


def kernel_source(
    header: str,
    name: str,
    threads: int | None,
    signature: KernelSignature,
    body: str,
    resident: int | None = None,
) -> str:
    """Return the source of a kernel.

    Blocks of up to `threads` threads are guaranteed to fit in a multiprocessor, for any code that
    the compiler generates; if `resident` is given, that number of blocks fits. None leaves the
    choice to the compiler.

    >>> import numpy as np
    >>> signature = KernelSignature({"y": pointer(np.zeros(1, "float32"))})
    >>> print(kernel_source("math.cuh", "clear", 32, signature, "y[threadIdx.x] = 0.0f;"))
    #include "math.cuh"
    extern "C" __global__ void __launch_bounds__(32) clear(float* y) {
        y[threadIdx.x] = 0.0f;
    }
    <BLANKLINE>
    """
    bounds = ", ".join(str(each) for each in (threads, resident) if each is not None)
    limit = f"__launch_bounds__({bounds}) " if bounds else ""
    return (
        f'#include "{header}"\n'
        f'extern "C" __global__ void {limit}{name}('
        f"{signature.declaration}) {{\n    {body}\n}}\n"
    )


def header_launch(
    header: str,
    name: str,
    grid: Size | int,
    block: Size | int,
    parameters: Mapping[str, Parameter],
    body: str,
    *,
    bounded: bool = True,
    threads: int | None = None,
    resident: int | None = None,
    shared: int = 0,
) -> KernelLaunch:
    """Return a launch of a kernel of these statements.

    If it is `bounded`, blocks of the source have at most `threads` threads, by default the number
    of the launch. Blocks that might not fit are always bounded.
    """
    most = threads or (block if isinstance(block, int) else prod(block))
    limit = most if bounded or most > ALWAYS_FIT else None
    signature = KernelSignature(parameters)
    source = kernel_source(header, name, limit, signature, body, resident)
    return KernelLaunch(source, name, grid, block, signature, shared)


def function_launch(
    header: str,
    name: str,
    grid: Size | int,
    block: Size | int,
    function: str,
    parameters: Mapping[str, Parameter],
    **how: Any,
) -> KernelLaunch:
    """Return a launch of a kernel that passes all its parameters to a function of a header."""
    body = f"{function}({', '.join(parameters)});"
    return header_launch(header, name, grid, block, parameters, body, **how)


@dataclass(frozen=True, eq=False)
class KernelTemplate:
    """Kernel whose text is completed by words, before the arguments of a launch are known.

    `kinds` are the types of the parameters by name; they may contain words, as the body may.

    >>> clear = KernelTemplate("clear", {"y": "{kind}*", "count": "u32"}, "{{ y[count - 1] = 0; }}")
    >>> clear.source(kind="float")
    'extern "C" __global__ void clear(float* y, u32 count) { y[count - 1] = 0; }\\n'
    """

    name: str
    kinds: Mapping[str, str]
    body: str

    def source(self, bounds: str = "", **words: str) -> str:
        """Return the text of the kernel, with bounds of its launches."""
        kinds = ", ".join(f"{kind} {name}" for name, kind in self.kinds.items())
        limit = f"{bounds} " if bounds else ""
        filled = f"{kinds}) {self.body}".format(**words)
        return f'extern "C" __global__ void {limit}{self.name}({filled}\n'

    def bind(self, **arguments: Argument | int) -> KernelSignature:
        """Return the arguments of a launch, by name; numbers are as wide as the parameters."""
        assert arguments.keys() == self.kinds.keys(), (self.name, *arguments)
        return KernelSignature(
            {
                name: Parameter(kind, number(kind, given) if isinstance(given, int) else given)
                for name, kind in self.kinds.items()
                for given in (arguments[name],)
            }
        )
