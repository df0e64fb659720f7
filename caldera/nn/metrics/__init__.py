"""Metrics: what a user wants to know of a model, as sums that add up over batches and ranks.

Sums are float64, so that any number of samples is counted exactly and no precision pass touches
them. A sample of weight 0 counts for nothing, so 0 marks padding.

What predictions and targets stand for, is known by the loss: training uses `for_task` of each
metric, which refuses what makes no sense for it.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.nn.metrics.base import (
    R2,
    CentredMetric,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanMetric,
    MeanSquaredError,
    Metric,
    Pearson,
    RootMeanSquaredError,
    ValueMetric,
    metrics,
)
from caldera.nn.metrics.classes import (
    AUC,
    F1,
    Accuracy,
    ByClass,
    ClassMetric,
    ConfusionMatrix,
    FBeta,
    IoU,
    Precision,
    Recall,
)
from caldera.nn.metrics.classes import (
    TopKAccuracy as TopK,
)
from caldera.nn.metrics.sequences import (
    CharacterErrorRate,
    WordErrorRate,
    edit_distance,
    error_rate,
)

__all__ = [
    "AUC",
    "F1",
    "R2",
    "Accuracy",
    "ByClass",
    "CentredMetric",
    "CharacterErrorRate",
    "ClassMetric",
    "ConfusionMatrix",
    "FBeta",
    "IoU",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanMetric",
    "MeanSquaredError",
    "Metric",
    "Pearson",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
    "TopK",
    "ValueMetric",
    "WordErrorRate",
    "edit_distance",
    "error_rate",
    "metrics",
]

_guard(globals())
_answer_foreign(globals())
