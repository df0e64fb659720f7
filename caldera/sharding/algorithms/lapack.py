"""BLAS and LAPACK of one process: what NumPy has no name for, by SciPy, which is loaded when it is
first used. Products do without it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.optional import optional_import

ROWS_AT_A_TIME = 512
"""Of a difference that is formed in place: it needs memory for that many rows."""


@cache
def _linalg() -> Any:
    return optional_import("scipy.linalg", "'caldera[dmath]'", "linear algebra of dmath")


@cache
def _gemm(dtype: np.dtype) -> Any:
    """BLAS's product that adds to what is there; None without SciPy."""
    if find_spec("scipy") is None:
        return None
    return _linalg().blas.get_blas_funcs("gemm", dtype=dtype)


def accumulate_product(c: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float = 1.0) -> None:
    """c += scale * a @ b, without a temporary of c's size where c's rows lie in one piece."""
    if 0 in (*a.shape, *b.shape):
        return
    gemm = _gemm(c.dtype) if c.dtype.char in "fdFD" and c.flags.c_contiguous else None
    if gemm is None:
        c += (a @ b) * c.dtype.type(scale)
        return
    # BLAS has columns where NumPy has rows: it is given the transposes of everything.
    (left, transpose_left), (right, transpose_right) = _columns_first(b.T), _columns_first(a.T)
    made = gemm(scale, left, right, 1.0, c.T, transpose_left, transpose_right, overwrite_c=1)
    if not np.shares_memory(made, c):  # pragma: no cover
        np.copyto(c, made.T)


def subtract_product(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """c -= a @ b, some rows at a time: c may be a part of a larger array."""
    for begin in range(0, len(c), ROWS_AT_A_TIME):
        c[begin : begin + ROWS_AT_A_TIME] -= a[begin : begin + ROWS_AT_A_TIME] @ b


def _columns_first(x: np.ndarray) -> tuple[np.ndarray, int]:
    if x.flags.f_contiguous:
        return x, 0
    return (x.T, 1) if x.flags.c_contiguous else (np.asfortranarray(x), 0)


def solve_triangular(
    a: np.ndarray, b: np.ndarray, *, lower: bool, adjoint: bool = False, unit: bool = False
) -> np.ndarray:
    """The x of a x = b, or of aᴴ x = b, for a triangle of `a`."""
    if b.size == 0:
        return b.copy()
    found: np.ndarray = _linalg().solve_triangular(
        a, b, lower=lower, trans="C" if adjoint else "N", unit_diagonal=unit, check_finite=False
    )
    return np.ascontiguousarray(found)


def lu_factor(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L and U in one array, and for each row the one it was exchanged with."""
    (getrf,) = _linalg().lapack.get_lapack_funcs(("getrf",), (a,))
    factors, exchanged, _ = getrf(a)
    return np.ascontiguousarray(factors), exchanged
