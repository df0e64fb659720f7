"""Decisions about predictions: the threshold of a class, and the interval around a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from caldera.data.tables.table import Values


@dataclass(frozen=True)
class ClassThreshold:
    """Probability from which a model of two classes predicts the class `name`."""

    name: str
    probability: float


@dataclass(frozen=True)
class PredictionInterval:
    """Offsets between which the error of a prediction is, with the probability `coverage`.

    >>> PredictionInterval.of(np.arange(-49, 50), 0.9)
    PredictionInterval(coverage=0.9, low=-45.0, high=45.0)
    """

    coverage: float
    low: float
    high: float

    @classmethod
    def of(cls, errors: Values, coverage: float) -> PredictionInterval:
        """Return the interval for errors of rows that a model was not trained on.

        Its ends are the errors of rank (n + 1) * (1 - coverage) / 2 from both sides, as in split
        conformal prediction (Vovk, 2005). With fewer rows than `least_rows` they are the smallest
        and the largest error, which cover less.
        """
        found, count = np.sort(errors.astype(np.float64)), len(errors)
        rank = max(math.floor((count + 1) * (1 - coverage) / 2 + 1e-9), 1)
        return cls(coverage, float(found[rank - 1]), float(found[count - rank]))

    @staticmethod
    def least_rows(coverage: float) -> int:
        """Return the number of errors from which an interval has its coverage.

        >>> PredictionInterval.least_rows(0.9), PredictionInterval.least_rows(0.99)
        (19, 199)
        """
        return math.ceil(2 / (1 - coverage) - 1 - 1e-9)

    def around(self, name: str, values: Values) -> dict[str, Values]:
        """Return the ends of the intervals around predicted values, by name."""
        return {f"{name} low": values + self.low, f"{name} high": values + self.high}

    @property
    def is_valid(self) -> bool:
        """True for a probability and finite numbers in order."""
        return 0 < self.coverage < 1 and -math.inf < self.low <= self.high < math.inf
