"""Line charts as SVG: axes, lines, a legend, and the last value of each line.

A single chart fills a column of a page (`inline`). Several charts form a figure in a separate file
(`figure`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from caldera.draw.axis import ChartAxis
from caldera.draw.page import Safe, inline_svg
from caldera.draw.svg import (
    CARD,
    LINE,
    PAPER,
    QUIET,
    SANS,
    TEXT,
    Picture,
    Point,
    element,
    number,
    picture,
    picture_or_file,
    safe,
    text_width,
)

WIDTH, HEIGHT = 520.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 74.0, 66.0, 46.0
_ROW = 18.0
_SIZE = 12.0
_EDGE = 18.0
_KEY = 28.0
_DOTS_UP_TO = 40
_HINTS_UP_TO = 400
_MINUS = str.maketrans({"-": "\u2212"})
_GAP = 16.0
"""Distance between the charts of a figure, in pixels."""


@dataclass(frozen=True)
class Line:
    """Line of a chart; points with a non-finite y are gaps."""

    label: str
    points: Sequence[Point]
    colour: str
    dashed: bool = False
    dots_only: bool = False
    """True if the points are not connected."""
    last: str = ""
    """Text at the end of the line."""
    ring: Point | None = None
    """A point to draw a ring around: the best one, say."""
    thin: bool = False
    """True for one of many lines: pale, without dots, and named only in a tooltip."""
    bare: bool = False
    """True if the points are not measured values: a line without dots."""


@dataclass(frozen=True)
class LineChart:
    """Lines over the same two axes."""

    title: str
    x_label: str
    lines: Sequence[Line]
    x_axis: ChartAxis
    y_axis: ChartAxis
    legend: Sequence[Line] = ()
    """Lines in the legend; by default all lines of the chart."""
    note: tuple[float, str] | None = None
    """A vertical line at this x, with a text next to it."""


def draw(chart: LineChart) -> str:
    """Return the chart as SVG elements, `WIDTH` wide and `HEIGHT` high."""
    parts = [
        element("rect", width=WIDTH, height=HEIGHT, rx=8, fill=CARD, stroke=LINE),
        _heading(chart.title, _EDGE, 27.0, 14),
        _legend(chart),
        _y_ticks(chart),
        _x_ticks(chart.x_axis, chart.x_label),
    ]
    if chart.note is not None:
        parts.append(_note(chart))
    if any(not _visible(point, chart) for line in chart.lines for point in line.points):
        parts.append(_small("\u00d7 not finite", WIDTH - _EDGE, 27.0, "end"))
    parts += [_line(line, chart) for line in chart.lines]
    parts.append(_end_labels(chart))
    return "".join(parts)


def inline(chart: LineChart) -> Safe:
    """Return the chart as a picture that fills its column of a page, in the page's colours."""
    return inline_svg(WIDTH, HEIGHT, draw(chart), class_="chart", label=chart.title)


def figure(
    path: str | PathLike[str] | None, charts: Sequence[LineChart], title: str
) -> Picture | Path:
    """Draw the charts, two in a row.

    Return the picture, or with a path the path of the self-contained .svg file.
    """
    return picture_or_file(figure_svg(charts, title), path, "plot")


