"""Rebuilding a program where nodes with several outputs may be replaced output by output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caldera.graph.node import Node
from caldera.graph.opdef import ITEM, Nodes
from caldera.graph.program import Program

Outputs = Sequence[Node | None]
Rule = Callable[[Node, Nodes], Outputs | None]


def rebuild(program: Program, rule: Rule) -> Program:
    """Rebuild bottom-up; `rule(node, new_inputs)` may give a new node for each output of a node.

    It gives None to keep the node, and None for an output that nobody reads.
    """
    new: dict[Node, Node] = {}
    replaced: dict[Node, Outputs] = {}
    for node in program.order():
        if node.op is ITEM and node.inputs[0] in replaced:
            output = replaced[node.inputs[0]][node.attrs["index"]]
            assert output is not None, f"{node} is read after all"
            new[node] = output
            continue
        inputs = tuple(new[given] for given in node.inputs)
        outputs = rule(node, inputs)
        if outputs is None:
            new[node] = node.op.rebuild(node, inputs)
            continue
        replaced[node] = outputs
        # A node with several outputs is read by its items alone: what stands here is never used.
        new[node] = outputs[0] if len(node.outputs) == 1 and outputs[0] is not None else node
    return program.with_roots([new[root] for root in program.roots])
