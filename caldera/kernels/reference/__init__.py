"""The oracle: a plain NumPy function for each op that is not made of others."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.reference import (
    attention,
    collective,
    convolution,
    ctc,
    elementwise,
    fourier,
    indexing,
    linalg,
    movement,
    pooling,
    product,
    random,
    recurrent,
    reduction,
    skip_gram,
    sorting,
)
from caldera.kernels.reference.evaluation import FUNCTIONS, evaluate, interpret, interpreter
from caldera.kernels.reference.registry import reference

__all__ = ["FUNCTIONS", "evaluate", "interpret", "interpreter", "reference"]
