"""Samples in arrays, in memory or on disk.

Bytes are taken for images: uint8 samples come out as float32 divided by `scale` (255, so from 0 to
1), exactly as NumPy divides. `scale=None` leaves them bytes, for example for tokens. Samples of any
other dtype come out as they are. Only the first array (x) is scaled and transformed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from caldera.data._base import Array, Arrays, Data
from caldera.data.draw import Draw
from caldera.data.stored import Stored
from caldera.data.transform import Compose, TransformLike, as_transform
from caldera.errors import ConfigError, IndexingError, ShapeError
from caldera.tensor.convert import array_of
from caldera.tensor.dtype import DType, float32, uint8

SCALE = 255.0


class ArrayData(Data):
    """Arrays whose first axis counts the samples: x, or x and y, or several inputs and y.

    Anything that NumPy takes for an array will do, a memory-mapped file as well. A batch is one
    gather, then `transform` (one, or a list), then scaling; no sample is touched by itself.

    >>> import numpy as np
    >>> from caldera import data
    >>> samples = data.ArrayData(np.array([[0, 255], [51, 102]], np.uint8), [7, 8])
    >>> x, y = samples.batch(np.array([1, 0]))
    >>> x.tolist(), y.tolist()
    ([[0.20000000298023224, 0.4000000059604645], [0.0, 1.0]], [8, 7])
    """

    def __init__(
        self,
        *arrays: ArrayLike,
        transform: TransformLike | None = None,
        scale: float | None = SCALE,
    ) -> None:
        if not arrays:
            raise ConfigError.build("data.ArrayData", expected="x and y", got="nothing")
        self._arrays = tuple(array_of(array, "data.ArrayData") for array in arrays)
        shapes = [array.shape for array in self._arrays]
        if () in shapes or len({shape[0] for shape in shapes}) > 1:
            raise ShapeError.build(
                "data.ArrayData",
                expected="as many targets as inputs, along the first axis",
                got="shapes " + ", ".join(map(str, shapes)),
            )
        if scale is not None and not scale > 0:
            raise ConfigError.build("data.ArrayData", expected="scale above 0", got=str(scale))
        self._scale = scale
        # The samples of a subset, by their numbers in the arrays.
        self._rows: NDArray[np.int64] | None = None
        self._set_transform(as_transform(transform))

    def _set_transform(self, transform: Compose | None) -> None:
        self._transform = transform
        x = self._arrays[0]
        # One blank sample shows what a transform makes of shape and dtype.
        blank = finished(np.zeros((1, *x.shape[1:]), x.dtype), transform, self._scale, Draw())
        self._shape = blank.shape[1:]
        self._dtype = blank.dtype

    def __len__(self) -> int:
        return len(self._arrays[0] if self._rows is None else self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> DType:
        return self._dtype

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        return self.drawn_batch(indices, Draw())

    def drawn_batch(self, indices: NDArray[np.integer], draw: Draw) -> Arrays:
        arrays = self.raw_batch(indices)
        return finished(arrays[0], self._transform, self._scale, draw), *arrays[1:]

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        """The samples as they are stored, neither transformed nor scaled."""
        try:
            rows = indices if self._rows is None else self._rows[indices]
            return tuple(_gather(array, rows) for array in self._arrays)
        except IndexError:
            raise IndexingError.build(
                "data.ArrayData.batch",
                expected=f"whole numbers from 0 to {len(self) - 1}",
                got=f"{np.min(indices)} to {np.max(indices)}",
            ) from None

    def stored(self) -> Stored | None:
        # A subclass may make its batches in any way.
        if type(self) is not ArrayData:
            return None
        return Stored(self._arrays, self._rows, self._transform, self._scale)

    @property
    def y(self) -> Array | None:
        return self.raw_batch(np.arange(len(self)))[-1] if len(self._arrays) > 1 else None

    def transformed(self, transform: TransformLike | None) -> Self:
        """The same samples with another transform; the arrays are shared.

        >>> from caldera import data
        >>> images = data.digits().train.transformed([data.Crop(8, padding=1), data.Mirror()])
        >>> images.shape
        (1, 8, 8)
        """
        other = copy.copy(self)
        other._set_transform(as_transform(transform))
        return other

    def subset(self, numbers: Sequence[int] | NDArray[np.integer]) -> Self:
        """The samples with these numbers, in this order; the arrays are shared.

        >>> from caldera import data
        >>> data.ArrayData([10, 20, 30, 40]).subset([3, 1]).x.tolist()
        [40, 20]
        """
        rows = np.asarray(numbers)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ConfigError.build(
                "data.ArrayData.subset", expected="sample numbers", got=f"{rows.dtype} {rows.shape}"
            )
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexingError.build(
                "data.ArrayData.subset",
                expected=f"whole numbers from 0 to {len(self) - 1}",
                got=f"{rows.min()} to {rows.max()}",
            )
        rows = rows.astype(np.int64)
        other = copy.copy(self)
        other._rows = rows % max(len(self), 1) if self._rows is None else self._rows[rows]
        return other

    def __repr__(self) -> str:
        return f"ArrayData({len(self)} samples, shape {self.shape}, {self.dtype})"


def finished(x: Array, transform: Compose | None, scale: float | None, draw: Draw) -> Array:
    """A batch as it leaves the pipeline: transformed, and no longer bytes.

    >>> finished(np.array([255], np.uint8), None, 255.0, Draw()).tolist()
    [1.0]
    """
    if transform is not None:
        x = transform(x, draw)
    if scale is not None and x.dtype == uint8:
        return np.divide(x, np.float32(scale), dtype=float32)
    return x


def _gather(array: Array, rows: NDArray[np.integer]) -> Array:
    if array.flags.c_contiguous:
        # Faster than array[rows], and than a take into a buffer that is kept.
        return np.take(array, rows, axis=0)
    # `take` would copy the whole array to make it contiguous.
    return np.ascontiguousarray(array[rows])
