"""Reading and adding at computed positions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.errors import DataError
from caldera.kernels.reference.registry import reference


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
