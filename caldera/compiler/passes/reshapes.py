"""Reshapes, concatenations and reads of rows that separate products and loops.

A product takes matrices, while a sequence has one axis more. The reshapes between products are free
themselves, but they separate the loops on both sides, and the same cast of both shapes is computed
twice.

Gradients of queries, keys and values are written next to each other if these are views of a single
product: no copy then has to concatenate them.

A table of few rows is multiplied before rows are read from it: `table[indices] @ weight` multiplies
each row as often as it is named, `(table @ weight)[indices]` multiplies it once. In the gradients,
the terms of a row are added up first, and multiplied once. With few words and long texts, three
products nearly vanish, as in a recurrent network over letters. A row without an index is multiplied
too, or by a sum of 0: if it is not finite, neither is the result, which would not have depended on
it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from caldera.compiler.passes.constants import uniform
from caldera.compiler.passes.pattern import Join, Joins, Rules, Uses, anything, p
from caldera.core.graph import ITEM, OPS, Node, Nodes, Program, rewrite
from caldera.core.graph.ops import Axes, add, cast, concat, full, matmul, reshape, sum_, transpose
from caldera.core.graph.ops.attention import (
    HEADS_INSIDE,
    attention_backward,
    attention_backward_packed,
)
from caldera.core.graph.ops.indexing import gather, scatter_add
from caldera.core.tensor import Shape, float32, float64, is_float

x = anything("x")


def _narrowed_first(x: Node, node: Node) -> Node | None:
    """Move a rounding cast into the loop that computes a value, which then writes fewer bytes."""
    if not is_float(node.dtype) or node.dtype.itemsize >= x.dtype.itemsize:
        return None
    return reshape(cast(x, node.dtype), node.shape)


def _sum_of_original(x: Node, seen: Node, node: Node, wide: Node | None = None) -> Node | None:
    """Sum over the original axes instead of merged ones.

    The loop that computes x can then include the sum, also in a wider dtype.
    """
    # Axes of length 0 do not reveal the merged axes.
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
    """Yield groups of axes of two shapes that hold the same elements, in order."""
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
    """Concatenate parts before reshaping: parts in another order are then copied only once."""
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
    """Join the concat of an attention's three gradients, heads inside, without other readers."""
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


FEWER = 4
"""Minimum average number of uses of a row for which this pays."""


def row_products(program: Program) -> Program:
    """Let products and rows change places where that makes products small."""
    if not any(node.op is gather or node.op is scatter_add for node in program.order()):
        return program
    return program.with_roots(rewrite(program.roots, _changed))


def _changed(node: Node) -> Node | None:
    if not node.outputs or node.outputs[0].dtype not in (float32, float64):
        return None
    if node.op is matmul and len(node.shape) == 2:
        return _product(node)
    if node.op is add:
        return _bias(node)
    return _gradient_of_table(node) if node.op is scatter_add else None


def _product(node: Node) -> Node | None:
    left, right = node.inputs
    found = _rows(left)
    if found is None or right.shape[:-2]:
        return None
    table, indices = found
    if not node.attrs["ta"]:
        small = matmul(table, right, **node.attrs)
        return gather(small, indices, axis=0)
    if node.attrs["tb"]:
        return None
    return matmul(table, _added_up(table, indices, right), **node.attrs)


def _bias(node: Node) -> Node | None:
    """Add the bias before the gather, so that it can be joined with the product."""
    for value, bias in (node.inputs, node.inputs[::-1]):
        if value.op is gather and value.inputs[0].op is matmul and value.shape == node.shape:
            found = _rows(value)
            row = _as_row(bias, node.shape[-1])
            if found is not None and row is not None:
                table, indices = found
                return gather(add(table, row), indices, axis=0)
    return None


def _as_row(bias: Node, length: int) -> Node | None:
    """Return the numbers that are added to every row alike."""
    while bias.op.name == "broadcast_to" and bias.inputs[0].shape[-1:] == (length,):
        bias = bias.inputs[0]
    return reshape(bias, (length,)) if bias.spec.size == length == bias.shape[-1] else None


def _gradient_of_table(node: Node) -> Node | None:
    start, indices, updates = node.inputs
    if node.attrs["axis"] != 0 or len(start.shape) != 2:
        return None
    # Where updates were moved after they were computed, their indices were not.
    while updates.op.name in ("transpose", "reshape"):
        before = updates.inputs[0]
        if updates.op.name == "transpose":
            axes = updates.attrs["axes"]
            if axes[-1] != len(axes) - 1:
                return None
            indices = transpose(indices, tuple(axes.index(i) for i in range(len(axes) - 1)))
        elif before.shape[-1:] == updates.shape[-1:]:
            indices = reshape(indices, before.shape[:-1])
        else:
            return None
        updates = before
    if updates.op is not matmul or len(updates.shape) != 2 or updates.attrs["ta"]:
        return None
    left, right = updates.inputs
    if right.shape[:-2] or not _is_worth_it(start, indices):
        return None
    product = matmul(_added_up(start, indices, left), right, **updates.attrs)
    return product if uniform(start) == 0 else add(start, product)


def _added_up(table: Node, indices: Node, rows: Node) -> Node:
    """For each row of the table, the sum of the rows at the places that name it."""
    nothing = full((table.shape[0], rows.shape[-1]), 0, rows.dtype)
    return scatter_add(nothing, indices, rows, axis=0)


def _rows(node: Node) -> tuple[Node, Node] | None:
    """Return a small table and the row indices of `node`, if `node` is a matrix of its rows."""
    if len(node.shape) != 2:
        return None
    moves: list[Node] = []
    while node.op.name in ("transpose", "reshape"):
        moves.append(node)
        node = node.inputs[0]
    if node.op is not gather or node.attrs["axis"] != 0 or len(node.inputs[0].shape) != 2:
        return None
    table, indices = node.inputs
    for move in reversed(moves):
        if move.op.name == "transpose":
            *axes, last = move.attrs["axes"]
            if last != len(axes):
                return None
            indices = transpose(indices, tuple(axes))
        elif move.shape[-1:] == table.shape[-1:] == move.inputs[0].shape[-1:]:
            indices = reshape(indices, move.shape[:-1])
        else:
            return None
    return (table, indices) if _is_worth_it(table, indices) else None


def _is_worth_it(table: Node, indices: Node) -> bool:
    return FEWER * table.shape[0] <= indices.spec.size
