"""What every source of numbered samples offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caldera.data.draw import Draw
from caldera.tensor.dtype import DType

if TYPE_CHECKING:
    from caldera.data.stored import Stored

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

    def drawn_batch(self, indices: NDArray[np.integer], draw: Draw) -> Arrays:
        """The batch with the random numbers that `draw` names; for data without them, `batch`."""
        return self.batch(indices)

    def stored(self) -> Stored | None:
        """What a device needs to make the batches itself; None if only the host can."""
        return None

    @property
    def x(self) -> Array:
        """All inputs, as one new array."""
        return self.batch(np.arange(len(self)))[0]

    @property
    def y(self) -> Array | None:
        """All targets, as one new array."""
        arrays = self.batch(np.arange(len(self)))
        return arrays[-1] if len(arrays) > 1 else None
