"""Reductions in NumPy. Sums of floats are accumulated in float64."""

from __future__ import annotations

import numpy as np

from caldera.core.tensor.dtype import is_float
from caldera.kernels.reference.registry import reference

Axes = tuple[int, ...]


@reference("sum")
def _sum(x: np.ndarray, *, axis: Axes, keepdims: bool) -> np.ndarray:
    # NumPy adds up along outer axes one by one: of 200,000 numbers the fifth digit is wrong.
    wide = np.float64 if is_float(x.dtype) else x.dtype
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=wide).astype(x.dtype)


@reference("max")
def _max(x: np.ndarray, *, axis: Axes, keepdims: bool) -> np.ndarray:
    return np.max(x, axis=axis, keepdims=keepdims)


@reference("min")
def _min(x: np.ndarray, *, axis: Axes, keepdims: bool) -> np.ndarray:
    return np.min(x, axis=axis, keepdims=keepdims)


@reference("prod")
def _prod(x: np.ndarray, *, axis: Axes, keepdims: bool) -> np.ndarray:
    return np.prod(x, axis=axis, keepdims=keepdims)


@reference("argmax")
def _argmax(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
    return np.argmax(x, axis=axis, keepdims=keepdims)


@reference("argmin")
def _argmin(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
    return np.argmin(x, axis=axis, keepdims=keepdims)


@reference("cumsum")
def _cumsum(x: np.ndarray, *, axis: int, reverse: bool) -> np.ndarray:
    if reverse:
        return np.flip(np.cumsum(np.flip(x, axis), axis), axis)
    return np.cumsum(x, axis)
