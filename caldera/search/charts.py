"""Tables and pictures of a study: history, learning curves, slices, Pareto fronts, coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations, pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.formatting import html_table, note, shortened, table_lines
from caldera.base.registry import optional_import
from caldera.draw.axis import ChartAxis, axis_of, whole_axis
from caldera.draw.charts import Bar, Coordinate, bar_chart, parallel_coordinates, short_number
from caldera.draw.line_chart import Line, LineChart, figure, figure_svg
from caldera.draw.page import Safe
from caldera.draw.svg import CATEGORICAL, QUIET, Picture
from caldera.search.analysis import Overview, ParameterColumn
from caldera.search.trial import DONE, FAILED, STOPPED, Trial

_LONGEST = 40


class TrialTable:
    """Rows with named columns, printed as a table.

    `study.table()` returns this type if pandas is not installed.

    >>> table = TrialTable([{"number": 0, "rate": 0.1}, {"number": 1, "rate": None}])
    >>> print(table)
    number  rate
         0   0.1
         1
    >>> table["number"], len(table)
    ([0, 1], 2)
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]
        self.columns = list(dict.fromkeys(name for row in rows for name in row))

    def __getitem__(self, name: str) -> list[Any]:
        """Return a column."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; the columns are {', '.join(self.columns)}")
        return [row.get(name) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def to_pandas(self) -> Any:
        """Return the table as a `pandas.DataFrame`."""
        pandas = optional_import("pandas", "pandas", "study.table")
        return pandas.DataFrame(self.rows, columns=self.columns)

    def __str__(self) -> str:
        cells = [[cell_text(row.get(name)) for name in self.columns] for row in self.rows]
        texts = [
            place
            for place, name in enumerate(self.columns)
            if any(isinstance(value, str) for value in self[name])
        ]
        return "\n".join(table_lines([self.columns, *cells], left=texts))

    __repr__ = __str__


def cell_text(value: Any) -> str:
    """Return a value as a cell of a table.

    >>> [cell_text(each) for each in (0.123456789, 5, None, "relu", float("nan"))]
    ['0.123457', '5', '', 'relu', '']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return shortened(f"{value:.6g}" if isinstance(value, float) else str(value), _LONGEST)


def table_of(rows: Sequence[dict[str, Any]]) -> Any:
    """Return the rows as a `pandas.DataFrame` where pandas is installed, else as a `TrialTable`."""
    table = TrialTable(rows)
    return table if find_spec("pandas") is None else table.to_pandas()


BEST, OTHERS, ENDED, LOST = CATEGORICAL[1], CATEGORICAL[0], QUIET, CATEGORICAL[5]
"""Colours of the best trial, and of trials that finished, were stopped early, or failed."""
MOST_AXES, MOST_SLICES = 10, 12
"""Maximum numbers of parameters drawn, most important first: larger charts are unreadable."""
_MOST_LINES = 400


def plot_study(overview: Overview, path: str | PathLike[str] | None) -> Picture | Path:
    """Return the pictures of a study as one; with a path, written to an .svg file."""
    charts = [history_chart(overview)]
    if len(overview.names) > 1:
        charts += front_charts(overview)[:1]
    curves = curves_chart(overview)
    if curves is not None:
        charts.append(curves)
    charts += slice_charts(overview)[: 6 - len(charts) if len(charts) < 6 else 0]
    return figure(path, charts, f"{overview.title}: {len(overview.trials)} trials")


def study_html(overview: Overview) -> str:
    """Return the notebook view of a study: best trial, history, and a table of all trials."""
    study = overview.study
    rows = study.rows()
    head = list(rows[0]) if rows else []
    cells = [[cell_text(row[name]) for name in head] for row in rows]
    known = study.best_or_none() is not None
    picture = figure_svg([history_chart(overview)]) if known else ""
    table = html_table(head, cells) if rows else ""
    return f"{note(repr(study), strong=True)}{picture}{table}"


# --- over the trials


