"""Report page of a run, with its learning curves and remarks on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import mean

from caldera.base.formatting import bytes_text, flops_text, seconds_text
from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.charts import learning_curve_charts
from caldera.draw.graph.render import LayerBlock, block_picture
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import (
    Safe,
    card,
    document,
    facts,
    folded,
    scrolled,
    section,
    table,
    tag,
    tiles,
)
from caldera.draw.svg import CATEGORICAL
from caldera.train.report.advice import names_for
from caldera.train.report.predictions import classes_parts, columns_section, values_parts
from caldera.train.report.step import graph_section, memory_section, time_section
from caldera.train.tracking.history import History, shown_number
from caldera.train.tracking.leaderboard import leader_rows
from caldera.train.tracking.run_folder import RunFolder
from caldera.train.tracking.run_record import RunRecord

_RANDOM = {"Dropout": "dropout", "Dropout2D": "dropout", "GaussianNoise": "noise"}
_WORSE = 1.05
"""Ratio of the last to the lowest validation loss from which the loss counts as risen."""


def curves_section(record: RunRecord, history: History) -> Safe:
    """Return loss, metrics and learning rate over the epochs."""
    if not history.epochs:
        return section("curves", "Learning curves", note="No epoch was finished.")
    epochs, columns = history.curves()
    charts = learning_curve_charts(epochs, columns) + _rate(history, epochs)
    said = [tag("p", words) for words in _remarks(record, history)]
    notes = [tag("div", *said, class_="card note")] if said else []
    return section(
        "curves",
        "Learning curves",
        tag("div", *map(inline, charts), class_="columns"),
        *notes,
        _epochs(history),
    )


def _rate(history: History, epochs: list[int]) -> list[LineChart]:
    """Return a chart of the learning rate, if it changed."""
    rates = history.learning_rates
    if len(rates) != len(epochs) or len(set(rates)) < 2:
        return []
    points = [(float(epoch), rate) for epoch, rate in zip(epochs, rates, strict=True)]
    line = Line("at the end of the epoch", points, CATEGORICAL[3], last=f"{rates[-1]:.2g}")
    return [LineChart("learning rate", "epoch", [line], whole_axis(epochs), axis_of(rates))]


def _epochs(history: History) -> Safe:
    head, *rows = history.table()
    return folded("All epochs", table(head, rows, numbers=range(len(head))))


def _remarks(record: RunRecord, history: History) -> Iterator[str]:
    """Yield an expert's remarks on the learning curves."""
    if "loss" not in history or "val_loss" not in history:
        return
    train, held = history["loss"], history["val_loss"]
    if not all(map(math.isfinite, (*train, *held))):
        return
    best = min(range(len(held)), key=held.__getitem__)
    if len(held) > 2 and _overfits(train, held, best):
        advice = names_for(record)
        yield (
            f"The validation loss is lowest after epoch {history.epochs[best] + 1} "
            f"({shown_number(held[best])}) and rises from there to {shown_number(held[-1])}, while "
            "the training loss still falls: the network overfits. Stop earlier "
            f"({advice.early_stopping}), add dropout ({advice.dropout}) or weight decay "
            f"({advice.weight_decay}), or use more data."
        )
    if train[-1] > held[-1]:
        yield f"The training loss is above the validation loss. {_why_above(record)}"


def _overfits(train: Sequence[float], held: Sequence[float], best: int) -> bool:
    """Return True if the last epochs are worse than the best one, with smaller training losses."""
    last = range(max(best + 1, len(held) - 3), len(held))
    worse = [held[i] > _WORSE * held[best] for i in last]
    return bool(worse) and all(worse) and mean(train[i] for i in last) < train[best]


def _why_above(record: RunRecord) -> str:
    kinds = {_RANDOM[layer.kind] for layer in record.network.layers if layer.kind in _RANDOM}
    later = (
        "It is also a mean over the epoch, during which the network improved; the validation loss "
        "is measured at its end."
    )
    if kinds:
        return (
            f"This is expected: {' and '.join(sorted(kinds))} makes training harder and is off in "
            f"validation. {later}"
        )
    return (
        "This is no error: the training loss is a mean over the epoch, during which the network "
        "improved; the validation loss is measured at its end. Augmented or mixed samples, "
        "label smoothing and sample weights make it larger as well."
    )


_ENGINEERING = "For engineers: how the training step runs on this machine."


