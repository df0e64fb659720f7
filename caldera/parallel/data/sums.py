"""Sums and means over ranks of arrays on the host, several in one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.lazy import Variable
from caldera.tensor.dtype import float32, promote


def allreduce_arrays(communicator: Communicator, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The sums over ranks of arrays, in one message for each dtype; all ranks have to ask.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.parallel.data.sums import allreduce_arrays
    >>> run_virtual_ranks(2, lambda comm: allreduce_arrays(comm, [np.eye(1), np.ones(2)]))[0]
    [array([[2.]]), array([2., 2.])]
    """
    found = [np.empty_like(array) for array in arrays]
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        chosen = [index for index, array in enumerate(arrays) if array.dtype == dtype]
        flat = np.concatenate([arrays[index].reshape(-1) for index in chosen])
        communicator.Allreduce(flat, flat)
        ends = np.cumsum([arrays[index].size for index in chosen])
        for index, part in zip(chosen, np.split(flat, ends[:-1]), strict=True):
            found[index] = part.reshape(arrays[index].shape)
    return found


def mean_over_ranks(
    communicator: Communicator, arrays: Sequence[np.ndarray], weight: float = 1.0
) -> list[np.ndarray]:
    """The means over ranks of arrays of floats, each rank counting by its weight; if none has any,
    all count the same. The same bits on every rank.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.parallel.data.sums import mean_over_ranks
    >>> def work(comm):
    ...     return mean_over_ranks(comm, [np.array([4.0 * comm.rank])], weight=1 + 2 * comm.rank)
    >>> run_virtual_ranks(2, work)
    [[array([3.])], [array([3.])]]
    """
    (total,) = allreduce_arrays(communicator, [np.array([float(weight)])])
    own = weight if total.item() else 1.0
    every = total.item() or float(communicator.size)
    wide = [promote(array.dtype, float32) for array in arrays]
    sums = allreduce_arrays(
        communicator,
        [array.astype(w) * w.type(own) for array, w in zip(arrays, wide, strict=True)],
    )
    return [
        (each / each.dtype.type(every)).astype(array.dtype)
        for each, array in zip(sums, arrays, strict=True)
    ]


class OfAllRanks:
    """A variable of which each rank has its own value, as a checkpoint sees it."""

    def __init__(
        self,
        variable: Variable,
        whole: Callable[[Variable], np.ndarray],
        part: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> None:
        self._variable = variable
        self._whole = whole
        self._part = part
        self.shape = variable.shape
        self.dtype = variable.dtype

    def numpy(self) -> np.ndarray:
        """What the values of all ranks amount to; all of them have to ask."""
        return self._whole(self._variable)

    def assign(self, value: Any) -> None:
        """Keep what this rank has of such a value."""
        self._variable.assign(self._part(np.asarray(value)))
