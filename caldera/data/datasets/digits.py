"""The data set that needs no network and no files: scikit-learn's handwritten digits."""

from __future__ import annotations

from caldera.data.datasets.dataset import Dataset, arrays
from caldera.optional import optional_import

_BRIGHTEST = 16


def digits(*, test: float = 0.2, seed: int = 0) -> Dataset:
    """1797 handwritten digits of shape (1, 8, 8), from 0 to 1. Needs scikit-learn.

    >>> from caldera import data
    >>> digits = data.digits()
    >>> digits.shape, digits.classes, float(digits.train.x.max())
    ((1, 8, 8), 10, 1.0)
    """
    found = optional_import("sklearn.datasets", "scikit-learn", "data.digits").load_digits()
    x = found.images[:, None] / _BRIGHTEST
    return arrays(x, found.target, test=test, seed=seed, name="digits")