def figure_svg(charts: Sequence[LineChart], title: str = "") -> str:
    """Return the text of a picture of the charts."""
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / 2)
    head = 44.0 if title else _GAP
    width = columns * (WIDTH + _GAP) + _GAP
    height = head + rows * (HEIGHT + _GAP)
    parts = [element("rect", width=width, height=height, fill=PAPER)]
    if title:
        parts.append(_heading(title, _GAP + 4, 29.0, 16))
    for index, chart in enumerate(charts):
        x = _GAP + (index % 2) * (WIDTH + _GAP)
        y = head + (index // 2) * (HEIGHT + _GAP)
        parts.append(element("g", draw(chart), transform=f"translate({number(x)} {number(y)})"))
    return picture(width, height, *parts, font_family=SANS, role="img", aria_label=title or "chart")


# --- places


def _x(axis: ChartAxis, value: float) -> float:
    # A margin at both ends keeps lines off the frame.
    return _LEFT + 8 + axis.place(value) * (WIDTH - _LEFT - _RIGHT - 16)


def _y(chart: LineChart, value: float) -> float:
    return HEIGHT - _BOTTOM - chart.y_axis.place(value) * (HEIGHT - _top(chart) - _BOTTOM)


def _top(chart: LineChart) -> float:
    return _TOP + _ROW * (len(_legend_rows(chart)) - 1)


def _heading(content: str, x: float, y: float, size: int) -> str:
    return element("text", safe(content), x=x, y=y, font_size=size, font_weight=600, fill=TEXT)


def _small(content: str, x: float, y: float, anchor: str, fill: str = QUIET, **more: object) -> str:
    return element(
        "text",
        safe(content.translate(_MINUS)),
        x=x,
        y=y,
        font_size=_SIZE,
        text_anchor=anchor,
        fill=fill,
        **more,
    )


# --- what stands around the lines


def _legend_rows(chart: LineChart) -> list[list[tuple[float, Line]]]:
    """Return the legend entries with their positions, wrapped into rows."""
    rows: list[list[tuple[float, Line]]] = [[]]
    x = _EDGE
    for line in chart.legend or chart.lines:
        width = _KEY + text_width(line.label, _SIZE)
        if rows[-1] and x + width > WIDTH - _EDGE:
            rows.append([])
            x = _EDGE
        rows[-1].append((x, line))
        x += width + 16
    return rows


def _legend(chart: LineChart) -> str:
    parts = []
    for row, entries in enumerate(_legend_rows(chart)):
        y = 46 + _ROW * row
        for x, line in entries:
            if line.dots_only:
                parts.append(element("circle", cx=x + 11, cy=y, r=3.2, fill=line.colour))
            else:
                parts.append(_stroke(f"M{number(x)} {number(y)}h22", line))
            parts.append(_small(line.label, x + _KEY, y + 4, "start", TEXT))
    return "".join(parts)


def _y_ticks(chart: LineChart) -> str:
    axis = chart.y_axis
    parts = [_level(_y(chart, tick), opacity=0.45) for tick in axis.minor]
    for tick, label in zip(axis.ticks, axis.labels(), strict=True):
        y = _y(chart, tick)
        parts += [_level(y), _small(label, _LEFT - 8, y + 4, "end")]
    return "".join(parts)


def _level(y: float, **more: object) -> str:
    route = f"M{number(_LEFT)} {number(y)}H{number(WIDTH - _RIGHT)}"
    return element("path", d=route, stroke=LINE, **more)


def _x_ticks(axis: ChartAxis, label: str) -> str:
    bottom = HEIGHT - _BOTTOM
    frame = f"M{number(_LEFT)} {number(bottom)}H{number(WIDTH - _RIGHT)}"
    parts = [element("path", d=frame, stroke=QUIET)]
    for tick, written in zip(axis.ticks, axis.labels(), strict=True):
        x = _x(axis, tick)
        tick_line = element("path", d=f"M{number(x)} {number(bottom)}v4", stroke=QUIET)
        parts += [tick_line, _small(written, x, bottom + 17, "middle")]
    parts.append(_small(label, (_LEFT + WIDTH - _RIGHT) / 2, bottom + 36, "middle"))
    return "".join(parts)


def _note(chart: LineChart) -> str:
    assert chart.note is not None
    value, content = chart.note
    x = _x(chart.x_axis, value)
    top, bottom = _top(chart), HEIGHT - _BOTTOM
    upright = element(
        "path",
        d=f"M{number(x)} {number(top)}V{number(bottom)}",
        stroke=TEXT,
        stroke_dasharray="2 3",
    )
    # On the side with enough space.
    on_left = x + 8 + text_width(content, _SIZE) > WIDTH - _RIGHT
    label = _small(
        content, x - 6 if on_left else x + 6, top + 12, "end" if on_left else "start", TEXT
    )
    return upright + label


# --- the lines


def _stroke(route: str, line: Line) -> str:
    more: dict[str, object] = {"stroke_dasharray": "5 4"} if line.dashed else {}
    if line.thin:
        more["stroke_opacity"] = 0.45
    return element(
        "path",
        d=route,
        fill="none",
        stroke=line.colour,
        stroke_width=1 if line.thin else 2,
        stroke_linejoin="round",
        stroke_linecap="butt" if line.dashed else "round",
        **more,
    )


def _route(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def _line(line: Line, chart: LineChart) -> str:
    parts: list[str] = []
    runs = _runs(line, chart)
    if line.thin:
        # An isolated point becomes a line of zero length, whose round ends are a dot.
        route = "".join(_route([*run, run[-1]] if len(run) == 1 else run) for run in runs)
        return element("g", _stroke(route, line), element("title", safe(line.label)))
    if not line.dots_only:
        parts += [_stroke(_route(run), line) for run in runs]
    dots = line.dots_only or (len(line.points) <= _DOTS_UP_TO and not line.bare)
    for run in runs:
        # A point between two gaps has no line: only a dot shows it.
        if dots or len(run) == 1:
            parts += [element("circle", cx=x, cy=y, r=2.6, fill=line.colour) for x, y in run]
    if line.ring is not None:
        x, y = _x(chart.x_axis, line.ring[0]), _y(chart, line.ring[1])
        ring = {"fill": "none", "stroke": line.colour, "stroke_width": 1.6}
        parts.append(element("circle", cx=x, cy=y, r=5.5, **ring))
    parts += [_missing(point, line, chart) for point in line.points if not _visible(point, chart)]
    if len(line.points) <= _HINTS_UP_TO:
        parts += [_hint(point, line, chart) for point in line.points if _visible(point, chart)]
    return "".join(parts)


def _visible(point: Point, chart: LineChart) -> bool:
    return chart.y_axis.shows(point[1])


def _runs(line: Line, chart: LineChart) -> list[list[Point]]:
    """Yield the positions of points, in runs without gaps."""
    runs: list[list[Point]] = [[]]
    for point in line.points:
        if _visible(point, chart):
            runs[-1].append((_x(chart.x_axis, point[0]), _y(chart, point[1])))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _missing(point: Point, line: Line, chart: LineChart) -> str:
    """Draw a cross on the axis for a missing value."""
    x, y = _x(chart.x_axis, point[0]), HEIGHT - _BOTTOM
    cross = element(
        "path",
        d=f"M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8",
        stroke=line.colour,
        stroke_width=1.6,
    )
    return element("g", cross, _title(point, line, chart))


def _hint(point: Point, line: Line, chart: LineChart) -> str:
    """Draw an invisible area larger than the dot, which shows the value as a tooltip."""
    x, y = _x(chart.x_axis, point[0]), _y(chart, point[1])
    return element(
        "circle", _title(point, line, chart), cx=x, cy=y, r=7, fill="transparent", stroke="none"
    )


def _title(point: Point, line: Line, chart: LineChart) -> str:
    x = chart.x_axis.said(point[0])
    return element("title", safe(f"{line.label}, {chart.x_label} {x}: {point[1]:.6g}"))


def _end_labels(chart: LineChart) -> str:
    """Draw the last value of each line at its end, with overlapping labels separated."""
    ends: list[tuple[float, Line]] = []
    for line in chart.lines:
        shown = [point for point in line.points if _visible(point, chart)]
        if shown and line.last:
            ends.append((_y(chart, shown[-1][1]), line))
    ends.sort(key=lambda end: end[0])
    places = _apart([y for y, _ in ends], 15.0, _top(chart) + 2, HEIGHT - _BOTTOM - 2)
    return "".join(
        _small(line.last, WIDTH - _RIGHT + 8, y + 4, "start", line.colour, font_weight=600)
        for y, (_, line) in zip(places, ends, strict=True)
    )


def _apart(places: list[float], least: float, low: float, high: float) -> list[float]:
    """Move sorted positions as little as needed to a distance of `least` within the limits."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least if moved else low))
    limit = high
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - least
    return moved
