"""Scenes to places: each connected part is laid out by itself, then the parts are packed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from caldera.draw.graph.layered_layout import arrange
from caldera.draw.graph.levels import Link, levels_of
from caldera.draw.graph.marks import Scene

BETWEEN_COLUMNS = 44.0
BETWEEN_PARTS = 30.0

Taken = tuple[float, float, float]
"""(left, right, bottom) of something that stands there."""


def place(scene: Scene, squeeze: float = 1.0) -> None:
    """Give everything in a connected scene its place."""
    index = {mark: i for i, mark in enumerate(scene.marks)}
    links = []
    for arrow in scene.arrows:
        exits, entries = arrow.source.exits, arrow.target.entries
        leaves = exits[arrow.output] if exits else 0.0
        enters = entries[arrow.input] if entries and arrow.input is not None else None
        links.append(Link(index[arrow.source], index[arrow.target], leaves, enters))
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
    """A scene with each connected part placed by itself, and the parts packed closely."""
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
                for left in _lefts(taken)
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


def _lefts(taken: list[Taken]) -> list[float]:
    return [0.0, *(right + BETWEEN_PARTS for _, right, _ in taken)]


def _free_below(left: float, width: float, taken: list[Taken]) -> float:
    """The height from which on nothing that is taken stands in the way."""
    below = [
        bottom + BETWEEN_PARTS
        for start, end, bottom in taken
        if start < left + width + BETWEEN_PARTS and left < end + BETWEEN_PARTS
    ]
    return max(below, default=0.0)


def _parts(scene: Scene) -> list[Scene]:
    """The connected parts of a scene, in the order of their first marks."""
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
    """Scenes as columns of one."""
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
