"""Decisions about predictions: the threshold of a class, and the ends of an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassThreshold:
    """Probability from which a model of two classes predicts the class `name`."""

    name: str
    probability: float


def interval_rank(count: int, coverage: float) -> int:
    """Return the rank, from both sides, of the ends of an interval among `count` errors.

    It is (count + 1) * (1 - coverage) / 2, as in split conformal prediction (Vovk, 2005). With
    fewer errors than `least_rows` it is 1: the smallest and the largest error, which cover less.

    >>> interval_rank(99, 0.9)
    5
    """
    return max(math.floor((count + 1) * (1 - coverage) / 2 + 1e-9), 1)


def least_rows(coverage: float) -> int:
    """Return the number of errors from which an interval has its coverage.

    >>> least_rows(0.9), least_rows(0.99)
    (19, 199)
    """
    return math.ceil(2 / (1 - coverage) - 1 - 1e-9)
