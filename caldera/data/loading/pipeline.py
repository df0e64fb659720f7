"""Samples and the stages that make batches for training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import checked, refusal, within
from caldera.core.tensor.dtype import DType, uint8
from caldera.data.loading.tuner import PipelineStatistics
from caldera.data.random_draws import Draw
from caldera.data.sources.as_data import as_data
from caldera.data.sources.base import Array, Arrays, Data, StoredArrays, checked_rows
from caldera.data.sources.iterable_data import IterableData
from caldera.data.sources.ragged_data import RaggedData
from caldera.data.transforms.intensity import PixelScale
from caldera.data.transforms.stage import BatchStage, Stages, StagesLike, Transform
from caldera.errors import CalderaError, ConfigError, DataError


# Not frozen: one is made for each batch, and freezing would triple its cost.
@dataclass(slots=True)
class StagedBatch:
    """A batch as the host has made it, and the seconds it took to read and for each stage."""

    arrays: Arrays
    seconds: tuple[float, ...]


class Pipeline(Data):
    """Source of samples and the stages for their batches; accepted by `fit`.

    The source is any object with samples: arrays, data, an iterable, or the path of files (see
    `data.source`). Threads make batches concurrently with training. Their number and the length of
    the queue are tuned during the run; `workers` and `prefetch` fix them. If the model is on a
    device, the last stages may run there. None of this changes a batch: it depends only on seed,
    epoch and position. Bytes remain bytes until a stage requires floats; without such a stage they
    leave the pipeline as floats from 0 to 1 (see `ArrayData`).

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.zeros((100, 3, 32, 32), np.uint8)
    >>> pipeline = data.Pipeline(
    ...     (images, np.arange(100) % 10),
    ...     [data.Crop(32, padding=4), data.Mirror(), data.Normalise(0.5, 0.25), data.Cutout(8)])
    >>> pipeline
    Pipeline(100 samples, shape (3, 32, 32), float32: Crop, Mirror, Normalise, Cutout)
    """

    def __init__(
        self,
        source: Any,
        stages: StagesLike = (),
        *,
        workers: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        for name, value, least in (("workers", workers, 0), ("prefetch", prefetch, 1)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ConfigError.build(
                    "data.Pipeline",
                    expected=f"{name} of at least {least}, or None to have it tuned",
                    got=repr(value),
                )
        inner = as_data(source)
        self.schema, self.is_test = inner.schema, inner.is_test
        self.inputs, self.overlap, self.keys = inner.inputs, inner.overlap, inner.keys
        given = Stages(stages)
        if isinstance(inner, Pipeline):
            given = Stages([*inner.own_stages, *given])
            workers = inner.workers if workers is None else workers
            prefetch = inner.prefetch if prefetch is None else prefetch
            inner = inner.source
        self.source: Data | IterableData = inner
        self.scale = inner.scale
        self.own_stages: Stages = given
        """The stages that were asked for."""
        self.stages: Stages = given
        """All stages, with the one that makes floats of bytes where there are any at the end."""
        self.workers: int | None = workers
        self.prefetch: int | None = prefetch
        self.usage = PipelineStatistics()
        # Mismatched stages raise an error here, before training starts; but a stream is not started
        # before its first use.
        if inner.scale is not None and (self.is_stream or _is_bytes(self.example()[0])):
            self.stages = Stages([*given, PixelScale(inner.scale)])
        if not self.is_stream:
            self.blank()

    @classmethod
    def of(cls, value: Any) -> Pipeline:
        """Return a pipeline unchanged, or wrap any other source in one without stages."""
        return value if isinstance(value, Pipeline) else cls(value)

    @property
    def is_stream(self) -> bool:
        """True if samples are read in sequence, without indices."""
        return isinstance(self.source, IterableData)

    def __len__(self) -> int:
        return len(self._numbered("len"))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.blank()[0].shape[1:]

    @property
    def dtype(self) -> DType:
        return self.blank()[0].dtype

    def batch(self, indices: NDArray[np.integer] | Sequence[int]) -> Arrays:
        return self.make(self._with_following(indices), Draw()).arrays

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        """Return the output of the stages, before bytes become floats."""
        return self.make(self._with_following(indices), Draw(), len(self.own_stages)).arrays

    @property
    def changes_targets(self) -> bool:
        """True if some stage may change the targets."""
        return not all(isinstance(stage, Transform) for stage in self.stages)

    @property
    def y(self) -> Array | None:
        return super().y if self.changes_targets else self._numbered("y").y

    def subset(self, numbers: Sequence[int] | NDArray[np.integer]) -> Pipeline:
        """Return the pipeline of the samples with these indices, with the same stages."""
        found = Pipeline(
            self._numbered("subset").subset(numbers),
            self.own_stages,
            workers=self.workers,
            prefetch=self.prefetch,
        )
        found.schema = self.schema
        return found

    def stored(self) -> StoredArrays | None:
        return None if self.is_stream else self._numbered("stored").stored()

    def name_of(self, index: int) -> str:
        return f"sample {index}" if self.is_stream else self._numbered("name_of").name_of(index)

    @checked
    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        return self._numbered("order").order(seed, epoch)

    def batch_order(self, seed: int, epoch: int, batch_size: int) -> NDArray[np.int64]:
        return self._numbered("order").batch_order(seed, epoch, batch_size)

    def batch_length(self, indices: NDArray[np.integer]) -> int | None:
        return self._numbered("batch_length").batch_length(indices)

    @property
    def is_ragged(self) -> bool:
        """True if the number of steps differs between batches."""
        return isinstance(self.source, RaggedData)

    def report(self) -> str:
        """Return a report of the time per stage, the number of workers and the waiting time.

        >>> import numpy as np
        >>> from caldera import data
        >>> pipeline = data.Pipeline(np.zeros((100, 1, 8, 8), np.uint8), [data.Mirror()], workers=1)
        >>> batches = list(data.Loader(pipeline, 50))
        >>> print(pipeline.report())
        stage         ms a batch
        read ...
        Mirror ...
        PixelScale ...
        1 worker, at most 3 batches ahead; 2 batches, waited for ... ms each
        """
        return self.usage.text([stage.name for stage in self.stages])

    def blank(self) -> Arrays:
        """Return a batch of a single sample, for its shapes and dtypes.

        >>> from caldera import data
        >>> [array.shape for array in data.Pipeline(([[1.0, 2.0]], [3])).blank()]
        [(1, 2), (1,)]
        """
        return self._blank

    def make(
        self,
        indices: NDArray[np.integer],
        draw: Draw,
        end: int | None = None,
        length: int | None = None,
    ) -> StagedBatch:
        """Apply the first `end` stages to these samples, padded to `length` steps.

        The last `stages.following` samples are only used for mixing.
        """
        source = self._numbered("batch")
        if len(indices) <= self.stages.following and length is None:
            # The part of a rank that has no samples.
            return StagedBatch(tuple(array[1:] for array in self.example(end)), ())
        started = time.perf_counter()
        try:
            if length is None:
                arrays = source.raw_batch(indices)
            else:
                arrays = source.padded_batch(indices, length)
        except Exception as error:
            raise _unreadable(source, indices, error) from error
        seconds = time.perf_counter() - started
        made = self.finish(arrays, draw, lambda place: source.name_of(int(indices[place])), end)
        return StagedBatch(made.arrays, (seconds, *made.seconds))

    def finish(
        self, arrays: Arrays, draw: Draw, name: Callable[[int], str], end: int | None = None
    ) -> StagedBatch:
        """Apply the first `end` stages to a batch as it was read.

        `name` maps an index in the batch to the sample's name.
        """
        seconds = []
        for number in range(len(self.stages) if end is None else end):
            stage, numbers = self.stages[number], draw.of_stage(number)
            started = time.perf_counter()
            try:
                arrays = stage.apply(arrays, numbers)
            except Exception as error:
                raise _blamed(stage, arrays, numbers, name, error) from error
            seconds.append(time.perf_counter() - started)
        return StagedBatch(arrays, tuple(seconds))

    def __repr__(self) -> str:
        count = "a stream" if self.is_stream else f"{len(self)} samples"
        stages = ", ".join(stage.name for stage in self.own_stages) or "no stages"
        return f"Pipeline({count}, shape {self.shape}, {self.dtype}: {stages})"

    def _with_following(self, indices: NDArray[np.integer] | Sequence[int]) -> NDArray[np.integer]:
        """Return the samples followed by the samples to mix with; the first follows the last."""
        rows = self._rows(indices)
        return np.concatenate([rows, np.resize(rows, self.stages.following if len(rows) else 0)])

    def _rows(self, indices: NDArray[np.integer] | Sequence[int]) -> NDArray[np.integer]:
        if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and indices.ndim == 1:
            return indices
        return checked_rows(indices, len(self), "data.Pipeline.batch")

    def _numbered(self, what: str) -> Data:
        if isinstance(self.source, IterableData):
            raise NoNumbersError.build(
                f"data.Pipeline.{what}", expected="indexable samples", got="a stream"
            )
        return self.source

    @checked
    def example(self, end: int | None = None) -> Arrays:
        """Return the first sample after `end` stages, with the samples it is mixed with."""
        if end is not None:
            within("data.Pipeline.example", "end", end, 0, len(self.stages))
        source, count = self.source, 1 + self.stages.following
        if not isinstance(source, IterableData) and len(source):
            return self.make(np.zeros(count, np.int64), Draw(), end).arrays
        if isinstance(source, IterableData):
            arrays = source.blank()
        else:
            arrays = (np.zeros((1, *source.shape), source.dtype),)
        repeated = tuple(np.repeat(array, count, axis=0) for array in arrays)
        return self.finish(repeated, Draw(), lambda _: "a blank sample", end).arrays

    @cached_property
    def _blank(self) -> Arrays:
        arrays = self.example()
        if not isinstance(arrays[0], np.ndarray):
            raise refusal("data.Pipeline", "stages", "stages that return arrays", arrays[0])
        if arrays[0].dtype == object:
            raise DataError.build(
                "data.Pipeline",
                expected="a stage that decodes samples to arrays",
                got=", ".join(stage.name for stage in self.own_stages) or "no stages",
                hint="put data.Decode() first",
            )
        return arrays


def _is_bytes(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == uint8


def _unreadable(source: Data, indices: NDArray[np.integer], error: Exception) -> CalderaError:
    """Return the error of a batch that could not be read, with the name of the sample."""
    for number in indices.tolist():
        try:
            source.raw_batch(np.array([number]))
        except Exception as again:
            return _with_place(again, f"reading {_name(source, number)}")
    return _with_place(error, f"reading {_name(source, indices[0])} and others")


def _blamed(
    stage: BatchStage, arrays: Arrays, draw: Draw, name: Callable[[int], str], error: Exception
) -> CalderaError:
    """Return the error of a batch that a stage could not make, with the name of the sample."""
    count = len(arrays[0]) - stage.following
    for place in range(count):
        alone = tuple(array[place : place + 1 + stage.following] for array in arrays)
        try:
            stage.apply(alone, replace(draw, first=draw.first + place))
        except Exception as again:
            return _with_place(again, f"{stage.name} of {name(place)}")
    return _with_place(error, f"{stage.name} of {name(0)} and {count - 1} others")


def _with_place(error: Exception, place: str) -> CalderaError:
    if isinstance(error, CalderaError):
        return type(error)(f"{place}: {error}")
    return DataError.build(place, got=f"{type(error).__name__}: {error}")


def _name(source: Data, number: int) -> str:
    try:
        return source.name_of(number)
    except IndexError:
        return f"sample {number}"


class NoNumbersError(DataError, TypeError):
    """Error for the length of a stream; `list(...)` calls `len` and accepts a TypeError."""
