"""Images (N, C, H, W) made larger or smaller, and cut into windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.node import Node, describe
from caldera.core.graph.opdef import location
from caldera.core.graph.ops import indexing, product
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.movement import concat, pad, repeat, slice_, transpose
from caldera.errors import ConfigError, ShapeError
from caldera.op.arguments import as_count, as_number
from caldera.op.convolution import Paddings, Pairs
from caldera.op.windows import as_sizes, as_widths, expect_rank

LARGEST = 2**24
"""Pixels of a side of what `interpolate` makes."""
MODES = ("nearest", "bilinear", "bicubic")
_CUBIC = -0.75
"""The slope of the cubic kernel at 1, as in PyTorch."""


def interpolate(
    x: Any,
    size: Pairs | None = None,
    scale: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Expr:
    """Images (N, C, H, W) in another `size`, or so many times as large: numbers, or (H, W).

    `mode` is "nearest", "bilinear" or "bicubic", with PyTorch's meaning: pixels are squares, whose
    centres are compared; with `align_corners` the centres of the corners fall together. What lies
    outside counts as the pixel at the border.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[[1.0, 3.0]]]])
    >>> op.interpolate(x, (1, 4)).tolist(), op.interpolate(x, (1, 4), mode="bilinear").tolist()
    ([[[[1.0, 1.0, 3.0, 3.0]]]], [[[[1.0, 1.5, 2.5, 3.0]]]])
    """
    where = location("interpolate")
    node = as_float(lift(x))
    expect_rank(node, 4, "x of shape (N, C, H, W)", where)
    if mode not in MODES or (align_corners and mode == "nearest"):
        raise ConfigError.build(
            where,
            expected=f"mode= one of {', '.join(MODES)}, the first without align_corners",
            got=f"mode={mode!r}, align_corners={align_corners}",
        )
    if (size is None) == (scale is None) or 0 in node.shape[2:]:
        raise ConfigError.build(
            where,
            expected="size= or scale=, and an image that is not empty",
            got=f"size={size}, scale={scale} for {describe(node)}",
        )
    lengths = node.shape[2:]
    if size is not None:
        wanted = as_sizes(size, 2, "size", where)
        steps = tuple(n / new for n, new in zip(lengths, wanted, strict=True))
    else:
        given = scale if isinstance(scale, Sequence) else (scale, scale)
        factors = [as_number(each, "scale", "interpolate", above=0) for each in given]
        wanted = tuple(math.floor(n * by) for n, by in zip(lengths, factors, strict=True))
        steps = tuple(1 / by for by in factors)
        if min(wanted) < 1:
            raise ShapeError.build(where, expected="a result of 1 x 1 at least", got=f"{wanted}")
    if max(wanted) > LARGEST:
        raise ShapeError.build(where, expected=f"sides of at most {LARGEST}", got=f"{wanted}")
    for axis, (new, step) in enumerate(zip(wanted, steps, strict=True), start=2):
        if mode == "nearest":
            node = _nearest(node, axis, new, step)
        elif new != node.shape[axis] or step != 1:
            node = _weighted(node, axis, new, step, mode, align_corners)
    return Expr(node)


def _nearest(x: Node, axis: int, new: int, step: float) -> Node:
    length = x.shape[axis]
    if new % length == 0 and step == length / new:
        return repeat(x, repeats=new // length, axis=axis) if new > length else x
    chosen = np.minimum(np.floor(np.arange(new) * step), length - 1).astype(np.int64)
    return indexing.gather(x, lift(chosen), axis=axis)


def _weighted(x: Node, axis: int, new: int, step: float, mode: str, align_corners: bool) -> Node:
    """A product with a matrix that has a few weights a row."""
    weights = lift(_weights(x.shape[axis], new, step, mode, align_corners).astype(x.dtype))
    if axis == 2:
        node = product.matmul(weights, x, ta=False, tb=False)
    else:
        node = product.matmul(x, weights, ta=False, tb=True)
    return node


def _weights(length: int, new: int, step: float, mode: str, align_corners: bool) -> np.ndarray:
    """The matrix (new, length) by which an axis is multiplied."""
    places: np.ndarray
    if align_corners:
        places = np.linspace(0, length - 1, new) if new > 1 else np.zeros(1)
    else:
        places = (np.arange(new) + 0.5) * step - 0.5
    if mode == "bilinear":
        places = np.clip(places, 0, length - 1)
    reach = 1 if mode == "bilinear" else 2
    around = np.floor(places).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(around - places[:, None])
    matrix = np.zeros((new, length))
    rows = np.broadcast_to(np.arange(new)[:, None], around.shape)
    np.add.at(matrix, (rows, np.clip(around, 0, length - 1)), _kernel(distance, mode))
    return matrix


def _kernel(distance: np.ndarray, mode: str) -> np.ndarray:
    """The weight of a pixel at this distance, which is below 1 or, if cubic, below 2."""
    if mode == "bilinear":
        return 1 - distance
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
    far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, far)


def pixel_shuffle(x: Any, factor: int) -> Expr:
    """(N, C factor^2, H, W) as (N, C, H factor, W factor): channels become neighbours.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.pixel_shuffle(cd.tensor([[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]]), 2).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    node, by = lift(x), as_count(factor, "factor", "pixel_shuffle")
    where = location("pixel_shuffle")
    expect_rank(node, 4, "x of shape (N, C, H, W)", where)
    batch, channels, height, width = node.shape
    if channels % by**2:
        raise ShapeError.build(
            where, expected=f"a multiple of {by**2} channels", got=describe(node)
        )
    parts = reshape(node, (batch, channels // by**2, by, by, height, width))
    turned = transpose(parts, (0, 1, 4, 2, 5, 3))
    return Expr(reshape(turned, (batch, channels // by**2, height * by, width * by)))


def pixel_unshuffle(x: Any, factor: int) -> Expr:
    """(N, C, H, W) as (N, C factor^2, H / factor, W / factor): the opposite of `pixel_shuffle`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.pixel_unshuffle(cd.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]]
    """
    node, by = lift(x), as_count(factor, "factor", "pixel_unshuffle")
    where = location("pixel_unshuffle")
    expect_rank(node, 4, "x of shape (N, C, H, W)", where)
    batch, channels, height, width = node.shape
    if height % by or width % by:
        raise ShapeError.build(
            where, expected=f"height and width as multiples of {by}", got=describe(node)
        )
    parts = reshape(node, (batch, channels, height // by, by, width // by, by))
    turned = transpose(parts, (0, 1, 3, 5, 2, 4))
    return Expr(reshape(turned, (batch, channels * by**2, height // by, width // by)))


def unfold(
    x: Any, size: Pairs, stride: Pairs = 1, padding: Paddings = 0, dilation: Pairs = 1
) -> Expr:
    """The windows of images (N, C, H, W) as columns: (N, C h w, windows), as in PyTorch.

    A convolution is the product of its kernels (K, C h w) with these.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.unfold(cd.tensor([[[[1.0, 2.0, 3.0]]]]), (1, 2)).tolist()
    [[[1.0, 2.0], [2.0, 3.0]]]
    """
    where = location("unfold")
    node = lift(x)
    expect_rank(node, 4, "x of shape (N, C, H, W)", where)
    window = as_sizes(size, 2, "size", where)
    steps = as_sizes(stride, 2, "stride", where)
    gaps = as_sizes(dilation, 2, "dilation", where)
    widths = as_widths(padding, where, node.shape[2:], window, steps, gaps)
    image = pad(node, ((0, 0), (0, 0), *widths))
    batch, channels, *lengths = image.shape
    counts = [product.conv_size(lengths[i], window[i], steps[i], (0, 0), gaps[i]) for i in (0, 1)]
    if min(counts) < 1:
        raise ShapeError.build(
            where,
            expected=f"an image of at least the window {window}, dilation included",
            got=f"{lengths[0]} x {lengths[1]} with its padding",
            hint="add padding",
        )
    parts = []
    for row in range(window[0]):
        for column in range(window[1]):
            starts = row * gaps[0], column * gaps[1]
            bounds = tuple(
                (start, start + (count - 1) * step + 1, step)
                for start, count, step in zip(starts, counts, steps, strict=True)
            )
            part = slice_(image, ((0, batch, 1), (0, channels, 1), *bounds))
            parts.append(reshape(part, (batch, channels, 1, counts[0] * counts[1])))
    columns = concat(tuple(parts), 2)
    return Expr(reshape(columns, (batch, channels * len(parts), counts[0] * counts[1])))
