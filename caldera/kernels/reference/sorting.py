"""Sorting in NumPy."""

from __future__ import annotations

import numpy as np

from caldera.kernels.reference.registry import reference


@reference("sort")
def _sort(x: np.ndarray, *, axis: int, descending: bool) -> tuple[np.ndarray, np.ndarray]:
    # Negated keys keep equal elements in order and NaN last, which reversing the result would not;
    # for integers the complement also reverses the order, and cannot overflow.
    ascending = x if not descending else -x if x.dtype.kind == "f" else ~x
    indices = np.argsort(ascending, axis=axis, kind="stable")
    return np.take_along_axis(x, indices, axis), indices
