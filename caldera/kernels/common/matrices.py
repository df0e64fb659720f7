"""Batches of matrices as libraries take them: where each begins, and the distances inside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.core.tensor.shape import Shape
from caldera.kernels.table import Array


@dataclass(frozen=True)
class Matrices:
    """A batch of matrices: `leading` is the distance between rows (columns, if `transposed`)."""

    array: Array
    leading: int
    transposed: bool


def offsets_of(array: Array, batch: Shape) -> np.ndarray:
    """Where each matrix of an array, broadcast to this batch, begins: in elements."""
    whole = np.broadcast_to(array, (*batch, *array.shape[-2:]))
    found = np.zeros((), np.int64)
    for n, stride in zip(batch, whole.strides, strict=False):
        found = np.add.outer(found, np.arange(n) * (stride // array.itemsize))
    return found.ravel()


def steps(array: Array) -> tuple[int, int]:
    """The distances between rows and between columns, in elements."""
    down, right = array.strides[-2:]
    return down // array.itemsize, right // array.itemsize


def as_matrices(array: Array) -> Matrices | None:
    """The array as it lies; None if BLAS cannot take it so."""
    rows, columns = array.shape[-2:]
    down, right = steps(array)
    # Along an axis of one element the distance says nothing.
    if (right == 1 or columns <= 1) and (down >= max(columns, 1) or rows <= 1):
        return Matrices(array, down if rows > 1 else max(columns, 1), transposed=False)
    if (down == 1 or rows <= 1) and (right >= max(rows, 1) or columns <= 1):
        return Matrices(array, right if columns > 1 else max(rows, 1), transposed=True)
    return None
