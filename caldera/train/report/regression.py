"""Predicted values: R2, how far predictions are off, and where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.draw.axis import axis_of
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import Safe, tag, tiles
from caldera.draw.svg import CATEGORICAL, QUIET
from caldera.train.tracking.history import shown_number
from caldera.train.tracking.run_record import ValuesRecord

_USEFUL = 0.0


def values_parts(pairs: Sequence[Sequence[float]], values: ValuesRecord | None) -> list[Safe]:
    """Tiles, both charts and what they say."""
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
    return [tiles(shown), tag("p", _said(values.r2), class_="quiet below"), charts]


def _said(r2: float) -> str:
    if not r2 > _USEFUL:
        return (
            "R\u00b2 is not above 0: predicting the mean of all values would be as good. Check the "
            "scale of inputs and targets, the learning rate, and whether the columns know anything "
            "about what is predicted."
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
        f"On average {shown_number(mean)}. A cloud without a shape is what is wanted: a bend means "
        "that the model misses something, a funnel that its errors grow with the value."
    )
    return tag("figure", inline(chart), tag("figcaption", caption))
