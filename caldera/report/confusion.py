"""What the network takes for what: a confusion matrix, or true and predicted values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.amounts import percent_text
from caldera.draw.axis import axis_of
from caldera.draw.html import Safe, card, section, table, tag
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.palette import CATEGORICAL, QUIET
from caldera.train.tracking.run_record import RunRecord

MOST_IN_TABLE = 40
"""Of more classes, the table would be larger than any screen."""
_PAIRS = 8
_DEEP = 0.5
"""The share of a class from which on its cell is too dark for dark text."""
_RIGHT, _WRONG = "31 95 174", "192 74 8"
"""Red, green and blue of a cell."""


def predictions_section(record: RunRecord) -> Safe:
    """How predictions on the test data compare with the truth."""
    where = f"On the {record.data.test:,} samples of the test data."
    if record.confusion:
        counts = np.array(record.confusion)
        names = _names(record, len(counts))
        parts = []
        if len(counts) <= MOST_IN_TABLE:
            parts.append(card("Confusion matrix", _matrix(counts, names), class_="confusion"))
        parts.append(_confused(counts, names))
        beside = tag("div", *parts, class_="beside")
        return section("predictions", "Predictions", beside, note=where)
    if record.predictions:
        return section("predictions", "Predictions", _scatter(record.predictions), note=where)
    missing = "The run has no predictions on test data."
    return section("predictions", "Predictions", note=missing)


def _names(record: RunRecord, count: int) -> list[str]:
    names = record.data.class_names
    return names if len(names) == count else [str(number) for number in range(count)]


def _matrix(counts: np.ndarray, names: Sequence[str]) -> Safe:
    """Rows are the true classes, columns the predicted ones; margins are recall and precision."""
    of_class, of_prediction = counts.sum(axis=1), counts.sum(axis=0)
    head = tag("tr", tag("th", "true \\ predicted"), *[tag("th", name) for name in names],
               tag("th", "found"))  # fmt: skip
    rows = []
    for index, name in enumerate(names):
        cells = [
            _cell(
                int(counts[index, other]),
                int(of_class[index]),
                f"{name} as {names[other]}",
                _RIGHT if index == other else _WRONG,
            )
            for other in range(len(names))
        ]
        found = _part(counts[index, index], of_class[index])
        rows.append(tag("tr", tag("th", name), *cells, tag("td", found, class_="margin")))
    right = [
        tag("td", _part(counts[i, i], of_prediction[i]), class_="margin") for i in range(len(names))
    ]
    total = tag("td", _part(np.trace(counts), counts.sum()), class_="margin")
    foot = tag("tfoot", tag("tr", tag("th", "right"), *right, total))
    whole = tag("table", tag("thead", head), tag("tbody", *rows), foot)
    return tag("div", whole, class_="scroll")


def _cell(count: int, of: int, title: str, colour: str) -> Safe:
    if not count:
        return tag("td", "0", class_="zero", title=f"{title}: 0")
    share = count / of
    return tag(
        "td", f"{count}", class_="deep" if share > _DEEP else "some", title=f"{title}: {count}",
        style=f"background:rgb({colour} / {0.25 + 0.75 * share:.2f})",
    )  # fmt: skip


def _part(count: int, of: int) -> str:
    return percent_text(count / of) if of else "\u2013"


def _confused(counts: np.ndarray, names: Sequence[str]) -> Safe:
    mistakes = counts - np.diag(np.diag(counts))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_PAIRS]
    pairs = [divmod(int(flat), len(names)) for flat in order if mistakes.flat[flat]]
    if not pairs:
        return card("Most often confused", tag("p", "Nothing was.", class_="quiet"))
    rows = [
        (names[true], names[taken], f"{mistakes[true, taken]}",
         _part(mistakes[true, taken], counts[true].sum()))
        for true, taken in pairs
    ]  # fmt: skip
    head = ("true class", "taken for", "times", "of the class")
    return card("Most often confused", table(head, rows, numbers=(2, 3)))


def _scatter(pairs: Sequence[Sequence[float]]) -> Safe:
    points = [(float(true), float(predicted)) for true, predicted in pairs]
    finite = [value for point in points for value in point if np.isfinite(value)]
    ends = (min(finite, default=0.0), max(finite, default=1.0))
    same = Line("equal", [(ends[0], ends[0]), (ends[1], ends[1])], QUIET, dashed=True)
    chart = LineChart(
        "predicted over true values",
        "true value",
        [same, Line("sample", points, CATEGORICAL[0], dots_only=True)],
        axis_of(finite),
        axis_of(finite),
    )
    return tag("div", inline(chart), class_="columns")
