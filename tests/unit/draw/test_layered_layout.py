"""Layered drawings: any graph is placed without overlaps, and arrows lead around others."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from caldera.draw.graph.layered_layout import GraphEdge, NodePosition, arrange, levels_of
from tests.unit.draw.boxes import Box


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[GraphEdge]]:
    count = draw(st.integers(1, 25))
    sizes = [(draw(st.floats(4, 300)), draw(st.floats(0, 120))) for _ in range(count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.sets(pairs, max_size=2 * count))
    return sizes, [GraphEdge(min(pair), max(pair)) for pair in sorted(edges) if pair[0] != pair[1]]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(layouts())
def test_any_graph_is_placed_without_overlaps(
    layout: tuple[list[tuple[float, float]], list[GraphEdge]],
) -> None:
    sizes, links = layout
    levels = levels_of([width for width, _ in sizes], links)
    assert all(levels[link.source] < levels[link.target] for link in links)
    placed = arrange(sizes, links, levels)
    boxes = [
        Box(x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        for (x, y), (w, h) in zip(placed.centres, sizes, strict=True)
    ]
    whole = Box(0, 0, placed.width, placed.height)
    assert all(whole.holds(each) for each in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    for link, route in zip(links, placed.routes, strict=True):
        _check_route(route, boxes[link.source], boxes[link.target])
        others = [each for i, each in enumerate(boxes) if i not in (link.source, link.target)]
        assert not any(_passes_through(route, each) for each in others)


def _check_route(route: list[tuple[float, float]], source: Box, target: Box) -> None:
    assert abs(route[0][1] - source.bottom) < 1e-6
    assert abs(route[-1][1] - target.top) < 1e-6
    assert target.left <= route[-1][0] <= target.right
    heights = [y for _, y in route]
    assert all(after >= before - 1e-6 for before, after in pairwise(heights))


def _passes_through(route: list[tuple[float, float]], each: Box) -> bool:
    """Whether an upright part of the route leads through the box."""
    return any(
        abs(x - next_x) < 1e-9 and each.overlaps(Box(x - 1, y, x + 1, next_y))
        for (x, y), (next_x, next_y) in pairwise(route)
    )


def test_crossings_that_can_be_avoided_are() -> None:
    # A zigzag whose numbers are shuffled: 0 5 2 4 1 6 3.
    links = [
        GraphEdge(2, 4),
        GraphEdge(1, 4),
        GraphEdge(0, 5),
        GraphEdge(2, 5),
        GraphEdge(1, 6),
        GraphEdge(3, 6),
    ]
    placed = arrange([(40.0, 20.0)] * 7, links, [0, 0, 0, 0, 1, 1, 1])
    assert _crossings(placed, links) == 0


def _crossings(placed: NodePosition, links: list[GraphEdge]) -> int:
    ends = [(placed.centres[link.source][0], placed.centres[link.target][0]) for link in links]
    return sum(
        1 for i, (a, b) in enumerate(ends) for c, d in ends[i + 1 :] if (a - c) * (b - d) < 0
    )


def test_a_chain_hangs_straight() -> None:
    count = 12
    links = [GraphEdge(i, i + 1) for i in range(count - 1)]
    levels = levels_of([50.0] * count, links)
    placed = arrange([(50.0 + i, 20.0) for i in range(count)], links, levels)
    xs = [x for x, _ in placed.centres]
    assert max(xs) - min(xs) < 0.5


def test_wide_levels_are_spread() -> None:
    links = [GraphEdge(0, i) for i in range(1, 41)]
    levels = levels_of([100.0] * 41, links)
    per_level = {level: levels.count(level) for level in set(levels)}
    assert max(per_level.values()) <= 15
