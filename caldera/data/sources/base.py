"""Interface of all sources of numbered samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import checked, require, within
from caldera.core.tensor.dtype import DType, float32, uint8
from caldera.data.random_draws import permutation
from caldera.data.schema import Schema
from caldera.data.sources.split_keys import SplitKeys
from caldera.data.tables.table import Table
from caldera.errors import ConfigError, IndexingError

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = tuple[Array, ...]


class Data(ABC):
    """Samples with access by number; a subclass needs the four abstract members.

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
        """Return the number of samples."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of x of a single sample."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """The dtype of x in a batch."""

    @abstractmethod
    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        """Return the samples with these numbers: (x, y), or (x,) without targets."""

    scale: float | None = None
    """Divisor for bytes that leave a pipeline over these samples; None keeps the bytes."""

    schema: Schema | None = None
    """Columns and classes of the samples, if they have names."""

    is_test: bool = False
    """True for the test samples of a data set, which should not be used for model selection."""

    table: Table | None = None
    """Rows of the table that the samples were read from, in order, if they are stored."""

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        """Return the samples as stored: the input of the first stage of a pipeline."""
        return self.batch(indices)

    def name_of(self, index: int) -> str:
        """Return the name of a sample for messages: its file name, if it has one."""
        return f"sample {index}"

    keys: SplitKeys | None = None
    """Groups or times of the samples, by which they are split; None for splits at random."""

    overlap: int | None = None
    """Number of neighbours that share targets, for samples in the order of time; else None.

    Such samples are split at the end and not at random.
    """

    inputs: int | None = None
    """Number of arrays of a sample that are inputs, if known; the rest are targets."""

    def batch_length(self, indices: NDArray[np.integer]) -> int | None:
        """Return the number of steps to pad a batch to; None for samples that are not padded."""
        return None

    def padded_batch(self, indices: NDArray[np.integer], length: int) -> Arrays:
        """Return the samples as stored, padded to `length` steps; see `RaggedData`."""
        return self.raw_batch(indices)

    def batch_order(self, seed: int, epoch: int, batch_size: int) -> NDArray[np.int64]:
        """Return the order of an epoch, which may depend on the batch size."""
        return self.order(seed, epoch)

    @checked
    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the numbers of all samples in the random order of an epoch."""
        within(f"data.{type(self).__name__}.order", "epoch", epoch, 0, 2**63 - 1)
        return permutation(len(self), seed, epoch)

    def stored(self) -> StoredArrays | None:
        """Return the arrays from which a device can make batches; None if only the host can."""
        return None

    def subset(self, numbers: Sequence[int] | NDArray[np.integer]) -> Data:
        """Return the samples with these indices, in this order."""
        return Subset(self, checked_rows(numbers, len(self), f"data.{type(self).__name__}.subset"))

    @property
    def x(self) -> Array:
        """Inputs of all samples, as a new array."""
        return self.batch(np.arange(len(self)))[0]

    @property
    def y(self) -> Array | None:
        """Targets of all samples, as a new array; None without targets."""
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
    """Samples of another data source, selected by index.

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
    """Return numbers of samples, of which there are `count`; negative ones count from the end.

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
            expected=f"integers from 0 to {count - 1}",
            got=f"{rows.min()} to {rows.max()}",
        )
    return rows.astype(np.int64) % max(count, 1)


@dataclass(frozen=True)
class StoredArrays:
    """The arrays of `ArrayData`, and the `rows` of a subset.

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
        """Return all samples; a subset is gathered, so that the remaining samples can be freed."""
        if self.rows is None:
            return self.arrays
        return tuple(array[self.rows] for array in self.arrays)


# Bytes remain bytes until floats are required: they take a quarter of the memory and of the copying
# time, both in the pipeline and to a device. Images become floats at the end, unless a stage has
# converted them before.

SCALE = 255.0


def scaled(x: Array, scale: float | None) -> Array:
    """Return a batch whose bytes are floats, unless `scale` is None.

    >>> scaled(np.array([255], np.uint8), 255.0).tolist()
    [1.0]
    """
    if scale is None or x.dtype != uint8:
        return x
    return np.divide(x, np.float32(scale), dtype=float32)


def checked_scale(scale: float | None, where: str) -> float | None:
    """Return a scale that a user gave.

    >>> checked_scale(0.0, "data.ArrayData")
    Traceback (most recent call last):
    caldera.errors.ConfigError: data.ArrayData: expected scale above 0, got 0.0
    """
    require(scale is None or scale > 0, where, "scale above 0", scale)
    return scale
