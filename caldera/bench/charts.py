"""Charts of a report: time against the number of layers, and bars of ratios."""

from __future__ import annotations

from caldera.bench.results import ANY, OURS, Entry, Report
from caldera.bench.statistics import Estimate
from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.bar_chart import Bar
from caldera.draw.line_chart import Line, LineChart
from caldera.draw.palette import CATEGORICAL

_MILLI = 1e3
_MOST_BARS = 40


def depth_chart(report: Report, work: str) -> LineChart | None:
    """The seed's figure: milliseconds a step over layers; None without layers."""
    entries = [each for each in report.entries if each.work == work and each.depth and each.rounds]
    depths = sorted({entry.depth for entry in entries})
    if len(depths) < 2:
        return None
    lines = []
    for place, label in enumerate(dict.fromkeys(entry.label for entry in entries)):
        points = [
            (float(entry.depth), _milliseconds(entry)) for entry in entries if entry.label == label
        ]
        points.sort()
        lines.append(
            Line(
                label,
                points,
                CATEGORICAL[place % len(CATEGORICAL)],
                dashed=place >= len(CATEGORICAL),
                last=f"{points[-1][1]:.3g}",
            )
        )
    return LineChart(
        "Milliseconds of a training step",
        "layers",
        lines,
        whole_axis(depths),
        axis_of([0.0, *(y for line in lines for _, y in line.points)]),
    )


def ratio_bars(report: Report, work: str) -> list[Bar]:
    """Caldera beside the best setting of each peer.

    Where that would be too many bars to read, there are those of the means of groups.
    """
    bars = [
        _bar(f"{entry.case}, {entry.way} : {each.against}", each.ratio)
        for entry in report.entries
        if entry.work == work and entry.framework == OURS
        for each in report.ratios(entry)
        if each.peer != ANY
    ]
    if len(bars) <= _MOST_BARS:
        return bars
    return [
        _bar(f"{mean.group}, {mean.setting} : {mean.peer}", mean.ratio)
        for mean in report.means()
        if mean.work == work and mean.peer != ANY
    ]


def _bar(label: str, ratio: Estimate) -> Bar:
    return Bar(label, ratio.value, ratio.low, ratio.high)


def _milliseconds(entry: Entry) -> float:
    found = entry.seconds()
    return found.value * _MILLI if found else float("nan")


def accuracy_chart(report: Report, work: str, case: str) -> LineChart | None:
    """Test accuracy over seconds, every training of every contestant; None without trainings."""
    entries = [each for each in report.cases(work)[case] if each.trainings]
    if not entries:
        return None
    lines = []
    for place, entry in enumerate(entries):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        for number, training in enumerate(entry.trainings):
            curve = training["metrics"]["curve"]["value"]
            points = list(zip(curve[::2], curve[1::2], strict=True))
            lines.append(Line(entry.label, points, colour, thin=number > 0))
    legend = [line for line in lines if not line.thin]
    times = [x for line in lines for x, _ in line.points]
    heights = [y for line in lines for _, y in line.points]
    return LineChart(
        f"{case}: test accuracy",
        "seconds",
        lines,
        axis_of([0.0, *times]),
        axis_of(heights),
        legend=legend,
    )


def scaling_chart(report: Report, work: str) -> LineChart | None:
    """Seconds to the accuracy over the number of ranks, by contestant and scheme."""
    entries = [each for each in report.entries if each.work == work and each.scheme and each.rounds]
    ranks = sorted({entry.ranks for entry in entries})
    if len(ranks) < 2:
        return None
    lines = []
    names = dict.fromkeys(f"{entry.label}, {entry.scheme}" for entry in entries)
    for place, name in enumerate(names):
        own = [entry for entry in entries if f"{entry.label}, {entry.scheme}" == name]
        points = sorted((float(each.ranks), _milliseconds(each) / _MILLI) for each in own)
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        lines.append(Line(name, points, colour, dots_only=len(points) == 1))
    return LineChart(
        "Seconds to the accuracy",
        "ranks",
        lines,
        whole_axis(ranks),
        axis_of([0.0, *(y for line in lines for _, y in line.points)]),
    )
