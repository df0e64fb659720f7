"""ScaLAPACK on a grid of ranks.

ScaLAPACK has columns where NumPy has rows: it receives the transposes of everything, on a grid
whose rows and columns are exchanged. So parts are read and written where they are, and QR becomes
its LQ. Ranks must be those of MPI, and of the MPI that ScaLAPACK was built for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import loaded, mpi
from caldera.compiler.sharding.algorithms.process_grid import ProcessGrid
from caldera.errors import DataError

LIBRARIES = {
    "Open MPI": ("scalapack-openmpi", "scalapack"),
    "MPICH": ("scalapack-mpich", "scalapack"),
}
"""As distributions name them, by the MPI they were built for; a library without its name is taken
for one that was built for the MPI that is there."""
VERSIONS = ("", ".2.2", ".2.1", ".2")
PREFIX = {"f": "ps", "d": "pd"}
_ONE = ctypes.byref(ctypes.c_int(1))


@cache
def library(mpi: str) -> Any | None:
    """The library for an MPI, or None."""
    for name in LIBRARIES.get(mpi, ()):
        for version in VERSIONS:
            with suppress(OSError):
                return ctypes.CDLL(f"lib{name}.so{version}", ctypes.RTLD_GLOBAL)
    return None


def library_of(comm: Communicator) -> Any | None:
    """The library that ranks of a communicator can use, or None if they are no ranks of MPI."""
    return library(loaded().name) if isinstance(comm, MpiCommunicator) else None


class BlacsContext:
    """The ranks of a grid as ScaLAPACK knows them, transposed."""

    def __init__(self, grid: ProcessGrid) -> None:
        found = library_of(grid.comm)
        assert found is not None
        self.library = found
        self.grid = grid
        context = ctypes.c_int(found.Csys2blacs_handle(_c_handle(grid.comm)))
        # Our rows are its columns: numbered column by column, ranks keep their numbers.
        found.Cblacs_gridinit(
            ctypes.byref(context), b"C", ctypes.c_int(grid.columns), ctypes.c_int(grid.rows)
        )
        self.number = context.value

    def describe(self, part: np.ndarray, shape: Sequence[int], blocks: Sequence[int]) -> Any:
        """A descriptor for the transpose of a matrix of this shape in these blocks."""
        m, n = shape
        # Its kind, the grid, the sizes, the blocks, who has the first, and from column to column.
        fields = (1, self.number, n, m, blocks[1], blocks[0], 0, 0, max(part.shape[1], 1))
        return (ctypes.c_int * 9)(*fields)

    def call(self, name: str, dtype: np.dtype, *arguments: Any) -> None:
        """Run a routine for a dtype; all arguments but arrays and descriptors are numbers."""
        getattr(self.library, f"{PREFIX[dtype.char]}{name}_")(*arguments)


def _c_handle(comm: Any) -> Any:
    """What C knows a communicator of MPI by: a pointer or a number, as its MPI has it."""
    kind = ctypes.c_void_p if mpi()._sizeof(comm.handle) > 4 else ctypes.c_int
    return kind(mpi()._handleof(comm.handle))


def context_of(grid: ProcessGrid) -> BlacsContext:
    """That of a grid, made once."""
    known: BlacsContext | None = getattr(grid, "_scalapack", None)
    if known is None:
        known = BlacsContext(grid)
        object.__setattr__(grid, "_scalapack", known)
    return known


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def _at(part: np.ndarray) -> Any:
    return part.ctypes.data_as(ctypes.c_void_p)


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    shape: tuple[int, int, int],
    blocks: tuple[int, int, int],
    grid: ProcessGrid,
) -> np.ndarray:
    """This rank's part of A B, for parts of A (m x k) and B (k x n) in blocks on a grid."""
    m, k, n = shape
    block_m, block_k, block_n = blocks
    context, dtype = context_of(grid), a.dtype
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    c = np.empty((a.shape[0], b.shape[1]), dtype)
    scalar = ctypes.c_double if dtype.char == "d" else ctypes.c_float
    context.call(
        "gemm",
        dtype,
        b"N",
        b"N",
        _int(n),
        _int(m),
        _int(k),
        ctypes.byref(scalar(1)),
        _at(b),
        _ONE,
        _ONE,
        context.describe(b, (k, n), (block_k, block_n)),
        _at(a),
        _ONE,
        _ONE,
        context.describe(a, (m, k), (block_m, block_k)),
        ctypes.byref(scalar(0)),
        _at(c),
        _ONE,
        _ONE,
        context.describe(c, (m, n), (block_m, block_n)),
    )
    return c


def cholesky(part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> np.ndarray:
    """This rank's part of the lower factor of a block-cyclic matrix; zeros above the diagonal."""
    a = np.ascontiguousarray(part).copy()
    context, failed = context_of(grid), ctypes.c_int()
    context.call(
        "potrf",
        a.dtype,
        b"U",
        _int(n),
        _at(a),
        _ONE,
        _ONE,
        context.describe(a, (n, n), (block, block)),
        ctypes.byref(failed),
    )
    if failed.value:
        raise DataError.build(
            "cholesky",
            expected="a positive definite matrix",
            got=f"one whose leading part of size {failed.value} is not",
        )
    return a


def qr(part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> tuple[np.ndarray, np.ndarray]:
    """This rank's parts of Q and R of a square block-cyclic matrix; R has what reflections leave
    above its diagonal and Q's reflections below it, as LAPACK does."""
    a = np.ascontiguousarray(part).copy()
    context = context_of(grid)
    describe = context.describe(a, (n, n), (block, block))
    scales = np.empty(max(a.shape[0], 1), a.dtype)
    failed = ctypes.c_int()
    made = []
    for name, extra in (("gelqf", ()), ("orglq", (_int(n),))):
        work, length = np.empty(1, a.dtype), -1
        for _ in range(2):
            # Asked first how much room it needs.
            context.call(
                name,
                a.dtype,
                _int(n),
                _int(n),
                *extra,
                _at(a),
                _ONE,
                _ONE,
                describe,
                _at(scales),
                _at(work),
                _int(length),
                ctypes.byref(failed),
            )
            if length < 0:
                length = int(work[0])
                work = np.empty(max(length, 1), a.dtype)
        made.append(a.copy())
    return made[1], made[0]
