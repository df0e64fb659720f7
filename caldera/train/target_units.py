"""What is predicted, between its own units and the scale on which a network computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr
from caldera.data.series import TargetScale


def in_units(prediction: Expr, scale: TargetScale) -> Expr:
    """Predictions of mean 0 and deviation 1, in the units of what is predicted."""
    mean, deviation = _constants(scale, prediction)
    return prediction * deviation + mean


def on_scale(target: Expr, scale: TargetScale) -> Expr:
    """Targets in their units, as values of mean 0 and deviation 1."""
    mean, deviation = _constants(scale, target)
    return (target - mean) / deviation


def _constants(scale: TargetScale, like: Expr) -> list[Any]:
    """Mean and deviation, as numbers or along the last axis of values like these."""
    return [each if isinstance(each, float) else np.asarray(each, like.dtype) for each in scale]
