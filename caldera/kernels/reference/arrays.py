"""Reference data movement, indexing, sorting, random numbers and collectives in NumPy.

Most movements return views. Random numbers are those of `caldera.core.tensor.philox`. A
collective runs in a single process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.core.graph.memory_format import as_pairs
from caldera.core.tensor.dtype import DType, complex_of
from caldera.core.tensor.philox import normal, uniform01
from caldera.core.tensor.shape import Shape, size
from caldera.errors import DataError
from caldera.kernels.reference.evaluation import FUNCTIONS, Function, reference, references

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
        # What was negative before it was made unsigned is what a user has given.
        shown = f"{first - 2**64} ({first} without a sign)" if first >= 2**63 else f"{first}"
        raise DataError.build(
            f"op.{name}",
            expected=f"indices from {lowest} to {length - 1}" if length else "no indices",
            got=f"{shown} into an axis of length {length}",
            hint="check the labels or indices, and the size of what they point into",
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
# As a kernel it would leave out the other ranks, so it is none.
FUNCTIONS["all_sum"] = lambda x, axis, number: x
