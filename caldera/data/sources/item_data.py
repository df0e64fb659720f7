"""Samples of an object that gives them by number: PyTorch's `Dataset`, or a list of pairs."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.core.tensor.dtype import DType
from caldera.data.sources.base import SCALE, Arrays, Data, checked_rows, checked_scale, scaled
from caldera.data.sources.items import arrays_of_item, is_indexed
from caldera.errors import ConfigError, DataError


class ItemData(Data):
    """Whatever has a length and gives sample `i` as `items[i]`: (x, y), a dict, or x alone.

    A `Dataset` of PyTorch is such an object, and so is a list of pairs. Arrays, numbers, tensors
    and pictures are taken. One thread at a time asks for an item: nobody promised that several may.

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
        if not is_indexed(items):
            raise ConfigError.build(
                "data.ItemData",
                expected="an object with len(items) and items[number]",
                got=type(items).__name__,
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

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        x, *others = self.raw_batch(indices)
        return scaled(x, self.scale), *others

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        rows = checked_rows(indices, len(self), "data.ItemData.batch")
        samples = [self._read(number) for number in rows.tolist()]
        if not samples:
            return tuple(np.zeros((0, *each.shape), each.dtype) for each in self._some())
        return tuple(np.stack(column) for column in zip(*samples, strict=True))

    def __repr__(self) -> str:
        return f"ItemData({len(self)} samples of {type(self._items).__name__}, shape {self.shape})"

    def _some(self) -> Arrays:
        if not self._first:
            raise DataError.build("data.ItemData", expected="samples", got="none")
        return self._first

    def _read(self, number: int) -> Arrays:
        where = f"{type(self._items).__name__}[{number}]"
        with self._lock:
            item = self._items[number]
        found = arrays_of_item(item, where)
        shapes, wanted = ([each.shape for each in of] for of in (found, self._first_or(found)))
        if not found:
            raise DataError.build(where, expected="a sample: (x, y), or x alone", got="nothing")
        if shapes != wanted:
            raise DataError.build(
                where,
                expected="samples of shape " + _listed(wanted),
                got=_listed(shapes),
                hint="bring them to one size in the object's own transform; sequences of different "
                "lengths are what data.RaggedData takes",
            )
        return found

    def _first_or(self, found: Arrays) -> Arrays:
        return self.__dict__.get("_first") or found


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))
