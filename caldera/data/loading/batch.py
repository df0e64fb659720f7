"""Batches, shares of ranks, and the pipeline stages that can run on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.data.loading.pipeline import Pipeline
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array, Arrays


@dataclass(frozen=True, slots=True)
class DeviceStages:
    """The stages of a pipeline from `first` on, with the numbers that they draw.

    >>> from caldera.data import Draw
    >>> from caldera.data.loading.batch import DeviceStages
    >>> DeviceStages(2, Draw(seed=1)).first
    2
    """

    first: int
    draw: Draw


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of a batch.

    - `x`, `y`: the samples; `y` is None for data without targets.
    - `first`: index of the rank's first sample in the whole batch.
    - `count`: number of samples of the whole batch, over all ranks; `len(batch)` counts this
      rank's.
    - `indices`: the samples' numbers in the data.
    - `between`: further inputs, for data of more than two arrays.
    - `rest`: stages that the device has to apply; None if the batch is finished.

    >>> import numpy as np
    >>> from caldera import data
    >>> loader = data.Loader(data.ArrayData(np.arange(10.0)), 4, shuffle=False, rank=1, ranks=2)
    >>> for batch in loader:
    ...     print(batch.x, batch.first, batch.count, batch.indices)
    [2. 3.] 2 4 [2 3]
    [6. 7.] 2 4 [6 7]
    [9.] 1 2 [9]
    """

    x: Array
    y: Array | None
    first: int
    count: int
    indices: NDArray[np.integer]
    between: Arrays = ()
    rest: DeviceStages | None = None

    @property
    def arrays(self) -> Arrays:
        """Arrays of the batch: the inputs, then the targets."""
        return (self.x, *self.between, *(() if self.y is None else (self.y,)))

    def __len__(self) -> int:
        return len(self.indices)


# Not frozen: one is made for each step, and freezing would triple its cost.
@dataclass(slots=True)
class Share:
    """Position of a rank's samples in a batch, for code that stores the samples elsewhere.

    - `start`: index of the whole batch's first sample in the order of the epoch.
    - `first`: index of the rank's first sample in the whole batch.
    - `samples`: number of samples of this rank, as `len(share)`.
    - `count`: number of samples of the whole batch, over all ranks.
    - `size`: the batch size; only the last batch of an epoch has fewer samples.

    >>> import numpy as np
    >>> from caldera import data
    >>> next(data.Loader(data.ArrayData(np.arange(10)), batch_size=4).shares())
    Share(start=0, first=0, samples=4, count=4, size=4)
    """

    start: int
    first: int
    samples: int
    count: int
    size: int

    @classmethod
    def of(
        cls, start: int, count: int, size: int, rank: int = 0, ranks: int = 1, parts: int = 0
    ) -> Share:
        """Return a rank's share of a batch of `count` samples.

        With `parts`, the batch is first split into this number of parts, each assigned to one rank.

        >>> from caldera.data import Share
        >>> Share.of(0, 10, 10, rank=1, ranks=3)
        Share(start=0, first=3, samples=3, count=10, size=10)
        >>> Share.of(0, 10, 10, rank=1, ranks=3, parts=5)
        Share(start=0, first=2, samples=4, count=10, size=10)
        """
        parts = parts or ranks
        first, end = (count * (parts * r // ranks) // parts for r in (rank, rank + 1))
        return cls(start, first, end - first, count, size)

    def __len__(self) -> int:
        return self.samples


def device_splits(pipeline: Pipeline) -> tuple[int | None, ...]:
    """Return numbers of stages to run on the host before the device runs the rest.

    The first entry is the smallest possible number: then bytes are copied, not floats. The second
    is the largest number that does not make batches larger, if it differs. The last is None: all
    stages run on the host.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.zeros((10, 3, 8, 8), np.uint8)
    >>> stages = [data.Mirror(), data.Cutout(2), data.Normalise(0.5, 1.0)]
    >>> device_splits(data.Pipeline(images, stages))
    (0, 2, None)
    >>> device_splits(data.Pipeline(images, [lambda x, draw: x, data.Mirror()]))
    (1, 2, None)
    """
    sizes: dict[int, int] = {}
    for end in reversed(range(len(pipeline.stages))):
        arrays = pipeline.example(end)
        if not can_run_on_device(pipeline, arrays, end):
            break
        sizes[end] = _bytes(arrays)
    finished = _bytes(pipeline.example())
    smallest = min(sizes.values(), default=finished)
    few = [min(sizes)] if sizes else []
    many = [max(end for end in sizes if sizes[end] == smallest)] if sizes else []
    return (*dict.fromkeys([*few, *many]), None)


def can_run_on_device(pipeline: Pipeline, arrays: Arrays, first: int) -> bool:
    """Return True if a device can run all stages from `first` on.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.zeros((1, 3, 8, 8), np.uint8)
    >>> can_run_on_device(data.Pipeline(images, data.Mirror()), (images,), 0)
    True
    """
    if any(array.dtype == object for array in arrays):
        return False
    inputs = tuple(
        op.input(f"array {number}", array.shape, dtype=array.dtype)
        for number, array in enumerate(arrays)
    )
    draw = LazyDraw(np.zeros(2, np.int64), np.int64(0))
    return pipeline.stages.expressions(inputs, draw, first) is not None


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)
