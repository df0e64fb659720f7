"""Convolutions in NumPy.

A convolution is written as the sum over kernel positions of a product over channels: one line of
mathematics for each of the three ops, with no rearranged copies. Nothing is rounded that `compute`
allows to round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from caldera.core.tensor.shape import Shape
from caldera.kernels.reference.registry import reference

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def padded(x: np.ndarray, padding: Padding) -> np.ndarray:
    """Images with zeros around them."""
    return np.pad(x, ((0, 0), (0, 0), *padding)) if any(map(any, padding)) else x


def positions(
    kernel: Shape, outputs: Shape, stride: Pair, dilation: Pair
) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
    """For each kernel element, the part of the padded image that it meets."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + (outputs[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(left, left + (outputs[1] - 1) * stride[1] + 1, stride[1])
            yield i, j, (rows, columns)


def _grouped(x: np.ndarray, groups: int) -> np.ndarray:
    """(N, C, H, W) as (N, groups, C / groups, H, W)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _pixels(x: np.ndarray) -> np.ndarray:
    """Rows and columns as one axis."""
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4])


def _samples_and_pixels(x: np.ndarray) -> np.ndarray:
    """Samples, rows and columns as one axis, the last: filters' gradients are sums over it."""
    samples, groups, channels, height, width = x.shape
    return x.transpose(1, 2, 0, 3, 4).reshape(groups, channels, samples * height * width)


@reference("conv2d")
def _conv2d(
    x: np.ndarray,
    w: np.ndarray,
    *,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    compute: str | None = None,
) -> np.ndarray:
    image = _grouped(padded(x, padding), groups)
    kernel = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    height = (image.shape[3] - dilation[0] * (w.shape[2] - 1) - 1) // stride[0] + 1
    width = (image.shape[4] - dilation[1] * (w.shape[3] - 1) - 1) // stride[1] + 1
    result = np.zeros((x.shape[0], groups, w.shape[0] // groups, height * width), x.dtype)
    for i, j, (rows, columns) in positions(w.shape[2:], (height, width), stride, dilation):
        result += kernel[..., i, j] @ _pixels(image[:, :, :, rows, columns])
    return result.reshape(x.shape[0], w.shape[0], height, width)


@reference("conv2d_input")
def _conv2d_input(
    g: np.ndarray,
    w: np.ndarray,
    *,
    shape: Shape,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    compute: str | None = None,
) -> np.ndarray:
    (top, bottom), (left, right) = padding
    height, width = shape[2] + top + bottom, shape[3] + left + right
    result = np.zeros((shape[0], groups, shape[1] // groups, height, width), g.dtype)
    gradient = _pixels(_grouped(g, groups))
    kernel = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    for i, j, (rows, columns) in positions(w.shape[2:], g.shape[2:], stride, dilation):
        part = result[:, :, :, rows, columns]
        part += (kernel[..., i, j] @ gradient).reshape(part.shape)
    whole = result.reshape(shape[0], shape[1], height, width)
    return whole[:, :, top : top + shape[2], left : left + shape[3]]


@reference("conv2d_weight")
def _conv2d_weight(
    x: np.ndarray,
    g: np.ndarray,
    *,
    shape: Shape,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    compute: str | None = None,
) -> np.ndarray:
    image = _grouped(padded(x, padding), groups)
    gradient = _samples_and_pixels(_grouped(g, groups))
    result = np.zeros((groups, shape[0] // groups, *shape[1:]), x.dtype)
    for i, j, (rows, columns) in positions(shape[2:], g.shape[2:], stride, dilation):
        part = _samples_and_pixels(image[:, :, :, rows, columns])
        result[..., i, j] = gradient @ part.swapaxes(1, 2)
    return result.reshape(shape)
