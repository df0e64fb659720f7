"""Optimizers, learning-rate schedules and loss scaling."""

from __future__ import annotations

from caldera.optim._base import Minimum, Optimizer
from caldera.optim.adam import Adam
from caldera.optim.gradient_descent import GradientDescent
from caldera.optim.loss_scale import LossScale
from caldera.optim.schedule import Cosine, Schedule

__all__ = [
    "Adam",
    "Cosine",
    "GradientDescent",
    "LossScale",
    "Minimum",
    "Optimizer",
    "Schedule",
]
