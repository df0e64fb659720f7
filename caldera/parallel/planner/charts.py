"""Charts over the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path

from caldera.base.amounts import seconds_text
from caldera.draw.axis import Axis, axis_of
from caldera.draw.line_chart import Line, LineChart, figure
from caldera.draw.palette import CATEGORICAL
from caldera.draw.svg import Picture
from caldera.parallel.planner.asynchronous_cost import AVERAGING, SERVER
from caldera.parallel.planner.data_parallel_cost import COMPRESSED, DATA, SHARDED
from caldera.parallel.planner.explanation import speed_up, times_text
from caldera.parallel.planner.hybrid_cost import HYBRID, PIPELINE, TENSOR
from caldera.parallel.planner.ranking import Ranking

_KINDS = {
    DATA: (0, False),
    SHARDED: (1, False),
    PIPELINE: (2, False),
    TENSOR: (3, False),
    HYBRID: (4, False),
    COMPRESSED: (0, True),
    SERVER: (1, True),
    AVERAGING: (2, True),
}
"""The colour of each family; those that need not equal one process are dashed. An ensemble makes
no model sooner, and is not shown."""
_IDEAL = CATEGORICAL[-1]


def plot(
    series: Mapping[str, Sequence[Ranking]], path: str | PathLike[str] | None
) -> Picture | Path:
    """The charts as a picture; with a path, written to an .svg file."""
    charts = [chart for name, each in series.items() for chart in scaling_charts(name, each)]
    ranks = next(iter(series.values()))[-1].setting.ranks
    return figure(path, charts, f"1 to {ranks} ranks, predicted")


def scaling_charts(scaling: str, series: Sequence[Ranking]) -> list[LineChart]:
    """Time a step and speed-up, with a line for the best of each family."""
    times: dict[str, list[tuple[float, float]]] = {}
    gains: dict[str, list[tuple[float, float]]] = {}
    for ranking in series:
        count = float(ranking.setting.ranks)
        for family, entry in ranking.families(ranking.usable()).items():
            if family in _KINDS:
                found = entry.prediction
                times.setdefault(family, []).append((count, found.seconds * 1e3))
                gains.setdefault(family, []).append((count, speed_up(ranking, found)))
    ranks = [float(ranking.setting.ranks) for ranking in series]
    x_axis = ranks_axis(ranks)
    ideal = Line("ideal", [(each, each) for each in ranks], _IDEAL)
    ends = _lines(times, lambda y: seconds_text(y / 1e3))
    return [
        LineChart(
            f"{scaling} scaling: ms a step",
            "ranks",
            ends,
            x_axis,
            axis_of([y for line in times.values() for _, y in line], log=True),
        ),
        LineChart(
            f"{scaling} scaling: times as fast as one rank",
            "ranks",
            [ideal, *_lines(gains, times_text)],
            x_axis,
            axis_of([*ranks, *(y for line in gains.values() for _, y in line)], log=True),
        ),
    ]


def _lines(
    points: Mapping[str, Sequence[tuple[float, float]]], shown: Callable[[float], str]
) -> list[Line]:
    return [
        Line(
            family,
            points[family],
            CATEGORICAL[colour],
            dashed=dashed,
            last=shown(points[family][-1][1]),
        )
        for family, (colour, dashed) in _KINDS.items()
        if family in points
    ]


def ranks_axis(ranks: Sequence[float]) -> Axis:
    """Powers of two, and the last number.

    >>> ranks_axis([1.0, 2.0, 4.0, 6.0]).ticks
    (1.0, 2.0, 4.0, 6.0)
    """
    low, high = min(ranks), max(ranks)
    if low == high:
        return Axis(low / 2, high * 2, (low,), log=True)
    skip = -(-len(ranks) // 12)
    return Axis(low, high, tuple(ranks[::-skip][::-1]), log=True)
