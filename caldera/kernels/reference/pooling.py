"""Pooling in NumPy: one step for each position inside the window."""

from __future__ import annotations

import numpy as np

from caldera.core.graph.ops.pooling import index_dtype
from caldera.core.tensor.shape import Shape
from caldera.kernels.reference.convolution import Padding, Pair, padded, positions
from caldera.kernels.reference.registry import reference

_SIDE_BY_SIDE = (1, 1)


def _output_size(x: Shape, size: Pair, stride: Pair, padding: Padding, dilation: Pair) -> Pair:
    height, width = (
        (x[2 + i] + sum(padding[i]) - dilation[i] * (size[i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    )
    return height, width


def _within(shape: Shape, padding: Padding) -> np.ndarray:
    """For each element of a padded image, whether it is one of the image itself."""
    return padded(np.ones((1, 1, *shape[2:]), np.bool_), padding)


def _inner(whole: np.ndarray, shape: Shape, padding: Padding) -> np.ndarray:
    """A padded image without its padding."""
    (top, _), (left, _) = padding
    return whole[:, :, top : top + shape[2], left : left + shape[3]]


@reference("max_pool2d")
def _max_pool2d(
    x: np.ndarray, *, size: Pair, stride: Pair, padding: Padding, dilation: Pair
) -> tuple[np.ndarray, np.ndarray]:
    image, within = padded(x, padding), _within(x.shape, padding)
    outputs = _output_size(x.shape, size, stride, padding, dilation)
    best = np.full((*x.shape[:2], *outputs), -np.inf, x.dtype)
    index = np.full(best.shape, -1, index_dtype(size))
    for i, j, (rows, columns) in positions(size, outputs, stride, dilation):
        part = image[:, :, rows, columns]
        better = (index < 0) | (part > best) | (np.isnan(part) & ~np.isnan(best))
        wins = better & within[:, :, rows, columns]
        best = np.where(wins, part, best)
        index = np.where(wins, index.dtype.type(i * size[1] + j), index)
    return best, index


@reference("pool_scatter")
def _pool_scatter(
    g: np.ndarray,
    index: np.ndarray,
    *,
    shape: Shape,
    size: Pair,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
) -> np.ndarray:
    whole = padded(np.zeros(shape, g.dtype), padding)
    for i, j, (rows, columns) in positions(size, g.shape[2:], stride, dilation):
        whole[:, :, rows, columns] += np.where(index == i * size[1] + j, g, 0)
    return _inner(whole, shape, padding)


@reference("pool_gather")
def _pool_gather(
    x: np.ndarray,
    index: np.ndarray,
    *,
    size: Pair,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
) -> np.ndarray:
    image = padded(x, padding)
    result = np.zeros(index.shape, x.dtype)
    for i, j, (rows, columns) in positions(size, index.shape[2:], stride, dilation):
        np.copyto(result, image[:, :, rows, columns], where=index == i * size[1] + j)
    return result


def _counts(
    shape: Shape, outputs: Pair, size: Pair, stride: Pair, padding: Padding, count_padding: bool
) -> np.ndarray | int:
    """How many elements the mean of each window is taken over."""
    if count_padding:
        return size[0] * size[1]
    within = _within(shape, padding)
    total = np.zeros((1, 1, *outputs), np.int64)
    for _, _, (rows, columns) in positions(size, outputs, stride, _SIDE_BY_SIDE):
        total += within[:, :, rows, columns]
    return total


@reference("avg_pool2d")
def _avg_pool2d(
    x: np.ndarray, *, size: Pair, stride: Pair, padding: Padding, count_padding: bool
) -> np.ndarray:
    image = padded(x, padding)
    outputs = _output_size(x.shape, size, stride, padding, _SIDE_BY_SIDE)
    total = np.zeros((*x.shape[:2], *outputs), x.dtype)
    for _, _, (rows, columns) in positions(size, outputs, stride, _SIDE_BY_SIDE):
        total += image[:, :, rows, columns]
    return total / _counts(x.shape, outputs, size, stride, padding, count_padding)


@reference("avg_pool2d_input")
def _avg_pool2d_input(
    g: np.ndarray,
    *,
    shape: Shape,
    size: Pair,
    stride: Pair,
    padding: Padding,
    count_padding: bool,
) -> np.ndarray:
    outputs = g.shape[2:]
    part = g / _counts(shape, outputs, size, stride, padding, count_padding)
    whole = padded(np.zeros(shape, g.dtype), padding)
    for _, _, (rows, columns) in positions(size, outputs, stride, _SIDE_BY_SIDE):
        whole[:, :, rows, columns] += part
    return _inner(whole, shape, padding)
