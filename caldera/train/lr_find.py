"""`lr_find`: which learning rate suits a model and its data, found by a short trial run.

The learning rate grows from step to step while the loss is watched. It falls fastest at a good rate
and rises where the rate is too large (Smith, 2017). Afterwards everything is as it was before.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import chain, repeat, takewhile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import require, within
from caldera.base.formatting import note
from caldera.data import Loader, Pipeline
from caldera.draw.axis import axis_of
from caldera.draw.line_chart import Line, LineChart, figure, figure_svg
from caldera.draw.svg import CATEGORICAL, Picture
from caldera.train.arguments import plain_number, whole_number
from caldera.train.fit import make_steps
from caldera.train.saving.snapshot import Snapshot

if TYPE_CHECKING:
    from caldera.train.model import Model
    from caldera.train.step import StepPlans

_MEMORY = 0.9
_WIDTH = 0.04
"""Width of the smoothing of losses, as a fraction of all steps."""
_DIVERGED = 4.0
"""Times the best loss at which the trial ends: larger rates only make it worse."""
_LEAST_STEPS = 10


@dataclass(frozen=True)
class LearningRates:
    """Result of `lr_find`: the loss at each learning rate, and the suggested rate.

    >>> from caldera.train.lr_find import LearningRates
    >>> found = LearningRates([0.01, 0.1, 1.0], [1.0, 0.5, 2.0], [1.0, 0.5, 2.0], 0.1)
    >>> found
    LearningRates(0.01 to 1 in 3 steps, suggestion 0.1)
    """

    learning_rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float

    def plot(self, path: str | PathLike[str] | None = None, title: str = "") -> Picture | Path:
        """Return the losses over the learning rates, which a notebook shows; with a path they are
        written to that .svg file, and the path is returned."""
        return figure(path, [self._chart()], title)

    def _chart(self) -> LineChart:
        rates = self.learning_rates
        raw = Line("each step", list(zip(rates, self.losses, strict=True)), "#9db8d9")
        smooth = Line("smoothed", list(zip(rates, self.smoothed, strict=True)), CATEGORICAL[0])
        # The explosion at the end would press everything else to the floor.
        top = 1.5 * max(self.smoothed[: int(np.argmin(self.smoothed)) + 1])
        shown = [value for value in (*self.losses, *self.smoothed) if value <= top]
        return LineChart(
            "loss",
            "learning rate",
            [_below(raw, max(shown)), _below(smooth, max(shown))],
            axis_of(rates, log=True),
            axis_of(shown, log=False),
            note=(self.suggestion, f"suggestion {self.suggestion:.2g}"),
        )

    def _repr_html_(self) -> str:
        return f"{note(repr(self))}{figure_svg([self._chart()])}"

    def __repr__(self) -> str:
        rates = self.learning_rates
        return (
            f"LearningRates({rates[0]:g} to {rates[-1]:g} in {len(rates)} steps, "
            f"suggestion {self.suggestion:.2g})"
        )


def lr_find(
    model: Model,
    data: Any,
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    steps: int = 100,
    batch_size: int | None = None,
) -> LearningRates:
    """Try learning rates from `lowest` to `highest` on a model, and suggest one.

    Parameters, statistics, optimizer and random state are as before afterwards, bit for bit: the
    trial has a separate optimizer of the same kind. A trained model whose loss falls at no rate is
    rejected: no rate can be suggested for it.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.lr_find import lr_find
    >>> x = np.random.default_rng(0).normal(size=(256, 2)).astype("float32")
    >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", optimizer="sgd")
    >>> found = lr_find(model, (x, x[:, :1] * 2))
    >>> 1e-4 < found.suggestion < 1
    True
    """
    steps = within("lr_find", "steps", steps, 2, 10**6)
    first, last = (plain_number(each, "rates", 0, "lr_find") for each in (lowest, highest))
    require(
        0 < first < last < math.inf,
        "lr_find",
        "0 < lowest < highest < inf",
        f"{lowest} and {highest}",
    )
    size = model.batch_size
    if batch_size is not None:
        size = whole_number(batch_size, "batch_size", 1, "lr_find")
    pipeline = Pipeline.of(data)
    require(not pipeline.is_stream, "lr_find", "indexable data", "a stream")
    given = model.optimizer
    optimizer = type(given)(**{**given.arguments(), "learning_rate": lowest})
    trial = dataclasses.replace(make_steps(model, pipeline), optimizer=optimizer)
    loader = Loader(pipeline, size, seed=model.seed)
    before = Snapshot.of(model)
    try:
        rates, losses = _try(trial, loader, np.geomspace(lowest, highest, steps))
    finally:
        before.put_back(model)
    smoothed = _smooth(losses, steps * _WIDTH)
    _check_fall(losses, smoothed, model.steps_done)
    return LearningRates(rates, losses, smoothed, _suggestion(rates, smoothed))


def _check_fall(losses: list[float], smoothed: list[float], trained_for: int) -> None:
    """Refuse a trial of a trained model whose loss falls by less than its noise at any rate."""
    early = losses[: max(2, len(losses) // 3)]
    fall, noise = float(np.mean(early)) - min(smoothed), float(np.std(early))
    require(
        not trained_for or fall > noise or len(losses) < _LEAST_STEPS,
        "lr_find",
        f"a loss that falls by more than its noise ({noise:.2g}) at some learning rate",
        f"by {max(fall, 0.0):.2g}, with a model that was trained for {trained_for} steps",
        "try rates on a new model; train a model further with a tenth of the rate it had",
    )


def _try(steps: StepPlans, loader: Loader, rates: np.ndarray) -> tuple[list[float], list[float]]:
    tried: list[float] = []
    losses: list[float] = []
    recent = 0.0
    best = math.inf
    for batch in chain.from_iterable(repeat(loader)):
        rate = float(rates[len(tried)])
        plan = steps.training(batch)
        steps.optimizer.learning_rate.assign(rate)
        steps.training_totals.reset()
        plan.run(steps.feeds(batch.arrays, None))
        loss = steps.training_totals.loss()
        if not math.isfinite(loss):
            break
        tried.append(rate)
        losses.append(loss)
        recent = loss if len(tried) == 1 else _MEMORY * recent + (1 - _MEMORY) * loss
        best = min(best, recent)
        if len(tried) == len(rates) or (recent > _DIVERGED * best and len(tried) >= _LEAST_STEPS):
            break
    require(
        len(tried) >= 2,
        "lr_find",
        "a finite loss at the lowest learning rates",
        hint="choose a smaller lowest=, and look for nan in the data",
    )
    return tried, losses


def _smooth(losses: list[float], width: float) -> list[float]:
    """Return each loss as the mean of those around it, the nearer the more; `width` is in steps."""
    places = np.arange(len(losses))
    weights = np.exp(-0.5 * ((places[:, None] - places) / width) ** 2)
    return (weights @ np.array(losses) / weights.sum(axis=1)).tolist()


def _suggestion(rates: list[float], smoothed: list[float]) -> float:
    """Return a tenth of the rate with the lowest loss, or the rate of steepest descent if lower.

    At the lowest point the rate is already close to divergence. The smallest rates are left out, as
    changes of the loss are noise there.
    """
    lowest = int(np.argmin(smoothed))
    first = len(rates) // 10
    cautious = max(rates[lowest] / 10, rates[0])
    if lowest < first + 2:
        return cautious
    slope = np.gradient(np.array(smoothed), np.log(rates))
    return min(cautious, rates[first + int(np.argmin(slope[first : lowest + 1]))])


def _below(line: Line, top: float) -> Line:
    """Return the part of a line before it exceeds `top`."""
    below = takewhile(lambda point: point[1] <= top, line.points)
    return dataclasses.replace(line, points=list(below))
