"""Sources of the batches of a plan: fed from the host, or fetched on the device itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr
from caldera.compiler.plan.plan import Plan
from caldera.core.memory import Device
from caldera.core.tensor import canonical
from caldera.core.tensor.dtype import is_float
from caldera.data import Batch, Loader, Pipeline, Share
from caldera.data.loading.batch import device_splits
from caldera.data.random_draws import LazyDraw
from caldera.errors import DataError, DtypeError, ShapeError

MOST_KEPT = 256
"""Maximum number of batch sizes with cached expressions."""
Make = Callable[[str, tuple[int, ...], Any], Expr]
Take = Callable[[Expr, Share, Share], Expr]


class Values:
    """Inputs, targets and weights of a rank's share of a batch, as expressions by name.

    Each name has one expression, which repeated calls return.
    """

    def __init__(
        self,
        share: Share,
        make: Make,
        updates: Sequence[Expr] = (),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.share = share
        self.updates = list(updates)
        """Assignments that belong to a step on this batch."""
        self.shapes = dict(shapes or {})
        """The shapes of a sample's arrays, where these differ from batch to batch."""
        self._make = make
        self._made: dict[str, Expr] = {}

    def of(self, name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
        """Return the expression called `name`: "x0", "y0" or "weights"."""
        if name not in self._made:
            self._made[name] = self._make(name, shape, dtype)
        found = self._made[name]
        require(
            found.shape == shape,
            "loss",
            f"outputs whose targets have one shape, {found.shape}",
            shape,
            "give one target array for each output",
        )
        return found

    def part(self, share: Share, take: Take) -> Values:
        """Return the values of a part of this share, which `take` selects from each value."""

        def make(name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
            return take(self.of(name, (len(self.share), *shape[1:]), dtype), self.share, share)

        return Values(share, make, shapes=self.shapes)


class BatchSource(ABC):
    """Interface through which the plans of a model read batches.

    Methods accept a batch, or the share of a batch that a plan will be built for.
    """

    @abstractmethod
    def key(self, batch: Batch | Share) -> Hashable:
        """Return a key that is equal for batches that can share a plan."""

    @abstractmethod
    def values(self, batch: Batch | Share) -> Values:
        """Return the batch as expressions; the same ones for equal keys."""

    @abstractmethod
    def epoch(self, loader: Loader) -> Iterator[Batch | Share]:
        """Return the rest of the loader's epoch: batches to feed, or which samples to fetch."""


class HostSource(BatchSource):
    """Batches made on the host and fed to each run.

    With `splits`, the device may run the last stages of the pipeline in the step: see
    `device_splits`. `inputs` is the number of arrays of a sample that are inputs, not targets.
    """

    def __init__(
        self,
        pipeline: Pipeline | None = None,
        inputs: int = 1,
        splits: tuple[int | None, ...] = (None,),
        *,
        open_sizes: bool = False,
    ) -> None:
        # Sequences of any length, images of any size: each size has separate plans.
        self._open_sizes = open_sizes
        self._pipeline = pipeline
        self._inputs = inputs
        self._splits = splits
        self._values: dict[Hashable, Values] = {}

    @classmethod
    def to(cls, device: Device, pipeline: Pipeline, inputs: int, *, may_change: bool) -> HostSource:
        """Return a source for a device, which runs some stages if its memory is separate."""
        if device.is_host:
            return cls()
        splits = device_splits(pipeline)
        return cls(pipeline, inputs, splits if may_change else splits[:1])

    @property
    def has_stages(self) -> bool:
        """True if the device runs some pipeline stages, so that plans depend on the data."""
        return self._pipeline is not None

    def key(self, batch: Batch | Share) -> Hashable:
        share = share_of(batch)
        return len(share), share.first, share.count, self._place(batch), self._shapes(batch)

    def _shapes(self, batch: Batch | Share) -> tuple[tuple[int, ...], ...]:
        if not self._open_sizes or isinstance(batch, Share):
            return ()
        return tuple(array.shape[1:] for array in batch.arrays)

    def values(self, batch: Batch | Share) -> Values:
        key = self.key(batch)
        if key not in self._values:
            place = self._place(batch)
            make = op.input if place is None else self._staged(len(batch), place)
            names = (f"x{number}" for number in range(MOST_KEPT))
            shapes = dict(zip(names, self._shapes(batch), strict=False))
            self._values[key] = Values(share_of(batch), make, shapes=shapes)
            if len(self._values) > MOST_KEPT:
                del self._values[next(iter(self._values))]
        return self._values[key]

    def epoch(self, loader: Loader) -> Iterator[Batch | Share]:
        return loader.batches(self._splits)

    def _place(self, batch: Batch | Share) -> int | None:
        """Return the number of stages run on the host; None if the batch is finished."""
        if isinstance(batch, Share):
            return self._splits[0]
        return None if batch.rest is None else batch.rest.first

    def _staged(self, count: int, place: int) -> Make:
        """Apply the remaining stages, on the device, to a batch that is fed unfinished."""
        assert self._pipeline is not None
        arrays = self._pipeline.example(place)
        names = array_names(self._inputs, len(arrays))
        raw = [
            op.input(name, (count + len(array) - 1, *array.shape[1:]), dtype=array.dtype)
            for name, array in zip(names, arrays, strict=True)
        ]
        drawn = op.input(DRAWN, (3,), dtype="int64")
        draw = LazyDraw(drawn[:2], drawn[2])
        made = self._pipeline.stages.expressions(tuple(raw), draw, place)
        assert made is not None
        return by_name(dict(zip(names, made, strict=True)))


def share_of(batch: Batch | Share) -> Share:
    """Return this rank's share of a batch."""
    if isinstance(batch, Share):
        return batch
    return Share(0, batch.first, len(batch), batch.count, batch.count)


DRAWN = "drawn"
"""The input that names the random numbers of a batch: seed, epoch and place."""
_WORD = (1 << 64) - 1


def drawn(batch: Batch, plan: Plan) -> dict[str, np.ndarray]:
    """Return the random state to feed with a batch that the device finishes."""
    if batch.rest is None or DRAWN not in plan.inputs:
        return {}
    draw = batch.rest.draw
    return {DRAWN: as_words(draw.seed, draw.epoch, draw.first)}


def as_words(*numbers: int) -> np.ndarray:
    """Return numbers of 64 bits, of either sign, as int64.

    >>> as_words(-1, 2**63).tolist()
    [-1, -9223372036854775808]
    """
    return np.array([number & _WORD for number in numbers], np.uint64).view(np.int64)


def array_names(inputs: int, arrays: int) -> list[str]:
    """Return the names of the arrays of a sample: first inputs, then targets.

    >>> array_names(2, 3)
    ['x0', 'x1', 'y0']
    """
    return [f"x{i}" for i in range(inputs)] + [f"y{i}" for i in range(arrays - inputs)]


def by_name(made: dict[str, Expr]) -> Make:
    """Return a function that finds a computed value by name and casts it to a dtype."""

    def find(name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
        value, wanted = made[name], canonical(dtype)
        require(
            not is_float(value.dtype) or is_float(wanted),
            f"input {name}",
            f"values that {wanted} can hold",
            value.dtype,
            "convert them with astype first, or choose another dtype",
            error=DtypeError,
        )
        return in_shape(op.cast(value, wanted), shape, name)

    return find


def in_shape(value: Expr, shape: tuple[int, ...], name: str) -> Expr:
    """Return a value that must have this shape."""
    require(value.shape == shape, f"input {name}", f"shape {shape}", value.shape, error=ShapeError)
    return value


# --- streams on several ranks


def synchronised_stream(
    batches: Iterator[Batch | Share], communicator: Communicator
) -> Iterator[Batch | Share]:
    """Yield the batches of a stream once all ranks have them; raise on all if one has none.

    Without this check, a rank whose stream has ended would make the remaining ranks wait for ever.
    """
    for number, batch in enumerate(chain(batches, [None])):
        count = 0 if batch is None else share_of(batch).count
        everyone = communicator.gather_objects(count)
        require(
            len(set(everyone)) <= 1,
            "fit",
            "the same stream on all ranks, of which each takes its samples",
            f"batch {number} of " + ", ".join(map(str, everyone)) + " samples",
            "give every rank all of the stream, or write it to shards, of which each "
            "reads its own samples: data.write_shards",
            error=DataError,
        )
        if batch is not None:
            yield batch
