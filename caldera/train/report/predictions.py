"""Quality of predictions on the report page: classes, values and columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.base.formatting import percent_text
from caldera.draw.axis import ChartAxis, axis_of
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import (
    Safe,
    card,
    folded,
    scrolled,
    section,
    share_bar,
    table,
    tag,
    tiles,
)
from caldera.draw.svg import CATEGORICAL, QUIET
from caldera.train.report.advice import ARGUMENTS, AdviceNames, names_for
from caldera.train.report.mistakes import mistakes_card
from caldera.train.tracking.history import shown_number
from caldera.train.tracking.run_record import (
    CalibrationRecord,
    ClassesRecord,
    ColumnRecord,
    RocRecord,
    RunRecord,
    ValuesRecord,
)

_SHARES = ChartAxis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
_CLEAR = 0.05
"""Minimum calibration error that is mentioned."""


def certainty_charts(
    curves: Sequence[RocRecord],
    names: Sequence[str],
    calibration: Sequence[CalibrationRecord],
    advice: AdviceNames = ARGUMENTS,
) -> Safe:
    """Return both charts side by side, each with its explanation."""
    return tag("div", *_roc(curves, names), *_calibration(calibration, advice), class_="columns")


def _roc(curves: Sequence[RocRecord], names: Sequence[str]) -> list[Safe]:
    known = [
        (curve, name) for curve, name in zip(curves, names, strict=True) if curve.true_positive
    ]
    if not known:
        return []
    chance = Line("by chance", [(0.0, 0.0), (1.0, 1.0)], QUIET, dashed=True, bare=True)
    few = len(known) <= len(CATEGORICAL)
    lines = [
        Line(
            f"{name}: {curve.area:.3f}",
            list(zip(curve.false_positive, curve.true_positive, strict=True)),
            CATEGORICAL[place] if few else CATEGORICAL[0],
            thin=not few,
            bare=True,
        )
        for place, (curve, name) in enumerate(known)
    ]
    mean = float(np.mean([curve.area for curve, _ in known]))
    legend: list[Line] = []
    if not few:
        lines.append(_mean_curve([curve for curve, _ in known], mean))
        legend = [lines[-1], Line("each class", (), CATEGORICAL[0], thin=True), chance]
    several = len(curves) > 1
    chart = LineChart(
        "ROC curves, each class against the rest" if several else f"ROC curve of {names[0]}",
        "false positive rate",
        [chance, *lines],
        _SHARES,
        _SHARES,
        legend,
    )
    caption = (
        f"Area under the curve (AUC): {mean:.3f}{' on average' if len(known) > 1 else ''}. It is "
        "the probability that a sample of the class gets a higher score than another one: 1 is "
        "perfect, 0.5 is chance. Upwards: true positive rate (recall)."
    )
    return [tag("figure", inline(chart), tag("figcaption", caption))]


def _mean_curve(curves: Sequence[RocRecord], mean: float) -> Line:
    places = np.linspace(0, 1, 101)
    heights = np.mean(
        [np.interp(places, each.false_positive, each.true_positive) for each in curves], axis=0
    )
    points = [(0.0, 0.0), *zip(places.tolist(), heights.tolist(), strict=True)]
    return Line(f"mean of the classes: {mean:.3f}", points, CATEGORICAL[1], bare=True)


def _calibration(bins: Sequence[CalibrationRecord], advice: AdviceNames) -> list[Safe]:
    if not bins:
        return []
    points = [(each.confidence, each.accuracy) for each in bins]
    ends = [(0.0, 0.0), (1.0, 1.0)]
    perfect = Line("perfectly calibrated", ends, QUIET, dashed=True, bare=True)
    seen = Line("this model", points, CATEGORICAL[0])
    chart = LineChart(
        "calibration: accuracy by confidence",
        "certainty of the prediction",
        [perfect, seen],
        _SHARES,
        _SHARES,
    )
    total = sum(each.samples for each in bins)
    apart = [each.samples / total * (each.accuracy - each.confidence) for each in bins]
    error = sum(map(abs, apart))
    words = f"Expected calibration error: {percent_text(error)}. "
    if error < _CLEAR:
        words += "The probabilities of the model are well calibrated."
    elif sum(apart) < 0:
        words += (
            "The model is more certain than it should be: take its probabilities for too high. "
            f"Label smoothing ({advice.label_smoothing}), dropout ({advice.dropout}) or an earlier "
            f"end of training ({advice.early_stopping}) make it more modest."
        )
    else:
        words += f"The model is underconfident: train for more epochs ({advice.epochs})."
    return [tag("figure", inline(chart), tag("figcaption", words))]


MOST_IN_TABLE = 40
"""Maximum number of classes in the table, so that it fits on a screen."""
_PAIRS = 8
_UNBALANCED = 3.0
"""Ratio of the most common to the rarest class from which the imbalance is reported."""
_DEEP = 0.8
"""The share of a class from which on its cell is dark, with light text. Between the two shades is
a gap, in which neither text could be read."""
_RIGHT, _WRONG = "31 95 174", "192 74 8"
"""Red, green and blue of a cell."""


def classes_parts(record: RunRecord) -> list[Safe]:
    """Return the parts that compare predicted classes with the true ones of the test data."""
    counts = np.array(record.confusion)
    names = class_names(record, len(counts))
    known = record.classes
    parts = []
    if len(counts) <= MOST_IN_TABLE:
        parts.append(card("Confusion matrix", _matrix(counts, names), class_="confusion"))
    parts.append(_confused(counts, names))
    advice = names_for(record)
    found = [_by_class(counts, names, known, advice), tag("div", *parts, class_="beside")]
    if known is not None:
        wrong = int(counts.sum() - np.trace(counts))
        found.append(mistakes_card(known.mistakes, names, wrong))
        shown = names[1:] if len(names) == 2 else names
        found.append(certainty_charts(known.roc, shown, known.calibration, advice))
    return found


def class_names(record: RunRecord, count: int) -> list[str]:
    """Return the names of the classes, or their numbers if they have no names."""
    names = record.data.class_names
    return names if len(names) == count else [str(number) for number in range(count)]


def _by_class(
    counts: np.ndarray, names: Sequence[str], known: ClassesRecord | None, advice: AdviceNames
) -> Safe:
    """Return precision, recall, F1 and support, by their usual names.

    And how classes are balanced.
    """
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
        note=_balance_note(trained, names, advice),
    )


def _balance(count: int, most: int) -> Safe:
    share = count / most if most else 0.0
    return share_bar(share, f"{percent_text(share)} of the largest class")


def _balance_note(trained: Sequence[int], names: Sequence[str], advice: AdviceNames) -> str:
    if not trained:
        return ""
    least, most = min(trained), max(trained)
    if most < _UNBALANCED * max(least, 1):
        return "Classes are about balanced in the training data."
    rare, common = names[trained.index(least)], names[trained.index(most)]
    return (
        f"Class {common} has {most / max(least, 1):.0f} times the training samples of class "
        f"{rare}: accuracy hardly reflects rare classes. Check their recall; "
        f"{advice.class_weights} weights all classes equally."
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
        return card("Most often confused", tag("p", "No sample.", class_="quiet"))
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


_USEFUL = 0.0


def values_parts(
    pairs: Sequence[Sequence[float]],
    values: ValuesRecord | None,
    advice: AdviceNames = ARGUMENTS,
) -> list[Safe]:
    """Return tiles, both charts and their explanations."""
    name = values.name if values is not None and values.name else "value"
    points = [
        (float(true), float(predicted))
        for true, predicted in pairs
        if np.isfinite(true) and np.isfinite(predicted)
    ]
    charts = tag("div", _scatter(points, name), _residuals(points, name), class_="columns")
    if values is None:
        return [charts]
    shown = [
        ("R\u00b2 on test data", shown_number(values.r2)),
        ("mean absolute error", shown_number(values.mean_absolute)),
        ("root mean squared error", shown_number(values.root_mean_square)),
    ]
    return [tiles(shown), tag("p", _said(values.r2, advice), class_="quiet below"), charts]


def _said(r2: float, advice: AdviceNames) -> str:
    if not r2 > _USEFUL:
        return (
            "R\u00b2 is not above 0: predicting the mean of all values would be as good. Check the "
            f"scale of inputs and targets, the learning rate ({advice.learning_rate}), and whether "
            "the columns have any information about the target."
        )
    return f"The model explains {100 * r2:.0f}% of the variance of the test values (R\u00b2)."


def _scatter(points: Sequence[tuple[float, float]], name: str) -> Safe:
    finite = [value for point in points for value in point]
    ends = (min(finite, default=0.0), max(finite, default=1.0))
    same = Line("equal", [(ends[0], ends[0]), (ends[1], ends[1])], QUIET, dashed=True, bare=True)
    chart = LineChart(
        "predicted over true values",
        f"true {name}",
        [same, Line("sample", points, CATEGORICAL[0], dots_only=True)],
        axis_of(finite, log=False),
        axis_of(finite, log=False),
    )
    return inline(chart)


def _residuals(points: Sequence[tuple[float, float]], name: str) -> Safe:
    apart = [(predicted, predicted - true) for true, predicted in points]
    places = [x for x, _ in apart]
    ends = (min(places, default=0.0), max(places, default=1.0))
    none = Line("no error", [(ends[0], 0.0), (ends[1], 0.0)], QUIET, dashed=True, bare=True)
    chart = LineChart(
        "residuals: predicted minus true",
        f"predicted {name}",
        [none, Line("sample", apart, CATEGORICAL[1], dots_only=True)],
        axis_of(places, log=False),
        axis_of([0.0, *(y for _, y in apart)], log=False),
    )
    mean = float(np.mean([y for _, y in apart])) if apart else 0.0
    caption = (
        f"Mean {shown_number(mean)}. Good residuals show no pattern: a bend means that the model "
        "misses a dependence, a funnel that its errors grow with the value."
    )
    return tag("figure", inline(chart), tag("figcaption", caption))


_SHOWN = 15


def columns_section(columns: Sequence[ColumnRecord], measure: str) -> Safe:
    """Return the columns, most important first; `measure` names the quantity lost without one."""
    parts = [_table(columns[:_SHOWN], columns[0].loss, measure)]
    if len(columns) > _SHOWN:
        parts.append(
            folded(f"All {len(columns)} columns", _table(columns, columns[0].loss, measure))
        )
    note = (
        f"Loss of {measure} on the test data if the values of a column are shuffled (permutation "
        "importance, mean and deviation of five repeats). Columns with the same information share "
        "their importance; a column without importance can be left out."
    )
    return section("columns", "Columns", card("Importance of the columns", *parts), note=note)


def _table(columns: Sequence[ColumnRecord], most: float, measure: str) -> Safe:
    rows = []
    for each in columns:
        share = max(each.loss, 0.0) / most if most > 0 else 0.0
        bar = share_bar(share, percent_text(share), class_="share long")
        rows.append((each.name, f"{each.loss:.4f}", f"\u00b1 {each.deviation:.4f}", bar))
    return table(
        ("column", f"{measure} lost", "deviation", "relative to the largest"), rows, numbers=(1, 2)
    )
