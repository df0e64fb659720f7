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


# Not frozen: one is made for each step, and freezing would triple its cost.
@dataclass(slots=True)
class Share:
    """Which samples of a batch a rank reads, for those who have the samples elsewhere.

    - `start`: the place of the whole batch in the order of the epoch.
    - `first`: the place of the rank's first sample in the whole batch.
    - `samples`: how many samples this rank has, as `len(share)` says.
    - `count`: how many samples the whole batch has, over all ranks.
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
        """What a rank has of a batch of `count` samples.

        With `parts`, the batch is first cut into so many of them, and ranks get whole ones.

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


class Loader:
    """Iterating gives the batches of one epoch, and the next time those of the next.

    The order is a function of `seed` and the epoch; streams come in their own. Of each batch, ranks
    read parts that follow one another; a rank's part may be one sample smaller than another's, or
    empty; with `parts` each batch is first cut into so many, of which ranks get whole ones. An
    iteration that is left early goes on where it was left. `batch_size` can be changed
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
        parts: int = 0,
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
        self.parts = parts
        self._epoch = 0
        self._position = 0
        # The last order that was asked for, and what it depends on.
        self._order: tuple[tuple[int, int, int], NDArray[np.int64]] | None = None

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

    def order(self) -> NDArray[np.int64]:
        """The numbers of all samples in the order of this epoch; made once."""
        samples = self._samples()
        if not self.shuffle:
            return np.arange(samples)
        name = (samples, self.seed, self._epoch)
        if self._order is None or self._order[0] != name:
            numbers = permutation(*name)
            numbers.flags.writeable = False
            self._order = (name, numbers)
        return self._order[1]

    def shares(self) -> Iterator[Share]:
        """As iterating, without reading any sample: who has them needs only their places.

        >>> import numpy as np
        >>> from caldera import data
        >>> loader = data.Loader(data.ArrayData(np.arange(5)), batch_size=2)
        >>> [(share.start, len(share)) for share in loader.shares()], loader.epoch
        ([(0, 2), (2, 2), (4, 1)], 1)
        """
        size = self.batch_size
        while (share := self._next_share(size)) is not None:
            self._position = share.start + share.count
            yield share
        self._next_epoch()

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
        size = self.batch_size
        order = self.order()
        while (share := self._next_share(size)) is not None:
            place = share.start + share.first
            indices = order[place : place + share.samples]
            arrays = data.drawn_batch(indices, Draw(self.seed, self._epoch, place))
            self._position = share.start + share.count
            yield _batch(arrays, share.first, share.count, indices)
        self._next_epoch()

    def _next_share(self, size: int) -> Share | None:
        """This rank's part of the next batch; None at the end of the epoch."""
        samples = self._samples()
        if self.drop_last and 0 < samples < size:
            raise ConfigError.build(
                "data.Loader",
                expected=f"a batch size of at most {samples}, the number of samples",
                got=str(size),
                hint="drop_last leaves out a batch that is not full, and here that is all of them",
            )
        start = self._position
        if start + (size if self.drop_last else 1) > samples:
            return None
        return self.share(start, min(size, samples - start), size)

    def share(self, start: int, count: int, size: int) -> Share:
        """What this rank has of a batch that begins at `start` (see `Share`)."""
        return Share.of(start, count, size, self.rank, self.ranks, self.parts)

    def _stream(self, data: IterableData) -> Iterator[Batch]:
        for arrays in data.read(self.batch_size, skip=self._position):
            start = self._position
            count = len(arrays[0])
            if self.drop_last and count < self.batch_size:
                break
            share = self.share(start, count, self.batch_size)
            begin, end = share.first, share.first + share.samples
            part = tuple(array[begin:end] for array in arrays)
            x = data.finish(part[0], Draw(self.seed, self._epoch, start + begin))
            self._position = start + count
            yield _batch((x, *part[1:]), begin, count, np.arange(start + begin, start + end))
        self._next_epoch()

    def _next_epoch(self) -> None:
        self._epoch += 1
        self._position = 0


def _batch(arrays: Arrays, first: int, count: int, indices: NDArray[np.integer]) -> Batch:
    target = arrays[-1] if len(arrays) > 1 else None
    return Batch(arrays[0], target, first, count, indices, arrays[1:-1])


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
