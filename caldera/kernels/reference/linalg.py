"""Linear algebra by numpy.linalg, with the signs fixed where a factorisation leaves them open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from caldera.errors import DataError
from caldera.kernels.reference.registry import reference

ABOUT_EQUAL = 0.99
"""Components of a vector this close to its largest decide its sign: the first of them does."""


_INVERTIBLE = "invertible matrices", "add a multiple of the identity to it"
_FINITE = "finite matrices", "look for nan or infinity in what was computed before"
_POSITIVE = (
    "symmetric positive definite matrices",
    "add a small multiple of the identity to it",
)
_WANTED = {"inverse": _INVERTIBLE, "solve": _INVERTIBLE, "cholesky": _POSITIVE}
"""What an op can work with, and what to do about other matrices; any finite ones if not named."""


@contextmanager
def named(name: str) -> Iterator[None]:
    """The complaint of NumPy or CuPy about a matrix, as the user's error."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        expected, hint = _WANTED.get(name, _FINITE)
        raise DataError.build(
            f"op.{name}",
            expected=expected,
            got=f"one for which the library says {str(error)!r}",
            hint=hint,
        ) from None


def _symmetric(a: np.ndarray) -> np.ndarray:
    return (a + a.swapaxes(-1, -2)) * a.dtype.type(0.5)


@reference("inverse")
def _inverse(a: np.ndarray) -> np.ndarray:
    with named("inverse"):
        return np.linalg.inv(a)


@reference("solve")
def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with named("solve"):
        return np.linalg.solve(a, b)


@reference("slogdet")
def _slogdet(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sign, logarithm = np.linalg.slogdet(a)
    return sign, logarithm


@reference("cholesky")
def _cholesky(a: np.ndarray) -> np.ndarray:
    with named("cholesky"):
        return np.linalg.cholesky(_symmetric(a))


@reference("qr")
def _qr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, r = np.linalg.qr(a)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    sign = np.where(diagonal < 0, -1, 1).astype(a.dtype)
    return q * sign[..., None, :], r * sign[..., :, None]


@reference("svd")
def _svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with named("svd"):
        u, s, vt = np.linalg.svd(a, full_matrices=False)
    sign = _sign_of_columns(u)
    return u * sign[..., None, :], s, vt * sign[..., :, None]


@reference("eigh")
def _eigh(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with named("eigh"):
        w, v = np.linalg.eigh(_symmetric(a))
    return w, v * _sign_of_columns(v)[..., None, :]


def _sign_of_columns(vectors: np.ndarray) -> np.ndarray:
    """1 or -1 for each column: what makes the first of its largest components positive."""
    if vectors.size == 0:
        return np.ones((*vectors.shape[:-2], vectors.shape[-1]), vectors.dtype)
    magnitude = np.abs(vectors)
    among_largest = magnitude >= ABOUT_EQUAL * magnitude.max(axis=-2, keepdims=True)
    first = np.argmax(among_largest, axis=-2, keepdims=True)
    deciding = np.take_along_axis(vectors, first, axis=-2)[..., 0, :]
    return np.where(deciding < 0, -1, 1).astype(vectors.dtype)
