"""The data set that comes with the package: handwritten digits, as scikit-learn has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from caldera.data.datasets.dataset import Dataset, arrays

_FILE = Path(__file__).parent / "files" / "digits.npz"
"""Whose digits these are, and on which terms, is said beside it."""
_BRIGHTEST = 16


def digits(*, test: float = 0.2, seed: int = 0) -> Dataset:
    """1797 handwritten digits of shape (1, 8, 8), from 0 to 1.

    >>> from caldera import data
    >>> digits = data.digits()
    >>> digits.shape, digits.classes, float(digits.train.x.max())
    ((1, 8, 8), 10, 1.0)
    """
    with np.load(_FILE, allow_pickle=False) as found:
        x = found["images"][:, None] / _BRIGHTEST
        y = found["target"].astype(np.int64)
    return arrays(x, y, test=test, seed=seed, name="digits")
