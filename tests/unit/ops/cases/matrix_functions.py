"""Cases for functions of matrices."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers


def _expm(a: np.ndarray) -> np.ndarray:
    """The series, for small matrices."""
    term = total = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    for k in range(1, 40):
        term = term @ a / k
        total = total + term
    return total


CASES = [
    Case("pinv", op.pinv, (numbers(3, 2),), np.linalg.pinv),
    Case("pinv", op.pinv, (numbers(2, 2, 3),), np.linalg.pinv, name="wide"),
    Case("expm", op.expm, (numbers(2, 2),), _expm),
]
