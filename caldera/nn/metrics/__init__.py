"""Metrics of a model, as sums that add up over batches and ranks.

Sums are float64, so that any number of samples is counted exactly and no precision pass changes
them. A sample of weight 0 is ignored, so 0 marks padding.

The loss determines the interpretation of predictions and targets. Training calls `for_task` of each
metric, which raises an error if the metric makes no sense for the loss.
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