def run_page(run: RunFolder) -> str:
    """Return the HTML page of a run, without new computations."""
    record, history = run.record(), run.history()
    people = {
        "curves": ("Curves", curves_section(record, history)),
        "predictions": ("Predictions", _predictions(record)),
        "data": ("Data", _data(record)),
        "columns": ("Columns", _columns(record)),
        "network": ("Network", _network(record)),
        "settings": ("Settings", _settings(record)),
    }
    engineers = {
        "graph": ("Graph", graph_section(record, run.graph())),
        "time": ("Time", time_section(record.profile, history)),
        "memory": ("Memory", memory_section(record.profile)),
    }
    index = {anchor: title for anchor, (title, part) in (people | engineers).items() if part}
    version = record.machine.get("caldera", {}).get("version", "")
    parts = [
        *_top(record, history),
        *(part for _, part in people.values()),
        tag("p", _ENGINEERING, class_="divider"),
        *(part for _, part in engineers.values()),
        tag("footer", f"Written by caldera report. The run was made with Caldera {version}."),
    ]
    return document(f"{record.name}: a run of Caldera", index, parts)


def _predictions(record: RunRecord) -> Safe:
    """Return the section that compares predictions on the test data with the truth."""
    where = f"On the {record.data.test:,} samples of the test data."
    if record.confusion:
        parts = classes_parts(record)
    elif record.predictions:
        parts = values_parts(record.predictions, record.values, names_for(record))
    else:
        parts, where = [], "The run has no predictions on test data."
    if record.leaderboard:
        head, *rows = leader_rows(record.leaderboard, len(record.data.class_names))
        shown = table(head, rows, numbers=(1, 2, 3))
        note = (
            "The constant answer ignores all columns. A model that is not better than a linear one "
            "has learnt nothing more. Simple models have their usual settings."
        )
        parts = [card("Leaderboard", shown, note=note), *parts]
    return section("predictions", "Predictions", *parts, note=where)


def _data(record: RunRecord) -> Safe:
    """Return the findings of the data doctor."""
    found = record.data
    rows = [("fault", each) for each in found.faults] + [("remark", each) for each in found.remarks]
    if not rows:
        return Safe("")
    note = (
        "Faults make results better or worse than they would be on new data; mend the table or "
        "leave columns out, and train again. Remarks need no action."
    )
    return section("data", "Data", card("Findings", table(("", "finding"), rows)), note=note)


def _columns(record: RunRecord) -> Safe:
    if record.classes is not None and record.classes.columns:
        return columns_section(record.classes.columns, "accuracy")
    if record.values is not None and record.values.columns:
        return columns_section(record.values.columns, "R\u00b2")
    return Safe("")


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
    # The accuracy, if there is one, comes first; not more than fit in a row.
    first = sorted(record.results.items(), key=lambda each: each[0] != "accuracy")[:4]
    for name, value in first:
        shown = f"{value:.2%}" if name == "accuracy" else shown_number(value)
        yield f"{name} on test data", shown
    planned = record.settings.get("epochs")
    done = len(history.epochs)
    yield "epochs", f"{done} of {planned}" if isinstance(planned, int) else str(done)
    yield "training time", seconds_text(record.seconds)
    yield "parameters", f"{record.network.parameters:,}"
    if record.profile is not None and record.profile.seconds:
        yield "a training step", seconds_text(record.profile.seconds)


def _time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%d %B %Y, %H:%M:%S %Z").strip()
    except ValueError:
        return text


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
        f"{network.parameters:,} parameters, {network.trainable:,} trainable; "
        f"{flops_text(network.flops)} per sample in the forward pass."
    )
    layers = card("Layers, for one sample", table(head, rows, numbers=(3, 4, 5)))
    both = tag("div", _folded(record), layers, class_="beside")
    return section("network", "Network", both, note=note)


def _folded(record: RunRecord) -> Safe:
    """Return the network as a picture, folded by layer."""
    if not record.network.blocks:
        return Safe("")
    blocks = [
        LayerBlock(each.kind, " \u00d7 ".join(map(str, each.shape)) or "1", each.reads)
        for each in record.network.blocks
    ]
    given = " \u00d7 ".join(map(str, record.data.shape)) or "1"
    picture = scrolled(block_picture(blocks, given), "picture of the network")
    return card("From layer to layer", picture, class_="network")


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
        card("Settings", facts({k: shown_setting(v) for k, v in record.settings.items()})),
        card("Seeds", facts(record.seeds)),
        card("Data", facts(given)),
        *(card(title.capitalize(), facts(rows)) for title, rows in record.machine.items()),
    ]
    return section("settings", "Settings, seeds and versions", tag("div", *cards, class_="masonry"))


def shown_setting(value: object) -> str:
    """Return the value of a setting as text."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