def history_chart(overview: Overview, objective: int = 0) -> LineChart:
    """Return the value of each trial in their order, and the best so far."""
    name, mode = overview.names[objective], overview.modes[objective]
    points: dict[str, list[tuple[float, float]]] = {state: [] for state in _DOTS}
    for trial in overview.trials:
        points.get(trial.state, []).append((float(trial.number), _value(trial, objective)))
    lines = _dots(points)
    seen = [y for line in lines for _, y in line.points]
    climbed = list(_best_so_far(overview, objective))
    if climbed:
        last = short_number(climbed[-1][1])
        lines.append(Line("best so far", _step_line(climbed), BEST, last=last))
    numbers = [trial.number for trial in overview.trials]
    axes = whole_axis(numbers or [0]), _value_axis(seen, mode)
    return LineChart(f"{name}, {_preferred(mode)}", "trial", lines, *axes)


_DOTS = {DONE: ("done", OTHERS), STOPPED: ("stopped early", ENDED), FAILED: ("failed", LOST)}


def _dots(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[Line]:
    """Return a line of dots for each state of trials that has any."""
    shown = {state: found for state, found in points.items() if found}
    return [
        Line(_DOTS[state][0], found, _DOTS[state][1], dots_only=True)
        for state, found in shown.items()
    ]


def _preferred(mode: str) -> str:
    return "larger is better" if mode == "max" else "smaller is better"


def _value(trial: Trial, objective: int) -> float:
    return math.nan if trial.values is None else trial.values[objective]


def _best_so_far(overview: Overview, objective: int) -> Iterable[tuple[float, float]]:
    best = math.inf
    sign = -1.0 if overview.modes[objective] == "max" else 1.0
    for trial in overview.trials:
        value = sign * _value(trial, objective)
        if trial.is_feasible and value < best:
            best = value
            yield float(trial.number), sign * best
    if best < math.inf:
        yield float(trial.number), sign * best


def _step_line(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of a step line, in which a value holds until the next one."""
    found = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        found += [(x, before), (x, y)]
    return found


def _value_axis(values: Sequence[float], mode: str) -> ChartAxis:
    """Return an axis for values of an objective.

    Losses that span many decades are seen by logarithm.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    share = bool(len(finite)) and finite.min() >= 0 and finite.max() <= 1
    return axis_of(
        finite.tolist(), log=False if mode == "max" else None, most=1.0 if share else math.inf
    )


# --- learning curves


def curves_chart(overview: Overview) -> LineChart | None:
    """Return the learning curves of all trials in one chart.

    None if no trial reported a second step.
    """
    drawn = [trial for trial in overview.trials if trial.curve]
    if not any(len(overview.curve(trial)) > 1 for trial in drawn):
        return None
    best = overview.best
    # Limited to the best trials: more lines than this cannot be distinguished.
    drawn = sorted(drawn, key=lambda trial: overview.losses(trial)[0])[:_MOST_LINES]
    drawn = [trial for trial in reversed(drawn) if trial is not best]
    colours = {True: OTHERS, False: ENDED}
    lines = [
        Line(_caption(trial), overview.curve(trial), colours[trial.state == DONE], thin=True)
        for trial in sorted(drawn, key=lambda trial: trial.state == DONE)
    ]
    legend = [Line("done", (), OTHERS)] if any(t.state == DONE for t in drawn) else []
    if any(trial.state != DONE for trial in drawn):
        legend.append(Line("stopped or failed", (), ENDED))
    if best is not None and best.curve:
        points = overview.whole_curve(best)
        finite = [y for _, y in points if math.isfinite(y)]
        end = short_number(finite[-1]) if finite else ""
        lines.append(Line(f"best, trial {best.number}", points, BEST, last=end))
        legend.append(Line(f"best, trial {best.number}", (), BEST))
    steps = [int(x) for line in lines for x, _ in line.points]
    seen = [y for line in lines for _, y in line.points]
    mode = overview.modes[0] if overview.curve_name in overview.names else ""
    mode = mode or ("max" if "accuracy" in overview.curve_name else "min")
    return LineChart(
        f"{overview.curve_name} of all trials",
        "epoch",
        lines,
        whole_axis(sorted(set(steps))),
        _value_axis(seen, mode),
        legend=legend,
    )


def _caption(trial: Trial) -> str:
    values = "" if trial.values is None else ": " + ", ".join(f"{v:.5g}" for v in trial.values)
    return f"trial {trial.number}, {trial.state}{values}"


# --- over the parameters


def slice_charts(overview: Overview) -> list[LineChart]:
    """Return the first objective over each parameter, the most important first."""
    return [_slice(overview, column) for column in overview.by_importance()[:MOST_SLICES]]


def _slice(overview: Overview, column: ParameterColumn) -> LineChart:
    points: dict[str, list[tuple[float, float]]] = {STOPPED: [], DONE: []}
    for trial, place in zip(overview.trials, column.places, strict=True):
        value = _value(trial, 0)
        if place is not None and math.isfinite(value) and trial.state in points:
            points[trial.state].append((place, value))
    lines = _dots(points)
    best = overview.best
    at = None if best is None else column.places[overview.trials.index(best)]
    if best is not None and at is not None:
        spot = (at, _value(best, 0))
        lines.append(Line("best", [spot], BEST, dots_only=True, ring=spot))
    seen = [y for line in lines for _, y in line.points]
    return LineChart(
        f"{overview.names[0]} over {column.name}",
        column.name,
        lines,
        column.axis,
        _value_axis(seen, overview.modes[0]),
    )


def importance_bars(overview: Overview) -> Safe | None:
    """Return the importance of each parameter as bars; None if there are too few trials."""
    if not overview.importances:
        return None
    bars = [
        Bar(each.name, max(each.value, 0.0), max(each.low, 0.0), max(each.high, 0.0))
        for each in overview.importances[:MOST_SLICES]
    ]
    return bar_chart(bars, "importance of parameters", reference=0.0)


def coordinates_picture(overview: Overview) -> Safe | None:
    """Return a line for each trial through its parameters to its value; None if there is none."""
    shown = overview.valued()
    if not shown:
        return None
    index = {trial.number: place for place, trial in enumerate(overview.trials)}
    rows = [index[trial.number] for trial in shown]
    coordinates = [
        Coordinate(column.name, column.axis, [column.places[row] for row in rows])
        for column in overview.by_importance()[:MOST_AXES]
    ]
    for place, (name, mode) in enumerate(zip(overview.names, overview.modes, strict=True)):
        values = [_value(trial, place) for trial in shown]
        coordinates.append(Coordinate(name, _value_axis(values, mode), values))
    order = np.argsort(np.argsort([-overview.losses(trial)[0] for trial in shown]))
    strengths = [float(rank / max(len(shown) - 1, 1)) ** 2 for rank in order]
    chosen = next((i for i, trial in enumerate(shown) if trial is overview.best), None)
    return parallel_coordinates(
        coordinates,
        strengths,
        [_caption(trial) for trial in shown],
        "parameters and values of all trials",
        chosen,
    )


# --- several objectives


def front_charts(overview: Overview) -> list[LineChart]:
    """Return each pair of objectives against each other, with the trials that no other beats."""
    pairs = combinations(range(len(overview.names)), 2)
    return [_front(overview, x, y) for x, y in pairs][:6]


def _front(overview: Overview, x: int, y: int) -> LineChart:
    def places(trials: Iterable[Trial]) -> list[tuple[float, float]]:
        return [(_value(trial, x), _value(trial, y)) for trial in trials]

    shown = overview.valued()
    front = sorted(places(overview.front))
    others = places(trial for trial in shown if trial not in overview.front)
    lines = [Line("other trials", others, ENDED, dots_only=True)] if others else []
    # Only of two objectives is the front a line; of more it is a surface.
    flat = len(overview.names) == 2
    if front:
        lines.append(Line("front: no trial beats these", front, BEST, dots_only=not flat))
    xs, ys = [a for a, _ in others + front], [b for _, b in others + front]
    return LineChart(
        f"{overview.names[y]} over {overview.names[x]}",
        f"{overview.names[x]}, {_preferred(overview.modes[x])}",
        lines,
        axis_of(xs),
        _value_axis(ys, overview.modes[y]),
    )
