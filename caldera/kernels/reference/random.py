"""Random numbers in NumPy, as `caldera.core.tensor.philox` defines them."""

from __future__ import annotations

import numpy as np

from caldera.core.tensor.dtype import DType
from caldera.core.tensor.philox import normal, uniform01
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.reference.registry import reference


def _name(state: np.ndarray) -> tuple[int, int]:
    """Seed and step; an int64 holds the bits of an unsigned seed."""
    seed, step = (int(word) for word in state)
    return seed & (2**64 - 1), step


@reference("random_uniform")
def _random_uniform(
    state: np.ndarray, offset: np.ndarray, *, shape: Shape, dtype: DType, stream: int
) -> np.ndarray:
    seed, step = _name(state)
    return uniform01(seed, step, stream, int(offset), size(shape), dtype).reshape(shape)


@reference("random_normal")
def _random_normal(
    state: np.ndarray, offset: np.ndarray, *, shape: Shape, dtype: DType, stream: int
) -> np.ndarray:
    seed, step = _name(state)
    return normal(seed, step, stream, int(offset), size(shape), dtype).reshape(shape)
