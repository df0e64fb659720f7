"""Reductions in NumPy. Sums of float32 are accumulated pairwise by NumPy itself."""

from __future__ import annotations

import numpy as np

from caldera.kernels.reference.registry import reference

Axes = tuple[int, ...]


@reference("sum")
def _sum(x: np.ndarray, *, axis: Axes, keepdims: bool) -> np.ndarray:
    return np.sum(x, axis=axis, keepdims=keepdims)


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
