"""What every source of numbered samples offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import checked, within
from caldera.core.tensor.dtype import DType, float32, uint8
from caldera.data.random_draws import permutation
from caldera.data.schema import Schema
from caldera.data.tables.table import Table
from caldera.errors import ConfigError, IndexingError

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = tuple[Array, ...]


class Data(ABC):
    """Samples that can be asked for by number. A new kind needs the four abstract members.

    >>> import numpy as np
    >>> from caldera import data
    >>> class Squares(data.Data):
    ...     shape = (1,)
    ...     dtype = np.dtype("float32")
    ...     def __len__(self):
    ...         return 100
    ...     def batch(self, indices):
    ...         x = indices[:, None].astype(self.dtype)
    ...         return x, x * x
    >>> [batch.y[:, 0].tolist() for batch in data.Loader(Squares(), 50, shuffle=False)][0][:4]
    [0.0, 1.0, 4.0, 9.0]
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's x."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """The dtype of x in a batch."""

    @abstractmethod
    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        """The samples with these numbers: (x, y), or (x,) where there is no target."""

    scale: float | None = None
    """What bytes that leave a pipeline over these samples are divided by; None leaves them."""

    schema: Schema | None = None
    """What the samples are: columns and classes, where they have names."""

    is_test: bool = False
    """Whether a data set has these to test with, so that nothing should be chosen by them."""

    table: Table | None = None
    """The rows of a table that the samples come from, in their order, where they are stored."""

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        """The samples as they are stored, which is what the stages of a pipeline begin with."""
        return self.batch(indices)

    def name_of(self, index: int) -> str:
        """What a message calls a sample: that of its file, where it has one."""
        return f"sample {index}"

    overlap: int | None = None
    """Of samples in the order of time, how many neighbours share what they predict; None for
    others. A part of them that is set aside is the last one, and not a random one."""

    inputs: int | None = None
    """How many arrays of a sample are inputs, where the data know; the others are targets."""

    def batch_length(self, indices: NDArray[np.integer]) -> int | None:
        """How many steps a batch of these samples is padded to; None where nothing is padded."""
        return None

    def padded_batch(self, indices: NDArray[np.integer], length: int) -> Arrays:
        """The samples as they are stored, padded to so many steps; see `RaggedData`."""
        return self.raw_batch(indices)

    def batch_order(self, seed: int, epoch: int, batch_size: int) -> NDArray[np.int64]:
        """The order of an epoch for batches of this size, where it depends on that."""
        return self.order(seed, epoch)

    @checked
    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The numbers of all samples in the random order of an epoch."""
        within(f"data.{type(self).__name__}.order", "epoch", epoch, 0, 2**63 - 1)
        return permutation(len(self), seed, epoch)

    def stored(self) -> StoredArrays | None:
        """What a device needs to make the batches itself; None if only the host can."""
        return None

    def subset(self, numbers: Sequence[int] | NDArray[np.integer]) -> Data:
        """The samples with these numbers, in this order."""
        return Subset(self, checked_rows(numbers, len(self), f"data.{type(self).__name__}.subset"))

    @property
    def x(self) -> Array:
        """All inputs, as one new array."""
        return self.batch(np.arange(len(self)))[0]

    @property
    def y(self) -> Array | None:
        """All targets, as one new array."""
        arrays = self.batch(np.arange(len(self)))
        return arrays[-1] if len(arrays) > 1 else None


class RawData(Data):
    """Samples whose bytes become floats on their way out; a new kind needs `raw_batch` in place of
    `batch`."""

    @abstractmethod
    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays: ...

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        x, *others = self.raw_batch(indices)
        return scaled(x, self.scale), *others


class Subset(Data):
    """Some samples of data, by their numbers.

    >>> from caldera import data
    >>> data.Pipeline([10, 20, 30, 40]).subset([3, 1]).x.tolist()
    [40, 20]
    """

    def __init__(self, data: Data, rows: NDArray[np.int64]) -> None:
        self._data = data
        self._rows = rows
        self.scale = data.scale
        self.schema = data.schema

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> DType:
        return self._data.dtype

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        return self._data.batch(self._rows[indices])

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        return self._data.raw_batch(self._rows[indices])

    def name_of(self, index: int) -> str:
        return self._data.name_of(int(self._rows[index]))

    @property
    def y(self) -> Array | None:
        targets = self._data.y
        return None if targets is None else targets[self._rows]


def checked_rows(
    numbers: Sequence[int] | NDArray[np.integer], count: int, where: str
) -> NDArray[np.int64]:
    """Numbers of samples, of which there are `count`; negative ones count from the end.

    >>> checked_rows([0, -1], 5, "data.ArrayData.subset").tolist()
    [0, 4]
    """
    try:
        rows = np.asarray(numbers)
    except ValueError:  # lists of different lengths
        rows = np.empty((0, 0))
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ConfigError.build(where, expected="sample numbers", got=f"{rows.dtype} {rows.shape}")
    if rows.size and not -count <= rows.min() <= rows.max() < count:
        raise IndexingError.build(
            where,
            expected=f"whole numbers from 0 to {count - 1}",
            got=f"{rows.min()} to {rows.max()}",
        )
    return rows.astype(np.int64) % max(count, 1)


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


# Bytes stay bytes until something needs more: they take a quarter of the memory and of the time to
# copy, on the way through a pipeline and on the way to a device. Floats are the last thing that
# becomes of images, unless a stage has made floats of them.

SCALE = 255.0


def scaled(x: Array, scale: float | None) -> Array:
    """A batch whose bytes are floats, unless `scale` is None.

    >>> scaled(np.array([255], np.uint8), 255.0).tolist()
    [1.0]
    """
    if scale is None or x.dtype != uint8:
        return x
    return np.divide(x, np.float32(scale), dtype=float32)


def checked_scale(scale: float | None, where: str) -> float | None:
    """A scale that a user gave.

    >>> checked_scale(0.0, "data.ArrayData")
    Traceback (most recent call last):
    caldera.errors.ConfigError: data.ArrayData: expected scale above 0, got 0.0
    """
    if scale is not None and not scale > 0:
        raise ConfigError.build(where, expected="scale above 0", got=str(scale))
    return scale
