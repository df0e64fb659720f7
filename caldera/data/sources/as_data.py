"""From whatever a user has to data."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np

from caldera.data.sources.array_data import ArrayData
from caldera.data.sources.base import Data
from caldera.data.sources.iterable_data import IterableData
from caldera.data.sources.paths import source
from caldera.errors import DataError


def as_data(value: Any) -> Data | IterableData:
    """Data of whatever holds samples: Data, arrays, a tuple (x, y) of them, an iterable, a path.

    An iterable that is no array is read as samples; for batches, use `IterableData`. What may lie
    at a path is said by `data.source`.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.as_data((np.zeros((3, 2)), [0, 1, 1]))
    ArrayData(3 samples, shape (2,), float64)
    """
    if isinstance(value, Data | IterableData):
        return value
    if isinstance(value, str | PathLike):
        return source(value)
    if isinstance(value, tuple):
        for part in value[1:]:
            if np.asarray(part).dtype.kind in "US":
                raise DataError.build(
                    "data.as_data", expected="targets that are numbers", got="texts",
                    hint="cd.data.arrays(x, y) numbers the classes, and keeps their names",
                )  # fmt: skip
        return ArrayData(*value)
    if isinstance(value, list):
        return ArrayData(value)
    array = np.asarray(value)
    # NumPy makes one object of what it cannot read as an array.
    if (
        array.dtype == object
        and array.ndim == 0
        and (isinstance(value, Iterable) or callable(value))
    ):
        return IterableData(value)
    return ArrayData(array)
