"""Metrics of the order in which predictions put samples, whatever decides for a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.nn.metrics.base import metrics, sample_factors
from caldera.nn.metrics.classes import ClassMetric


@metrics.register("auc")
@dataclass(frozen=True)
class AUC(ClassMetric):
    """The area under the ROC curve: how often a sample of a class scores higher than another.

    Labels are taken one by one, and classes each against the rest, by their log-odds; the value is
    their mean, and with `per_class` an array. One that always or never occurs has none (nan) and is
    left out of the mean.

    Samples are counted in so many `bins` of their score, so that counts of batches and ranks add
    up; two in one bin count as equal. Around a score s a bin is 2 (1 + |s|)^2 / bins wide: 0.0001
    at 0, 0.015 at 10. Any scores may be given, as a curve depends on their order alone.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import AUC
    >>> sums = AUC().sums(cd.tensor([2.0, 1.0, -1.0, -2.0]), cd.tensor([1, 0, 1, 0]))
    >>> AUC().result({name: value.numpy() for name, value in sums.items()})
    0.75
    """

    per_class: bool = False
    bins: int = 1 << 14
    axis: int | None = None
    threshold: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 2 <= self.bins <= 1 << 20:
            raise ConfigError.build("AUC", expected="2 to 2^20 bins", got=f"{self.bins}")

    @property
    def name(self) -> str:
        return "auc_per_class" if self.per_class else "auc"

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        found = self.decision.of(prediction, target)
        _, actual = found.by_class()
        if found.label_axis is None:
            scores = _log_odds(prediction, self.decision.position(prediction))
        else:
            scores = found.in_order(op.cast(prediction, "float64"))
        factors = op.broadcast(found.spread(sample_factors(weights, prediction)), scores.shape)
        counted = factors != 0.0
        unknown = op.logical_and(op.isnan(scores), counted)
        # Between -1 and 1, finest around 0; infinite scores are at the ends.
        size = op.clip(op.where(op.isnan(scores), 0.0, scores), -1e300, 1e300)
        place = op.floor((size / (1.0 + op.abs(size)) + 1.0) * (self.bins / 2))
        first = np.arange(scores.shape[1]) * self.bins
        bins = op.flatten(op.cast(op.clip(place, 0.0, self.bins - 1.0), "int64") + first, 0)
        length = scores.shape[1] * self.bins
        return {
            "positive": op.bincount(bins, length, op.flatten(factors * actual, 0)),
            "negative": op.bincount(bins, length, op.flatten(factors * (1.0 - actual), 0)),
            "unknown": op.sum(op.cast(unknown, "float64"), axis=0),
        }

    def result(self, sums: Mapping[str, np.ndarray]) -> float | np.ndarray:
        positive = sums["positive"].reshape(-1, self.bins)
        negative = sums["negative"].reshape(-1, self.bins)
        below = np.cumsum(negative, axis=1) - negative / 2
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        higher = (positive * below).sum(axis=1)
        values = np.where(pairs > 0, higher / np.where(pairs > 0, pairs, 1.0), np.nan)
        values = np.where(sums["unknown"] > 0, np.nan, values)
        if self.per_class:
            return values
        known = values[pairs > 0]
        return float(known.mean()) if known.size else float("nan")


def _log_odds(prediction: Any, axis: int) -> Expr:
    """log(p / (1 - p)) of each class by softmax, (positions, classes)."""
    order = [each for each in range(prediction.ndim) if each != axis]
    last = op.transpose(op.cast(prediction, "float64"), [*order, axis])
    logarithms = op.log_softmax(op.reshape(last, (-1, last.shape[-1])), axis=-1)
    # One minus a probability of almost one is what the others have, and not a difference.
    largest = op.one_hot(op.argmax(logarithms, axis=-1), last.shape[-1], dtype="bool")
    others = op.sum(op.where(largest, 0.0, op.exp(logarithms)), axis=-1, keepdims=True)
    rest = op.where(largest, others, -op.expm1(logarithms))
    return logarithms - op.log(op.maximum(rest, 1e-300))
