"""Single-process BLAS and LAPACK: routines that NumPy lacks, called through SciPy.

NumPy and SciPy copy arrays that are not contiguous. BLAS itself accepts any distance between rows,
so a part of a matrix is updated in place: SciPy exposes the addresses of the routines. SciPy is
loaded on first use; products do not require it.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.base.registry import optional_import

KINDS = {"f": "s", "d": "d", "F": "c", "D": "z"}
"""Letter of BLAS for each dtype."""


@cache
def _scipy(module: str) -> Any:
    return optional_import(f"scipy.linalg.{module}", "'caldera[dmath]'", "linear algebra of dmath")


@cache
def has_scipy() -> bool:
    """Return True if SciPy is installed; otherwise there are only products."""
    return find_spec("scipy") is not None


@cache
def _lapack(name: str, dtype: np.dtype) -> Any:
    """Return a LAPACK routine from SciPy."""
    return getattr(_scipy("lapack"), KINDS[dtype.char] + name)


@cache
def _routine(name: str, library: str = "blas") -> Any:
    """A routine of BLAS or LAPACK; all its arguments are addresses."""
    capsule = _scipy(f"cython_{library}").__pyx_capi__[name]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    address_of = ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # Without argument types: all arguments are addresses, which ctypes has a type for.
    return ctypes.CFUNCTYPE(None)(address_of(capsule, name_of(capsule)))


# Arguments are kept: to make them took longer than a product of small matrices.


@lru_cache(maxsize=1 << 14)
def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


@cache
def _scalar(value: float, dtype: np.dtype) -> Any:
    return np.array(value, dtype).ctypes.data_as(ctypes.c_void_p)


def _at(x: np.ndarray) -> Any:
    return ctypes.c_void_p(x.__array_interface__["data"][0])


def _rows_apart(x: np.ndarray) -> int | None:
    """Return the elements between the starts of two rows; None if a row is not contiguous."""
    if x.shape[1] > 1 and x.strides[1] != x.itemsize:
        return None
    if x.shape[0] == 1:
        return max(x.shape[1], 1)
    apart, rest = divmod(x.strides[0], x.itemsize)
    return None if rest or apart < max(x.shape[1], 1) else apart


def _operand(x: np.ndarray) -> tuple[np.ndarray, int, bytes]:
    """Return a matrix as BLAS reads it, whose columns are our rows: it sees the transpose of x."""
    apart = _rows_apart(x)
    if apart is not None:
        return x, apart, b"N"
    apart = _rows_apart(x.T)
    if apart is not None:
        return x, apart, b"T"
    x = np.ascontiguousarray(x)
    return x, max(x.shape[1], 1), b"N"


def accumulate_product(c: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float = 1.0) -> None:
    """Compute c += scale * a @ b in place; c may be a part of an array with contiguous rows.

    >>> c = np.zeros((3, 3))
    >>> accumulate_product(c[:2, 1:], np.ones((2, 4)), np.ones((4, 2)))
    >>> c[0].tolist()
    [0.0, 4.0, 4.0]
    """
    if 0 in (*a.shape, *b.shape):
        return
    apart = _rows_apart(c)
    kind = KINDS.get(c.dtype.char)
    is_plain = kind is not None and a.dtype == b.dtype == c.dtype
    if apart is None or not is_plain or not has_scipy():
        c += (a @ b) * c.dtype.type(scale)
        return
    (left, left_apart, turn_left), (right, right_apart, turn_right) = _operand(b), _operand(a)
    (m, k), n = a.shape, b.shape[1]
    _routine(f"{kind}gemm")(
        turn_left,
        turn_right,
        _int(n),
        _int(m),
        _int(k),
        _scalar(scale, c.dtype),
        _at(left),
        _int(left_apart),
        _at(right),
        _int(right_apart),
        _scalar(1.0, c.dtype),
        _at(c),
        _int(apart),
    )


def subtract_product(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """c -= a @ b, in place; c may be a part of a larger array."""
    accumulate_product(c, a, b, -1.0)


def solve_triangular(
    a: np.ndarray, b: np.ndarray, *, lower: bool, adjoint: bool = False, unit: bool = False
) -> np.ndarray:
    """Return the x of a x = b, or of aᴴ x = b, for a triangle of `a`.

    >>> solve_triangular(np.array([[2.0, 9.0], [1.0, 4.0]]), np.ones((2, 1)), lower=True).ravel()
    array([0.5  , 0.125])
    """
    dtype = np.result_type(a, b)
    x = np.array(b, dtype, order="C")
    if x.size == 0:
        return x
    if adjoint:
        a, lower = a.conj().T, not lower
    triangle, apart, turn = _operand(a.astype(dtype, copy=False))
    # The transpose of a x = b, which BLAS sees: its rows from the right.
    seen_lower = lower if turn == b"T" else not lower
    _routine(f"{KINDS[dtype.char]}trsm")(
        b"R",
        b"L" if seen_lower else b"U",
        turn,
        b"U" if unit else b"N",
        _int(x.shape[1]),
        _int(x.shape[0]),
        _scalar(1.0, dtype),
        _at(triangle),
        _int(apart),
        _at(x),
        _int(x.shape[1]),
    )
    return x


def solve_right(x: np.ndarray, a: np.ndarray, *, lower: bool, adjoint: bool = False) -> None:
    """x becomes x a⁻¹, or x a⁻ᴴ, for a triangle of `a`, in place; both have one dtype.

    >>> x = np.ones((1, 2))
    >>> solve_right(x, np.array([[2.0, 1.0], [9.0, 4.0]]), lower=False)
    >>> x
    array([[0.5  , 0.125]])
    """
    if x.size == 0:
        return
    # As a system with many right sides: BLAS solves those faster, copies included.
    if adjoint:
        x[:] = solve_triangular(a.conj(), x.T, lower=lower).T
    else:
        x[:] = solve_triangular(a.T, x.T, lower=not lower).T


def cholesky_factor(a: np.ndarray) -> np.ndarray:
    """Return the lower factor of a matrix of which the lower triangle is read.

    Nan if there is none.
    """
    factor, failed = _lapack("potrf", a.dtype)(a, lower=1)
    return np.full_like(a, np.nan) if failed else factor


def lu_factor(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L and U in one array, and for each row the one it was exchanged with."""
    factors, exchanged, _ = _lapack("getrf", a.dtype)(a)
    return np.ascontiguousarray(factors), exchanged


