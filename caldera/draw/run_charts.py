"""Charts of runs as SVG: learning curves and parallel coordinates.

Learning curves plot the columns of a training history. Parallel coordinates have a vertical axis
for each quantity and a line for each case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from caldera.base.formatting import shortened
from caldera.draw.axis import ChartAxis, axis_of, whole_axis
from caldera.draw.line_chart import Line, LineChart, figure
from caldera.draw.page import Safe, inline_svg
from caldera.draw.svg import CARD, CATEGORICAL, LINE, QUIET, TEXT, Picture, element, number, safe

_VALIDATION = "val_"
_NO_CURVE = ("seconds",)


def learning_curves(
    path: str | PathLike[str] | None,
    epochs: Sequence[int],
    columns: Mapping[str, Sequence[float]],
    title: str,
) -> Picture | Path:
    """A chart of the loss and the metrics over the epochs; with a path, written to that file."""
    return figure(path, learning_curve_charts(epochs, columns), title)


def learning_curve_charts(
    epochs: Sequence[int], columns: Mapping[str, Sequence[float]]
) -> list[LineChart]:
    """The loss and the metrics over the epochs."""
    return [_chart(name, group, epochs, columns) for name, group in _groups(columns).items()]


def _groups(columns: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """Quantities by chart: the loss, all metrics between 0 and 1, and each other one alone."""
    groups: dict[str, list[str]] = {"loss": ["loss"]}
    shares: list[str] = []
    for column in columns:
        quantity = column.removeprefix(_VALIDATION)
        if quantity in _NO_CURVE or quantity == "loss" or quantity in shares:
            continue
        if _between_0_and_1(quantity, columns):
            shares.append(quantity)
        else:
            groups[quantity] = [quantity]
    if shares:
        name = shares[0] if len(shares) == 1 else "metrics"
        groups = {"loss": groups.pop("loss"), name: shares, **groups}
    return groups


def _between_0_and_1(quantity: str, columns: Mapping[str, Sequence[float]]) -> bool:
    values = [*columns.get(quantity, ()), *columns.get(_VALIDATION + quantity, ())]
    return all(0 <= value <= 1 for value in values if math.isfinite(value))


def _chart(
    title: str,
    quantities: Sequence[str],
    epochs: Sequence[int],
    columns: Mapping[str, Sequence[float]],
) -> LineChart:
    lines: list[Line] = []
    legend: list[Line] = []
    for index, quantity in enumerate(quantities):
        several = len(quantities) > 1
        colour = CATEGORICAL[index % len(CATEGORICAL)]
        other = colour if several else CATEGORICAL[1]
        validated = _VALIDATION + quantity in columns
        if quantity in columns:
            lines.append(_line("training", epochs, columns[quantity], colour, dashed=validated))
        if validated:
            lines.append(
                _line("validation", epochs, columns[_VALIDATION + quantity], other, dashed=False)
            )
        if several:
            legend.append(Line(quantity, (), colour))
            lines = [_renamed(line, quantity, labelled=not line.dashed) for line in lines]
    if legend and any(line.dashed for line in lines):
        legend += [Line("training", (), QUIET, dashed=True), Line("validation", (), QUIET)]
    if title == "loss":
        lines = [_with_best(line) if line.label == "validation" else line for line in lines]
    seen = [y for line in lines for _, y in line.points]
    bounded = title != "loss" and all(_between_0_and_1(each, columns) for each in quantities)
    y_axis = axis_of(
        seen, log=None if title == "loss" else False, most=1.0 if bounded else math.inf
    )
    return LineChart(title, "epoch", lines, whole_axis(epochs), y_axis, legend=legend)


def _line(
    label: str, epochs: Sequence[int], values: Sequence[float], colour: str, *, dashed: bool
) -> Line:
    points = [(float(x), float(y)) for x, y in zip(epochs, values, strict=True)]
    finite = [y for _, y in points if math.isfinite(y)]
    return Line(label, points, colour, dashed, last=short_number(finite[-1]) if finite else "")


def _renamed(line: Line, quantity: str, *, labelled: bool) -> Line:
    """The line as one of several quantities; there is no room for the last value of each."""
    if "," in line.label:
        return line
    return replace(line, label=f"{quantity}, {line.label}", last=line.last if labelled else "")


def _with_best(line: Line) -> Line:
    """The line with a ring at its lowest point, unless that is its end."""
    points = [point for point in line.points if math.isfinite(point[1])]
    if len(points) < 2:
        return line
    best = min(points, key=lambda point: point[1])
    if best is points[-1]:
        return line
    label = f"{line.label}, best {short_number(best[1])} in epoch {best[0]:g}"
    return replace(line, label=label, ring=best)


def short_number(value: float) -> str:
    """A number as a label of a chart.

    >>> [short_number(each) for each in (0.123456, 12.345, 1.5e-7)]
    ['0.1235', '12.3', '1.5e-07']
    """
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.1e}"
    return f"{value:.4f}" if size < 10 else f"{value:.1f}"


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
    axis: ChartAxis
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


def _y(axis: ChartAxis, value: float | None) -> float:
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
