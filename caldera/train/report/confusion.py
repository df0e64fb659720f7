"""What a classifier takes for what: the confusion matrix, and precision and recall by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.base.amounts import percent_text
from caldera.draw.html import Safe, card, scrolled, table, tag
from caldera.train.report.certainty import certainty_charts
from caldera.train.report.mistakes import mistakes_card
from caldera.train.tracking.run_record import ClassesRecord, RunRecord

MOST_IN_TABLE = 40
"""Of more classes, the table would be larger than any screen."""
_PAIRS = 8
_UNBALANCED = 3.0
"""How many times the rarest class the most common one has, for that to be said."""
_DEEP = 0.8
"""The share of a class from which on its cell is dark, with light text. Between the two shades is
a gap, in which neither text could be read."""
_RIGHT, _WRONG = "31 95 174", "192 74 8"
"""Red, green and blue of a cell."""


def classes_parts(record: RunRecord) -> list[Safe]:
    """How predictions of classes on the test data compare with the truth."""
    counts = np.array(record.confusion)
    names = class_names(record, len(counts))
    known = record.classes
    parts = []
    if len(counts) <= MOST_IN_TABLE:
        parts.append(card("Confusion matrix", _matrix(counts, names), class_="confusion"))
    parts.append(_confused(counts, names))
    found = [_by_class(counts, names, known), tag("div", *parts, class_="beside")]
    if known is not None:
        wrong = int(counts.sum() - np.trace(counts))
        found.append(mistakes_card(known.mistakes, names, wrong))
        shown = names[1:] if len(names) == 2 else names
        found.append(certainty_charts(known.roc, shown, known.calibration))
    return found


def class_names(record: RunRecord, count: int) -> list[str]:
    """The names of the classes; their numbers where they have none."""
    names = record.data.class_names
    return names if len(names) == count else [str(number) for number in range(count)]


def _by_class(counts: np.ndarray, names: Sequence[str], known: ClassesRecord | None) -> Safe:
    """Precision, recall, F1 and support, by their usual names; and how classes are balanced."""
    right, support, said = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    precision = right / np.maximum(said, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + said, 1)
    scores = np.stack([precision, recall, f1], axis=1)
    trained = known.train if known is not None and len(known.train) == len(names) else []
    head = ["class", "precision", "recall", "F1", "support"]
    head += ["to train with", "balance"] if trained else []
    rows = []
    for index, name in enumerate(names):
        row = [name, *map(percent_text, scores[index]), f"{support[index]:,}"]
        if trained:
            row += [f"{trained[index]:,}", _balance(trained[index], max(trained))]
        rows.append(row)
    total = int(support.sum())
    weights = support / max(total, 1)
    seen = support > 0
    means = {
        "macro average": scores[seen].mean(axis=0) if seen.any() else np.zeros(3),
        "weighted average": weights @ scores,
    }
    more = [f"{sum(trained):,}", ""] if trained else []
    foot = [[name, *map(percent_text, mean), f"{total:,}", *more] for name, mean in means.items()]
    return card(
        "By class",
        table(head, rows, numbers=range(1, 6), foot=foot),
        note=_balance_note(trained, names),
    )


def _balance(count: int, most: int) -> Safe:
    share = count / most if most else 0.0
    bar = tag("i", style=f"width:{100 * share:.1f}%")
    return tag("span", bar, class_="share", title=f"{percent_text(share)} of the largest class")


def _balance_note(trained: Sequence[int], names: Sequence[str]) -> str:
    if not trained:
        return ""
    least, most = min(trained), max(trained)
    if most < _UNBALANCED * max(least, 1):
        return "Classes are about balanced in the training data."
    rare, common = names[trained.index(least)], names[trained.index(most)]
    return (
        f"There are {most / max(least, 1):.0f} times as many samples of {common} to train with as "
        f"of {rare}: accuracy says little about rare classes. Look at their recall; "
        'fit(class_weight="balanced") lets each class count the same.'
    )


def _matrix(counts: np.ndarray, names: Sequence[str]) -> Safe:
    """Rows are the true classes, columns the predicted ones; margins are recall and precision."""
    of_class, of_prediction = counts.sum(axis=1), counts.sum(axis=0)
    head = tag(
        "tr",
        tag("th", "true \\ predicted"),
        *[tag("th", name) for name in names],
        tag("th", "recall"),
    )
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
    foot = tag("tfoot", tag("tr", tag("th", "precision"), *right, total))
    whole = tag("table", tag("thead", head), tag("tbody", *rows), foot)
    return scrolled(whole, "confusion matrix")


def _cell(count: int, of: int, title: str, colour: str) -> Safe:
    if not count:
        return tag("td", "0", class_="zero", title=f"{title}: 0")
    share = count / of
    return tag(
        "td",
        f"{count}",
        class_="deep" if share > _DEEP else "some",
        title=f"{title}: {count}",
        style=f"background:rgb({colour} / {_strength(share):.2f})",
    )


def _strength(share: float) -> float:
    return 0.95 + 0.25 * (share - _DEEP) if share > _DEEP else 0.2 + 0.6 * share


def _part(count: int, of: int) -> str:
    return percent_text(count / of) if of else "\u2013"


def _confused(counts: np.ndarray, names: Sequence[str]) -> Safe:
    mistakes = counts - np.diag(np.diag(counts))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_PAIRS]
    pairs = [divmod(int(flat), len(names)) for flat in order if mistakes.flat[flat]]
    if not pairs:
        return card("Most often confused", tag("p", "Nothing was.", class_="quiet"))
    rows = [
        (
            names[true],
            names[taken],
            f"{mistakes[true, taken]}",
            _part(mistakes[true, taken], counts[true].sum()),
        )
        for true, taken in pairs
    ]
    head = ("true class", "taken for", "times", "of the class")
    return card("Most often confused", table(head, rows, numbers=(2, 3)))
