"""Batches of an epoch, in an order that depends only on seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import checked, refusal, require, within
from caldera.base.config import settings
from caldera.data.loading.batch import Batch, DeviceStages, Share
from caldera.data.loading.pipeline import Pipeline
from caldera.data.loading.prefetch import BatchJob, PreparedBatch, prefetch_memory, prefetched
from caldera.data.loading.tuner import LoaderSetting, Tuner
from caldera.data.random_draws import Draw
from caldera.data.sources.base import Data
from caldera.data.sources.iterable_data import IterableData
from caldera.errors import CheckpointError, ConfigError


class Loader:
    """Batches of samples; each iteration over the loader is one epoch.

    The order is a function of `seed` and the epoch; streams keep theirs. Ranks read consecutive
    parts of each batch; a rank's part may be empty, or one sample smaller than the largest. With
    `parts`, each batch is first split into this number of parts, each assigned to one rank. An
    iteration that is left early is continued by the next one; otherwise the next epoch starts.
    `batch_size` can be changed between epochs. The data's `Pipeline` defines how batches are made.

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
        require(0 <= rank < ranks, "data.Loader", f"a rank from 0 to {ranks - 1}", rank)
        require(
            isinstance(data, Data | IterableData),
            "data.Loader",
            "Data or IterableData",
            type(data).__name__,
            hint="data.as_data converts arrays and iterables",
        )
        require(_is_whole(seed), "data.Loader", "a seed, an int", repr(seed))
        self.data = Pipeline.of(data)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = int(seed)
        self.drop_last = drop_last
        self.rank = rank
        self.ranks = ranks
        self.parts = parts
        self._epoch = 0
        self._position = 0
        # The last requested order, with the values that it depends on.
        self._order: tuple[tuple[int, int, int, int], NDArray[np.int64]] | None = None
        # Kept for all epochs: the tuned setting remains valid.
        self._tuner: tuple[tuple[int | None, ...], Tuner] | None = None

    @property
    def batch_size(self) -> int:
        """Samples of a batch, over all ranks."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        require(_is_whole(size) and size >= 1, "data.Loader", "a batch size >= 1", repr(size))
        self._batch_size = int(size)

    @property
    def epoch(self) -> int:
        """The number of this epoch, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """Number of samples of this epoch yielded so far, over all ranks."""
        return self._position

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        whole, rest = divmod(len(self.data), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @checked
    def batches(self, splits: Sequence[int | None] = (None,)) -> Iterator[Batch]:
        """Iterate over batches; `splits` are allowed numbers of stages to run on the host.

        A batch with stages left to run has a `rest`.
        """
        if not len(splits):
            raise refusal("data.Loader.batches", "splits", "at least one number of stages", splits)
        for each in splits:
            if each is not None:
                within("data.Loader.batches", "splits", each, 0, len(self.data.stages))
        return self._batches(tuple(splits))

    def _batches(self, splits: tuple[int | None, ...]) -> Iterator[Batch]:
        jobs = self._read_jobs() if self.data.is_stream else self._numbered_jobs()
        with closing(prefetched(self.data, jobs, self._tuned(splits))) as made:
            for ready in made:
                self._position = ready.job.share.start + ready.job.share.count
                yield _batch(ready)
        self._next_epoch()

    @property
    def setting(self) -> LoaderSetting:
        """Current setting of the workers.

        >>> import numpy as np
        >>> from caldera import data
        >>> data.Loader(data.Pipeline(np.arange(4), workers=3, prefetch=5), 2).setting
        LoaderSetting(workers=3, prefetch=5, host_stages=None)
        """
        return (self._tuner[1] if self._tuner else self._tuned((None,))).setting

    def _tuned(self, splits: tuple[int | None, ...]) -> Tuner:
        if self._tuner is None or self._tuner[0] != splits:
            tuner = Tuner(
                settings.threads,
                workers=self.data.workers,
                prefetch=self.data.prefetch,
                splits=splits,
                memory=prefetch_memory(),
            )
            self._tuner = (splits, tuner)
        return self._tuner[1]

    def order(self) -> NDArray[np.int64]:
        """Return the numbers of all samples in the order of this epoch; made once."""
        samples = self._samples()
        if not self.shuffle:
            return np.arange(samples)
        name = (samples, self.seed, self._epoch, self.batch_size)
        if self._order is None or self._order[0] != name:
            numbers = self.data.batch_order(self.seed, self._epoch, self.batch_size)
            numbers.flags.writeable = False
            self._order = (name, numbers)
        return self._order[1]

    def shares(self) -> Iterator[Share]:
        """Iterate over the positions of batches, without reading any sample.

        >>> import numpy as np
        >>> from caldera import data
        >>> loader = data.Loader(data.ArrayData(np.arange(5)), batch_size=2)
        >>> [(share.start, len(share)) for share in loader.shares()], loader.epoch
        ([(0, 2), (2, 2), (4, 1)], 1)
        """
        for share in self._shares():
            self._position = share.start + share.count
            yield share
        self._next_epoch()

    def state(self) -> dict[str, int]:
        """Return the position as numbers for a checkpoint; yielded batches count as done.

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

    @checked
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the position stored in `state`; the rest of that epoch follows."""
        names = ("epoch", "position", "seed", "samples")
        if set(state) != set(names) or not all(_is_whole(state[name]) for name in names):
            raise CheckpointError.build(
                "data.Loader.restore",
                expected="the integers " + ", ".join(names),
                got=repr(dict(state)),
            )
        epoch, position, seed, samples = (int(state[name]) for name in names)
        is_stream = self.data.is_stream
        fits = position == 0 or (samples == self._samples() and (is_stream or position <= samples))
        if epoch < 0 or position < 0 or not fits:
            raise CheckpointError.build(
                "data.Loader.restore",
                expected=f"a position in data of {self._samples()} samples",
                got=f"{position} of {samples}",
                hint="an epoch can only be resumed with the same data",
            )
        self._epoch, self._position, self.seed = epoch, position, seed

    def _samples(self) -> int:
        """Return the length of the data; 0 for a stream."""
        return 0 if self.data.is_stream else len(self.data)

    def _shares(self) -> Iterator[Share]:
        """Yield this rank's parts of the batches that are left of this epoch."""
        size, samples, position = self.batch_size, self._samples(), self._position
        if self.drop_last and 0 < samples < size:
            raise ConfigError.build(
                "data.Loader",
                expected=f"a batch size of at most {samples}, the number of samples",
                got=str(size),
                hint="drop_last leaves out incomplete batches, here all batches",
            )
        while position + (size if self.drop_last else 1) <= samples:
            count = min(size, samples - position)
            yield self.share(position, count, size)
            position += count

    @checked
    def share(self, start: int, count: int, size: int) -> Share:
        """Return this rank's share of a batch that starts at `start` (see `Share`)."""
        return Share.of(start, count, size, self.rank, self.ranks, self.parts)

    def _numbered_jobs(self) -> Iterator[BatchJob]:
        order, following = self.order(), self.data.stages.following
        seed, epoch = self.seed, self._epoch
        for share in self._shares():
            place = share.start + share.first
            indices = order[place : place + share.samples + following]
            missing = share.samples + following - len(indices)
            if missing:
                # After the last sample comes the first.
                indices = np.concatenate([indices, np.resize(order, missing)])
            length = None
            if self.data.is_ragged:
                # The length of the whole batch, which other ranks share.
                length = self.data.batch_length(order[share.start : share.start + share.count])
            yield BatchJob(share, indices, Draw(seed, epoch, place), length=length)

    def _read_jobs(self) -> Iterator[BatchJob]:
        source, following = self.data.source, self.data.stages.following
        assert isinstance(source, IterableData)
        seed, epoch, start, size = self.seed, self._epoch, self._position, self.batch_size
        for arrays in source.read(size, start, following):
            count = len(arrays[0]) - following
            if self.drop_last and count < size:
                break
            share = self.share(start, count, size)
            begin, end = share.first, share.first + share.samples
            part = tuple(array[begin : end + following] for array in arrays)
            numbers = np.arange(start + begin, start + end)
            yield BatchJob(share, numbers, Draw(seed, epoch, start + begin), part)
            start += count

    def _next_epoch(self) -> None:
        self._epoch += 1
        self._position = 0


def _batch(ready: PreparedBatch) -> Batch:
    job, arrays = ready.job, ready.made.arrays
    target = arrays[-1] if len(arrays) > 1 else None
    indices = job.indices[: job.share.samples]
    rest = None if ready.end is None else DeviceStages(ready.end, job.draw)
    return Batch(arrays[0], target, job.share.first, job.share.count, indices, arrays[1:-1], rest)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
