"""Linear algebra by numpy.linalg, with the signs fixed where a factorisation leaves them open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from caldera.errors import DataError
from caldera.kernels.reference.registry import reference

ABOUT_EQUAL = 0.99
"""Components of a vector this close to its largest decide its sign: the first of them does."""


@contextmanager
def _named(name: str, expected: str, hint: str) -> Iterator[None]:
    """NumPy's complaint about a matrix, as the user's error."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise DataError.build(
            f"op.{name}",
            expected=expected,
            got=f"one for which NumPy says {str(error)!r}",
            hint=hint,
        ) from None


def _symmetric(a: np.ndarray) -> np.ndarray:
    return (a + a.swapaxes(-1, -2)) * a.dtype.type(0.5)


@reference("inverse")
def _inverse(a: np.ndarray) -> np.ndarray:
    with _named("inverse", "invertible matrices", "add a multiple of the identity to it"):
        return np.linalg.inv(a)


@reference("solve")
def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with _named("solve", "invertible matrices", "add a multiple of the identity to it"):
        return np.linalg.solve(a, b)


@reference("slogdet")
def _slogdet(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sign, logarithm = np.linalg.slogdet(a)
    return sign, logarithm


@reference("cholesky")
def _cholesky(a: np.ndarray) -> np.ndarray:
    hint = "add a small multiple of the identity to it"
    with _named("cholesky", "symmetric positive definite matrices", hint):
        return np.linalg.cholesky(_symmetric(a))


@reference("qr")
def _qr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, r = np.linalg.qr(a)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    sign = np.where(diagonal < 0, -1, 1).astype(a.dtype)
    return q * sign[..., None, :], r * sign[..., :, None]


@reference("svd")
def _svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with _named("svd", "finite matrices", "look for nan or infinity in what was computed before"):
        u, s, vt = np.linalg.svd(a, full_matrices=False)
    sign = _sign_of_columns(u)
    return u * sign[..., None, :], s, vt * sign[..., :, None]


@reference("eigh")
def _eigh(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with _named("eigh", "finite matrices", "look for nan or infinity in what was computed before"):
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
