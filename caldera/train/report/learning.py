"""Learning curves, the learning rate, and what they say in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from caldera.draw.axis import axis_of, whole_axis
from caldera.draw.html import Safe, folded, section, table, tag
from caldera.draw.learning_curves import learning_curve_charts
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.palette import CATEGORICAL
from caldera.train.tracking.history import History, shown_number
from caldera.train.tracking.run_record import RunRecord

_RANDOM = {"Dropout": "dropout", "Dropout2D": "dropout", "GaussianNoise": "noise"}
_WORSE = 1.05
"""How many times the lowest validation loss the last one is, for it to have risen."""


def curves_section(record: RunRecord, history: History) -> Safe:
    """Loss, metrics and learning rate over the epochs."""
    if not history.epochs:
        return section("curves", "Learning curves", note="No epoch was finished.")
    columns = {name: history[name] for name in history.numbers()}
    epochs = [epoch + 1 for epoch in history.epochs]
    charts = learning_curve_charts(epochs, columns)
    charts += _rate(history, epochs)
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
    """The learning rate, if it changed."""
    rates = history.learning_rates
    if len(rates) != len(epochs) or len(set(rates)) < 2:
        return []
    points = [(float(epoch), rate) for epoch, rate in zip(epochs, rates, strict=True)]
    line = Line("at the end of the epoch", points, CATEGORICAL[3], last=f"{rates[-1]:.2g}")
    return [LineChart("learning rate", "epoch", [line], whole_axis(epochs), axis_of(rates))]


def _epochs(history: History) -> Safe:
    names = history.numbers()
    rows = [
        [str(row["epoch"] + 1), *(shown_number(row[name]) for name in names)]
        for row in history.rows
    ]
    return folded("All epochs", table(["epoch", *names], rows, numbers=range(len(names) + 1)))


def _remarks(record: RunRecord, history: History) -> Iterator[str]:
    """What somebody who has seen many curves would say."""
    if "loss" not in history or "val_loss" not in history:
        return
    train, held = history["loss"], history["val_loss"]
    if not all(map(math.isfinite, (*train, *held))):
        return
    best = min(range(len(held)), key=held.__getitem__)
    if len(held) > 2 and best < len(held) - 1 and held[-1] > _WORSE * held[best]:
        yield (
            f"The validation loss is lowest after epoch {history.epochs[best] + 1} "
            f"({shown_number(held[best])}) and rises from there to {shown_number(held[-1])}, while "
            "the training loss goes on falling: the network learns its samples by heart. Stop "
            "earlier (cd.EarlyStopping), add dropout or weight decay, or use more data."
        )
    if train[-1] > held[-1]:
        yield f"The training loss is above the validation loss. {_why_above(record)}"


def _why_above(record: RunRecord) -> str:
    kinds = {_RANDOM[layer.kind] for layer in record.network.layers if layer.kind in _RANDOM}
    later = (
        "It is also the mean over the epoch, while the network was still learning; validation "
        "comes after it."
    )
    if kinds:
        return (
            f"That is as it should be: {' and '.join(sorted(kinds))} makes training harder and is "
            f"left out when the network is tested. {later}"
        )
    return (
        "That is no mistake: the training loss is the mean over the epoch, while the network was "
        "still learning; the validation loss is measured after it. Augmented or mixed samples, "
        "label smoothing and sample weights make it larger as well."
    )
