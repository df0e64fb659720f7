"""Losses: one number per sample, and their weighted mean over a batch.

`PredictionKind` states the kind of a loss's predictions (classes, labels, values or sequences), so
that metrics and reports judge predictions in the same way.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.nn.losses.base import (
    MULTICLASS,
    MULTILABEL,
    REGRESSION,
    SEQUENCE,
    BinaryCrossEntropy,
    ClassLoss,
    CrossEntropy,
    ElementLoss,
    FunctionLoss,
    Hinge,
    Huber,
    KullbackLeibler,
    Loss,
    MeanAbsolute,
    MeanSquared,
    PredictionKind,
    Task,
    as_loss,
    losses,
)
from caldera.nn.losses.regions import (
    Contrastive,
    CosineDistance,
    Dice,
    Focal,
    RegionLoss,
    Triplet,
    Tversky,
)
from caldera.nn.losses.values import (
    GaussianLikelihood,
    LogCosh,
    MeanAbsolutePercentage,
    MeanSquaredLogarithmic,
    Poisson,
    Quantile,
    SquaredHinge,
)

__all__ = [
    "MULTICLASS",
    "MULTILABEL",
    "REGRESSION",
    "SEQUENCE",
    "BinaryCrossEntropy",
    "ClassLoss",
    "Contrastive",
    "CosineDistance",
    "CrossEntropy",
    "Dice",
    "ElementLoss",
    "Focal",
    "FunctionLoss",
    "GaussianLikelihood",
    "Hinge",
    "Huber",
    "KullbackLeibler",
    "LogCosh",
    "Loss",
    "MeanAbsolute",
    "MeanAbsolutePercentage",
    "MeanSquared",
    "MeanSquaredLogarithmic",
    "Poisson",
    "PredictionKind",
    "Quantile",
    "RegionLoss",
    "SquaredHinge",
    "Task",
    "Triplet",
    "Tversky",
    "as_loss",
    "losses",
]

_guard(globals(), "FunctionLoss", "as_loss")
