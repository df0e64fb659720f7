"""How well a classifier ranks, and whether it is right as often as it says: ROC, calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.base.amounts import percent_text
from caldera.draw.axis import Axis
from caldera.draw.html import Safe, tag
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.palette import CATEGORICAL, QUIET
from caldera.train.tracking.run_record import CalibrationRecord, RocRecord

_SHARES = Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
_CLEAR = 0.05
"""Calibration errors below this are not worth a word."""


def certainty_charts(
    curves: Sequence[RocRecord], names: Sequence[str], calibration: Sequence[CalibrationRecord]
) -> Safe:
    """Both charts side by side, each with what it says."""
    return tag("div", *_roc(curves, names), *_calibration(calibration), class_="columns")


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


def _calibration(bins: Sequence[CalibrationRecord]) -> list[Safe]:
    if not bins:
        return []
    points = [(each.confidence, each.accuracy) for each in bins]
    ends = [(0.0, 0.0), (1.0, 1.0)]
    perfect = Line("perfectly calibrated", ends, QUIET, dashed=True, bare=True)
    seen = Line("this model", points, CATEGORICAL[0])
    chart = LineChart(
        "calibration: how often it is right",
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
        words += "The model is right about as often as its probabilities say."
    elif sum(apart) < 0:
        words += (
            "The model is more certain than it should be: take its probabilities for too high. "
            "Label smoothing, dropout, or an earlier end of training make it more modest."
        )
    else:
        words += "The model is right more often than it says: more epochs would make it more sure."
    return [tag("figure", inline(chart), tag("figcaption", words))]
