"""Samples that come one after the other: no numbers, no length, no shuffling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from caldera.data._base import Array, Arrays
from caldera.data.array_data import SCALE, finished
from caldera.data.draw import Draw
from caldera.data.transform import TransformLike, as_transform
from caldera.errors import CalderaError, ConfigError, DataError
from caldera.tensor.convert import array_of
from caldera.tensor.dtype import DType

Source: TypeAlias = Iterable[Any] | Callable[[], Iterable[Any]]


class _Kind(NamedTuple):
    """What all samples of a stream have in common, for each of their arrays."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]


class IterableData:
    """Samples from an iterable, or from a function that makes one for each epoch.

    An item is a sample, (x, y) or x alone; with `batches=True` it is a batch of them, of any size.
    Batches of the size that is trained with are put together from either. A generator can be read
    once, so training for several epochs needs the function that makes it.

    >>> from caldera import data
    >>> def numbers():
    ...     for n in range(5):
    ...         yield [float(n)], 2 * n
    >>> [batch.y.tolist() for batch in data.Loader(data.IterableData(numbers), 2)]
    [[0, 2], [4, 6], [8]]
    """

    def __init__(
        self,
        source: Source,
        *,
        batches: bool = False,
        transform: TransformLike | None = None,
        scale: float | None = SCALE,
    ) -> None:
        if not callable(source) and not isinstance(source, Iterable):
            raise ConfigError.build(
                "data.IterableData",
                expected="an iterable or a function that makes one",
                got=type(source).__name__,
            )
        self._source = source
        self._batches = batches
        self._transform = as_transform(transform)
        self._scale = scale
        self._kind: _Kind | None = None
        # The first item of an iterator, when it had to be looked at before reading.
        self._seen: list[Any] = []
        self._spent = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's x; the first item shows it."""
        return self._blank().shape[1:]

    @property
    def dtype(self) -> DType:
        """The dtype of x in a batch."""
        return self._blank().dtype

    def read(self, batch_size: int, skip: int = 0) -> Iterator[Arrays]:
        """Batches as stored, from sample number `skip` on; the last may be smaller.

        >>> from caldera import data
        >>> stream = data.IterableData([[1, 2, 3], [4, 5]], batches=True)
        >>> [x.tolist() for x, in stream.read(batch_size=2, skip=1)]
        [[2, 3], [4, 5]]
        """
        held: list[Arrays] = []
        count = 0
        for piece in self._pieces(batch_size):
            kept = tuple(array[skip:] for array in piece)
            skip = max(0, skip - len(piece[0]))
            held.append(kept)
            count += len(kept[0])
            while count >= batch_size:
                joined = _joined(held)
                yield tuple(array[:batch_size] for array in joined)
                held = [tuple(array[batch_size:] for array in joined)]
                count -= batch_size
        if count:
            yield _joined(held)

    def finish(self, x: Array, draw: Draw) -> Array:
        """A batch's x, transformed and scaled; see `ArrayData`."""
        return finished(x, self._transform, self._scale, draw)

    def blank(self) -> Arrays:
        """One sample of zeros, of the shapes and dtypes of a batch: the first item shows them.

        >>> from caldera import data
        >>> [array.shape for array in data.IterableData([([1.0, 2.0], 3)]).blank()]
        [(1, 2), (1,)]
        """
        x = self._blank()
        assert self._kind is not None
        rest = zip(self._kind.shapes[1:], self._kind.dtypes[1:], strict=True)
        return (x, *[np.zeros((1, *shape), dtype) for shape, dtype in rest])

    def _blank(self) -> Array:
        if self._kind is None:
            items = self._items()
            first = next(items, None)
            if first is None:
                raise DataError.build("data.IterableData", expected="samples", got="none")
            if self._is_iterator():
                self._seen = [first]
                self._spent = False
            self._piece([first] if not self._batches else first, 0)
        assert self._kind is not None
        blank = np.zeros((1, *self._kind.shapes[0]), self._kind.dtypes[0])
        return self.finish(blank, Draw())

    def _is_iterator(self) -> bool:
        return isinstance(self._source, Iterator)

    def _items(self) -> Iterator[Any]:
        """All items, from the first."""
        if not callable(self._source):
            if self._spent:
                raise DataError.build(
                    "data.IterableData",
                    expected="samples for another epoch",
                    got="an iterator that has been read",
                    hint="pass the function that makes it, not its result",
                )
            self._spent = self._is_iterator()
            seen, self._seen = self._seen, []
            return chain(seen, self._source)
        return iter(self._source())

    def _pieces(self, batch_size: int) -> Iterator[Arrays]:
        """The stream as batches of whatever size is convenient."""
        items = self._items()
        number = 0
        while True:
            if self._batches:
                piece = next(items, None)
                if piece is None:
                    return
            else:
                piece = list(islice(items, batch_size))
                if not piece:
                    return
            yield self._piece(piece, number)
            number += 1 if self._batches else len(piece)

    def _piece(self, piece: Any, number: int) -> Arrays:
        """One batch as arrays that agree with each other and with all before."""
        what = "batch" if self._batches else "sample"
        where = f"data.IterableData, {what} {number}"
        if self._batches:
            arrays = _as_arrays(piece, where)
            if any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
                raise DataError.build(
                    where,
                    expected="as many targets as inputs, along the first axis",
                    got="shapes " + ", ".join(str(array.shape) for array in arrays),
                )
        else:
            samples = [_as_arrays(each, where) for each in piece]
            for offset, sample in enumerate(samples):
                kind = _Kind(
                    tuple(array.shape for array in sample), tuple(array.dtype for array in sample)
                )
                self._check(kind, f"data.IterableData, {what} {number + offset}")
            arrays = tuple(np.stack(column) for column in zip(*samples, strict=True))
        kind = _Kind(
            tuple(array.shape[1:] for array in arrays), tuple(array.dtype for array in arrays)
        )
        self._check(kind, where)
        return arrays

    def _check(self, kind: _Kind, where: str) -> None:
        if self._kind is None:
            self._kind = kind
        if kind != self._kind:
            raise DataError.build(where, expected=_text(self._kind), got=_text(kind))


def _as_arrays(item: Any, where: str) -> Arrays:
    try:
        if isinstance(item, tuple):
            return tuple(array_of(part, where) for part in item)
        return (array_of(item, where),)
    except CalderaError as error:
        raise DataError.build(where, expected="arrays of numbers", got=str(error)) from None


def _joined(pieces: list[Arrays]) -> Arrays:
    if len(pieces) == 1:
        return pieces[0]
    return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))


def _text(kind: _Kind) -> str:
    parts = [f"{dtype} {shape}" for dtype, shape in zip(kind.dtypes, kind.shapes, strict=True)]
    return "samples of " + " and ".join(parts)
