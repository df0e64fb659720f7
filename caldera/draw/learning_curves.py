"""Learning curves: the columns of a history as charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.line_chart import Line, LineChart, figure
from caldera.draw.palette import CATEGORICAL, QUIET
from caldera.draw.svg import Picture

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
