"""Reference movement, indexing, sorting, linear algebra, products, Fourier transforms, reductions.

Most movements return views. Random numbers come from `caldera.core.tensor.philox`. A collective
runs in a single process. Factorisations that leave signs open have fixed signs. Products do not
round values even if `compute` allows it. Fourier transforms keep the precision of the input. Sums
of floats are accumulated in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from caldera.core.graph.memory_format import as_pairs
from caldera.core.graph.ops.factorisation import ABOUT_EQUAL
from caldera.core.tensor import DType, Shape, complex_of, is_float, size
from caldera.core.tensor.philox import normal, uniform01
from caldera.errors import DataError
from caldera.kernels.reference.evaluation import (
    FUNCTIONS,
    Function,
    by_decomposition,
    reference,
    references,
)

_INVERTIBLE = "invertible matrices", "add a multiple of the identity to it"
_FINITE = "finite matrices", "look for nan or infinity in earlier results"
_POSITIVE = (
    "symmetric positive definite matrices",
    "add a small multiple of the identity to it",
)
_WANTED = {"inverse": _INVERTIBLE, "solve": _INVERTIBLE, "cholesky": _POSITIVE}
"""Matrices that an op supports, and a hint for others; by default any finite matrices."""


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
            got=f"an input that the library rejects: {str(error)!r}",
            hint=hint,
        ) from None


def _symmetric(a: np.ndarray) -> np.ndarray:
    return (a + a.swapaxes(-1, -2).conj()) * a.dtype.type(0.5)


references(
    {
        "inverse": named("inverse")(np.linalg.inv),
        "solve": named("solve")(np.linalg.solve),
        "slogdet": np.linalg.slogdet,
        "rfft": lambda x, axis: as_pairs(np.fft.rfft(x, axis=axis)),
        "irfft": lambda x, axis, n: np.fft.irfft(_as_complex(x), n, axis, norm="forward"),
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
        # Remove the rounding errors of the diagonal, which is real.
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
    """Return the sign (or phase) of each column's first largest component."""
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


@reference("mirror")
def _mirror(
    x: np.ndarray, *, axis: int, begin: int, end: int, others: tuple[int, ...]
) -> np.ndarray:
    signal = _as_complex(x)
    found = np.flip(np.take(signal, np.arange(begin, end), axis), axis).conj()
    for other in others:
        found = np.roll(np.flip(found, other), 1, other)
    return as_pairs(np.concatenate((signal, found), axis))


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


references(
    {
        "constant": lambda value, dtype: np.asarray(value, dtype),
        "broadcast_to": np.broadcast_to,
        "reshape": np.reshape,
        "transpose": np.transpose,
        "slice": lambda x, bounds: x[_parts(bounds)],
        "flip": np.flip,
        "arrange": lambda x, order: x,
        "concat": lambda *parts, axis: np.concatenate(parts, axis),
        "split": lambda x, sizes, axis: tuple(np.split(x, np.cumsum(sizes)[:-1], axis)),
        "view_as_real": as_pairs,
        "view_as_complex": lambda x: _complex(x[..., 0], x[..., 1]),
        "assign": lambda target, value: value,
    }
)


@reference("iota")
def _iota(*, shape: Shape, axis: int, dtype: DType) -> np.ndarray:
    index = np.arange(shape[axis], dtype=dtype)
    return np.broadcast_to(index.reshape((-1,) + (1,) * (len(shape) - axis - 1)), shape)


def _parts(bounds: tuple[tuple[int, int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(*bound) for bound in bounds)


@reference("unslice")
def _unslice(
    x: np.ndarray, *, shape: Shape, bounds: tuple[tuple[int, int, int], ...]
) -> np.ndarray:
    result = np.zeros(shape, x.dtype)
    result[_parts(bounds)] = x
    return result


@reference("pad")
def _pad(x: np.ndarray, *, widths: tuple[tuple[int, int], ...], value: complex) -> np.ndarray:
    shape = tuple(a + n + b for n, (a, b) in zip(x.shape, widths, strict=True))
    result = np.full(shape, value, x.dtype)
    result[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, widths, strict=True))] = x
    return result


@reference("complex")
def _complex(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    # real + 1j * imag would turn infinities into nan.
    result = np.empty(real.shape, complex_of(real.dtype))
    result.real, result.imag = real, imag
    return result


def check_range(name: str, indices: np.ndarray, length: int) -> None:
    """Refuse positions that an axis of this length does not have."""
    wrong = (indices < -length) | (indices >= length)
    if wrong.any():
        first, lowest = int(indices[wrong][0]), -length if indices.dtype.kind == "i" else 0
        # A value that was negative before the conversion to unsigned is shown as the user passed
        # it.
        shown = f"{first - 2**64} ({first} without a sign)" if first >= 2**63 else f"{first}"
        raise DataError.build(
            f"op.{name}",
            expected=f"indices from {lowest} to {length - 1}" if length else "no indices",
            got=f"{shown} into an axis of length {length}",
            hint="check the labels or indices, and the size of the indexed axis",
        )


@reference("gather")
def _gather(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    check_range("gather", indices, x.shape[axis])
    return x[(slice(None),) * axis + (indices,)]


@reference("scatter_add")
def _scatter_add(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int
) -> np.ndarray:
    check_range("scatter_add", indices, x.shape[axis])
    result = x.copy()
    places: Any = (slice(None),) * axis + (indices,)
    np.add.at(result, places, updates)
    return result


@reference("take_along_axis")
def _take_along_axis(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    check_range("take_along_axis", indices, x.shape[axis])
    return np.take_along_axis(x, indices, axis)


@reference("put_along_axis_add")
def _put_along_axis_add(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int
) -> np.ndarray:
    check_range("put_along_axis_add", indices, x.shape[axis])
    result = x.copy()
    places: list[np.ndarray] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = indices
    np.add.at(result, tuple(places), updates)
    return result


@reference("sort")
def _sort(x: np.ndarray, *, axis: int, descending: bool) -> tuple[np.ndarray, np.ndarray]:
    # Negated keys keep equal elements in order and NaN last, which reversing the result would not;
    # for integers the complement also reverses the order, and cannot overflow.
    ascending = x if not descending else -x if x.dtype.kind == "f" else ~x
    indices = np.argsort(ascending, axis=axis, kind="stable")
    return np.take_along_axis(x, indices, axis), indices


def _random(draw: Callable[..., np.ndarray]) -> Function:
    """Return a function that draws numbers by the two words of a state: seed and step."""

    def sample(
        state: np.ndarray, offset: np.ndarray, *, shape: Shape, dtype: DType, stream: int
    ) -> np.ndarray:
        # An int64 holds the bits of an unsigned seed.
        seed, step = int(state[0]) & (2**64 - 1), int(state[1])
        return draw(seed, step, stream, int(offset), size(shape), dtype).reshape(shape)

    return sample


references({"random_uniform": _random(uniform01), "random_normal": _random(normal)})
# Not registered as a kernel, which would omit the remaining ranks.
FUNCTIONS["all_sum"] = lambda x, axis, number: x
