"""Batches of an epoch, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.data._base import Array, Arrays, Data
from caldera.data.draw import Draw, permutation
from caldera.data.stream import IterableData
from caldera.errors import CheckpointError, ConfigError, DataError


class _NoLengthError(DataError, TypeError):
    """A stream has no length; `list(...)` asks for one, and takes a TypeError for an answer."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of a batch.

    - `x`, `y`: the samples; `y` is None where there are no targets.
    - `first`: the place of the rank's first sample in the whole batch.
    - `count`: how many samples the whole batch has, over all ranks; `len(batch)` are this rank's.
    - `indices`: the samples' numbers in the data.
    - `between`: more inputs, for data of more than two arrays.

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

    def __len__(self) -> int:
        return len(self.indices)


class Loader:
    """Iterating gives the batches of one epoch, and the next time those of the next.

    The order is a function of `seed` and the epoch; streams come in their own. Of each batch, ranks
    read parts that follow one another; a rank's part may be one sample smaller than another's, or
    empty. An iteration that is left early goes on where it was left. `batch_size` can be changed
    between epochs.

    >>> import numpy as np
    >>> from caldera import data
    >>> loader = data.Loader(data.ArrayData(np.arange(5)), batch_size=2, seed=1)
    >>> [batch.x.tolist() for batch in loader]
    [[0, 4], [1, 2], [3]]
    >>> [batch.x.tolist() for batch in loader]
    [[4, 2], [1, 3], [0]]
    """

    def __init__(
        self,
        data: Data | IterableData,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if not 0 <= rank < ranks:
            raise ConfigError.build(
                "data.Loader", expected=f"a rank from 0 to {ranks - 1}", got=str(rank)
            )
        if not isinstance(data, Data | IterableData):
            raise ConfigError.build(
                "data.Loader",
                expected="Data or IterableData",
                got=type(data).__name__,
                hint="data.as_data makes it of arrays and iterables",
            )
        if not _is_whole(seed):
            raise ConfigError.build("data.Loader", expected="a seed, an int", got=repr(seed))
        self.data = data
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = int(seed)
        self.drop_last = drop_last
        self.rank = rank
        self.ranks = ranks
        self._epoch = 0
        self._position = 0

    @property
    def batch_size(self) -> int:
        """Samples of a batch, over all ranks."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if not _is_whole(size) or size < 1:
            raise ConfigError.build(
                "data.Loader", expected="a batch size of at least 1", got=repr(size)
            )
        self._batch_size = int(size)

    @property
    def epoch(self) -> int:
        """The number of this epoch, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many samples of this epoch have been handed out, to all ranks together."""
        return self._position

    def __len__(self) -> int:
        """The batches of a whole epoch."""
        if isinstance(self.data, IterableData):
            raise _NoLengthError.build("len(data.Loader)", expected="data", got="a stream")
        whole, rest = divmod(len(self.data), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self.data, IterableData):
            return self._stream(self.data)
        return self._numbered(self.data)

    def state(self) -> dict[str, int]:
        """Where the loader is, as numbers for a checkpoint; what was handed out counts as done.

        >>> import numpy as np
        >>> from caldera import data
        >>> loader = data.Loader(data.ArrayData(np.arange(6)), batch_size=2, seed=1)
        >>> for batch in loader:
        ...     break
        >>> state = loader.state()
        >>> state
        {'epoch': 0, 'position': 2, 'seed': 1, 'samples': 6}
        >>> other = data.Loader(data.ArrayData(np.arange(6)), batch_size=2)
        >>> other.restore(state)
        >>> [b.x.tolist() for b in other] == [b.x.tolist() for b in loader]
        True
        """
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self.seed,
            "samples": self._samples(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: the rest of that epoch comes next."""
        names = ("epoch", "position", "seed", "samples")
        if set(state) != set(names) or not all(_is_whole(state[name]) for name in names):
            raise CheckpointError.build(
                "data.Loader.restore",
                expected="the whole numbers " + ", ".join(names),
                got=repr(dict(state)),
            )
        epoch, position, seed, samples = (int(state[name]) for name in names)
        is_stream = isinstance(self.data, IterableData)
        fits = position == 0 or (samples == self._samples() and (is_stream or position <= samples))
        if epoch < 0 or position < 0 or not fits:
            raise CheckpointError.build(
                "data.Loader.restore",
                expected=f"a place in data of {self._samples()} samples",
                got=f"{position} of {samples}",
                hint="an epoch can only be continued with the data it was begun with",
            )
        self._epoch, self._position, self.seed = epoch, position, seed

    def _samples(self) -> int:
        """The length of the data; 0 for a stream."""
        return 0 if isinstance(self.data, IterableData) else len(self.data)

    def _numbered(self, data: Data) -> Iterator[Batch]:
        samples = len(data)
        size = self.batch_size
        if self.drop_last and 0 < samples < size:
            raise ConfigError.build(
                "data.Loader",
                expected=f"a batch size of at most {samples}, the number of samples",
                got=str(size),
                hint="drop_last leaves out a batch that is not full, and here that is all of them",
            )
        order = permutation(samples, self.seed, self._epoch) if self.shuffle else np.arange(samples)
        while self._position + (size if self.drop_last else 1) <= samples:
            start = self._position
            count = min(size, samples - start)
            begin, end = self._share(count)
            indices = order[start + begin : start + end]
            arrays = data.drawn_batch(indices, Draw(self.seed, self._epoch, start + begin))
            self._position = start + count
            yield _batch(arrays, begin, count, indices)
        self._next_epoch()

    def _stream(self, data: IterableData) -> Iterator[Batch]:
        for arrays in data.read(self.batch_size, skip=self._position):
            start = self._position
            count = len(arrays[0])
            if self.drop_last and count < self.batch_size:
                break
            begin, end = self._share(count)
            part = tuple(array[begin:end] for array in arrays)
            x = data.finish(part[0], Draw(self.seed, self._epoch, start + begin))
            self._position = start + count
            yield _batch((x, *part[1:]), begin, count, np.arange(start + begin, start + end))
        self._next_epoch()

    def _share(self, count: int) -> tuple[int, int]:
        """Where this rank's part of a batch begins and ends."""
        return count * self.rank // self.ranks, count * (self.rank + 1) // self.ranks

    def _next_epoch(self) -> None:
        self._epoch += 1
        self._position = 0


def _batch(arrays: Arrays, first: int, count: int, indices: NDArray[np.integer]) -> Batch:
    target = arrays[-1] if len(arrays) > 1 else None
    return Batch(arrays[0], target, first, count, indices, arrays[1:-1])


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
