"""Padding of arrays, and window sizes, strides and paddings of images."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.node import Node, describe
from caldera.core.graph.ops import base
from caldera.core.graph.ops import movement as moves
from caldera.core.graph.ops.product import Padding, Pair
from caldera.core.tensor.dtype import bool_, is_complex, is_float, side_of_range
from caldera.core.tensor.shape import Shape, as_shape
from caldera.errors import ConfigError, DtypeError, ShapeError
from caldera.op.arguments import place

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


def pad(
    x: Any,
    widths: int | Sequence[int] | Sequence[Sequence[int]],
    value: complex = 0,
    mode: str = "constant",
) -> Expr:
    """`x` with `value` around it, or with more of itself.

    `widths` is a number (for both ends of every axis), a pair (before, after) for every axis, or a
    pair for each axis. `mode` is "constant" (the value), "reflect" (mirrored at the elements at the
    ends, which are not repeated), "replicate" (the elements at the ends) or "circular" (from the
    other end).

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
"""How much longer than an axis its padding may be; that of "replicate" may have any length."""


def _extended(x: Node, axis: int, widths: tuple[int, int], mode: str) -> Node:
    """`x` with more of itself at both ends of an axis."""
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
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise ShapeError.build(
            where, expected=f"a number, a pair, or a pair for each of {rank} axes", got=str(widths)
        )
    return pairs  # type: ignore[return-value]
