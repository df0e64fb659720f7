"""Parallel coordinates as SVG: an upright axis for each quantity, a line for each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.base.amounts import shortened
from caldera.draw.axis import Axis
from caldera.draw.html import Safe, inline_svg
from caldera.draw.palette import CARD, CATEGORICAL, LINE, QUIET, TEXT
from caldera.draw.svg import element, number, safe

_WIDTH, _HEIGHT = 1160.0, 380.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 80.0, 60.0, 46.0, 46.0
_NONE = 24.0
"""How far below an axis the lines of those pass that have no value on it."""
_LONGEST = 14
_FAINTEST, _STRONGEST = 0.06, 0.75


@dataclass(frozen=True)
class Coordinate:
    """One upright axis, and the value that each case has on it (None for those without)."""

    title: str
    axis: Axis
    values: Sequence[float | None]


def parallel_coordinates(
    coordinates: Sequence[Coordinate],
    strengths: Sequence[float],
    names: Sequence[str],
    label: str,
    chosen: int | None = None,
) -> Safe:
    """A line for each case, as strong as its strength from 0 to 1; the chosen one above all others.

    `names` are seen where a line is under the mouse.

    >>> from caldera.draw.axis import axis_of
    >>> one = Coordinate("rate", axis_of([0.0, 1.0]), [0.2, 0.4])
    >>> "rate" in parallel_coordinates([one, one], [0.1, 1.0], ["0", "1"], "two trials", chosen=1)
    True
    """
    places = [_x(index, len(coordinates)) for index in range(len(coordinates))]
    order = sorted(range(len(strengths)), key=lambda case: (case == chosen, strengths[case]))
    parts = [
        _case(coordinates, places, case, strengths[case], names[case], case == chosen)
        for case in order
    ]
    for x, coordinate in zip(places, coordinates, strict=True):
        parts.append(_upright(x, coordinate))
    return inline_svg(_WIDTH, _HEIGHT, *parts, class_="wide", label=label)


def _x(index: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index / (count - 1) if count > 1 else 0.5)


def _y(axis: Axis, value: float | None) -> float:
    bottom = _HEIGHT - _BOTTOM
    if value is None or not axis.shows(value):
        return bottom + _NONE
    return bottom - axis.place(value) * (bottom - _TOP)


def _case(
    coordinates: Sequence[Coordinate],
    places: Sequence[float],
    case: int,
    strength: float,
    name: str,
    chosen: bool,
) -> str:
    heights = [_y(each.axis, each.values[case]) for each in coordinates]
    points = zip(places, heights, strict=True)
    route = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    opacity = 1.0 if chosen else _FAINTEST + (_STRONGEST - _FAINTEST) * strength
    line = element(
        "path",
        d=route,
        fill="none",
        stroke=CATEGORICAL[1] if chosen else CATEGORICAL[0],
        stroke_width=2.5 if chosen else 1.2,
        stroke_opacity=f"{opacity:.2f}",
        stroke_linejoin="round",
    )
    return element("g", line, element("title", safe(name)))


def _upright(x: float, coordinate: Coordinate) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = [
        element("path", d=f"M{number(x)} {number(_TOP)}V{number(bottom)}", stroke=QUIET),
        _text(shortened(coordinate.title, 2 * _LONGEST), x, _TOP - 18, "middle", TEXT, 600),
    ]
    axis = coordinate.axis
    for tick, written in zip(axis.ticks, axis.labels(), strict=True):
        y = _y(axis, tick)
        parts.append(element("path", d=f"M{number(x - 4)} {number(y)}h8", stroke=QUIET))
        parts.append(_text(shortened(written, _LONGEST), x - 8, y + 4, "end", QUIET))
    if any(value is None or not axis.shows(value) for value in coordinate.values):
        parts.append(element("circle", cx=x, cy=bottom + _NONE, r=3.0, fill=CARD, stroke=LINE))
        parts.append(_text("none", x - 8, bottom + _NONE + 4, "end", QUIET))
    return "".join(parts)


def _text(content: str, x: float, y: float, anchor: str, fill: str, weight: int = 400) -> str:
    # The rim keeps it readable where lines cross it.
    return element(
        "text",
        safe(content),
        x=x,
        y=y,
        font_size=12,
        font_weight=weight,
        text_anchor=anchor,
        fill=fill,
        stroke=CARD,
        stroke_width=4,
        stroke_linejoin="round",
        paint_order="stroke",
    )
