"""Gradients of queries, keys and values are written side by side, where these are views of one
product: then no copy has to put them there."""

from __future__ import annotations

from caldera.core.graph.body import users_of
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, Nodes
from caldera.core.graph.ops.attention import (
    HEADS_INSIDE,
    attention_backward,
    attention_backward_packed,
)
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.movement import transpose
from caldera.core.graph.program import Program, rebuild


def packed_attention(program: Program) -> Program:
    """Join gradients of attention with the concat of their joined heads."""
    order = program.order()
    users = users_of(order)
    found = {node for node in order if node.op.name == "concat" and _is_packing(node, users)}
    if not found:
        return program

    def pack(node: Node, inputs: Nodes) -> Nodes | None:
        if node not in found:
            return None
        backward = inputs[0].inputs[0].inputs[0]
        packed = attention_backward_packed(*backward.inputs, **backward.attrs)
        return (reshape(packed, node.shape),)

    return rebuild(program, pack)


def _is_packing(node: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether this joins all three gradients of one attention, heads inside, which nobody else
    reads."""
    if node.attrs["axis"] != 2 or len(node.inputs) != 3:
        return False
    if any(part.op.name != "transpose" or len(part.shape) != 4 for part in node.inputs):
        return False
    values = [part.inputs[0] for part in node.inputs]
    backward = values[0].inputs[0] if values[0].op is ITEM else None
    if backward is None or backward.op is not attention_backward or len(backward.outputs) != 3:
        return False
    for index, (part, value) in enumerate(zip(node.inputs, values, strict=True)):
        is_output = value.op is ITEM and value.inputs[0] is backward
        if not is_output or value.attrs["index"] != index:
            return False
        # Nodes that are equal are one.
        is_turned = part is transpose(value, HEADS_INSIDE)
        if not is_turned or len(users[value]) != 1 or len(users[part]) != 1:
            return False
    return True
