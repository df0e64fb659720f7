"""Charts as SVG: bars, heat maps, learning curves, parallel coordinates and thumbnails.

A bar chart has one row per value, with its interval and caption. A heat map has darker cells for
larger numbers. Learning curves plot the columns of a training history. Parallel coordinates have a
vertical axis for each quantity and a line for each case.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from caldera.base.formatting import shortened
from caldera.base.registry import optional_import
from caldera.draw.axis import ChartAxis, axis_of, whole_axis
from caldera.draw.line_chart import Line, LineChart, figure
from caldera.draw.page import Safe, inline_svg
from caldera.draw.svg import (
    BETTER,
    CARD,
    CATEGORICAL,
    LINE,
    QUIET,
    TEXT,
    UNCLEAR,
    WORSE,
    Picture,
    element,
    number,
    safe,
)

_ROW, _LEFT, _WIDTH, _RIGHT = 24.0, 300.0, 940.0, 170.0
_TICKS = 8


@dataclass(frozen=True)
class Bar:
    """A value with its interval and its label."""

    label: str
    value: float
    low: float
    high: float


def bar_chart(bars: Sequence[Bar], label: str, reference: float = 1.0) -> Safe:
    """Draw the bars for a page, with a vertical line at `reference`.

    A bar whose whole interval is above the reference is better; a bar whose interval is below is
    worse.

    >>> "a : b" in bar_chart([Bar("a : b", 1.5, 1.4, 1.6)], "ratios")
    True
    """
    axis = axis_of([0.0, reference, *(bar.high for bar in bars)], log=False, count=_TICKS)
    height = _ROW * len(bars) + 34
    parts = [_upright(axis, tick, height, LINE, "2 3") for tick in axis.ticks]
    parts.append(_upright(axis, reference, height, TEXT))
    parts += [
        _rimmed(written, _x(axis, tick), height - 8, "middle", QUIET)
        for tick, written in zip(axis.ticks, axis.labels(), strict=True)
    ]
    parts += [_bar(bar, axis, 10 + _ROW * place, reference) for place, bar in enumerate(bars)]
    return inline_svg(_WIDTH, height, *parts, class_="bars", label=label)


def _x(axis: ChartAxis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _upright(
    axis: ChartAxis, value: float, height: float, colour: str, dashes: str = "none"
) -> str:
    route = f"M{number(_x(axis, value))} 6V{number(height - 24)}"
    return element("path", d=route, stroke=colour, stroke_dasharray=dashes)


def _bar(bar: Bar, axis: ChartAxis, top: float, reference: float) -> str:
    colour = BETTER if bar.low > reference else WORSE if bar.high < reference else UNCLEAR
    middle = top + 6
    interval = f"M{number(_x(axis, bar.low))} {number(middle)}H{number(_x(axis, bar.high))}"
    end = _x(axis, max(bar.value, bar.high))
    shown = f"{bar.value:.2f}  [{bar.low:.2f}, {bar.high:.2f}]"
    return "".join(
        [
            _rimmed(bar.label, _LEFT - 10, middle + 4, "end", TEXT),
            element(
                "rect",
                x=_LEFT,
                y=top,
                width=_x(axis, bar.value) - _LEFT,
                height=12.0,
                fill=colour,
                rx=2,
                opacity=0.85,
            ),
            element("path", d=interval, stroke=TEXT, stroke_width=1.5),
            _rimmed(shown, end + 8, middle + 4, "start", TEXT),
        ]
    )


def _rimmed(content: str, x: float, y: float, anchor: str, fill: str, weight: int = 400) -> str:
    """Return text with a rim, which keeps it readable where lines cross it."""
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


_CELL, _EDGE, _FOOT = 22.0, 8.0, 26.0


def heat_map(cells: Sequence[Sequence[float]], label: str) -> Safe:
    """Return the cells as a picture of a page; the darkest is the largest number.

    >>> "differences" in heat_map([[0.0, 1.0]], "differences")
    True
    """
    rows, columns = len(cells), max((len(row) for row in cells), default=0)
    most = max((each for row in cells for each in row), default=0.0)
    parts = [
        element(
            "rect",
            element("title", safe(f"{value:.3g}")),
            x=_EDGE + _CELL * j,
            y=_EDGE + _CELL * i,
            width=_CELL,
            height=_CELL,
            fill=WORSE,
            fill_opacity=round(value / most if most else 0.0, 3),
            stroke=LINE,
        )
        for i, row in enumerate(cells)
        for j, value in enumerate(row)
    ]
    note = element(
        "text",
        safe(f"at most {most:.3g}"),
        x=_EDGE,
        y=_EDGE + _CELL * rows + 18,
        font_size=12,
        fill=QUIET,
    )
    width = max(2 * _EDGE + _CELL * columns, 160.0)
    height = _EDGE + _CELL * rows + _FOOT
    return inline_svg(width, height, *parts, note, class_="heat", label=label)


SIZE = 96


def thumbnail(sample: np.ndarray) -> str:
    """Return an image with 1 or 3 channels as a base64 PNG, or "" for other arrays.

    >>> thumbnail(np.zeros((1, 8, 8), "float32"))[:11], thumbnail(np.zeros(5))
    ('iVBORw0KGgo', '')
    """
    if sample.ndim != 3 or sample.shape[0] not in (1, 3) or min(sample.shape[1:]) < 2:
        return ""
    values = np.nan_to_num(sample.astype(np.float64))
    low, high = min(values.min(), 0.0), max(values.max(), 1.0)
    # The grey scale covers the range of the values, for bytes and for normalised images.
    grey = np.round(255 * (values - low) / (high - low)).astype(np.uint8)
    pillow = optional_import("PIL.Image", "pillow", "thumbnail")
    image = pillow.fromarray(grey[0] if len(grey) == 1 else grey.transpose(1, 2, 0))
    image.thumbnail((SIZE, SIZE))
    written = io.BytesIO()
    image.save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


_VALIDATION = "val_"
_NO_CURVE = ("seconds",)


def learning_curves(
    path: str | PathLike[str] | None,
    epochs: Sequence[int],
    columns: Mapping[str, Sequence[float]],
    title: str,
) -> Picture | Path:
    """Return a chart of the loss and the metrics over the epochs.

    With a path, written to that file.
    """
    return figure(path, learning_curve_charts(epochs, columns), title)


def learning_curve_charts(
    epochs: Sequence[int], columns: Mapping[str, Sequence[float]]
) -> list[LineChart]:
    """Return the loss and the metrics over the epochs."""
    return [_chart(name, group, epochs, columns) for name, group in _groups(columns).items()]


def _groups(columns: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """Group quantities into charts: the loss, all metrics from 0 to 1, and single others."""
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
    several = len(quantities) > 1
    for index, quantity in enumerate(quantities):
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
    """Return the line as one of several quantities; there is no room for the last value of each."""
    if "," in line.label:
        return line
    return replace(line, label=f"{quantity}, {line.label}", last=line.last if labelled else "")


def _with_best(line: Line) -> Line:
    """Return the line with a ring at its lowest point, unless that is its end."""
    points = [point for point in line.points if math.isfinite(point[1])]
    if len(points) < 2:
        return line
    best = min(points, key=lambda point: point[1])
    if best is points[-1]:
        return line
    label = f"{line.label}, best {short_number(best[1])} in epoch {best[0]:g}"
    return replace(line, label=label, ring=best)


def short_number(value: float) -> str:
    """Return a number as a label of a chart.

    >>> [short_number(each) for each in (0.123456, 12.345, 1.5e-7)]
    ['0.1235', '12.3', '1.5e-07']
    """
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.1e}"
    return f"{value:.4f}" if size < 10 else f"{value:.1f}"


_PLOT_WIDTH, _PLOT_HEIGHT = 1160.0, 380.0
_PLOT_LEFT, _PLOT_RIGHT, _PLOT_TOP, _PLOT_BOTTOM = 80.0, 60.0, 46.0, 46.0
_NONE = 24.0
"""Distance below an axis at which lines without a value pass."""
_LONGEST = 14
_FAINTEST, _STRONGEST = 0.06, 0.75


@dataclass(frozen=True)
class Coordinate:
    """A vertical axis and the value of each case on it (None for a missing value)."""

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
    """Draw a line for each case, with its strength from 0 to 1, and the chosen case on top.

    `names` are shown when the pointer rests on a line.

    >>> from caldera.draw.axis import axis_of
    >>> one = Coordinate("rate", axis_of([0.0, 1.0]), [0.2, 0.4])
    >>> "rate" in parallel_coordinates([one, one], [0.1, 1.0], ["0", "1"], "two trials", chosen=1)
    True
    """
    width, last = _PLOT_WIDTH - _PLOT_LEFT - _PLOT_RIGHT, len(coordinates) - 1
    places = [_PLOT_LEFT + width * (i / last if last else 0.5) for i in range(last + 1)]
    order = sorted(range(len(strengths)), key=lambda case: (case == chosen, strengths[case]))
    parts = [
        _case(coordinates, places, case, strengths[case], names[case], case == chosen)
        for case in order
    ]
    parts += map(_coordinate, places, coordinates)
    return inline_svg(_PLOT_WIDTH, _PLOT_HEIGHT, *parts, class_="wide", label=label)


def _height_of(axis: ChartAxis, value: float | None) -> float:
    bottom = _PLOT_HEIGHT - _PLOT_BOTTOM
    if value is None or not axis.shows(value):
        return bottom + _NONE
    return bottom - axis.place(value) * (bottom - _PLOT_TOP)


def _case(
    coordinates: Sequence[Coordinate],
    places: Sequence[float],
    case: int,
    strength: float,
    name: str,
    chosen: bool,
) -> str:
    heights = [_height_of(each.axis, each.values[case]) for each in coordinates]
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


def _coordinate(x: float, coordinate: Coordinate) -> str:
    bottom = _PLOT_HEIGHT - _PLOT_BOTTOM
    parts = [
        element("path", d=f"M{number(x)} {number(_PLOT_TOP)}V{number(bottom)}", stroke=QUIET),
        _rimmed(shortened(coordinate.title, 2 * _LONGEST), x, _PLOT_TOP - 18, "middle", TEXT, 600),
    ]
    axis = coordinate.axis
    for tick, written in zip(axis.ticks, axis.labels(), strict=True):
        y = _height_of(axis, tick)
        parts += [
            element("path", d=f"M{number(x - 4)} {number(y)}h8", stroke=QUIET),
            _rimmed(shortened(written, _LONGEST), x - 8, y + 4, "end", QUIET),
        ]
    if any(value is None or not axis.shows(value) for value in coordinate.values):
        parts += [
            element("circle", cx=x, cy=bottom + _NONE, r=3.0, fill=CARD, stroke=LINE),
            _rimmed("none", x - 8, bottom + _NONE + 4, "end", QUIET),
        ]
    return "".join(parts)
