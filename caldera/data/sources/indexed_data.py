"""Samples with random access: arrays, and indexable objects such as PyTorch's `Dataset`.

uint8 arrays are treated as images: samples are returned as float32 divided by `scale` (255, so
from 0 to 1), exactly as NumPy divides. `scale=None` keeps them as bytes, for example for tokens.
Samples of any other dtype are returned unchanged. Only the first array (x) is scaled.

Items of other libraries become arrays: PyTorch's tensors, pictures, dicts, and lists in place of
tuples. No library is imported for this: a tensor is recognised by its methods.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from caldera.base.arguments import require
from caldera.core.tensor.dtype import DType, real_array_of
from caldera.data.sources.base import (
    SCALE,
    Array,
    Arrays,
    RawData,
    StoredArrays,
    checked_rows,
    checked_scale,
    scaled,
)
from caldera.errors import CalderaError, DataError, ShapeError


class ArrayData(RawData):
    """Arrays whose first axis counts the samples: x, or x and y, or several inputs and y.

    Any array-like object is accepted, including a memory-mapped file. A batch is one gather
    followed by scaling; samples are not processed individually. The stages of a `Pipeline` define
    further processing.

    >>> import numpy as np
    >>> from caldera import data
    >>> samples = data.ArrayData(np.array([[0, 255], [51, 102]], np.uint8), [7, 8])
    >>> x, y = samples.batch(np.array([1, 0]))
    >>> x.tolist(), y.tolist()
    ([[0.20000000298023224, 0.4000000059604645], [0.0, 1.0]], [8, 7])
    """

    def __init__(self, *arrays: ArrayLike, scale: float | None = SCALE) -> None:
        require(arrays, "data.ArrayData", "x and y", "nothing")
        self._arrays = tuple(real_array_of(array, "data.ArrayData") for array in arrays)
        shapes = [array.shape for array in self._arrays]
        if () in shapes or len({shape[0] for shape in shapes}) > 1:
            raise ShapeError.build(
                "data.ArrayData",
                expected="equal numbers of inputs and targets along the first axis",
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
        """Return the samples with these numbers, in this order; the arrays are shared.

        >>> from caldera import data
        >>> data.ArrayData([10, 20, 30, 40]).subset([3, 1]).x.tolist()
        [40, 20]
        """
        rows = checked_rows(numbers, len(self), "data.ArrayData.subset")
        other = copy.copy(self)
        other._rows = rows if self._rows is None else self._rows[rows]
        # Some of the test samples may be used for model selection, and the rest for testing.
        other.is_test = False
        other.table = None
        other.keys = None if self.keys is None else self.keys.subset(rows)
        return other

    def __repr__(self) -> str:
        return f"ArrayData({len(self)} samples, shape {self.shape}, {self.dtype})"


def _gather(array: Array, rows: NDArray[np.integer]) -> Array:
    if array.flags.c_contiguous:
        # Faster than array[rows], and than a take into a buffer that is kept.
        return np.take(array, rows, axis=0)
    # `take` would copy the whole array to make it contiguous.
    return np.ascontiguousarray(array[rows])


TARGETS = ("y", "label", "labels", "target", "targets")
"""Names of targets among the keys of a dict."""


def array_of_item(value: Any, where: str) -> Array:
    """Convert a value of a sample to an array: numbers, arrays, PyTorch tensors, Pillow images."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return real_array_of(value.numpy(), where)
    if hasattr(value, "getbands") and hasattr(value, "convert"):
        picture = value if value.mode in ("L", "RGB") else value.convert("RGB")
        pixels = np.asarray(picture)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return real_array_of(value, where)


def arrays_of_item(item: Any, where: str) -> Arrays:
    """Convert a sample or a batch to arrays: the inputs, then the targets.

    `item` is a tuple, a dict (see `values_in_order`), or one array. A list is one array if
    possible, otherwise it is treated as a tuple: PyTorch's `DataLoader` makes lists of tensors.

    >>> [array.tolist() for array in arrays_of_item({"label": 1, "image": [0.5, 2.0]}, "item 0")]
    [[0.5, 2.0], 1]
    """
    if isinstance(item, Mapping):
        parts: Sequence[Any] = values_in_order(item, where)
    elif isinstance(item, tuple) or (isinstance(item, list) and _stands_for_tuple(item)):
        parts = item
    else:
        parts = [item]
    try:
        return tuple(array_of_item(part, where) for part in parts)
    except CalderaError as error:
        raise DataError.build(where, expected="arrays of numbers", got=str(error)) from None


