"""Reference linear algebra, matrix products, Fourier transforms and reductions in NumPy.

Factorisations that leave signs open have fixed signs. Products round nothing that `compute`
allows to be rounded. Fourier transforms keep the precision of the input. Sums of floats are
accumulated in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from caldera.core.graph.memory_format import as_pairs
from caldera.core.graph.ops.factorisation import ABOUT_EQUAL
from caldera.core.tensor.dtype import complex_of, is_float
from caldera.errors import DataError
from caldera.kernels.reference.evaluation import by_decomposition, reference, references

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
    return (a + a.swapaxes(-1, -2).conj()) * a.dtype.type(0.5)


references(
    {
        "inverse": named("inverse")(np.linalg.inv),
        "solve": named("solve")(np.linalg.solve),
        "slogdet": np.linalg.slogdet,
        "max": np.max,
        "min": np.min,
        "prod": np.prod,
        "argmax": np.argmax,
        "argmin": np.argmin,
    }
)


@reference("cholesky")
@named("cholesky")
def _cholesky(a: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(_symmetric(a))


@reference("qr")
def _qr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, r = np.linalg.qr(a)
    sign = _sign(np.diagonal(r, axis1=-2, axis2=-1))
    r = r * sign.conj()[..., :, None]
    if np.iscomplexobj(r):
        # What rounding left beside the real diagonal.
        steps = np.arange(r.shape[-2])
        r[..., steps, steps] = r[..., steps, steps].real
    return q * sign[..., None, :], r


@reference("svd")
@named("svd")
def _svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    sign = _sign_of_columns(u)
    return u * sign.conj()[..., None, :], s, vt * sign[..., :, None]


@reference("eigh")
@named("eigh")
def _eigh(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, v = np.linalg.eigh(_symmetric(a))
    return w, v * _sign_of_columns(v).conj()[..., None, :]


@reference("eig")
@named("eig")
def _eig(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, v = np.linalg.eig(a)
    return w, v * _sign_of_columns(v).conj()[..., None, :]


def _sign(x: np.ndarray) -> np.ndarray:
    """The direction of each number, 1 for 0: what makes it positive if it is divided by it."""
    if not np.iscomplexobj(x):
        return np.where(x < 0, -1, 1).astype(x.dtype)
    return np.where(x == 0, 1, np.sign(x)).astype(x.dtype)


def _sign_of_columns(vectors: np.ndarray) -> np.ndarray:
    """The direction of each column: that of the first of its largest components."""
    if vectors.size == 0:
        return np.ones((*vectors.shape[:-2], vectors.shape[-1]), vectors.dtype)
    magnitude = np.abs(vectors)
    among_largest = magnitude >= ABOUT_EQUAL * magnitude.max(axis=-2, keepdims=True)
    first = np.argmax(among_largest, axis=-2, keepdims=True)
    deciding = np.take_along_axis(vectors, first, axis=-2)[..., 0, :]
    return _sign(deciding)


@reference("matmul")
def _matmul(
    a: np.ndarray, b: np.ndarray, *, ta: bool, tb: bool, compute: str | None = None
) -> np.ndarray:
    return np.matmul(a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b)


@reference("matmul_accumulate")
def _matmul_accumulate(
    c: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    alpha: np.ndarray,
    beta: np.ndarray,
    *,
    ta: bool,
    tb: bool,
    compute: str | None = None,
) -> np.ndarray:
    result = c * beta if beta else np.zeros_like(c)
    return result + _matmul(a, b, ta=ta, tb=tb) * alpha if alpha else result


by_decomposition("matmul_epilogue")


def _as_complex(pairs: np.ndarray) -> np.ndarray:
    # A view of the pairs keeps infinities, which real + 1j * imaginary would turn into nan.
    return np.ascontiguousarray(pairs).view(complex_of(pairs.dtype))[..., 0]


@reference("fft")
def _fft(x: np.ndarray, *, axis: int, inverse: bool) -> np.ndarray:
    signal = _as_complex(x)
    if inverse:
        return as_pairs(np.fft.ifft(signal, axis=axis, norm="forward"))
    return as_pairs(np.fft.fft(signal, axis=axis))


@reference("rfft")
def _rfft(x: np.ndarray, *, axis: int) -> np.ndarray:
    return as_pairs(np.fft.rfft(x, axis=axis))


@reference("mirror")
def _mirror(
    x: np.ndarray, *, axis: int, begin: int, end: int, others: tuple[int, ...]
) -> np.ndarray:
    signal = _as_complex(x)
    found = np.flip(np.take(signal, np.arange(begin, end), axis), axis).conj()
    for other in others:
        found = np.roll(np.flip(found, other), 1, other)
    return as_pairs(np.concatenate((signal, found), axis))


@reference("irfft")
def _irfft(x: np.ndarray, *, axis: int, n: int) -> np.ndarray:
    return np.fft.irfft(_as_complex(x), n=n, axis=axis, norm="forward")


Axes = tuple[int, ...]


@reference("sum")
def _sum(x: np.ndarray, *, axis: Axes, keepdims: bool) -> np.ndarray:
    # NumPy adds up along outer axes one by one: of 200,000 numbers the fifth digit is wrong.
    wide = np.float64 if is_float(x.dtype) else x.dtype
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=wide).astype(x.dtype)


@reference("cumsum")
def _cumsum(x: np.ndarray, *, axis: int, reverse: bool) -> np.ndarray:
    if reverse:
        return np.flip(np.cumsum(np.flip(x, axis), axis), axis)
    return np.cumsum(x, axis)
