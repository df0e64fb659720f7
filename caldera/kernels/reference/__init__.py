"""The oracle: a plain NumPy function for each op that is not composed of other ops."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.reference import (
    arrays,
    elementwise,
    float8,
    layers,
)
from caldera.kernels.reference.evaluation import (
    FUNCTIONS,
    evaluate,
    interpret,
    interpreter,
    reference,
)

__all__ = ["FUNCTIONS", "evaluate", "interpret", "interpreter", "reference"]
