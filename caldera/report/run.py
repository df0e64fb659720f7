"""The page about a run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from caldera.amounts import bytes_text, flops_text, seconds_text
from caldera.draw.html import Safe, card, facts, folded, section, table, tag, tiles
from caldera.draw.learning_curves import learning_curve_charts
from caldera.draw.line_chart import inline
from caldera.draw.page import document
from caldera.report.confusion import predictions_section
from caldera.report.costs import memory_section, time_section
from caldera.report.graph import graph_section
from caldera.train.tracking.history import History, shown_number
from caldera.train.tracking.run_folder import RunFolder
from caldera.train.tracking.run_record import RunRecord

_INDEX = {
    "curves": "Curves",
    "predictions": "Predictions",
    "network": "Network",
    "graph": "Graph",
    "time": "Time",
    "memory": "Memory",
    "settings": "Settings",
}


def run_page(run: RunFolder) -> str:
    """The text of the page about a run; nothing is computed anew."""
    record, history = run.record(), run.history()
    parts = [
        *_top(record, history),
        _curves(history),
        _epochs(history),
        predictions_section(record),
        _network(record),
        graph_section(record, run.graph()),
        time_section(record.profile, history),
        memory_section(record.profile),
        _settings(record),
        _footer(record),
    ]
    return document(f"{record.name}: a run of Caldera", _INDEX, parts)


def _top(record: RunRecord, history: History) -> Iterator[Safe]:
    yield tag("h1", record.name)
    model = record.settings.get("model")
    shape = " \u00d7 ".join(map(str, record.data.shape)) or "1"
    yield tag(
        "p",
        f"{f'{model}, ' if model else ''}trained on {record.data.train:,} samples of {shape}, "
        f"{_time(record.started)}",
        class_="quiet",
    )
    if record.stopped:
        yield tag("div", f"The run was ended: {record.stopped}.", class_="card note")
    yield tiles(_tiles(record, history))
    if record.selection:
        yield tag("p", f"{record.selection[:1].upper()}{record.selection[1:]}.", class_="quiet")


def _tiles(record: RunRecord, history: History) -> Iterator[tuple[str, str]]:
    for name, value in _results_first(record.results):
        shown = f"{value:.2%}" if name == "accuracy" else shown_number(value)
        yield f"{name} on test data", shown
    planned = record.settings.get("epochs")
    done = len(history.epochs)
    yield "epochs", f"{done} of {planned}" if isinstance(planned, int) else str(done)
    yield "training time", seconds_text(record.seconds)
    yield "parameters", f"{record.network.parameters:,}"
    if record.profile is not None and record.profile.seconds:
        yield "a training step", seconds_text(record.profile.seconds)


def _results_first(results: dict[str, float]) -> list[tuple[str, float]]:
    """The accuracy, if there is one, before everything else; not more than fit in a row."""
    return sorted(results.items(), key=lambda each: each[0] != "accuracy")[:4]


def _time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%d %B %Y, %H:%M:%S %Z").strip()
    except ValueError:
        return text


def _curves(history: History) -> Safe:
    """Loss and metrics over the epochs."""
    if not history.epochs:
        return section("curves", "Learning curves", note="No epoch was finished.")
    columns = {name: history[name] for name in history.numbers()}
    charts = learning_curve_charts([epoch + 1 for epoch in history.epochs], columns)
    return section("curves", "Learning curves", tag("div", *map(inline, charts), class_="columns"))


def _epochs(history: History) -> Safe:
    if not history.epochs:
        return Safe("")
    names = history.numbers()
    rows = [
        [str(row["epoch"] + 1), *(shown_number(row[name]) for name in names)]
        for row in history.rows
    ]
    whole = table(["epoch", *names], rows, numbers=range(len(names) + 1))
    return folded("All epochs", whole)


def _network(record: RunRecord) -> Safe:
    network = record.network
    rows = [
        (
            layer.path,
            layer.kind,
            " \u00d7 ".join(map(str, layer.shape)) or "1",
            f"{layer.parameters:,}",
            flops_text(layer.flops) if layer.flops else "\u2013",
            bytes_text(layer.nbytes),
        )
        for layer in network.layers
    ]
    head = ("layer", "kind", "output", "parameters", "work", "memory")
    note = (
        f"{network.parameters:,} parameters, {network.trainable:,} of them trained; "
        f"{flops_text(network.flops)} forward for one sample."
    )
    return section(
        "network", "Network", card("Layers, for one sample", table(head, rows, numbers=(3, 4, 5))),
        note=note,
    )  # fmt: skip


def _settings(record: RunRecord) -> Safe:
    data = record.data
    given = {
        "name": data.name,
        "samples to train": f"{data.train:,}",
        "samples to test": f"{data.test:,}",
        "shape of a sample": tuple(data.shape),
        "classes": len(data.class_names) or "values are predicted",
    }
    cards = [
        card("Settings", facts({k: _shown(v) for k, v in record.settings.items()})),
        card("Seeds", facts(record.seeds)),
        card("Data", facts(given)),
        *(card(title.capitalize(), facts(rows)) for title, rows in record.machine.items()),
    ]
    return section("settings", "Settings, seeds and versions", tag("div", *cards, class_="masonry"))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _footer(record: RunRecord) -> Safe:
    version = record.machine.get("caldera", {}).get("version", "")
    return tag("footer", f"Written by caldera report. The run was made with Caldera {version}.")
