"""Reports of a benchmark run: tables of text, HTML, and MLPerf's log format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from caldera.base.registry import optional_import
from caldera.bench.contestants import ALL_PEERS
from caldera.bench.formatting import columns_of, facts, mean_text, row, title_of
from caldera.bench.honesty.claims import LEVELS
from caldera.bench.results import ANY, OURS, Report, ResultEntry
from caldera.bench.statistics import Estimate
from caldera.bench.workloads import WORKLOADS
from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.charts import Bar, bar_chart
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import Safe, document, scrolled, section, tag
from caldera.draw.svg import CATEGORICAL
from caldera.errors import ConfigError

RULESET = "4.0.0"
"""The rules that the lines are written for: mlperf_logging.compliance_checker --ruleset 4.0.0."""
_BENCHMARK = "resnet"
_POINT, _START, _STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


def log_text(report: Report) -> str:
    """Return the first training of Caldera's in a report, as lines.

    >>> log_text(Report({}, {}, {}))
    Traceback (most recent call last):
    caldera.errors.ConfigError: --mllog: expected a training to an accuracy, got none;
    caldera bench training has some
    """
    entries = [each for each in report.entries if each.trainings]
    ours = [each for each in entries if each.framework == "caldera"] or entries
    if not ours:
        raise ConfigError.build(
            "--mllog",
            expected="a training to an accuracy",
            got="none",
            hint="caldera bench training has some",
        )
    return "\n".join(training_lines(ours[0], 0, report.machine)) + "\n"


def training_lines(entry: ResultEntry, number: int, machine: dict[str, Any]) -> list[str]:
    """Return the log lines of a training of an entry."""
    training = entry.trainings[number]
    start = int(training["began"] * 1e3)
    log = _Log(start - int((entry.first_cold_s or 0.0) * 1e3) - 2)
    about = {"network": entry.case, "framework": entry.label, "submission": False}
    log.add_all(
        ("cache_clear", True),
        ("init_start", None, {}, _START),
        ("submission_org", "none"),
        ("submission_platform", machine.get("cpu", "unknown")),
        ("submission_division", "open"),
        ("submission_status", "research"),
        ("submission_benchmark", _BENCHMARK, about),
        ("seed", entry.seeds[number]),
        ("global_batch_size", entry.batch),
        ("train_samples", training["samples"]),
        ("eval_samples", training["test samples"]),
    )
    log.at(start - 1)
    log.add("init_stop", None, kind=_STOP)
    log.at(start)
    log.add("run_start", None, kind=_START)
    curve = training["metrics"]["curve"]["value"]
    for epoch, (seconds, accuracy) in enumerate(zip(curve[::2], curve[1::2], strict=True), 1):
        place = {"epoch_num": epoch}
        log.add("epoch_start", None, place, _START)
        log.at(start + int(seconds * 1e3))
        log.add_all(
            ("epoch_stop", None, place, _STOP),
            ("eval_start", None, place, _START),
            ("eval_accuracy", accuracy, place),
            ("eval_stop", None, place, _STOP),
        )
    reached = training["accuracy"] >= (entry.target or 0.0)
    log.add("run_stop", None, {"status": "success" if reached else "aborted"}, _STOP)
    return log.lines


class _Log:
    """Lines of a MLPerf log with given time stamps, in milliseconds."""

    def __init__(self, now: int) -> None:
        self.lines: list[str] = []
        self._now = now

    def at(self, now: int) -> None:
        self._now = max(self._now, now)

    def add_all(self, *lines: tuple[Any, ...]) -> None:
        for line in lines:
            self.add(*line)

    def add(
        self, key: str, value: Any, metadata: dict[str, Any] | None = None, kind: str = _POINT
    ) -> None:
        line = {
            "namespace": "",
            "time_ms": self._now,
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata or {},
        }
        self.lines.append(f":::MLLOG {json.dumps(line)}")


_MILLI = 1e3
_MOST_BARS = 40


def depth_chart(report: Report, work: str) -> LineChart | None:
    """Return the paper's figure: milliseconds per step over layers; None without layers."""
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
    """Return bars that compare Caldera with the best setting of each peer.

    If there are too many bars to read, the means of groups are shown instead.
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


def _milliseconds(entry: ResultEntry) -> float:
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
    """Return seconds to the accuracy over the number of ranks, by contestant and scheme."""
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


_EXPLAINED = (
    "Times are medians over all turns; the interval is a 95% bootstrap over turns. A ratio is "
    "the time of a peer's best setting divided by Caldera's. Memory is the peak of the "
    "process, and in brackets the part allocated after importing. On a GPU a ratio is to the "
    "best setting of the same precision or a stricter one, and memory is the GPU's: the peak "
    "in the framework's own books, and in brackets the memory that its process holds. Every "
    "contestant runs in a separate process, and one computes at a time, in turns. A result "
    "that differs from PyTorch (eager) is struck out and does not count."
)


def page(report: Report) -> str:
    """Return the text of the page."""
    machine = report.machine
    works = report.works()
    device = machine.get("card", machine["cpu"])
    levels = {
        level: list(dict.fromkeys(each.work for each in report.entries if each.level == level))
        for level in (*LEVELS, "")
    }
    index = {work: work for work in works}
    means = report.means()
    told = []
    if means:
        # What most people came for.
        index = {"means": "Geometric means", **index}
        told.append(section("means", "Geometric means", _list(map(mean_text, means))))
    parts = [
        tag("h1", "caldera bench"),
        tag("p", f"{device} · {machine['threads']} threads · {machine['time']}", class_="quiet"),
        _list(facts(report)),
        *told,
    ]
    for level, members in levels.items():
        if members and level:
            number = LEVELS.index(level)
            parts.append(tag("h2", f"Level {number}: {level}", class_="level"))
        parts += [_work(report, work) for work in members]
    parts.append(tag("footer", _EXPLAINED))
    return document("caldera bench", index, parts)


def _work(report: Report, work: str) -> Safe:
    note = WORKLOADS[work].summary if work in WORKLOADS else ""
    return section(work, work, *_charts(report, work), *_tables(report, work), note=note)


def _charts(report: Report, work: str) -> Iterator[Safe]:
    depths = depth_chart(report, work)
    if depths is not None:
        yield tag("div", inline(depths), class_="columns")
    curves = [accuracy_chart(report, work, case) for case in report.cases(work)]
    drawn = [inline(each) for each in (scaling_chart(report, work), *curves) if each is not None]
    if drawn:
        yield tag("div", *drawn, class_="columns")
    bars = ratio_bars(report, work)
    if bars:
        yield scrolled(bar_chart(bars, "ratios"), "chart of ratios", class_="card wider")


def _tables(report: Report, work: str) -> Iterator[Safe]:
    for case, entries in report.cases(work).items():
        title = title_of(case, entries)
        if title != work:
            yield tag("h3", title, class_="case")
        yield _table(report, entries)


def _table(report: Report, entries: Sequence[ResultEntry]) -> Safe:
    columns = columns_of(entries)
    rows = []
    for entry in entries:
        # No line is broken inside a number such as 3e-07.
        cells = [tag("td", cell.replace("e-", "e\u2011")) for cell in row(report, entry, columns)]
        rows.append(tag("tr", *cells, class_=_class_of(entry)))
    for peer, hint in report.missing.items():
        text = f"{ALL_PEERS.get(peer, peer)} is not installed: {hint}"
        cells = [tag("td", peer), tag("td", text, colspan=len(columns) - 1)]
        rows.append(tag("tr", *cells, class_="missing"))
    head = tag("thead", tag("tr", *[tag("th", column, scope="col") for column in columns]))
    whole = tag("table", head, tag("tbody", *rows))
    return scrolled(whole, f"times of {len(entries)} contestants", class_="card results")


def _class_of(entry: ResultEntry) -> str:
    if entry.error:
        return "failed"
    if entry.rounds and not entry.counts:
        return "out"
    return "ours" if entry.framework == OURS else ""


def _list(lines: Iterable[str]) -> Safe:
    return tag("ul", *[tag("li", line) for line in lines], class_="quiet")


_NARROWEST = 200
"""Columns that a table gets where the output is not a terminal."""


def print_report(report: Report) -> None:
    """Print tables, one for each case, and the means."""
    if find_spec("rich") is None:
        # Without rich: a machine with a GPU may have only the packages needed to compute.
        print("\n".join(plain_lines(report)))
        return
    console, box = _console(), optional_import("rich.box", "rich", "caldera bench").SIMPLE_HEAD
    for line in facts(report):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    for title, entries in _table_tables(report):
        columns = columns_of(entries)
        table = optional_import("rich.table", "rich", "caldera bench").Table(
            title=title, title_justify="left", title_style="bold", box=box
        )
        for column in columns:
            table.add_column(column, overflow="fold")
        for entry in entries:
            style = "bold" if entry.framework == OURS else ""
            if entry.rounds and not entry.counts:
                style = "dim strike"
            table.add_row(*_plain(row(report, entry, columns)), style=style)
        console.print()
        console.print(table)
    means = report.means()
    if means:
        console.print()
    for mean in means:
        console.print(mean_text(mean), highlight=False, soft_wrap=True, markup=False)


def plain_lines(report: Report) -> Iterator[str]:
    """Yield the report as lines of text, with cells of tables separated by bars."""
    yield from facts(report)
    for title, entries in _table_tables(report):
        columns = columns_of(entries)
        yield ""
        yield title
        yield " | ".join(columns)
        for entry in entries:
            yield " | ".join(row(report, entry, columns))
    yield from (mean_text(mean) for mean in report.means())


def _table_tables(report: Report) -> Iterator[tuple[str, Sequence[ResultEntry]]]:
    """Yield the titles and entries of all tables."""
    for work in report.works():
        for case, entries in report.cases(work).items():
            title = title_of(case, entries)
            yield title if work == case else f"{work}: {title}", entries


def _console() -> Any:
    console = optional_import("rich.console", "rich", "caldera bench").Console()
    if not console.is_terminal:
        console.width = max(console.width, _NARROWEST)
    return console


def _plain(cells: list[str]) -> list[Any]:
    """Return cells with brackets escaped, so that they are not markup."""
    text = optional_import("rich.text", "rich", "caldera bench").Text
    return [text(cell) for cell in cells]
