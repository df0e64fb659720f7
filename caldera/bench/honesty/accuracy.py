"""Accuracies with their spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 0.005
"""Half a per cent of the test samples: less is not called a difference."""


def mean(values: Sequence[float]) -> float:
    """The mean.

    >>> mean([0.5, 0.7])
    0.6
    """
    return math.fsum(values) / len(values)


def is_lower(values: Sequence[float], than: Sequence[float]) -> bool:
    """Whether an accuracy is lower by more than `LEAST` and more than seeds explain.

    >>> is_lower([0.90], [0.92]), is_lower([0.90, 0.94], [0.93, 0.91]), is_lower([0.918], [0.92])
    (True, False, False)
    """
    spread = 2.0 * math.sqrt(_error(values) + _error(than))
    return mean(than) - mean(values) > max(LEAST, spread)


def _error(values: Sequence[float]) -> float:
    """The square of the standard error."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.fsum((each - middle) ** 2 for each in values) / (len(values) - 1) / len(values)
