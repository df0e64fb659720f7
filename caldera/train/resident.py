"""Data resident on the device, and batches gathered there.

All samples are copied to the device once, and the order of each epoch when it begins. A counter on
the device selects the next batch, so a step needs no copy from the host and no synchronisation.
Stages are part of the step; they draw the same random numbers as on the host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.config import settings
from caldera.compiler.lazy import Expr
from caldera.core.memory import DEVICE, Device
from caldera.core.tensor import Tensor, canonical, exactly
from caldera.data import Batch, Data, IterableData, Loader, Pipeline, Share
from caldera.data.loading.batch import can_run_on_device
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import StoredArrays
from caldera.train.batch_source import BatchSource, Values, array_names, as_words, by_name, in_shape
from caldera.train.sample_weights import SampleWeights

if TYPE_CHECKING:
    from caldera.train.model import Model


class DeviceSource(BatchSource):
    """Batches of data on a device. `arrays` has all samples of each array, by name.

    The arrays called `staged` are kept as stored, and pass through the stages of the pipeline in
    each step.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        samples: int,
        device: Device,
        pipeline: Pipeline,
        staged: Sequence[str] = (),
    ) -> None:
        self._arrays = arrays
        self._samples = samples
        self._device = device
        self._stages = pipeline.stages
        self._staged = staged
        self._following = self._stages.following if staged else 0
        # The order wraps around, for stages that read past the end of a batch.
        length = samples + self._following
        self._order = op.var("order", (length,), dtype="int64", device=device)
        self._turn = op.var("batch", (), dtype="int64", device=device)
        self._epoch = op.var("epoch", (2,), dtype="int64", device=device)
        self._held: dict[str, Tensor] = {}
        self._values: dict[Hashable, Values] = {}
        self._ordered_by: Hashable = None

    # --- an epoch

    def epoch(self, loader: Loader) -> Iterator[Batch | Share]:
        self._begin(loader)
        yield from loader.shares()
        # The device is still at work: this is the time to make the order of the next epoch.
        loader.order()

    def _begin(self, loader: Loader) -> None:
        place = (loader.seed, loader.epoch)
        ordered_by = place if loader.shuffle else ()
        if ordered_by != self._ordered_by:
            order = loader.order()
            self._order.assign(np.concatenate([order, np.resize(order, self._following)]))
            self._ordered_by = ordered_by
        self._turn.assign(loader.position // loader.batch_size)
        if self._staged:
            self._epoch.assign(as_words(*place))

    # --- a batch

    def key(self, batch: Batch | Share) -> Hashable:
        share = _share(batch)
        # Only a last batch is smaller than others, and it is always in the same place.
        return len(share), share.first, share.count, share.count == share.size

    def values(self, batch: Batch | Share) -> Values:
        share, key = _share(batch), self.key(batch)
        if key not in self._values:
            rows, place, updates = self._rows(share)
            made = by_name(self._made(rows, place)) if self._staged else None

            def fetch(name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
                if made is not None and name in self._staged:
                    return made(name, shape, dtype)
                # Only stages look beyond the batch.
                tensor = self._tensor(name, canonical(dtype))
                return in_shape(op.gather(tensor, rows[: len(share)]), shape, name)

            self._values[key] = Values(share, fetch, updates)
        return self._values[key]

    def _made(self, rows: Expr, place: Expr) -> dict[str, Expr]:
        """Apply the stages to the samples in these rows."""
        raw = tuple(op.gather(self._tensor(name, None), rows) for name in self._staged)
        made = self._stages.expressions(raw, LazyDraw(self._epoch, place))
        assert made is not None
        return dict(zip(self._staged, made, strict=True))

    def _rows(self, share: Share) -> tuple[Expr, Expr, list[Expr]]:
        """Return a batch's sample indices, the position of the first, and counter updates."""
        first, end, count = share.first, share.first + share.samples, share.count
        after = self._following
        if count != share.size:
            start = self._samples - count
            rows = self._order[start + first : start + end + after]
            return rows, op.cast(start + first, "int64"), []
        batches = self._samples // count
        place = self._turn * count + first
        table = op.reshape(self._order[: batches * count], (batches, count))
        rows = op.gather(table[:, first:end], self._turn)
        if after:
            following = op.gather(self._order, place + share.samples + np.arange(after))
            rows = op.concat([rows, following])
        # The order wraps around, so that no plan reads beyond the end.
        next_turn = op.where(self._turn < batches - 1, self._turn + 1, 0)
        return rows, place, [op.assign(self._turn, next_turn)]

    def _tensor(self, name: str, dtype: np.dtype[Any] | None) -> Tensor:
        """Return all samples of an array, copied to the device on first use."""
        if name not in self._held:
            # The host's array is not needed any longer.
            array = self._arrays.pop(name)
            if dtype is not None:
                array = exactly(array, dtype, f"input {name}")
            self._held[name] = Tensor.from_numpy(
                array, kind=DEVICE, device=self._device, name=f"data {name}"
            )
        return self._held[name]


def resident(
    model: Model, data: Data | IterableData, weights: SampleWeights | None = None
) -> DeviceSource | None:
    """Return a source with the data on the model's device; None if impossible or too large."""
    pipeline = Pipeline.of(data)
    stored = None if model.device.is_host else pipeline.stored()
    if stored is None or not len(stored):
        return None
    inputs = [canonical(dtype) for _, dtype in model.signature.inputs]
    names = array_names(len(inputs), len(stored.arrays))
    taken = [*inputs, *[array.dtype for array in stored.arrays[len(inputs) :]]]
    free = _free_bytes(model.device) - len(stored) * (8 if weights is None else 16)
    staged: list[str] = []
    if not pipeline.own_stages and _bytes(stored, taken) <= free:
        # Stored in the form the network takes, so a step needs no conversion.
        given = pipeline.stages.apply(stored.samples(), Draw())
    elif _bytes(stored, [array.dtype for array in stored.arrays]) <= free and can_run_on_device(
        pipeline, pipeline.example(0), 0
    ):
        staged, given = names, stored.samples()
    else:
        return None
    arrays = dict(zip(names, given, strict=True))
    if weights is not None:
        arrays["weights"] = weights.of_samples(np.arange(len(stored)), given[-1])
    return DeviceSource(arrays, len(stored), model.device, pipeline, staged)


def _share(batch: Batch | Share) -> Share:
    assert isinstance(batch, Share)
    return batch


def _bytes(stored: StoredArrays, dtypes: Sequence[np.dtype[Any]]) -> int:
    """Return the bytes of all samples in these dtypes."""
    return len(stored) * sum(
        math.prod(array.shape[1:]) * dtype.itemsize
        for array, dtype in zip(stored.arrays, dtypes, strict=True)
    )


def _free_bytes(device: Device) -> float:
    """Return the bytes that data may occupy on a device."""
    there = device.memory_bytes
    return float("inf") if there is None else settings.resident_fraction * there
