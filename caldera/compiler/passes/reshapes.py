"""Reshapes and concatenations that would split a loop or cost a copy.

A product takes matrices, while a sequence has one axis more. The reshapes between products cost
nothing themselves, but they separate the loops on both sides, and the same cast of both shapes is
computed twice.

Gradients of queries, keys and values are written next to each other if these are views of one
product: no copy then has to concatenate them.
"""

from __future__ import annotations

from collections.abc import Iterator

from caldera.compiler.passes.joins import Join, Joins, Uses
from caldera.compiler.passes.pattern import Rules, anything, p
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, OPS, Nodes
from caldera.core.graph.ops.attention import (
    HEADS_INSIDE,
    attention_backward,
    attention_backward_packed,
)
from caldera.core.graph.ops.base import Axes, cast, reshape, sum_
from caldera.core.graph.ops.movement import concat, transpose
from caldera.core.tensor.dtype import is_float
from caldera.core.tensor.shape import Shape

x = anything("x")


def _narrowed_first(x: Node, node: Node) -> Node | None:
    """What makes a value can round it as well, and then fewer bytes are written."""
    if not is_float(node.dtype) or node.dtype.itemsize >= x.dtype.itemsize:
        return None
    return reshape(cast(x, node.dtype), node.shape)


def _sum_of_original(x: Node, seen: Node, node: Node, wide: Node | None = None) -> Node | None:
    """A sum over merged axes is one over those that were merged: the loop that makes x can take
    it along, also in a wider dtype."""
    # Axes of nothing do not tell which of them were merged.
    if x.op.kind != "elementwise" or 0 in x.shape:
        return None
    if wide is not None:
        x = cast(x, wide.dtype)
    axes: list[int] = []
    for before, after in _groups(x.shape, seen.shape):
        reduced = [axis in node.attrs["axis"] for axis in after if seen.shape[axis] != 1]
        if any(reduced) != all(reduced):
            return None
        axes += before if any(reduced) else []
    return reshape(sum_(x, tuple(axes)), node.shape) if axes else None


def _groups(before: Shape, after: Shape) -> Iterator[tuple[Axes, Axes]]:
    """Axes of two shapes of one array that hold the same elements, from the first to the last."""
    i = j = 0
    while i < len(before) or j < len(after):
        first, other = i, j
        left = right = 1
        while i == first or j == other or left != right:
            if j == len(after) or (i < len(before) and left <= right):
                left *= before[i]
                i += 1
            else:
                right *= after[j]
                j += 1
            if i == len(before) and j == len(after):
                break
        yield tuple(range(first, i)), tuple(range(other, j))


def _concat_of_parts(node: Node) -> Node | None:
    """Parts that lie in another order are copied once, to where they belong, and not before as
    well."""
    axis = node.attrs["axis"]
    parts = [given.inputs[0] if given.op.name == "reshape" else given for given in node.inputs]
    if not any(part.op.name == "transpose" for part in parts):
        return None
    inner = parts[0].shape[axis + 1 :]
    for part, given in zip(parts, node.inputs, strict=True):
        merged = (*part.shape[:axis], *part.shape[axis + 2 :])
        others = (*given.shape[:axis], *given.shape[axis + 1 :])
        if len(part.shape) != len(given.shape) + 1 or merged != others:
            return None
        if part.shape[axis + 1 :] != inner:
            return None
    return reshape(concat(tuple(parts), axis), node.shape)


RULES = Rules(
    (p.cast(p.reshape(x), name="node"), _narrowed_first),
    (p.sum(p.reshape(x, name="seen"), name="node"), _sum_of_original),
    (p.sum(p.cast(p.reshape(x, name="seen"), name="wide"), name="node"), _sum_of_original),
    (p.concat(..., name="node"), _concat_of_parts),
)


def _packing(uses: Uses, node: Node) -> Join | None:
    """The concat of all three gradients of one attention, heads inside, with no other reader."""
    if node.attrs["axis"] != 2 or len(node.inputs) != 3:
        return None
    if any(part.op.name != "transpose" or len(part.shape) != 4 for part in node.inputs):
        return None
    values = [part.inputs[0] for part in node.inputs]
    backward = values[0].inputs[0] if values[0].op is ITEM else None
    if backward is None or backward.op is not attention_backward or len(backward.outputs) != 3:
        return None
    for index, (part, value) in enumerate(zip(node.inputs, values, strict=True)):
        if value.op is not ITEM or value.inputs[0] is not backward or value.attrs["index"] != index:
            return None
        # Nodes that are equal are one.
        is_turned = part is transpose(value, HEADS_INSIDE)
        if not is_turned or len(uses.users[value]) != 1 or len(uses.users[part]) != 1:
            return None

    def build(*inputs: Node) -> Nodes:
        packed = attention_backward_packed(*inputs, **backward.attrs)
        return (reshape(packed, node.shape),)

    return Join(backward.inputs, build, {node: (0,)})


packed_attention = Joins((OPS["concat"], _packing))
"""Join gradients of attention with the concat of their joined heads."""
