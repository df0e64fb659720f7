"""What is the same in every step of a loop is computed once, before it.

Mixed precision needs this: it casts a loop's weights inside the body.
"""

from __future__ import annotations

from caldera.compiler.passes.constants import VIEWS
from caldera.core.graph.body import Body, substitute
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes, parameter
from caldera.core.graph.ops.control import items, scan
from caldera.core.graph.program import Program, rebuild


def hoist(program: Program) -> Program:
    """Move what depends on a loop's constants alone out of its body."""
    return rebuild(program, _without_fixed)


def _without_fixed(node: Node, inputs: Nodes) -> Nodes | None:
    if node.op is not scan:
        return None
    body: Body = node.attrs["body"]
    changing = node.attrs["carries"] + node.attrs["sequences"]
    found = _fixed(body, changing)
    if not found:
        return None
    arguments = [parameter(i, spec) for i, spec in enumerate(body.parameters)]
    outside = dict(zip(arguments[changing:], inputs[changing:], strict=True))
    values = substitute(found, outside)
    smaller = Body([*arguments, *found], body.outputs)
    return items(scan.node(*inputs, *values, **{**node.attrs, "body": smaller}))


def _fixed(body: Body, changing: int) -> list[Node]:
    """The largest parts of a body that depend on its constants alone (from `changing` on)."""
    order = body.order()
    # Constant numbers are at home in every body: only what reads a parameter is worth moving.
    numbers: set[Node] = set()
    fixed: set[Node] = set()
    for node in order:
        if node.op.name == "parameter":
            if node.attrs["index"] >= changing:
                fixed.add(node)
        elif all(given in numbers for given in node.inputs):
            numbers.add(node)
        elif all(given in fixed or given in numbers for given in node.inputs):
            fixed.add(node)
    read = list(body.outputs)
    for node in order:
        if node not in fixed and node not in numbers:
            read.extend(node.inputs)
    found = dict.fromkeys(_source(node) for node in read if node in fixed)
    return [node for node in found if node.op.name != "parameter"]


def _source(node: Node) -> Node:
    """What has to be computed: another look at it costs nothing in the body either."""
    while node.op.name in VIEWS:
        node = node.inputs[0]
    return node
