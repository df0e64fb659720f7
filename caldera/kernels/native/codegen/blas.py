"""The BLAS that NumPy brought along, as addresses that native kernels call.

Which library it is differs from build to build; so do the names of its functions and whether its
integers have 32 or 64 bits. Where it is one we do not know, `blas()` is None, and kernels that
need it are not offered.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

import numpy as np
from llvmlite import ir

from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.emitter import F32, I32, I64, Emitter, Number, Pointer, Value

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
        """The address of the product for float32 or float64."""
        return self.sgemm if kind == F32 else self.dgemm


@lru_cache(maxsize=1)
def blas() -> Blas | None:
    """The BLAS of this process, warmed up; None if it is not one we know."""
    # The extension module is linked to the BLAS, so its symbols are found through it.
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for pattern, bits in _NAMES:
        single, double = (_address(library, pattern.format(name)) for name in ("sgemm", "dgemm"))
        if single and double:
            _warm_up()
            return Blas(single, double, bits, _name(library))
    return None


def _address(library: ctypes.CDLL, name: str) -> int:
    """Where a function is; 0 if the library has none of this name."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _warm_up() -> None:
    """OpenBLAS sets its buffers up at the first large product. If several threads come first at
    once, they get buffers that make every later product a third slower."""
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
    address: Value,
    shape: tuple[Number, Number, Number],
    a: tuple[Pointer, Number],
    b: tuple[Pointer, Number],
    c: tuple[Pointer, Number],
    *,
    ta: bool | Value = False,
    tb: bool | Value = False,
    alpha: Number = 1.0,
    beta: Number = 0.0,
) -> None:
    """c = alpha * a @ b + beta * c for row-major matrices, computed by one thread.

    `shape` is (rows of c, columns of c, the sum's length); each matrix comes with the distance
    between its rows. `ta` and `tb` say that a matrix lies transposed (a Value: 0 or 1).
    """
    known = blas()
    assert known is not None
    width = I64 if known.integer_bits == 64 else I32

    def whole(value: Number) -> Value:
        return k.convert(k.constant(value, I64), width)

    def flag(transposed: bool | Value) -> Value:
        if isinstance(transposed, Value):
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
