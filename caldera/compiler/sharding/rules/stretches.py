"""Stretches of an axis taken out of a rank's part, or put into one: nodes alone."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.compiler.sharding.layout import CartesianLayout
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import full
from caldera.core.graph.ops.movement import concat, slice_, unslice


def take(node: Node, stretches: Sequence[Sequence[slice]]) -> Node:
    """Along each axis these stretches of a node, one after the other."""
    for axis, slices in enumerate(stretches):
        pieces = [_cut(node, axis, each) for each in slices] or [_cut(node, axis, slice(0, 0, 1))]
        node = concat(tuple(pieces), axis)
    return node


def _cut(node: Node, axis: int, stretch: slice) -> Node:
    bounds = [(0, n, 1) for n in node.shape]
    bounds[axis] = (stretch.start, stretch.stop, stretch.step or 1)
    return slice_(node, tuple(bounds))


def part(node: Node, layout: CartesianLayout, rank: int) -> Node:
    """A rank's part of a value that it has all of."""
    if rank not in layout.ranks:
        return full(layout.local_shape(rank), 0, node.dtype)
    axes = range(len(layout.shape))
    return take(
        node, [[slice(b, e, 1) for b, e in layout.axis_intervals(rank, axis)] for axis in axes]
    )


def embed(
    node: Node, stretches: Sequence[Sequence[slice]], shape: Sequence[int], value: complex = 0
) -> Node:
    """A value of `shape` that has the node along these stretches, and a number elsewhere."""
    for axis, slices in enumerate(stretches):
        node = _embedded(node, axis, slices, shape[axis], value)
    return node


def _embedded(
    node: Node, axis: int, stretches: Sequence[slice], length: int, value: complex
) -> Node:
    def gap(count: int) -> Node:
        return full((*node.shape[:axis], count, *node.shape[axis + 1 :]), value, node.dtype)

    pieces: list[Node] = []
    filled = taken = 0
    for stretch in stretches:
        step = stretch.step or 1
        count = len(range(stretch.start, stretch.stop, step))
        if stretch.start > filled:
            pieces.append(gap(stretch.start - filled))
        bounds = [(0, n, 1) for n in node.shape]
        bounds[axis] = (taken, taken + count, 1)
        piece = slice_(node, tuple(bounds))
        filled = stretch.start + (count - 1) * step + 1
        if step > 1:
            wide = (*node.shape[:axis], filled - stretch.start, *node.shape[axis + 1 :])
            places = tuple((0, n, step if each == axis else 1) for each, n in enumerate(wide))
            piece = unslice(piece, shape=wide, bounds=places)
        pieces.append(piece)
        taken += count
    if filled < length or not pieces:
        pieces.append(gap(length - filled))
    return concat(tuple(pieces), axis)
