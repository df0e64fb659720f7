"""Padding, window sizes and strides, and images made larger or smaller or cut into windows."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph import Node, describe, location
from caldera.core.graph.ops import (
    Padding,
    Pair,
    base,
    concat,
    indexing,
    product,
    repeat,
    reshape,
    slice_,
    transpose,
)
from caldera.core.graph.ops import movement as moves
from caldera.core.tensor import Shape, as_shape, bool_, is_complex, is_float, side_of_range
from caldera.errors import ConfigError, DtypeError, ShapeError
from caldera.op.arguments import as_count, as_number, place

__all__ = ["interpolate", "pad", "pixel_shuffle", "pixel_unshuffle", "unfold"]

Pairs = int | Sequence[int]
Paddings = int | Sequence[int] | Sequence[Sequence[int]] | str

_COUNTS = {1: "an integer", 2: "one or two integers", 3: "one or three integers"}
_SIDES = {1: "(before, after)", 2: "((top, bottom), (left, right))", 3: "a pair for each axis"}


def as_sizes(value: Any, count: int, name: str, where: str, minimum: int = 1) -> Shape:
    """Return `count` integers, from one number for all or one for each."""
    values = value if isinstance(value, Sequence) else (value,) * count
    try:
        sizes = tuple(index(each) for each in values)
    except TypeError:
        sizes = ()
    if len(sizes) != count or min(sizes) < minimum:
        raise ShapeError.build(
            where, expected=f"{name}= {_COUNTS[count]} >= {minimum}", got=repr(value)
        )
    return sizes


def as_widths(
    padding: Any, where: str, image: Shape, window: Shape, stride: Shape, dilation: Shape
) -> tuple[Pair, ...]:
    """Return (before, after) for each axis, from any form of padding."""
    count = len(stride)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * count
        require(padding == "same", where, "padding= numbers, 'same' or 'valid'", repr(padding))
        return tuple(_same(image[i], window[i], stride[i], dilation[i]) for i in range(count))
    if count == 1:
        return (as_pair(padding, "padding", where, 0),)
    if isinstance(padding, Sequence) and any(isinstance(side, Sequence) for side in padding):
        if len(padding) != count:
            raise ShapeError.build(where, expected=f"padding= {_SIDES[count]}", got=repr(padding))
        return tuple(as_pair(side, "padding", where, 0) for side in padding)
    return tuple((each, each) for each in as_sizes(padding, count, "padding", where, 0))


def as_pair(value: Any, name: str, where: str, minimum: int = 1) -> Pair:
    """Return a pair (vertical, horizontal) of whole numbers, from one number or two."""
    first, second = as_sizes(value, 2, name, where, minimum)
    return first, second


def as_padding(
    padding: Any, where: str, image: Shape, window: Shape, stride: Pair, dilation: Pair
) -> Padding:
    """Return ((top, bottom), (left, right)) from any form of padding."""
    vertical, horizontal = as_widths(padding, where, image, window, stride, dilation)
    return vertical, horizontal


def _same(length: int, window: int, stride: int, dilation: int) -> Pair:
    outputs = -(-length // stride)
    total = max((outputs - 1) * stride + dilation * (window - 1) + 1 - length, 0)
    return total // 2, total - total // 2


def beyond_padding(length: int, reach: int, stride: int, padding: Pair) -> int:
    """Return the length of the last window beyond the padding, if that window counts.

    A window that would start behind the image, without any part inside, does not count.

    >>> beyond_padding(5, 2, 2, (0, 0)), beyond_padding(6, 2, 2, (0, 0))
    (1, 0)
    """
    room = length + sum(padding) - reach
    steps = -(-room // stride)
    if steps * stride >= length + padding[0]:
        steps -= 1
    return max(steps * stride - room, 0)


def expect_rank(node: Node, rank: int, layout: str, where: str) -> None:
    """Refuse anything that has not `rank` axes."""
    if len(node.shape) != rank:
        raise ShapeError.build(where, expected=layout, got=describe(node))


def pad(
    x: Any,
    widths: int | Sequence[int] | Sequence[Sequence[int]],
    value: complex = 0,
    mode: str = "constant",
) -> Expr:
    """Pad `x` with `value`, or with its own elements.

    `widths` is a number (for both ends of every axis), a pair (before, after) for every axis, or a
    pair for each axis. `mode` is "constant" (the value), "reflect" (mirrored at the elements at the
    ends, which are not repeated), "replicate" (the elements at the ends) or "circular" (from the
    opposite end).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.pad(cd.tensor([1.0, 2.0]), (1, 2)).tolist()
    [0.0, 1.0, 2.0, 0.0, 0.0]
    >>> op.pad(cd.Tensor((2, 3)), ((0, 1), (2, 2))).shape
    (3, 7)
    >>> [op.pad([1, 2, 3], 2, mode=mode).tolist() for mode in ("reflect", "replicate", "circular")]
    [[3, 2, 1, 2, 3, 2, 1], [1, 1, 1, 2, 3, 3, 3], [2, 3, 1, 2, 3, 1, 2]]
    """
    node = lift(x)
    if mode != "constant":
        for axis, pair in enumerate(_widths(widths, node)):
            node = node if pair == (0, 0) else _extended(node, axis, pair, mode)
        return Expr(node)
    if isinstance(value, complex) or is_complex(node.dtype):
        if not is_complex(node.dtype):
            raise DtypeError.build(
                place("pad", node),
                expected="a real value around real numbers",
                got=str(value),
                hint="cast them with op.cast(x, 'complex64') first",
            )
        return Expr(moves.pad(node, _widths(widths, node), value))
    whole = math.isfinite(value) and value == int(value)
    held = whole and (value in (0, 1) or node.dtype != bool_)
    if not is_float(node.dtype) and (not held or side_of_range(int(value), node.dtype)):
        raise DtypeError.build(
            place("pad", node), expected=f"a value that {node.dtype.name} can hold", got=str(value)
        )
    return Expr(moves.pad(node, _widths(widths, node), value))


_LONGEST = {"reflect": -1, "circular": 0}
"""Maximum padding relative to the length of the axis; unlimited for "replicate"."""


def _extended(x: Node, axis: int, widths: tuple[int, int], mode: str) -> Node:
    """Return `x`, padded at both ends of an axis with its own elements."""
    length = x.shape[axis]
    if mode not in (*_LONGEST, "replicate"):
        raise ConfigError.build(
            place("pad", x),
            expected="mode= constant, reflect, replicate or circular",
            got=repr(mode),
        )
    most = length + _LONGEST[mode] if mode in _LONGEST else builtins.max(widths) if length else 0
    if builtins.max(widths) > most:
        raise ShapeError.build(
            place("pad", x),
            expected=f"at most {builtins.max(most, 0)} elements of padding "
            f"along axis {axis} of length {length}, mode {mode!r}",
            got=str(widths),
        )
    before, after = widths
    if mode == "reflect":
        first = moves.flip(moves.narrow(x, axis, 1, before), (axis,))
        last = moves.flip(moves.narrow(x, axis, length - 1 - after, after), (axis,))
    elif mode == "circular":
        first = moves.narrow(x, axis, length - before, before)
        last = moves.narrow(x, axis, 0, after)
    else:
        first, last = (
            base.broadcast_to(
                moves.narrow(x, axis, end, 1), (*x.shape[:axis], count, *x.shape[axis + 1 :])
            )
            for end, count in ((0, before), (length - 1, after))
        )
    return moves.concat((first, x, last), axis)


def _widths(widths: Any, node: Node) -> moves.Widths:
    where = place("pad", node)
    rank = len(node.shape)
    if not isinstance(widths, Iterable):
        return (as_shape((widths, widths), where),) * rank  # type: ignore[return-value]
    given = list(widths)
    if given and not isinstance(given[0], Iterable):
        given = [given] * rank
    pairs = tuple(as_shape(pair, where) for pair in given)
    require(
        len(pairs) == rank and not any(len(pair) != 2 for pair in pairs),
        where,
        f"a number, a pair, or a pair for each of {rank} axes",
        widths,
        error=ShapeError,
    )
    return pairs  # type: ignore[return-value]


LARGEST = 2**24
"""Maximum side length in pixels of results of `interpolate`."""
MODES = ("nearest", "linear", "bilinear", "bicubic")
_CUBIC = -0.75
"""The slope of the cubic kernel at 1, as in PyTorch."""


def interpolate(
    x: Any,
    size: Pairs | None = None,
    scale: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Expr:
    """Return images (N, C, H, W) in another `size`, or `scale` times as large: a number, or (H, W).

    `mode` is "nearest", "linear" ("bilinear" is another name) or "bicubic", with PyTorch's meaning:
    positions refer to the centres of pixels. With `align_corners` the centres of the corner pixels
    of input and output coincide. Positions outside have the value of the pixel at the border.
    Sequences (N, C, L) and volumes (N, C, D, H, W) take "nearest" and "linear".

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[[1.0, 3.0]]]])
    >>> op.interpolate(x, (1, 4)).tolist(), op.interpolate(x, (1, 4), mode="bilinear").tolist()
    ([[[[1.0, 1.0, 3.0, 3.0]]]], [[[[1.0, 1.5, 2.5, 3.0]]]])
    """
    where = location("interpolate")
    node = as_float(lift(x))
    rank = len(node.shape) - 2
    if rank not in _COUNTS:
        raise ShapeError.build(where, expected="x of shape (N, C, H, W)", got=describe(node))
    modes = MODES if rank == 2 else MODES[:2]
    if mode not in modes or (align_corners and mode == "nearest"):
        raise ConfigError.build(
            where,
            expected=f"mode= one of {', '.join(modes)}, the first without align_corners",
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
        wanted = as_sizes(size, rank, "size", where)
        steps = tuple(n / new for n, new in zip(lengths, wanted, strict=True))
    else:
        given = scale if isinstance(scale, Sequence) else (scale,) * rank
        require(len(given) == rank, where, f"scale= one or {rank} numbers", scale, error=ShapeError)
        require(
            not any(isinstance(each, float) and math.isinf(each) for each in given),
            where,
            "a finite scale=",
            scale,
        )
        factors = [as_number(each, "scale", "interpolate", above=0) for each in given]
        wanted = tuple(math.floor(n * by) for n, by in zip(lengths, factors, strict=True))
        steps = tuple(1 / by for by in factors)
        require(
            min(wanted) >= 1, where, "a result of at least one element", wanted, error=ShapeError
        )
    require(max(wanted) <= LARGEST, where, f"sides of at most {LARGEST}", wanted, error=ShapeError)
    for axis, (new, step) in enumerate(zip(wanted, steps, strict=True), start=2):
        # As in PyTorch for images, a scale that keeps a length moves no element ("bicubic" does).
        if new == node.shape[axis] and (step == 1 or mode != "bicubic"):
            continue
        if mode == "nearest":
            node = _nearest(node, axis, new, step)
        else:
            node = _weighted(node, axis, new, step, mode, align_corners)
    return Expr(node)


def _nearest(x: Node, axis: int, new: int, step: float) -> Node:
    length = x.shape[axis]
    if new % length == 0 and step == length / new:
        return repeat(x, repeats=new // length, axis=axis)
    chosen = np.minimum(np.floor(np.arange(new) * step), length - 1).astype(np.int64)
    return indexing.gather(x, lift(chosen), axis=axis)


def _weighted(x: Node, axis: int, new: int, step: float, mode: str, align_corners: bool) -> Node:
    """Return a product with a matrix that has a few weights a row."""
    weights = lift(_weights(x.shape[axis], new, step, mode, align_corners).astype(x.dtype))
    behind = len(x.shape) - 1 - axis
    if not behind:
        return product.matmul(x, weights, ta=False, tb=True)
    if behind == 1:
        return product.matmul(weights, x, ta=False, tb=False)
    rows = reshape(x, (*x.shape[: axis + 1], math.prod(x.shape[axis + 1 :])))
    made = product.matmul(weights, rows, ta=False, tb=False)
    return reshape(made, (*x.shape[:axis], new, *x.shape[axis + 1 :]))


def _weights(length: int, new: int, step: float, mode: str, align_corners: bool) -> np.ndarray:
    """Return the matrix (new, length) by which an axis is multiplied."""
    places: np.ndarray
    if align_corners:
        places = np.linspace(0, length - 1, new) if new > 1 else np.zeros(1)
    else:
        places = (np.arange(new) + 0.5) * step - 0.5
    if mode != "bicubic":
        places = np.clip(places, 0, length - 1)
    reach = 2 if mode == "bicubic" else 1
    around = np.floor(places).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(around - places[:, None])
    matrix = np.zeros((new, length))
    rows = np.broadcast_to(np.arange(new)[:, None], around.shape)
    np.add.at(matrix, (rows, np.clip(around, 0, length - 1)), _kernel(distance, mode))
    return matrix


def _kernel(distance: np.ndarray, mode: str) -> np.ndarray:
    """Return the weight of a pixel at this distance, which is below 1 or, if cubic, below 2."""
    if mode != "bicubic":
        return 1 - distance
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
    far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, far)


def pixel_shuffle(x: Any, factor: int) -> Expr:
    """Move channels to neighbouring pixels: (N, C factor^2, H, W) to (N, C, H factor, W factor).

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
    """Move neighbouring pixels to channels, the inverse of `pixel_shuffle`.

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
    """Return the windows of images (N, C, H, W) as columns: (N, C h w, windows), as in PyTorch.

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
    image = moves.pad(node, ((0, 0), (0, 0), *widths))
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
