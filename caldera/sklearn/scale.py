"""Columns brought to mean 0 and deviation 1, so that one learning rate suits them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Scale:
    """A mean and a deviation for each column.

    >>> import numpy as np
    >>> scale = Scale.of(np.array([[1.0, 5.0], [3.0, 5.0]]), None)
    >>> scale.applied(np.array([[3.0, 6.0]])).tolist()
    [[1.0, 1.0]]
    """

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None) -> Self:
        """That of these rows, each of which counts as much as its weight."""
        wide = values.astype(np.float64, copy=False)
        mean = np.average(wide, axis=0, weights=weights)
        deviation = np.sqrt(np.average((wide - mean) ** 2, axis=0, weights=weights))
        # A column that never changes has nothing to say; rounding must not make it speak.
        constant = deviation <= 10 * np.finfo(np.float64).eps * np.abs(mean)
        return cls(mean, np.where(constant, 1.0, deviation))

    @classmethod
    def none(cls, columns: int) -> Self:
        """One that changes nothing."""
        return cls(np.zeros(columns), np.ones(columns))

    def applied(self, values: np.ndarray) -> np.ndarray:
        """Rows as the network sees them, in their own dtype."""
        return ((values - self.mean) / self.deviation).astype(values.dtype, copy=False)

    def undone(self, values: np.ndarray) -> np.ndarray:
        """Rows as they were before `applied`."""
        return (values * self.deviation + self.mean).astype(values.dtype, copy=False)
