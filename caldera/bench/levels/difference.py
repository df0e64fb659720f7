"""How far arrays are from what they should be: at most, together, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.bench.equality import distance, largest_difference
from caldera.bench.parts import Array

CELLS = 16
"""Rows and columns of a heat map, at most."""


@dataclass(frozen=True)
class Difference:
    """`largest` is relative to the largest number of its array, `l2` to the norm of all.

    >>> found = Difference.of([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
    >>> found.largest, found.where, found.heat
    (0.25, 'array 0 at (1,)', [[0.0, 0.5]])
    """

    largest: float
    l2: float
    where: str
    heat: list[list[float]]
    """The largest difference in each cell of the array that differs most."""

    @classmethod
    def of(cls, found: Sequence[Array], expected: Sequence[Array]) -> Difference:
        """Between arrays and what they should be; infinite where shapes differ."""
        shapes = [each.shape for each in found], [each.shape for each in expected]
        if shapes[0] != shapes[1]:
            return cls(math.inf, math.inf, f"shapes {shapes[0]}, expected {shapes[1]}", [])
        sizes = [max(float(np.abs(each).max(initial=0.0)), 1e-30) for each in expected]
        apart = [
            np.abs(np.asarray(a, np.float64) - b) for a, b in zip(found, expected, strict=True)
        ]
        worst = [
            _finite(each.max(initial=0.0) / size) for each, size in zip(apart, sizes, strict=True)
        ]
        if not worst:
            return cls(0.0, 0.0, "nowhere", [])
        number = int(np.argmax(worst))
        place = (
            np.unravel_index(
                int(np.argmax(np.nan_to_num(apart[number], nan=np.inf))), apart[number].shape
            )
            if apart[number].size
            else ()
        )
        return cls(
            largest_difference(expected, found),
            distance(expected, found),
            f"array {number} at {tuple(int(each) for each in place)}",
            heat_map(apart[number]),
        )


def heat_map(values: Array) -> list[list[float]]:
    """An array of any shape as at most `CELLS` x `CELLS` maxima.

    >>> heat_map(np.eye(2))
    [[1.0, 0.0], [0.0, 1.0]]
    """
    flat = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
    rows = np.array_split(flat, min(CELLS, max(1, len(flat))), axis=0)
    found = []
    for row in rows:
        columns = np.array_split(row, min(CELLS, max(1, row.shape[1])), axis=1)
        found.append([float(each.max(initial=0.0)) for each in columns])
    return found


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.inf
