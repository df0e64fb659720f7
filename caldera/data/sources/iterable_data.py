"""Samples that arrive in sequence: no numbers, no length, no shuffling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from caldera.base.arguments import require, shown, within
from caldera.core.tensor.dtype import DType
from caldera.data.schema import Schema
from caldera.data.sources.base import SCALE, Arrays, checked_scale, scaled
from caldera.data.sources.indexed_data import arrays_of_item
from caldera.data.sources.split_keys import SplitKeys
from caldera.errors import DataError

Source: TypeAlias = Iterable[Any] | Callable[[], Iterable[Any]]


class _Kind(NamedTuple):
    """Shapes and dtypes of the arrays, the same for all samples of a stream."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]


class IterableData:
    """Samples from an iterable, or from a function that makes one for each epoch.

    An item is a sample: (x, y), a dict or only x. With `batches=True` it is a batch of samples, of
    any size, as yielded by a `DataLoader` of PyTorch. Training batches of the requested size are
    assembled from either. A generator can be read only once, so training for several epochs needs
    the function that makes it.

    >>> from caldera import data
    >>> def numbers():
    ...     for n in range(5):
    ...         yield [float(n)], 2 * n
    >>> [batch.y.tolist() for batch in data.Loader(data.IterableData(numbers), 2)]
    [[0, 2], [4, 6], [8]]
    """

    schema: Schema | None = None
    """Columns and classes of the samples; see `Data`."""
    is_test: bool = False
    inputs: int | None = None
    overlap: int | None = None
    keys: SplitKeys | None = None

    def __init__(
        self,
        source: Source,
        *,
        batches: bool = False,
        scale: float | None = SCALE,
    ) -> None:
        require(
            callable(source) or isinstance(source, Iterable),
            "data.IterableData",
            "an iterable or a function that makes one",
            type(source).__name__,
        )
        self._source = source
        self._batches = batches
        self.scale = checked_scale(scale, "data.IterableData")
        self._kind: _Kind | None = None
        self._example: Arrays = ()
        # The first item of an iterator, if it was inspected before reading.
        self._seen: list[Any] = []
        self._spent = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of x of a single sample, taken from the first item."""
        return self._first_kind().shapes[0]

    @property
    def dtype(self) -> DType:
        """The dtype of x in a batch."""
        return scaled(self.blank()[0], self.scale).dtype

    def read(self, batch_size: int, skip: int = 0, following: int = 0) -> Iterator[Arrays]:
        """Iterate over batches as stored, from sample `skip` on; the last may be smaller.

        Each ends with the `following` first samples of the next batch; the first sample follows the
        last.

        >>> from caldera import data
        >>> stream = data.IterableData([[1, 2, 3], [4, 5]], batches=True)
        >>> [x.tolist() for x, in stream.read(batch_size=2, skip=1)]
        [[2, 3], [4, 5]]
        >>> [x.tolist() for x, in stream.read(batch_size=2, following=1)]
        [[1, 2, 3], [3, 4, 5], [5, 1]]
        """
        where = "data.IterableData.read"
        within(where, "batch_size", batch_size, 1, 2**31)
        within(where, "skip", skip, 0, 2**63 - 1)
        within(where, "following", following, 0, 2**20)
        return self._read(batch_size, skip, following)

    def _read(self, batch_size: int, skip: int, following: int) -> Iterator[Arrays]:
        held: list[Arrays] = []
        first: list[Arrays] = []
        seen = count = 0
        for piece in self._pieces(batch_size):
            if seen < following:
                first.append(_part(piece, 0, following - seen))
            kept = _part(piece, max(0, skip - seen))
            seen += len(piece[0])
            held.append(kept)
            count += len(kept[0])
            while count >= batch_size + following:
                joined = _joined(held)
                yield _part(joined, 0, batch_size + following)
                held = [_part(joined, batch_size)]
                count -= batch_size
        if not count:
            return
        # As often as it takes: there may be fewer samples than are needed after the last.
        rows = np.arange(following) % max(min(seen, following), 1)
        after = [tuple(array[rows] for array in _joined(first))] if following else []
        joined = _joined([*held, *after])
        for start in range(0, count, batch_size):
            yield _part(joined, start, min(start + batch_size, count) + following)

    def blank(self) -> Arrays:
        """Return one sample, the first, of the shapes and dtypes that are read.

        Zeros if it has none.

        >>> from caldera import data
        >>> [array.shape for array in data.IterableData([([1.0, 2.0], 3)]).blank()]
        [(1, 2), (1,)]
        """
        kind = self._first_kind()
        if self._example:
            return self._example
        pairs = zip(kind.shapes, kind.dtypes, strict=True)
        return tuple(np.zeros((1, *shape), dtype) for shape, dtype in pairs)

    def _first_kind(self) -> _Kind:
        if self._kind is None:
            items = self._items()
            first = next(items, None)
            if first is None:
                raise DataError.build("data.IterableData", expected="samples", got="none")
            if isinstance(self._source, Iterator):
                self._seen, self._spent = [first], False
            self._piece([first] if not self._batches else first, 0)
        assert self._kind is not None
        return self._kind

    def _items(self) -> Iterator[Any]:
        """Return an iterator over all items, from the first."""
        if not callable(self._source):
            require(
                not self._spent,
                "data.IterableData",
                "samples for another epoch",
                "an iterator that has been read",
                hint="pass the function that makes it, not its result",
                error=DataError,
            )
            self._spent = isinstance(self._source, Iterator)
            seen, self._seen = self._seen, []
            return chain(seen, self._source)
        found = self._source()
        if not isinstance(found, Iterable):
            raise DataError.build(
                "data.IterableData",
                expected="a function that makes an iterator of samples",
                got=f"a function that returns {shown(found)}",
            )
        return iter(found)

    def _pieces(self, batch_size: int) -> Iterator[Arrays]:
        """Iterate over the stream in batches of any convenient size."""
        items = self._items()
        if self._batches:
            for number, piece in enumerate(items):
                yield self._piece(piece, number)
            return
        number = 0
        while piece := list(islice(items, batch_size)):
            yield self._piece(piece, number)
            number += len(piece)

    def _piece(self, piece: Any, number: int) -> Arrays:
        """Return an item as arrays that are consistent with each other and with earlier items."""
        what = "batch" if self._batches else "sample"
        where = f"data.IterableData, {what} {number}"
        if self._batches:
            arrays = arrays_of_item(piece, where)
            if any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
                raise DataError.build(
                    where,
                    expected="equal numbers of inputs and targets along the first axis",
                    got="shapes " + ", ".join(str(array.shape) for array in arrays),
                )
        else:
            samples = [arrays_of_item(each, where) for each in piece]
            for offset, sample in enumerate(samples):
                self._check(sample, 0, f"data.IterableData, {what} {number + offset}")
            arrays = tuple(np.stack(column) for column in zip(*samples, strict=True))
        self._check(arrays, 1, where)
        if not self._example and len(arrays[0]):
            self._example = tuple(array[:1].copy() for array in arrays)
        return arrays

    def _check(self, arrays: Arrays, axes: int, where: str) -> None:
        """Raise an error if arrays differ from earlier ones; the first `axes` axes are ignored."""
        kind = _Kind(tuple(each.shape[axes:] for each in arrays), tuple(a.dtype for a in arrays))
        self._kind = self._kind or kind
        if kind != self._kind:
            raise DataError.build(where, expected=_text(self._kind), got=_text(kind))


def _part(arrays: Arrays, start: int, end: int | None = None) -> Arrays:
    return tuple(array[start:end] for array in arrays)


def _joined(pieces: list[Arrays]) -> Arrays:
    if len(pieces) == 1:
        return pieces[0]
    return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))


def _text(kind: _Kind) -> str:
    parts = [f"{dtype} {shape}" for dtype, shape in zip(kind.dtypes, kind.shapes, strict=True)]
    return "samples of " + " and ".join(parts)
