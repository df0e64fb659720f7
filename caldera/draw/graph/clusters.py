"""Layout of scenes and of nodes with nested bodies (fused nodes and loops).

Each connected part is laid out separately; then the parts are packed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from caldera.core.graph import Body, Node
from caldera.draw.graph.layered_layout import GraphEdge, arrange, levels_of
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
from caldera.draw.svg import dtype_colour

BETWEEN_COLUMNS = 44.0
BETWEEN_PARTS = 30.0

Taken = tuple[float, float, float]
"""(left, right, bottom) of an occupied area."""


def place(scene: Scene, squeeze: float = 1.0) -> None:
    """Give everything in a connected scene its place."""
    index = {mark: i for i, mark in enumerate(scene.marks)}
    links = []
    for arrow in scene.arrows:
        exits, entries = arrow.source.exits, arrow.target.entries
        leaves = exits[arrow.output] if exits else 0.0
        enters = entries[arrow.input] if entries and arrow.input is not None else None
        links.append(GraphEdge(index[arrow.source], index[arrow.target], leaves, enters))
    levels = levels_of(
        [mark.width for mark in scene.marks],
        links,
        first=[index[mark] for mark in scene.arguments],
        last=[index[mark] for mark in scene.results],
    )
    sizes = [(mark.width, mark.height) for mark in scene.marks]
    placed = arrange(sizes, links, levels, squeeze)
    for mark, centre in zip(scene.marks, placed.centres, strict=True):
        mark.centre = centre
    for arrow, points in zip(scene.arrows, placed.routes, strict=True):
        arrow.points = points
    scene.width, scene.height = placed.width, placed.height


def packed(scene: Scene) -> Scene:
    """Return a scene whose connected parts are arranged separately and packed closely."""
    parts = _parts(scene)
    for part in parts:
        place(part)
    # Largest first; equal ones in their order.
    parts.sort(key=lambda part: -part.width * part.height)
    area = sum((p.width + BETWEEN_PARTS) * (p.height + BETWEEN_PARTS) for p in parts)
    limit = max([math.sqrt(area), *(part.width for part in parts)])
    whole = Scene()
    taken: list[Taken] = []
    for part in parts:
        x, y = min(
            (
                (left, _free_below(left, part.width, taken))
                for left in [0.0, *(right + BETWEEN_PARTS for _, right, _ in taken)]
                if left + part.width <= limit + 0.1
            ),
            key=lambda spot: (spot[1], spot[0]),
        )
        taken.append((x, x + part.width, y + part.height))
        part.move(x, y)
        whole.marks += part.marks
        whole.arrows += part.arrows
        whole.width = max(whole.width, x + part.width)
        whole.height = max(whole.height, y + part.height)
    return whole


def _free_below(left: float, width: float, taken: list[Taken]) -> float:
    """Return the height below which the columns are free."""
    below = [
        bottom + BETWEEN_PARTS
        for start, end, bottom in taken
        if start < left + width + BETWEEN_PARTS and left < end + BETWEEN_PARTS
    ]
    return max(below, default=0.0)


def _parts(scene: Scene) -> list[Scene]:
    """Return the connected parts of a scene, in the order of their first marks."""
    group = {mark: {mark: None} for mark in scene.marks}
    for arrow in scene.arrows:
        first, second = group[arrow.source], group[arrow.target]
        if first is not second:
            small, large = sorted((first, second), key=len)
            large.update(small)
            for mark in small:
                group[mark] = large
    parts: dict[int, Scene] = {}
    for mark in scene.marks:
        parts.setdefault(id(group[mark]), Scene()).marks.append(mark)
    for arrow in scene.arrows:
        parts[id(group[arrow.source])].arrows.append(arrow)
    return list(parts.values())


def side_by_side(scenes: Sequence[Scene]) -> Scene:
    """Join scenes as columns of a new scene."""
    whole = Scene()
    for scene in scenes:
        if whole.marks:
            whole.width += BETWEEN_COLUMNS
        scene.move(whole.width, 0.0)
        whole.marks += scene.marks
        whole.arrows += scene.arrows
        whole.width += scene.width
        whole.height = max(whole.height, scene.height)
    return whole


MOST_INSIDE = 12
"""Ops in a group that are drawn as a graph; more are listed."""
LIST_WIDTH = 260.0
CLOSENESS = 0.55
"""Distances in a group, as a part of those outside."""


def mark_of(node: Node, *, small: bool = False) -> Mark:
    """Return the mark of any node; the body of a fused node or a loop is drawn inside."""
    body = node.attrs.get("body")
    if not isinstance(body, Body):
        return node_mark(node, small=small)
    through = node.op.name == "fused"
    parts = [n for n in body.order() if _is_part(n, through)]
    inner = _listed(parts) if len(parts) > MOST_INSIDE else _nested(body, parts, through)
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
            if (source := source_of(given)) is not None:
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
    """Return the label of a small mark: the name between its constant inputs."""
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
