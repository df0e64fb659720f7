"""Several arrays as one vector, of which a sparse vector holds some elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from caldera.compress.sparse import SparseVector, Sum
from caldera.kernels.native.compression import add_at, put


class Joined:
    """Flat arrays, one after the other; places count through all of them.

    >>> import numpy as np
    >>> from caldera.compress.joined import Joined
    >>> arrays = [np.array([1.0, 2.0]), np.array([3.0])]
    >>> Joined(arrays).add(np.array([1, 2], np.int32), np.array([0.5, 0.25]))
    >>> arrays
    [array([1. , 2.5]), array([3.25])]
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = arrays
        self.edges = list(accumulate((array.size for array in arrays), initial=0))

    def sparse(self, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> SparseVector:
        """Places and values of each array as one sparse vector."""
        places = [each + np.int32(e) for (each, _), e in zip(parts, self.edges, strict=False)]
        values = [each for _, each in parts]
        return SparseVector(self.edges[-1], np.concatenate(places), np.concatenate(values))

    def add(self, places: np.ndarray, amounts: np.ndarray) -> None:
        """Add to some elements; their places increase."""
        cuts = np.searchsorted(places, self.edges).tolist()
        for array, start, (low, high) in zip(self.arrays, self.edges, pairwise(cuts), strict=False):
            if low < high:
                some = amounts[low:high].astype(array.dtype, copy=False)
                add_at(array, places[low:high], some, start)

    def write(self, total: Sum) -> None:
        """Put a sum in the place of the arrays."""
        if isinstance(total, np.ndarray):
            for array, (begin, end) in zip(self.arrays, pairwise(self.edges), strict=True):
                array[...] = total[begin:end]
            return
        cuts = np.searchsorted(total.places, self.edges).tolist()
        for array, start, (low, high) in zip(self.arrays, self.edges, pairwise(cuts), strict=False):
            array.fill(0)
            places, values = total.places[low:high], total.values[low:high]
            if array.dtype == values.dtype:
                put(array, places, values, start)
            else:
                array[places - np.int32(start)] = values
