"""Linear algebra: diagonals, factorisations and systems, with NumPy's triangles and modes."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.dmath.numpy_functions.dispatch import as_dtype, as_floats, handles, register
from caldera.errors import ShapeError


def adjoint(a: Any) -> Any:
    """Return the conjugate transpose of each matrix."""
    return op.conj(op.swapaxes(a, -1, -2))


def _diagonal(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any:
    turned = op.moveaxis(a, (index(axis1), index(axis2)), (-2, -1))
    rows, columns = turned.shape[-2:]
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if not count:
        return op.full((*turned.shape[:-2], 0), 0, a.dtype)
    return op.diagonal(turned, int(offset))


def _trace(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None) -> Any:
    return op.sum(_diagonal(a, offset, axis1, axis2), -1)


def _rows(m: Any) -> Any:
    """Return matrices; a vector is repeated as the rows of one."""
    return op.broadcast(m, (m.size, m.size)) if m.ndim == 1 else m


def _diag(v: Any, k: Any = 0) -> Any:
    k = int(k)
    if v.ndim == 2:
        return _diagonal(v, k)
    n = v.shape[0] + abs(k)
    line = op.pad(v, ((max(k, 0), max(-k, 0)),))
    shape = op.eye(n, k=k, dtype="bool")
    return op.where(shape, op.unsqueeze(line, 0), op.full((), 0, v.dtype))


register(
    {
        np.diagonal: _diagonal,
        np.linalg.diagonal: lambda x, offset=0: _diagonal(x, offset, -2, -1),
        np.trace: _trace,
        np.linalg.trace: lambda x, offset=0, dtype=None: _trace(x, offset, -2, -1),
        np.diag: _diag,
        np.diagflat: lambda v, k=0: _diag(op.reshape(v, (v.size,)), k),
        np.tril: lambda m, k=0: op.tril(_rows(m), int(k)),
        np.triu: lambda m, k=0: op.triu(_rows(m), int(k)),
    }
)


# --- factorisations


def hermitian(a: Any, uplo: str = "L") -> Any:
    """Return Hermitian matrices from one triangle; the opposite triangle is not read."""
    a = as_floats(a)
    lower = op.tril(a) if uplo.upper() == "L" else adjoint(op.triu(a))
    below = op.tril(lower, -1)
    diagonal = op.sub(lower, below)
    if a.dtype.kind == "c":
        diagonal = op.complex(op.real(diagonal), op.full(a.shape, 0, op.real(diagonal).dtype))
    return op.add(op.add(below, diagonal), adjoint(below))


@handles(np.linalg.eigh)
def _(a: Any, UPLO: Any = "L") -> Any:
    return op.eigh(hermitian(_square(a, "np.linalg.eigh"), UPLO))


@handles(np.linalg.eigvalsh)
def eigvalsh(a: Any, UPLO: Any = "L") -> Any:
    """Return the eigenvalues of Hermitian matrices, ascending."""
    return op.eigh(hermitian(_square(a, "np.linalg.eigvalsh"), UPLO))[0]


@handles(np.linalg.cholesky)
def _(a: Any, upper: Any = False) -> Any:
    whole = hermitian(_square(a, "np.linalg.cholesky"), "U" if upper else "L")
    return adjoint(op.cholesky(whole)) if upper else op.cholesky(whole)


def _square(a: Any, name: str) -> Any:
    require(a.shape[-1] == a.shape[-2], name, "square matrices", a.shape, error=ShapeError)
    return a


def _completed(q: Any) -> Any:
    """Return orthonormal columns completed to a basis, by the columns of the complement's
    projection.
    """
    rows, columns = q.shape[-2:]
    if rows == columns:
        return q
    rest = op.sub(op.eye(rows, dtype=q.dtype), op.matmul(q, adjoint(q)))
    return op.concat([q, op.eigh(rest)[1][..., columns:]], -1)


@handles(np.linalg.svd)
def _(a: Any, full_matrices: Any = True, compute_uv: Any = True, hermitian: Any = False) -> Any:
    if hermitian:
        a = _hermitian(_square(a, "np.linalg.svd"))
    u, s, vh = op.svd(as_floats(a))
    if not compute_uv:
        return s
    if full_matrices:
        return _completed(u), s, adjoint(_completed(adjoint(vh)))
    return u, s, vh


_hermitian = hermitian


@handles(np.linalg.qr)
def _(a: Any, mode: Any = "reduced") -> Any:
    require(
        mode in ("reduced", "complete", "r"),
        "np.linalg.qr",
        "mode= reduced, complete or r",
        repr(mode),
    )
    q, r = op.qr(as_floats(a))
    if mode == "r":
        return r
    if mode == "complete":
        short = a.shape[-2] - r.shape[-2]
        widths = ((0, 0),) * (r.ndim - 2) + ((0, short), (0, 0))
        return _completed(q), op.pad(r, widths) if short else r
    return q, r


def _of_one_dtype(*arrays: Any) -> list[Any]:
    floats = [as_floats(each) for each in arrays]
    dtype = np.result_type(*[each.dtype for each in floats])
    return [as_dtype(each, dtype) for each in floats]


def _solve(a: Any, b: Any) -> Any:
    a, b = _of_one_dtype(a, b)
    if b.ndim == 1:
        made = op.solve(a, op.unsqueeze(b, 1))
        return op.squeeze(made, -1)
    return op.solve(a, b)


register(
    {
        np.linalg.svdvals: lambda x: op.svd(as_floats(x))[1],
        np.linalg.solve: _solve,
        np.linalg.inv: lambda a: op.inverse(as_floats(a)),
        np.linalg.det: lambda a: op.determinant(as_floats(a)),
        np.linalg.slogdet: lambda a: op.slogdet(as_floats(a)),
    }
)


@handles(np.linalg.matrix_power)
def _(a: Any, n: Any) -> Any:
    n, base = int(n), _square(a, "np.linalg.matrix_power")
    if n == 0:
        return op.broadcast(op.eye(a.shape[-1], dtype=a.dtype), a.shape)
    if n < 0:
        base, n = op.inverse(as_floats(base)), -n
    made = None
    while n:
        if n % 2:
            made = base if made is None else op.matmul(made, base)
        n //= 2
        base = op.matmul(base, base) if n else base
    return made


# --- of matrices that may lack rank


def counting(s: Any, shape: tuple[int, ...], rtol: Any, tol: Any = None) -> Any:
    """Return which singular values of matrices of a shape count as different from 0."""
    if tol is not None:
        return op.greater(s, op.unsqueeze(np.asarray(tol), -1) if np.ndim(tol) else float(tol))
    if rtol is None:
        rtol = max(shape[-2:]) * float(np.finfo(np.dtype(s.dtype)).eps)
    line: Any = np.asarray(rtol)[..., None].astype(s.dtype) if np.ndim(rtol) else float(rtol)
    return op.greater(s, op.mul(op.max(s, -1, True), line))


@handles(np.linalg.pinv)
def _(a: Any, rcond: Any = None, hermitian: Any = False, rtol: Any = None) -> Any:
    require(rcond is None or rtol is None, "np.linalg.pinv", "rcond= or rtol=", "both")
    a = as_floats(a)
    if 0 in a.shape[-2:]:
        return op.full((*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)
    if hermitian:
        a = _hermitian(_square(a, "np.linalg.pinv"))
    elif rcond is None and rtol is None:
        # NumPy's own default; with rtol=None it is relative to the size.
        rcond = 1e-15
    return _pseudo_inverse(a, rcond if rtol is None else rtol)


def _pseudo_inverse(a: Any, rtol: Any) -> Any:
    u, s, vh = op.svd(a)
    large = counting(s, a.shape, rtol)
    one = op.full((), 1, s.dtype)
    inverse = op.where(large, op.reciprocal(op.where(large, s, one)), op.full((), 0, s.dtype))
    return op.matmul(op.mul(adjoint(vh), op.unsqueeze(inverse, -2)), adjoint(u))


@handles(np.linalg.matrix_rank)
def _(A: Any, tol: Any = None, hermitian: Any = False, rtol: Any = None) -> Any:
    if A.ndim < 2:
        return op.cast(op.any(op.not_equal(A, 0)), "int64")
    require(tol is None or rtol is None, "np.linalg.matrix_rank", "tol= or rtol=", "both")
    if hermitian:
        s = op.abs(eigvalsh(A))
    else:
        s = op.svd(as_floats(A))[1]
    return op.sum(op.cast(counting(s, A.shape, rtol, tol), "int64"), -1)


@handles(np.linalg.lstsq)
def _(a: Any, b: Any, rcond: Any = None) -> Any:
    """Return the shortest least-squares solution of a x = b, residuals, rank and singular values.

    The rank is evaluated immediately, since the existence of residuals depends on it.
    """
    a, b = _of_one_dtype(a, b)
    require(
        a.ndim == 2 and b.ndim in (1, 2) and a.shape[0] == b.shape[0],
        "np.linalg.lstsq",
        "a matrix, and a vector or matrix with the same number of rows",
        f"{a.shape} and {b.shape}",
        error=ShapeError,
    )
    u, s, vh = op.svd(a)
    right = op.unsqueeze(b, 1) if b.ndim == 1 else b
    if rcond is not None and rcond < 0:
        rcond = float(np.finfo(np.dtype(s.dtype)).eps)
    large = counting(s, a.shape, rcond)
    one = op.full((), 1, s.dtype)
    inverse = op.where(large, op.reciprocal(op.where(large, s, one)), op.full((), 0, s.dtype))
    turned = op.matmul(adjoint(u), right)
    x = op.matmul(adjoint(vh), op.unsqueeze(inverse, 1) * turned)
    rank = int(op.sum(op.cast(large, "int64")))
    rows, columns = a.shape
    left: Any = np.zeros(0, s.dtype)
    if rank == columns < rows:
        left = op.sum(op.square(op.abs(right - op.matmul(a, x))), 0)
    return op.reshape(x, (columns, *b.shape[1:])), left, np.int32(rank), s
