"""Products of an embedding's rows: a table of few rows is multiplied before rows are read from it.

`table[indices] @ weight` multiplies each row as often as it is named; `(table @ weight)[indices]`
multiplies it once. The gradients follow: those of all places that name a row are added up first,
and multiplied once. Where words are few and texts long, three products nearly vanish, as in a
recurrent network over letters.

A row that nobody names is multiplied too, or by a sum of 0: if it is not finite, neither is what
comes of it, where it would have been left alone.
"""

from __future__ import annotations

from caldera.compiler.passes.constants import uniform
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import full, reshape
from caldera.core.graph.ops.elementwise import add
from caldera.core.graph.ops.indexing import gather, scatter_add
from caldera.core.graph.ops.movement import transpose
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.program import Program, rewrite
from caldera.core.tensor.dtype import float32, float64

FEWER = 4
"""Rows must be named so many times on average for this to pay."""


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
    """A bias goes with the product, which it may become one with."""
    for value, bias in (node.inputs, node.inputs[::-1]):
        if value.op is gather and value.inputs[0].op is matmul and value.shape == node.shape:
            found = _rows(value)
            row = _as_row(bias, node.shape[-1])
            if found is not None and row is not None:
                table, indices = found
                return gather(add(table, row), indices, axis=0)
    return None


def _as_row(bias: Node, length: int) -> Node | None:
    """The numbers that are added to every row alike."""
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
    """A table of few rows, and which of them are those of `node`, a matrix, if it is so made."""
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