def householder(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Y, T and R of a matrix, which is (I - Y T Yᴴ) R with zeros below R.

    All reflections are one block: LAPACK then computes T along the way, by products, and
    `reflected` computes Q only by products. For 64 columns that takes a quarter of the time of
    NumPy's QR.

    >>> a = np.array([[3.0, 1.0], [4.0, 2.0], [0.0, 2.0]])
    >>> y, t, r = householder(a)
    >>> bool(np.allclose(a, reflected(y, t, r)))
    True
    """
    k = min(a.shape)
    if not k:
        return a[:, :0], np.empty((0, 0), a.dtype), a[:0]
    # A copy in the order of LAPACK, of which Y remains.
    y, t, _ = _lapack("geqrt", a.dtype)(k, np.array(a, order="F"), overwrite_a=True)
    r, top = np.triu(y[:k]), y[:k, :k]
    top[_upper(k)] = 0
    np.fill_diagonal(top, 1)
    return y[:, :k], t, r


@lru_cache(maxsize=64)
def _upper(n: int) -> np.ndarray:
    """Return the mask of the elements above the diagonal."""
    return ~np.tri(n, dtype=bool)


def reflected(y: np.ndarray, t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return (I - Y T Yᴴ) x; `x` has only its first rows, the rest are 0."""
    found = y @ -(t @ (y[: len(x)].conj().T @ x))
    found[: len(x)] += x
    return found


def svd_of_bidiagonal(
    diagonal: np.ndarray, above: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return U, s and Vᵀ of a real upper bidiagonal matrix by divide and conquer.

    SciPy has no function for this routine.

    >>> u, s, vt = svd_of_bidiagonal(np.array([3.0, 1.0]), np.array([4.0]))
    >>> bool(np.allclose((u * s) @ vt, [[3, 4], [0, 1]]))
    True
    """
    n, dtype = len(diagonal), diagonal.dtype
    s, rest = diagonal.copy(), np.append(above, np.zeros(1, dtype))
    # In the order of LAPACK.
    u, vt = np.zeros((n, n), dtype), np.zeros((n, n), dtype)
    if n:
        work, places = np.empty(n * (3 * n + 4), dtype), np.empty(8 * n, np.intc)
        failed = ctypes.c_int()
        _routine(f"{KINDS[dtype.char]}bdsdc", "lapack")(
            b"U",
            b"I",
            _int(n),
            _at(s),
            _at(rest),
            _at(u),
            _int(n),
            _at(vt),
            _int(n),
            None,
            None,
            _at(work),
            _at(places),
            ctypes.byref(failed),
        )
        if failed.value:
            raise np.linalg.LinAlgError("SVD did not converge")
    return u.T, s, vt.T
