"""Samples that lie in arrays, for devices that hold all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caldera.data.sources.base import Arrays


@dataclass(frozen=True)
class StoredArrays:
    """The arrays of `ArrayData`; of them, the `rows` of a subset.

    >>> import numpy as np
    >>> from caldera import data
    >>> stored = data.ArrayData(np.array([51, 52, 53], np.uint8)).subset([2, 0]).stored()
    >>> len(stored), stored.samples()[0].tolist()
    (2, [53, 51])
    """

    arrays: Arrays
    rows: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.arrays[0] if self.rows is None else self.rows)

    def samples(self) -> Arrays:
        """All samples; those of a subset are gathered, so that nobody need hold the others."""
        if self.rows is None:
            return self.arrays
        return tuple(array[self.rows] for array in self.arrays)
