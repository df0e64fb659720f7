"""Redundancy elimination: common subexpressions, dead outputs and loop invariants.

Equal nodes are the same object, so common subexpressions merge when they are written. The remaining
cases are constant arrays with the same content, and loops that differ only in their outputs (the
derivative of a loop runs it again to return more of its values).

Nodes that no root depends on are not part of a program. Dead parts of a node can remain: an output
or a carry of a loop, an output of a fused body, and inputs used only for these. A loop should
return neither its own inputs nor duplicates (the derivative of a loop does).

A loop invariant is computed once, before the loop. Mixed precision needs this: it casts a loop's
weights inside the body.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

from caldera.compiler.passes.constants import LARGEST_ARRAY, VIEWS, array_node, source_of, value_of
from caldera.compiler.passes.pattern import Rules, p
from caldera.core.graph import (
    ITEM,
    Body,
    Node,
    Nodes,
    Outputs,
    Program,
    item,
    items,
    parameter,
    rebuild,
    substitute,
    topological,
)
from caldera.core.graph.ops.control import fused, scan

RULES = Rules(
    (
        p.array(..., name="node"),
        lambda node: array_node(value_of(node)) if node.spec.size <= LARGEST_ARRAY else None,
    )
)


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
    """Return a body with the outputs of all these loops."""
    first: Body = loops[0].attrs["body"]
    carries = loops[0].attrs["carries"]
    emitted = [node for loop in loops for node in loop.attrs["body"].outputs[carries:]]
    return first.with_outputs((*first.outputs[:carries], *dict.fromkeys(emitted)))


def _merged(bodies: Mapping[Node, Body], node: Node, inputs: Nodes) -> Nodes | None:
    if node not in bodies:
        return None
    own: Body = node.attrs["body"]
    carries = node.attrs["carries"]
    merged = scan.node(*inputs, **{**node.attrs, "body": bodies[node]})
    places = [bodies[node].outputs.index(given, carries) for given in own.outputs[carries:]]
    return tuple(item(merged, index) for index in (*range(carries), *places))


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
    """Return the parameters that these outputs of a body depend on."""
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


def hoist(program: Program) -> Program:
    """Move nodes that depend only on a loop's constants out of its body."""
    return rebuild(program, _without_fixed)


def _without_fixed(node: Node, inputs: Nodes) -> Nodes | None:
    if node.op is not scan:
        return None
    body: Body = node.attrs["body"]
    changing = node.attrs["carries"] + node.attrs["sequences"]
    found = _fixed(body, changing)
    if not found:
        return None
    arguments = body.arguments()
    outside = dict(zip(arguments[changing:], inputs[changing:], strict=True))
    values = substitute(found, outside)
    smaller = Body([*arguments, *found], body.outputs)
    return items(scan.node(*inputs, *values, **{**node.attrs, "body": smaller}))


def _fixed(body: Body, changing: int) -> list[Node]:
    """Return the largest parts of a body that depend only on its constants (from `changing` on)."""
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
    found = dict.fromkeys(source_of(node, VIEWS) for node in read if node in fixed)
    return [node for node in found if node.op.name != "parameter"]
