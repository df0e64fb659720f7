"""Leaves without a symbol, and ops that move elements, in NumPy. Most results are views."""

from __future__ import annotations

import numpy as np

from caldera.core.graph.memory_format import Order, as_pairs
from caldera.core.tensor.dtype import DType, complex_of
from caldera.core.tensor.shape import Shape
from caldera.kernels.reference.registry import reference


@reference("constant")
def _constant(*, value: complex, dtype: DType) -> np.ndarray:
    return np.asarray(value, dtype=dtype)


@reference("iota")
def _iota(*, shape: Shape, axis: int, dtype: DType) -> np.ndarray:
    index = np.arange(shape[axis], dtype=dtype)
    return np.broadcast_to(index.reshape((-1,) + (1,) * (len(shape) - axis - 1)), shape)


@reference("broadcast_to")
def _broadcast_to(x: np.ndarray, *, shape: Shape) -> np.ndarray:
    return np.broadcast_to(x, shape)


@reference("reshape")
def _reshape(x: np.ndarray, *, shape: Shape) -> np.ndarray:
    return x.reshape(shape)


@reference("transpose")
def _transpose(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    return x.transpose(axes)


def _parts(bounds: tuple[tuple[int, int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(*bound) for bound in bounds)


@reference("slice")
def _slice(x: np.ndarray, *, bounds: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    return x[_parts(bounds)]


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


@reference("flip")
def _flip(x: np.ndarray, *, axis: tuple[int, ...]) -> np.ndarray:
    return np.flip(x, axis)


@reference("arrange")
def _arrange(x: np.ndarray, *, order: Order | None) -> np.ndarray:
    return x


@reference("concat")
def _concat(*parts: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(parts, axis)


@reference("split")
def _split(x: np.ndarray, *, sizes: tuple[int, ...], axis: int) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@reference("complex")
def _complex(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    # real + 1j * imag would turn infinities into nan.
    result = np.empty(real.shape, complex_of(real.dtype))
    result.real, result.imag = real, imag
    return result


@reference("view_as_real")
def _view_as_real(x: np.ndarray) -> np.ndarray:
    return as_pairs(x)


@reference("view_as_complex")
def _view_as_complex(x: np.ndarray) -> np.ndarray:
    return _complex(x[..., 0], x[..., 1])


@reference("assign")
def _assign(target: np.ndarray, value: np.ndarray) -> np.ndarray:
    return value
