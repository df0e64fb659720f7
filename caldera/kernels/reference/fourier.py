"""Fourier transforms by numpy.fft, in the precision of the input."""

from __future__ import annotations

import numpy as np

from caldera.core.graph.memory_format import as_pairs
from caldera.core.tensor.dtype import complex_of
from caldera.kernels.reference.registry import reference


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
