"""Collectives of one process: the oracle is alone."""

from __future__ import annotations

import numpy as np

from caldera.core.graph.ops.collective import Number
from caldera.kernels.reference.evaluation import FUNCTIONS


def _all_sum(x: np.ndarray, axis: str, number: Number) -> np.ndarray:
    return x


# As a kernel it would leave out the other ranks, so it is none.
FUNCTIONS["all_sum"] = _all_sum
