"""Pictures of a report: time against the number of layers, and bars of ratios."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.bench.results import ANY, OURS, Entry, Report
from caldera.bench.statistics import Estimate
from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.figure import chart
from caldera.draw.line_chart import CATEGORICAL, Line, LineChart
from caldera.draw.palette import CARD, LINE, QUIET, TEXT
from caldera.draw.svg import SANS, element, number, safe

_ROW, _LEFT, _WIDTH, _RIGHT = 24.0, 300.0, 940.0, 170.0
_MILLI = 1e3
_MOST_BARS = 40

Bar = tuple[str, float, float, float]
"""What it is about, the ratio, and the ends of its interval."""


def depth_chart(report: Report, work: str) -> str:
    """The seed's figure as SVG: milliseconds a step over layers; empty without layers."""
    entries = [each for each in report.entries if each.work == work and each.depth and each.rounds]
    depths = sorted({entry.depth for entry in entries})
    if len(depths) < 2:
        return ""
    lines = []
    for place, label in enumerate(dict.fromkeys(entry.label for entry in entries)):
        points = [
            (float(entry.depth), _milliseconds(entry)) for entry in entries if entry.label == label
        ]
        points.sort()
        lines.append(
            Line(
                label, points, CATEGORICAL[place % len(CATEGORICAL)],
                dashed=place >= len(CATEGORICAL), last=f"{points[-1][1]:.3g}",
            )
        )  # fmt: skip
    panel = LineChart(
        "Milliseconds of a training step",
        "layers",
        lines,
        whole_axis(depths),
        axis_of([0.0, *(y for line in lines for _, y in line.points)]),
    )
    return chart([panel], "")


def ratio_chart(rows: Sequence[Bar]) -> str:
    """Bars of ratios with their intervals as SVG; the upright line is where both are as fast."""
    if not rows:
        return ""
    most = max(1.25, *(high for _, _, _, high in rows))
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    height = _ROW * len(rows) + 34
    parts = []
    for tick in _ticks(most):
        x = _LEFT + scale * tick
        strong = tick == 1
        parts.append(
            element(
                "path", d=f"M{number(x)} 6V{number(height - 24)}",
                stroke=TEXT if strong else LINE, stroke_dasharray="" if strong else "2 3",
            )
        )  # fmt: skip
        parts.append(_text(f"{tick:g}", x, height - 8, "middle", QUIET))
    for place, (label, value, low, high) in enumerate(rows):
        parts.append(_bar(label, value, low, high, 10 + _ROW * place, scale))
    return element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", width=_WIDTH, height=height,
        viewBox=f"0 0 {number(_WIDTH)} {number(height)}", font_family=SANS, role="img",
        aria_label="ratios",
    )  # fmt: skip


def ratio_rows(report: Report, work: str) -> list[Bar]:
    """What `ratio_chart` draws of a work: Caldera beside the best setting of each peer.

    Where that would be too many bars to read, there are those of the means of groups.
    """
    rows = [
        (f"{entry.case}, {entry.way} : {each.against}", *_ends(each.ratio))
        for entry in report.entries
        if entry.work == work and entry.framework == OURS
        for each in report.ratios(entry)
        if each.peer != ANY
    ]
    if len(rows) <= _MOST_BARS:
        return rows
    return [
        (f"{mean.group}, {mean.setting} : {mean.peer}", *_ends(mean.ratio))
        for mean in report.means()
        if mean.work == work and mean.peer != ANY
    ]


def _ends(ratio: Estimate) -> tuple[float, float, float]:
    return ratio.value, ratio.low, ratio.high


def _bar(label: str, value: float, low: float, high: float, top: float, scale: float) -> str:
    colour = CATEGORICAL[2] if low > 1 else CATEGORICAL[1] if high < 1 else CATEGORICAL[6]
    middle = top + 6
    ends = f"M{number(_LEFT + scale * low)} {number(middle)}H{number(_LEFT + scale * high)}"
    return "".join(
        [
            _text(label, _LEFT - 10, middle + 4, "end", TEXT),
            element(
                "rect", x=_LEFT, y=top, width=scale * value, height=12.0, fill=colour, rx=2,
                opacity=0.85,
            ),
            element("path", d=ends, stroke=TEXT, stroke_width=1.5),
            _text(
                f"{value:.2f}  [{low:.2f}, {high:.2f}]", _LEFT + scale * max(value, high) + 8,
                middle + 4, "start", TEXT,
            ),
        ]
    )  # fmt: skip


def _text(content: str, x: float, y: float, anchor: str, fill: str) -> str:
    # The rim keeps it readable where it crosses a line.
    return element(
        "text", safe(content), x=x, y=y, font_size=12, text_anchor=anchor, fill=fill,
        stroke=CARD, stroke_width=4, paint_order="stroke",
    )  # fmt: skip


def _ticks(most: float) -> list[float]:
    step = 0.25 if most <= 2 else 0.5 if most <= 4 else 1.0 if most <= 10 else 10.0
    return sorted({1.0, *(step * place for place in range(int(most / step) + 1))})


def _milliseconds(entry: Entry) -> float:
    found = entry.seconds()
    return found.value * _MILLI if found else float("nan")
