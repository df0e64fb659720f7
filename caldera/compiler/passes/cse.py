"""Common subexpressions, beyond those that are one node since they were written.

Equal nodes are the same object, so most of this happens by itself. What is left: constant arrays
with the same content, and loops that differ only in what they hand out (the derivative of a loop
runs it again to see more of it).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

from caldera.compiler.passes.constants import LARGEST_ARRAY, array_node, value_of
from caldera.compiler.passes.pattern import Rules, p
from caldera.core.graph.body import Body
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes, item, parameter
from caldera.core.graph.ops.control import scan
from caldera.core.graph.program import Program, rebuild


def _by_content(node: Node) -> Node | None:
    return array_node(value_of(node)) if node.spec.size <= LARGEST_ARRAY else None


RULES = Rules((p.array(..., name="node"), _by_content))


def merge_loops(program: Program) -> Program:
    """Loops over the same data with the same carries become one, with all their outputs."""
    while True:
        families: dict[Hashable, list[Node]] = {}
        for node in program.order():
            if node.op is scan:
                families.setdefault(_family(node), []).append(node)
        bodies = {
            loop: _union(loops) for loops in families.values() if len(loops) > 1 for loop in loops
        }
        if not bodies:
            return program
        # Loops that read merged ones may only now have become equal: look again.
        program = rebuild(program, partial(_merged, bodies))


def _family(loop: Node) -> Hashable:
    body: Body = loop.attrs["body"]
    carried = body.outputs[: loop.attrs["carries"]]
    rest = tuple(value for name, value in sorted(loop.attrs.items()) if name != "body")
    return loop.inputs, body.parameters, carried, rest


def _union(loops: Sequence[Node]) -> Body:
    """The body that hands out whatever one of these does."""
    first: Body = loops[0].attrs["body"]
    carries = loops[0].attrs["carries"]
    emitted = [node for loop in loops for node in loop.attrs["body"].outputs[carries:]]
    arguments = [parameter(i, spec) for i, spec in enumerate(first.parameters)]
    return Body(arguments, (*first.outputs[:carries], *dict.fromkeys(emitted)))


def _merged(bodies: Mapping[Node, Body], node: Node, inputs: Nodes) -> Nodes | None:
    if node not in bodies:
        return None
    own: Body = node.attrs["body"]
    carries = node.attrs["carries"]
    merged = scan.node(*inputs, **{**node.attrs, "body": bodies[node]})
    places = [bodies[node].outputs.index(given, carries) for given in own.outputs[carries:]]
    return tuple(item(merged, index) for index in (*range(carries), *places))
