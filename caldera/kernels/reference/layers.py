"""Reference convolution, pooling, scans, attention and CTC in NumPy.

A convolution is the sum over kernel positions of a product over channels: one line of mathematics
for each of the three ops, without rearranged copies. It does not round values even if `compute`
allows it. Pooling takes one step per window position. A scan interprets its graph step by step.
Attention and CTC are interpreted by their decompositions, for nodes that no other kernel supports.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from caldera.core.graph import Body, parameter
from caldera.core.graph.ops.product import index_dtype
from caldera.core.tensor.shape import Shape
from caldera.kernels.reference.evaluation import by_decomposition, interpreter, reference

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def padded(x: np.ndarray, padding: Padding) -> np.ndarray:
    """Return images padded with zeros."""
    return np.pad(x, ((0, 0), (0, 0), *padding)) if any(map(any, padding)) else x


def positions(
    kernel: Shape, outputs: Shape, stride: Pair, dilation: Pair
) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
    """Yield, for each kernel element, the part of the padded image that it multiplies."""
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
    """Merge rows and columns to one axis."""
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
    height, width = shape[2] + sum(padding[0]), shape[3] + sum(padding[1])
    result = np.zeros((shape[0], groups, shape[1] // groups, height, width), g.dtype)
    gradient = _pixels(_grouped(g, groups))
    kernel = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    for i, j, (rows, columns) in positions(w.shape[2:], g.shape[2:], stride, dilation):
        part = result[:, :, :, rows, columns]
        part += (kernel[..., i, j] @ gradient).reshape(part.shape)
    return _inner(result.reshape(shape[0], shape[1], height, width), shape, padding)


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
    """Return a padded image without its padding."""
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
    """Return the number of elements in the mean of each window."""
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


@reference("scan")
def _scan(
    *inputs: np.ndarray, body: Body, carries: int, sequences: int, length: int, reverse: bool
) -> tuple[np.ndarray, ...]:
    stand_ins = [parameter(i, spec) for i, spec in enumerate(body.parameters)]
    step = interpreter(body.outputs, stand_ins)
    carry = list(inputs[:carries])
    stacks = inputs[carries : carries + sequences]
    constants = inputs[carries + sequences :]
    results = [np.empty((length, *node.shape), node.dtype) for node in body.outputs[carries:]]
    for t in reversed(range(length)) if reverse else range(length):
        outputs = step([*carry, *[stack[t] for stack in stacks], *constants])
        carry = outputs[:carries]
        for result, value in zip(results, outputs[carries:], strict=True):
            result[t] = value
    return (*carry, *results)


by_decomposition(
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_grad",
    "ctc_log_likelihood",
    "ctc_posteriors",
)
