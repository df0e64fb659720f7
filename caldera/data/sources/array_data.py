"""Samples in arrays, in memory or on disk.

Bytes are taken for images: uint8 samples come out as float32 divided by `scale` (255, so from 0 to
1), exactly as NumPy divides. `scale=None` leaves them bytes, for example for tokens. Samples of any
other dtype come out as they are. Only the first array (x) is scaled.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from caldera.core.tensor.convert import real_array_of
from caldera.core.tensor.dtype import DType
from caldera.data.sources.base import (
    SCALE,
    Array,
    Arrays,
    Data,
    StoredArrays,
    checked_rows,
    checked_scale,
    scaled,
)
from caldera.errors import ConfigError, ShapeError


class ArrayData(Data):
    """Arrays whose first axis counts the samples: x, or x and y, or several inputs and y.

    Anything that NumPy takes for an array will do, a memory-mapped file as well. A batch is one
    gather, then scaling; no sample is touched by itself. What else shall become of the samples is
    said by the stages of a `Pipeline`.

    >>> import numpy as np
    >>> from caldera import data
    >>> samples = data.ArrayData(np.array([[0, 255], [51, 102]], np.uint8), [7, 8])
    >>> x, y = samples.batch(np.array([1, 0]))
    >>> x.tolist(), y.tolist()
    ([[0.20000000298023224, 0.4000000059604645], [0.0, 1.0]], [8, 7])
    """

    def __init__(self, *arrays: ArrayLike, scale: float | None = SCALE) -> None:
        if not arrays:
            raise ConfigError.build("data.ArrayData", expected="x and y", got="nothing")
        self._arrays = tuple(real_array_of(array, "data.ArrayData") for array in arrays)
        shapes = [array.shape for array in self._arrays]
        if () in shapes or len({shape[0] for shape in shapes}) > 1:
            raise ShapeError.build(
                "data.ArrayData",
                expected="as many targets as inputs, along the first axis",
                got="shapes " + ", ".join(map(str, shapes)),
            )
        self.scale = checked_scale(scale, "data.ArrayData")
        # The samples of a subset, by their numbers in the arrays.
        self._rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._arrays[0] if self._rows is None else self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._arrays[0].shape[1:]

    @property
    def dtype(self) -> DType:
        return scaled(self._arrays[0][:0], self.scale).dtype

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        x, *others = self.raw_batch(indices)
        return scaled(x, self.scale), *others

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        try:
            rows = indices if self._rows is None else self._rows[indices]
            return tuple(_gather(array, rows) for array in self._arrays)
        except (IndexError, TypeError, ValueError, OverflowError):
            rows = checked_rows(indices, len(self), "data.ArrayData.batch")
            rows = rows if self._rows is None else self._rows[rows]
            return tuple(_gather(array, rows) for array in self._arrays)

    def stored(self) -> StoredArrays | None:
        # A subclass may make its batches in any way.
        if type(self) is not ArrayData:
            return None
        return StoredArrays(self._arrays, self._rows)

    @property
    def y(self) -> Array | None:
        return self.raw_batch(np.arange(len(self)))[-1] if len(self._arrays) > 1 else None

    def subset(self, numbers: Sequence[int] | NDArray[np.integer]) -> Self:
        """The samples with these numbers, in this order; the arrays are shared.

        >>> from caldera import data
        >>> data.ArrayData([10, 20, 30, 40]).subset([3, 1]).x.tolist()
        [40, 20]
        """
        rows = checked_rows(numbers, len(self), "data.ArrayData.subset")
        other = copy.copy(self)
        other._rows = rows if self._rows is None else self._rows[rows]
        # Some of the test samples may well be taken to choose by, and tested with the others.
        other.is_test = False
        return other

    def __repr__(self) -> str:
        return f"ArrayData({len(self)} samples, shape {self.shape}, {self.dtype})"


def _gather(array: Array, rows: NDArray[np.integer]) -> Array:
    if array.flags.c_contiguous:
        # Faster than array[rows], and than a take into a buffer that is kept.
        return np.take(array, rows, axis=0)
    # `take` would copy the whole array to make it contiguous.
    return np.ascontiguousarray(array[rows])
