"""A page that compares runs: results side by side, curves over each other, settings that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caldera.base.arguments import require
from caldera.base.formatting import seconds_text
from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import Safe, card, document, section, table, tag
from caldera.draw.svg import CATEGORICAL
from caldera.train.report.run import shown_setting
from caldera.train.tracking.history import History, shown_number
from caldera.train.tracking.run_folder import RunFolder
from caldera.train.tracking.run_record import RunRecord

_SMALLER_IS_BETTER = ("loss", "mae", "mse", "error")
_INDEX = {"results": "Results", "curves": "Curves", "settings": "Settings"}
_MISSING = "\u2013"


@dataclass(frozen=True)
class _Run:
    label: str
    colour: str
    record: RunRecord
    history: History


def compare_page(runs: Sequence[RunFolder]) -> str:
    """Return the HTML page that compares several runs, without new computations."""
    require(len(runs), "compare_page", "at least one run")
    labels = _labels([run.path for run in runs])
    read = [
        _Run(label, CATEGORICAL[place % len(CATEGORICAL)], run.record(), run.history())
        for place, (label, run) in enumerate(zip(labels, runs, strict=True))
    ]
    parts = [
        tag("h1", f"{len(read)} runs compared"),
        tag("p", ", ".join(labels), class_="quiet"),
        _results(read),
        _curves(read),
        _settings(read),
        tag("footer", "Written by caldera report."),
    ]
    return document("Runs of Caldera, compared", _INDEX, parts)


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the names of the folders, with enough of their paths to be unique.

    >>> _labels([Path("a/out"), Path("b/out"), Path("c")])
    ['a/out', 'b/out', 'c']
    """
    found = [path.resolve().parts for path in paths]
    size = 1
    while size < max(map(len, found)) and len({each[-size:] for each in found}) < len(found):
        size += 1
    short = [each[-1] for each in found]
    return [
        each[-1] if short.count(each[-1]) == 1 else "/".join(each[-size:]).replace("//", "/")
        for each in found
    ]


# --- results


def _results(runs: Sequence[_Run]) -> Safe:
    names = list(dict.fromkeys(name for run in runs for name in run.record.results))
    alike = len({(run.record.data.name, run.record.data.test) for run in runs}) == 1
    best = {
        name: _best(name, [run.record.results.get(name) for run in runs]) if alike else None
        for name in names
    }
    head = ["run", "data", *names, "epochs", "training time", "a step", "parameters"]
    rows = []
    for run in runs:
        record = run.record
        results = [_result(record.results.get(name), best[name]) for name in names]
        step = seconds_text(record.profile.seconds) if record.profile else _MISSING
        rows.append(
            [
                run.label,
                record.name,
                *results,
                str(len(run.history.epochs)),
                seconds_text(record.seconds),
                step,
                f"{record.network.parameters:,}",
            ]
        )
    if alike:
        note = "On the test data of each run; the best of a column is bold."
    else:
        note = "The runs were tested on different data: their results cannot be compared."
    return section(
        "results",
        "Results",
        card("Results on test data", table(head, rows, numbers=range(2, len(head)))),
        note=note,
    )


def _best(name: str, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return None
    least = any(word in name for word in _SMALLER_IS_BETTER)
    return min(known) if least else max(known)


def _result(value: float | None, best: float | None) -> str:
    if value is None:
        return _MISSING
    text = shown_number(value)
    return tag("b", text) if value == best else text


# --- curves


def _curves(runs: Sequence[_Run]) -> Safe:
    trained = [run for run in runs if run.history.epochs]
    names = dict.fromkeys(name for run in trained for name in run.history.numbers())
    # Validation metrics are more informative than training metrics, where both exist.
    chosen = [name for name in names if name != "seconds" and f"val_{name}" not in names]
    charts = [inline(_chart(name, trained)) for name in chosen]
    rates = [(run, run.history.learning_rates) for run in trained]
    if any(len(set(each)) > 1 for _, each in rates):
        charts.append(
            inline(
                _lines(
                    "learning rate",
                    [(run, each) for run, each in rates if len(each) == len(run.history.epochs)],
                )
            )
        )
    note = "" if charts else "No run finished an epoch."
    return section("curves", "Learning curves", tag("div", *charts, class_="columns"), note=note)


def _chart(name: str, runs: Sequence[_Run]) -> LineChart:
    title = f"validation {name.removeprefix('val_')}" if name.startswith("val_") else name
    return _lines(title, [(run, run.history[name]) for run in runs if name in run.history])


def _lines(title: str, columns: Sequence[tuple[_Run, Sequence[float]]]) -> LineChart:
    few = len(columns) <= len(CATEGORICAL)
    lines = []
    for run, values in columns:
        epochs = [float(epoch + 1) for epoch in run.history.epochs]
        lines.append(
            Line(
                run.label,
                list(zip(epochs, map(float, values), strict=True)),
                run.colour,
                thin=not few,
                last=shown_number(float(values[-1])) if few else "",
            )
        )
    epochs_seen = sorted({epoch + 1 for run, _ in columns for epoch in run.history.epochs})
    seen = [y for line in lines for _, y in line.points]
    return LineChart(title, "epoch", lines, whole_axis(epochs_seen), axis_of(seen))


# --- settings


def _settings(runs: Sequence[_Run]) -> Safe:
    given: list[Mapping[str, object]] = [
        {**run.record.settings, **{f"seed: {k}": v for k, v in run.record.seeds.items()}}
        for run in runs
    ]
    names = dict.fromkeys(name for each in given for name in each)
    rows = []
    for name in names:
        values = [
            shown_setting(each[name]) if each.get(name) is not None else _MISSING for each in given
        ]
        if len(set(values)) > 1:
            rows.append([name, *values])
    if not rows:
        return section("settings", "Settings that differ", note="There are none.")
    head = ["setting", *(run.label for run in runs)]
    return section("settings", "Settings that differ", card("Settings", table(head, rows)))