def values_in_order(given: Mapping[Any, Any], where: str) -> list[Any]:
    """Return the values of a dict, those last that are targets by their names.

    >>> values_in_order({"y": 1, "x": 2}, "fit")
    [2, 1]
    """
    require(given, where, "arrays by their names", "an empty dict", error=DataError)
    targets = [name for name in TARGETS if name in given]
    if len(targets) > 1:
        raise DataError.build(
            where,
            expected="one target in a dict: " + " or ".join(map(repr, TARGETS)),
            got=" and ".join(map(repr, targets)),
            hint="leave one out, or write fit(inputs, targets)",
        )
    inputs = [value for name, value in given.items() if name not in targets]
    return [*inputs, *(given[name] for name in targets)]


def is_data_loader(value: Any) -> bool:
    """Return True if a value is a `DataLoader` of PyTorch, or similar: it yields batches."""
    return all(hasattr(value, name) for name in ("dataset", "batch_size", "collate_fn", "__iter__"))


def is_indexed(value: Any) -> bool:
    """Return True if a value has samples by number, as a `Dataset` of PyTorch does.

    >>> is_indexed([1]), is_indexed(iter([1])), is_indexed(np.zeros(3))
    (True, False, False)
    """
    if isinstance(value, str | bytes | Mapping | type) or hasattr(value, "__array__"):
        return False
    # PyTorch's IterableDataset inherits a [] that it does not have.
    if any(kind.__name__ == "IterableDataset" for kind in type(value).__mro__):
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _stands_for_tuple(item: list[Any]) -> bool:
    shapes = {getattr(part, "shape", ()) for part in item}
    return len(shapes) > 1 or any(hasattr(part, "detach") for part in item)


class ItemData(RawData):
    """Object with a length whose `items[i]` is sample `i`: (x, y), a dict, or only x.

    A `Dataset` of PyTorch is such an object, and so is a list of pairs. Arrays, numbers, tensors
    and pictures are accepted. Items are read by one thread at a time, because the object may not be
    thread-safe.

    >>> from caldera import data
    >>> class Squares:
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, number):
    ...         return [float(number)], number**2
    >>> data.ItemData(Squares()).batch([3, 1])[1].tolist()
    [9, 1]
    """

    def __init__(self, items: Any, *, scale: float | None = SCALE) -> None:
        require(
            is_indexed(items),
            "data.ItemData",
            "an object with len(items) and items[number]",
            type(items).__name__,
        )
        self._items = items
        self._lock = Lock()
        self.scale = checked_scale(scale, "data.ItemData")
        self._first = self._read(0) if len(items) else ()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._some()[0].shape

    @property
    def dtype(self) -> DType:
        return scaled(self._some()[0][None], self.scale).dtype

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        rows = checked_rows(indices, len(self), "data.ItemData.batch")
        samples = [self._read(number) for number in rows.tolist()]
        if not samples:
            return tuple(np.zeros((0, *each.shape), each.dtype) for each in self._some())
        return tuple(np.stack(column) for column in zip(*samples, strict=True))

    def __repr__(self) -> str:
        return f"ItemData({len(self)} samples of {type(self._items).__name__}, shape {self.shape})"

    def _some(self) -> Arrays:
        require(self._first, "data.ItemData", "samples", error=DataError)
        return self._first

    def _read(self, number: int) -> Arrays:
        where = f"{type(self._items).__name__}[{number}]"
        with self._lock:
            item = self._items[number]
        found = arrays_of_item(item, where)
        first = self.__dict__.get("_first") or found
        shapes, wanted = ([each.shape for each in of] for of in (found, first))
        require(found, where, "a sample: (x, y), or only x", "nothing", error=DataError)
        if shapes != wanted:
            raise DataError.build(
                where,
                expected="samples of shape " + " and ".join(map(str, wanted)),
                got=" and ".join(map(str, shapes)),
                hint="resize them in the object's transform; use data.RaggedData for sequences "
                "of different lengths",
            )
        return found
