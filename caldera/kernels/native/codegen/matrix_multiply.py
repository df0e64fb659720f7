"""Matrix-multiply backends of native code: AMX tile registers and NumPy's BLAS.

AMX: one instruction of x86_64 processors multiplies small bfloat16 matrices. There are eight tile
registers of 16 rows of 64 bytes. A process must request them from the operating system before
use, and each thread configures them.

BLAS: native kernels call the library that NumPy loaded by address. The library, its function
names and the size of its integers (32 or 64 bits) differ between builds. For an unknown library,
`blas()` is None, and kernels that need it are not offered.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from llvmlite import ir

from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.emitter import (
    F32,
    I8,
    I32,
    I64,
    POINTER,
    Emitter,
    Number,
    Pointer,
    RegisterValue,
)
from caldera.kernels.native.codegen.target import host_target

ROWS, ROW_BYTES = 16, 64
"""Number of rows of a tile register, and bytes per row."""
TERMS = 32
"""Terms that one instruction sums up for each element: bfloat16 numbers in a row."""
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Linux constants: the number of the system call, the request, and its argument."""


_standalone: ContextVar[bool] = ContextVar("standalone", default=False)


@contextmanager
def standalone() -> Iterator[None]:
    """Context in which kernels call no library and need no permission of the operating system."""
    before = _standalone.set(True)
    try:
        yield
    finally:
        _standalone.reset(before)


def is_standalone() -> bool:
    """True inside `standalone`."""
    return _standalone.get()


def has_amx() -> bool:
    """Return True if this process may multiply bfloat16 matrices in tile registers."""
    return not _standalone.get() and _has_amx()


@lru_cache(maxsize=1)
def _has_amx() -> bool:
    features = host_target().features.split(",")
    if sys.platform != "linux" or not {"+amx-tile", "+amx-bf16"} <= set(features):
        return False
    libc = ctypes.CDLL(None)
    return not libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)


@lru_cache(maxsize=1)
def tile_configuration() -> np.ndarray:
    """Return the tile configuration that each thread loads first: eight full-size registers."""
    words = np.zeros(64, np.uint8)
    words[0] = 1
    words[16:32].view(np.uint16)[:] = ROW_BYTES
    words[48:56] = ROWS
    return words


class TileRegisters:
    """Emits instructions on tile registers, by their numbers."""

    def __init__(self, k: Emitter) -> None:
        self._k = k

    def configure(self, configuration: Pointer) -> None:
        """Load the configuration; must precede all other tile instructions."""
        self._emit("ldtilecfg", configuration.raw)

    def release(self) -> None:
        """Release the tile registers; must follow all other tile instructions."""
        self._emit("tilerelease")

    def clear(self, number: int) -> None:
        """Zeros."""
        self._emit("tilezero", I8(number))

    def load(self, number: int, source: Pointer, row_bytes: Number) -> None:
        """Load rows with a stride of `row_bytes` bytes."""
        self._emit("tileloadd64", I8(number), source.raw, self._k.constant(row_bytes, I64).raw)

    def store(self, number: int, target: Pointer, row_bytes: Number) -> None:
        """Store rows with a stride of `row_bytes` bytes."""
        self._emit("tilestored64", I8(number), target.raw, self._k.constant(row_bytes, I64).raw)

    def multiply(self, sums: int, left: int, right: int) -> None:
        """sums += left @ right: float32 sums of products of bfloat16 numbers.

        Each row of the right register interleaves the elements of two rows of the matrix.
        """
        self._emit("tdpbf16ps", I8(sums), I8(left), I8(right))

    def _emit(self, name: str, *given: Any) -> None:
        kinds = [POINTER if isinstance(each.type, ir.PointerType) else each.type for each in given]
        function = self._k.declared(f"llvm.x86.{name}", ir.FunctionType(ir.VoidType(), kinds))
        self._k.ir.call(function, given)


ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
"""CBLAS's own constants."""
_NAMES = (("scipy_cblas_{}64_", 64), ("cblas_{}64_", 64), ("scipy_cblas_{}", 32), ("cblas_{}", 32))
_CONFIG = (
    "scipy_openblas_get_config64_",
    "scipy_openblas_get_config",
    "openblas_get_config64_",
    "openblas_get_config",
)


@dataclass(frozen=True)
class Blas:
    """Addresses of the products, the width of their integers, and the library's name."""

    sgemm: int
    dgemm: int
    integer_bits: int
    name: str

    def gemm(self, kind: ir.Type) -> int:
        """Return the address of the product for float32 or float64."""
        return self.sgemm if kind == F32 else self.dgemm


def blas() -> Blas | None:
    """Return the BLAS of this process, warmed up; None if it is unknown or must not be used."""
    return None if _standalone.get() else _blas()


def calls_blas(slots: np.ndarray) -> bool:
    """Return True if a call with these slots receives the address of a product of the BLAS."""
    known = _blas()
    return known is not None and bool(np.isin(slots, (known.sgemm, known.dgemm)).any())


@lru_cache(maxsize=1)
def _blas() -> Blas | None:
    # The extension module is linked to the BLAS, so its symbols are found through it.
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for pattern, bits in _NAMES:
        single, double = (_address(library, pattern.format(name)) for name in ("sgemm", "dgemm"))
        if single and double:
            _warm_up()
            return Blas(single, double, bits, _name(library))
    return None


def _address(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function, or 0 if the library has no function of this name."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _warm_up() -> None:
    """Let OpenBLAS set up its buffers in the first large product, in a single thread.

    If several threads run the first products simultaneously, they get buffers that make every later
    product a third slower.
    """
    with single_threaded_blas:
        matrix = np.ones((512, 512), np.float32)
        np.matmul(matrix, matrix)


def _name(library: ctypes.CDLL) -> str:
    for name in _CONFIG:
        function = getattr(library, name, None)
        if function is not None:
            function.restype = ctypes.c_char_p
            return str(function().decode())
    return "an unknown BLAS"


def gemm(
    k: Emitter,
    address: RegisterValue,
    shape: tuple[Number, Number, Number],
    a: tuple[Pointer, Number],
    b: tuple[Pointer, Number],
    c: tuple[Pointer, Number],
    *,
    ta: bool | RegisterValue = False,
    tb: bool | RegisterValue = False,
    alpha: Number = 1.0,
    beta: Number = 0.0,
) -> None:
    """c = alpha * a @ b + beta * c for row-major matrices, computed by one thread.

    `shape` is (rows of c, columns of c, length of the sums). Each matrix is passed with the
    distance between its rows. `ta` and `tb` mark a matrix as transposed (as a Value: 0 or 1).
    """
    known = blas()
    assert known is not None
    width = I64 if known.integer_bits == 64 else I32

    def whole(value: Number) -> RegisterValue:
        return k.convert(k.constant(value, I64), width)

    def flag(transposed: bool | RegisterValue) -> RegisterValue:
        if isinstance(transposed, RegisterValue):
            return k.select(transposed.differs(0), k.constant(TRANSPOSED, I32), PLAIN)
        return k.constant(TRANSPOSED if transposed else PLAIN, I32)

    kind = c[0].type
    rows, columns, length = shape
    k.call_address(
        address,
        ir.VoidType(),
        k.constant(ROW_MAJOR, I32),
        flag(ta),
        flag(tb),
        whole(rows),
        whole(columns),
        whole(length),
        k.constant(alpha, kind),
        a[0],
        whole(a[1]),
        b[0],
        whole(b[1]),
        k.constant(beta, kind),
        c[0],
        whole(c[1]),
    )
