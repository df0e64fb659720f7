"""The mark of any node, with the body of a fused node or a loop drawn inside."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.core.graph.body import Body
from caldera.core.graph.node import Node
from caldera.draw.graph.marks import (
    Arrow,
    Mark,
    Scene,
    constant_mark,
    constant_text,
    drawn_inputs,
    group_mark,
    is_drawn,
    label_of,
    node_mark,
    produced_by,
)
from caldera.draw.graph.packing import place
from caldera.draw.palette import dtype_colour

MOST_INSIDE = 12
"""Ops in a group that are drawn as a graph; more are listed."""
LIST_WIDTH = 260.0
CLOSENESS = 0.55
"""Distances in a group, as a part of those outside."""


def mark_of(node: Node, *, small: bool = False) -> Mark:
    """The mark of any node; the body of a fused node or a loop is drawn inside."""
    body = node.attrs.get("body")
    if not isinstance(body, Body):
        return node_mark(node, small=small)
    through = node.op.name == "fused"
    parts = [n for n in body.order() if _is_part(n, through)]
    if len(parts) > MOST_INSIDE:
        inner = _listed(parts)
    else:
        inner = _nested(body, parts, through)
    return group_mark(node, inner, len(parts))


def _is_part(node: Node, through: bool) -> bool:
    # In a fused body a broadcast is only a way to look at a value.
    quiet = node.op.name == "parameter" or (through and node.op.name == "broadcast_to")
    return is_drawn(node) and not quiet


def _nested(body: Body, parts: Sequence[Node], through: bool) -> Scene:
    """A small graph; its arguments enter at the top edge and its results leave at the bottom."""
    scene = Scene()
    scene.arguments = [Mark("port", "", dtype_colour(spec.dtype)) for spec in body.parameters]
    scene.results = [Mark("port", "", dtype_colour(node.dtype)) for node in body.outputs]
    marks: dict[Node, Mark] = {}
    for node in parts:
        if isinstance(node.attrs.get("body"), Body):
            marks[node] = mark_of(node, small=True)
        else:
            marks[node] = node_mark(node, small=True, label=_with_numbers(node))

    def source_of(given: Node) -> tuple[Mark, int] | None:
        while through and given.op.name == "broadcast_to":
            given = given.inputs[0]
        if given.op.name == "parameter":
            return scene.arguments[given.attrs["index"]], 0
        producer, output = produced_by(given)
        return (marks[producer], output) if producer in marks else None

    for node in parts:
        for slot, given in drawn_inputs(node):
            source = source_of(given)
            if source is not None:
                scene.arrows.append(
                    Arrow(source[0], marks[node], dtype_colour(given.dtype), source[1], slot)
                )
    constants: list[Mark] = []
    for node, port in zip(body.outputs, scene.results, strict=True):
        source = source_of(node)
        if source is None:
            constants.append(constant_mark(node, constant_text(node) or "", small=True))
            source = constants[-1], 0
        scene.arrows.append(Arrow(source[0], port, dtype_colour(node.dtype), source[1]))
    scene.marks = [*scene.arguments, *constants, *marks.values(), *scene.results]
    place(scene, CLOSENESS)
    return scene


def _with_numbers(node: Node) -> str:
    """The label of a small mark: constant inputs stand beside the name, on their side."""
    shown = [constant_text(given) for given in node.inputs]
    before = shown[0] if shown and shown[0] is not None else ""
    after = " ".join(number for number in shown[1:] if number is not None)
    return " ".join(word for word in (before, label_of(node), after) if word)


def _listed(parts: Sequence[Node]) -> Scene:
    """Too many for a graph: their names in the order they run, in rows."""
    scene = Scene()
    x, y = 0.0, 6.0
    for node in parts:
        mark = node_mark(node, small=True)
        if x and x + mark.width > LIST_WIDTH:
            x, y = 0.0, y + mark.height + 4
        mark.centre = (x + mark.width / 2, y + mark.height / 2)
        x += mark.width + 4
        scene.width = max(scene.width, x - 4)
        scene.height = y + mark.height + 6
        scene.marks.append(mark)
    return scene
