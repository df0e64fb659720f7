"""What every source of numbered samples offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caldera.data.random_draws import permutation
from caldera.errors import ConfigError, IndexingError
from caldera.tensor.dtype import DType

if TYPE_CHECKING:
    from caldera.data.sources.stored_arrays import StoredArrays

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

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        """The samples as they are stored, which is what the stages of a pipeline begin with."""
        return self.batch(indices)

    def name_of(self, index: int) -> str:
        """What a message calls a sample: that of its file, where it has one."""
        return f"sample {index}"

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The numbers of all samples in the random order of an epoch."""
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
    rows = np.asarray(numbers)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ConfigError.build(where, expected="sample numbers", got=f"{rows.dtype} {rows.shape}")
    if rows.size and not -count <= rows.min() <= rows.max() < count:
        raise IndexingError.build(
            where,
            expected=f"whole numbers from 0 to {count - 1}",
            got=f"{rows.min()} to {rows.max()}",
        )
    return rows.astype(np.int64) % max(count, 1)
