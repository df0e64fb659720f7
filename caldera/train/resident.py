"""Data that lie on the device, and batches that are fetched there.

All samples are put on the device once, and the order of each epoch when it begins. A counter that
is on the device as well says which batch is next, so a step needs nothing from the host: no copy,
and nobody waits. Transforms are part of the step; they draw the numbers they would on the host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.config import settings
from caldera.data import Batch, Data, IterableData, Loader, Share
from caldera.data.array_data import finished
from caldera.data.draw import Draw, LazyDraw
from caldera.data.stored import Stored
from caldera.errors import DataError, DtypeError, ShapeError
from caldera.lazy import Expr
from caldera.memory import DEVICE, Device
from caldera.tensor import Tensor
from caldera.tensor.convert import exactly
from caldera.tensor.dtype import canonical, is_float
from caldera.train.source import Source, Values
from caldera.train.weights import Weights

if TYPE_CHECKING:
    from caldera.train.model import Model

_WORD = (1 << 64) - 1


class Resident(Source):
    """Batches of data on a device. `arrays` has all samples of each array, by name.

    What comes out as "x0" is made of `raw`, if that is given: x as it is stored.
    """

    def __init__(
        self, arrays: dict[str, np.ndarray], samples: int, device: Device, raw: Stored | None = None
    ) -> None:
        self._arrays = arrays
        self._samples = samples
        self._device = device
        self._raw = raw
        self._order = op.var("order", (samples,), dtype="int64", device=device)
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
            self._order.assign(loader.order())
            self._ordered_by = ordered_by
        self._turn.assign(loader.position // loader.batch_size)
        if self._raw is not None and self._raw.transform is not None:
            self._epoch.assign(np.array([each & _WORD for each in place], np.uint64).view(np.int64))

    # --- a batch

    def key(self, share: Share) -> Hashable:
        # Only a last batch is smaller than others, and it is always in the same place.
        return len(share), share.first, share.count, share.count == share.size

    def values(self, share: Share) -> Values:
        key = self.key(share)
        if key not in self._values:
            rows, place, updates = self._rows(share)
            draw = LazyDraw(self._epoch, place)

            def fetch(name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
                return self._fetched(name, rows, draw, shape, canonical(dtype))

            self._values[key] = Values(share, fetch, updates)
        return self._values[key]

    def _rows(self, share: Share) -> tuple[Expr, Expr, list[Expr]]:
        """The numbers of a batch's samples, the place of the first, and what counts batches on."""
        first, end, count = share.first, share.first + share.samples, share.count
        if count != share.size:
            start = self._samples - count
            return self._order[start + first : start + end], op.cast(start + first, "int64"), []
        batches = self._samples // count
        table = op.reshape(self._order[: batches * count], (batches, count))
        # After the last comes the first again, whoever runs the plan: it never reads beyond.
        following = op.where(self._turn < batches - 1, self._turn + 1, 0)
        return (
            op.gather(table[:, first:end], self._turn),
            self._turn * count + first,
            [op.assign(self._turn, following)],
        )

    def _fetched(
        self, name: str, rows: Expr, draw: LazyDraw, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Expr:
        raw = self._raw if name == "x0" else None
        found = op.gather(self._tensor(name, dtype if raw is None else None), rows)
        if raw is not None:
            made = raw.finished(found, draw)
            assert made is not None
            found = _cast(made, dtype, name)
        if found.shape != shape:
            raise ShapeError.build(f"input {name}", expected=f"shape {shape}", got=f"{found.shape}")
        return found

    def _tensor(self, name: str, dtype: np.dtype[Any] | None) -> Tensor:
        """All samples of an array, put on the device when they are first asked for."""
        if name not in self._held:
            if name not in self._arrays:
                given = ", ".join([*self._held, *self._arrays])
                raise DataError.build(
                    "batch", expected=f"an array for {name}", got=given,
                    hint="pass (x, y), or (x1, x2, y1, y2) for several",
                )  # fmt: skip
            # The host's array is not needed any longer.
            array = self._arrays.pop(name)
            if dtype is not None:
                array = exactly(array, dtype, f"input {name}")
            self._held[name] = Tensor.from_numpy(
                array, kind=DEVICE, device=self._device, name=f"data {name}"
            )
        return self._held[name]


def resident(
    model: Model, data: Data | IterableData, weights: Weights | None = None
) -> Resident | None:
    """The data on the model's device; None if they cannot be there or would take too much of it."""
    stored = None if model.device.is_host or isinstance(data, IterableData) else data.stored()
    if stored is None or not len(stored):
        return None
    inputs = [canonical(dtype) for _, dtype in model.signature.inputs]
    taken = [*inputs, *[array.dtype for array in stored.arrays[len(inputs) :]]]
    room = _room(model.device) - len(stored) * (8 if weights is None else 16)
    raw: Stored | None = None
    if stored.transform is None and _bytes(stored, taken) <= room:
        # As the network takes it: nothing is left to do in a step.
        x, *others = stored.samples()
        given = [finished(x, None, stored.scale, Draw()), *others]
    elif _can_finish(stored) and _bytes(stored, [stored.arrays[0].dtype, *taken[1:]]) <= room:
        raw, given = stored, list(stored.samples())
    else:
        return None
    names = [f"x{i}" for i in range(len(inputs))] + [f"y{i}" for i in range(len(given))]
    arrays = dict(zip(names, given, strict=False))
    if weights is not None:
        arrays["weights"] = weights.of_samples(np.arange(len(stored)), given[-1])
    return Resident(arrays, len(stored), model.device, raw)


def _bytes(stored: Stored, dtypes: Sequence[np.dtype[Any]]) -> int:
    """What all samples take in these dtypes."""
    return len(stored) * sum(
        math.prod(array.shape[1:]) * dtype.itemsize
        for array, dtype in zip(stored.arrays, dtypes, strict=True)
    )


def _room(device: Device) -> float:
    """The bytes that data may take on a device."""
    there = device.memory_bytes
    return float("inf") if there is None else settings.resident_fraction * there


def _can_finish(stored: Stored) -> bool:
    x = stored.arrays[0]
    blank = op.input("x", (1, *x.shape[1:]), dtype=x.dtype)
    return stored.finished(blank, LazyDraw(np.zeros(2, np.int64), np.int64(0))) is not None


def _cast(value: Expr, dtype: np.dtype[Any], name: str) -> Expr:
    if is_float(value.dtype) and not is_float(dtype):
        raise DtypeError.build(
            f"input {name}", expected=f"values that {dtype} can hold", got=str(value.dtype),
            hint="convert them with astype first, or choose another dtype",
        )  # fmt: skip
    return op.cast(value, dtype)
