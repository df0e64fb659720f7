"""Outputs nobody reads.

Nodes that no root depends on are not part of a program at all. What can still be dead is a part of
a node: what a loop hands out or carries along, an output of a fused body, and inputs that are
needed for nothing else. A loop need not hand out either what it was given, or anything twice (the
derivative of one does).
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera.core.graph.body import Body, topological
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, Nodes, parameter
from caldera.core.graph.ops.control import fused, items, scan
from caldera.core.graph.program import Outputs, Program, rebuild


def eliminate_dead_code(program: Program) -> Program:
    """Leave out the outputs and inputs of loops and fused bodies that are not needed."""
    read: dict[Node, set[int]] = {}
    for node in program.order():
        if node.op is ITEM:
            read.setdefault(node.inputs[0], set()).add(node.attrs["index"])

    def trim(node: Node, inputs: Nodes) -> Outputs | None:
        if node.op is not scan and node.op is not fused:
            return None
        wanted = read.get(node, {0})
        if node.op is fused:
            smaller, kept = _trim_fused(node, inputs, wanted)
            found = dict(zip(kept, items(smaller), strict=True))
            return [found.get(index) for index in range(len(node.outputs))]
        return _trim_loop(node, inputs, wanted)

    return rebuild(program, trim)


def _reached(body: Body, outputs: Sequence[int]) -> set[int]:
    """The parameters that these outputs of a body depend on."""
    order = topological([body.outputs[i] for i in outputs])
    return {node.attrs["index"] for node in order if node.op.name == "parameter"}


def _trim_fused(node: Node, inputs: Sequence[Node], read: set[int]) -> tuple[Node, list[int]]:
    body: Body = node.attrs["body"]
    outputs = sorted(read)
    wanted = sorted(_reached(body, outputs))
    return fused.node(*[inputs[i] for i in wanted], body=_trimmed(body, wanted, outputs)), outputs


def _trim_loop(node: Node, inputs: Sequence[Node], read: set[int]) -> Outputs:
    body: Body = node.attrs["body"]
    carries, sequences = node.attrs["carries"], node.attrs["sequences"]
    found: dict[int, Node] = {}
    first: dict[Node, int] = {}
    for index in sorted(read):
        part = body.outputs[index]
        number = part.attrs["index"] if part.op.name == "parameter" else -1
        if index >= carries and carries <= number < carries + sequences:
            found[index] = inputs[number]
        elif index >= carries:
            first.setdefault(part, index)
    # A carry is needed if its last value is, or if a step that computes something needed reads it.
    outputs = {index for index in read if index < carries} | set(first.values())
    while True:
        wanted = _reached(body, sorted(outputs))
        more = outputs | {i for i in wanted if i < carries}
        if more == outputs:
            break
        outputs = more
    if outputs:
        # The first value of a carry is an input, also where no step reads it.
        parameters = sorted(wanted | {i for i in outputs if i < carries})
        smaller = scan.node(
            *[inputs[i] for i in parameters],
            body=_trimmed(body, parameters, sorted(outputs)),
            carries=sum(i < carries for i in parameters),
            sequences=sum(carries <= i < carries + sequences for i in parameters),
            length=node.attrs["length"],
            reverse=node.attrs["reverse"],
        )
        found |= dict(zip(sorted(outputs), items(smaller), strict=True))
        found |= {i: found[first[body.outputs[i]]] for i in read if i not in found}
    return [found.get(index) for index in range(len(node.outputs))]


def _trimmed(body: Body, parameters: Sequence[int], outputs: Sequence[int]) -> Body:
    arguments = [parameter(i, body.parameters[i]) for i in parameters]
    return Body(arguments, [body.outputs[i] for i in outputs])
