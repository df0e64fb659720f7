"""Where windows lie over the axes of an image: sizes, strides and paddings as people write them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from caldera.core.graph.node import Node, describe
from caldera.core.graph.ops.product import Padding, Pair
from caldera.core.tensor.shape import Shape
from caldera.errors import ConfigError, ShapeError

_COUNTS = {1: "a whole number", 2: "one or two whole numbers", 3: "one or three whole numbers"}
_SIDES = {1: "(before, after)", 2: "((top, bottom), (left, right))", 3: "a pair for each axis"}


def as_sizes(value: Any, count: int, name: str, where: str, minimum: int = 1) -> Shape:
    """So many whole numbers, from one number for all or one for each."""
    values = value if isinstance(value, Sequence) else (value,) * count
    try:
        sizes = tuple(index(each) for each in values)
    except TypeError:
        sizes = ()
    if len(sizes) != count or min(sizes) < minimum:
        raise ShapeError.build(
            where, expected=f"{name}= {_COUNTS[count]} of at least {minimum}", got=repr(value)
        )
    return sizes


def as_widths(
    padding: Any, where: str, image: Shape, window: Shape, stride: Shape, dilation: Shape
) -> tuple[Pair, ...]:
    """(before, after) for each axis, from any way to write a padding."""
    count = len(stride)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * count
        if padding != "same":
            raise ConfigError.build(
                where, expected="padding= numbers, 'same' or 'valid'", got=repr(padding)
            )
        return tuple(_same(image[i], window[i], stride[i], dilation[i]) for i in range(count))
    if count == 1:
        return (as_pair(padding, "padding", where, 0),)
    if isinstance(padding, Sequence) and any(isinstance(side, Sequence) for side in padding):
        if len(padding) != count:
            raise ShapeError.build(where, expected=f"padding= {_SIDES[count]}", got=repr(padding))
        return tuple(as_pair(side, "padding", where, 0) for side in padding)
    return tuple((each, each) for each in as_sizes(padding, count, "padding", where, 0))


def as_pair(value: Any, name: str, where: str, minimum: int = 1) -> Pair:
    """A pair (vertical, horizontal) of whole numbers, from one number or two."""
    first, second = as_sizes(value, 2, name, where, minimum)
    return first, second


def as_padding(
    padding: Any, where: str, image: Shape, window: Shape, stride: Pair, dilation: Pair
) -> Padding:
    """((top, bottom), (left, right)) from any way to write a padding."""
    vertical, horizontal = as_widths(padding, where, image, window, stride, dilation)
    return vertical, horizontal


def _same(length: int, window: int, stride: int, dilation: int) -> Pair:
    outputs = -(-length // stride)
    total = max((outputs - 1) * stride + dilation * (window - 1) + 1 - length, 0)
    return total // 2, total - total // 2


def beyond_padding(length: int, reach: int, stride: int, padding: Pair) -> int:
    """How far the last window sticks out of the padding where such a window counts.

    One that would begin behind the image, and cover nothing of it, does not.

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
