"""Images read at computed places."""

from __future__ import annotations

from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph import describe, location
from caldera.core.tensor import float32, promote
from caldera.errors import ShapeError
from caldera.op.arithmetic import clip
from caldera.op.indexing import take_along_axis
from caldera.op.logic import logical_and, where
from caldera.op.movement import broadcast, reshape
from caldera.op.unary import abs, cast, floor, round

__all__ = ["grid_sample"]

_MODES = ("bilinear", "nearest")
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    x: Any,
    grid: Any,
    mode: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> Expr:
    """Sample images (N, C, H, W) at the positions of `grid` (N, P, Q, 2), as (N, C, P, Q).

    A position is (x, y), from -1 at the left and upper edge to 1 at the right and lower one. The
    edges are the edges of the outer pixels, with `align_corners` their centres. `mode` is
    "bilinear" or "nearest". `padding` determines positions outside: "zeros", the nearest pixel
    ("border") or the image mirrored at its edges ("reflection"). The result has derivatives with
    respect to images and positions, as in PyTorch's function of this name.

    >>> import caldera as cd
    >>> from caldera import op
    >>> image = cd.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> op.grid_sample(image, [[[[0.0, 0.0], [-0.5, -0.5]]]]).tolist()
    [[[[2.5, 1.0]]]]
    """
    where_ = location("grid_sample")
    image = Expr(as_float(lift(x)))
    places = Expr(as_float(lift(grid, image.dtype)))
    fits = image.ndim == places.ndim == 4 and places.shape[3] == 2
    if not fits or places.shape[0] != image.shape[0] or not all(image.shape[2:]):
        raise ShapeError.build(
            where_,
            expected="images (N, C, H, W) and places (N, P, Q, 2)",
            got=f"{describe(image.node)} and {describe(places.node)}",
        )
    for name, value, known in (("mode", mode, _MODES), ("padding", padding, _PADDINGS)):
        require(value in known, where_, f"{name}= one of " + ", ".join(known), repr(value))
    # In half precision, numbers of pixels above 2048 would be rounded, and indices be out of range.
    places = cast(places, promote(image.dtype, float32))
    height, width = image.shape[2:]
    across = _position(places[..., 0], width, padding, align_corners)
    down = _position(places[..., 1], height, padding, align_corners)
    if mode == "nearest":
        return _read(image, round(down), round(across))
    top, left = floor(down), floor(across)
    low, right = (cast(each, image.dtype)[:, None] for each in (down - top, across - left))
    return (
        _read(image, top, left) * ((1.0 - low) * (1.0 - right))
        + _read(image, top, left + 1.0) * ((1.0 - low) * right)
        + _read(image, top + 1.0, left) * (low * (1.0 - right))
        + _read(image, top + 1.0, left + 1.0) * (low * right)
    )


def _position(place: Expr, length: int, padding: str, align_corners: bool) -> Expr:
    """Return places from -1 to 1 as numbers of pixels, those outside brought inside."""
    if align_corners:
        found = (place + 1.0) * ((length - 1) / 2)
    else:
        found = ((place + 1.0) * length - 1.0) / 2.0
    if padding == "reflection":
        low, span = (0.0, length - 1) if align_corners else (-0.5, length)
        if span == 0:
            return found * 0.0
        beyond = abs(found - low)
        turns = floor(beyond / span)
        rest = beyond - turns * span
        odd = turns - 2.0 * floor(turns / 2.0)
        found = where(odd > 0.5, span - rest, rest) + low
    # Far beyond all pixels, as zeros are, no number of a pixel overflows.
    edge = (0.0, length - 1.0) if padding != "zeros" else (-2.0, length + 1.0)
    return clip(found, *edge)


def _read(image: Expr, down: Expr, across: Expr) -> Expr:
    """Return the pixels with these indices, 0 outside."""
    count, channels, height, width = image.shape
    inside = logical_and(
        logical_and(down >= 0.0, down <= height - 1.0),
        logical_and(across >= 0.0, across <= width - 1.0),
    )
    row, column = clip(down, 0.0, height - 1.0), clip(across, 0.0, width - 1.0)
    index = cast(row, "int64") * width + cast(column, "int64")
    shape = (count, channels, index.shape[1] * index.shape[2])
    flat = broadcast(reshape(index, (count, 1, shape[2])), shape)
    pixels = take_along_axis(reshape(image, (count, channels, height * width)), flat, axis=2)
    found = reshape(pixels, (count, channels, *index.shape[1:]))
    return where(inside[:, None], found, 0.0)
