"""Sequences of different lengths: padding, masks and batches of similar lengths.

A plan has static shapes, so lengths are rounded up to a few `buckets`, each of which requires a
plan. The buckets are chosen to minimise padding. As far as a bucket has enough samples, the
batches of an epoch take their samples from one bucket.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import checked, require, within
from caldera.core.tensor.dtype import DType, float32, is_integer, real_array_of
from caldera.data.random_draws import permutation
from caldera.data.sources.base import Array, Arrays, Data, checked_rows
from caldera.data.sources.indexed_data import array_of_item
from caldera.errors import ConfigError, DataError, ShapeError

PADDING = 0.05
"""The part of all steps that may be padding, where the number of buckets is chosen."""
MOST_BUCKETS = 16
_MOST_CANDIDATES = 256


def bucket_lengths(
    lengths: NDArray[np.int64], wanted: int | Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the sorted lengths to pad to.

    `wanted` contains the lengths, or is their number; None selects the fewest that suffice.

    >>> bucket_lengths(np.array([1, 2, 9, 10]), 2)
    (2, 10)
    >>> bucket_lengths(np.array([7, 7, 7]))
    (7,)
    """
    longest = int(lengths.max())
    if wanted is not None and not isinstance(wanted, int):
        return _given(wanted, longest)
    if isinstance(wanted, bool) or (wanted is not None and not 1 <= wanted <= 1024):
        raise ConfigError.build(
            "data.RaggedData",
            expected="buckets= a number of buckets, or their lengths",
            got=repr(wanted),
        )
    ends, counts = _candidates(lengths)
    most = min(wanted or MOST_BUCKETS, len(ends))
    cost, came_from = _cheapest(ends, counts, most)
    total = float(lengths.sum())
    number = most
    if wanted is None:
        number = next((k + 1 for k in range(most) if 1 - total / cost[k, -1] <= PADDING), most)
    found, end = [], len(ends) - 1
    for k in range(number - 1, -1, -1):
        found.append(int(ends[end]))
        end = int(came_from[k, end])
        if end < 0:
            break
    return tuple(reversed(found))


def _given(wanted: Sequence[int], longest: int) -> tuple[int, ...]:
    found: list[Any] = list(wanted)
    if not found or not all(isinstance(each, int | np.integer) and each > 0 for each in found):
        raise ConfigError.build(
            "data.RaggedData", expected="buckets= lengths above 0", got=repr(wanted)[:80]
        )
    if max(found) < longest:
        raise ConfigError.build(
            "data.RaggedData",
            expected=f"a bucket for the longest sequence, of {longest} steps",
            got=f"{max(found)} at most",
            hint="add one, or cut the sequences",
        )
    return tuple(sorted({int(each) for each in found}))


def _candidates(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return candidate lengths of buckets, and the number of sequences in each."""
    values, counts = np.unique(lengths, return_counts=True)
    if len(values) > _MOST_CANDIDATES:
        # Too many: use the quantiles that divide the sequences into equal parts.
        total = np.cumsum(counts)
        places = np.searchsorted(total, np.linspace(0, total[-1], _MOST_CANDIDATES + 1)[1:])
        values = np.unique(values[np.minimum(places, len(values) - 1)])
        edges = np.searchsorted(np.sort(lengths), values, side="right")
        counts = np.diff(edges, prepend=0)
    return values.astype(np.int64), counts.astype(np.int64)


def _cheapest(
    ends: NDArray[np.int64], counts: NDArray[np.int64], most: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the fewest padded steps and the bucket before the last, for each choice.

    A choice is a number of buckets (row) and a last candidate (column). Solved by dynamic
    programming: the best choice of k buckets extends the best choice of k - 1.
    """
    upto = np.concatenate([[0], np.cumsum(counts)])
    size = len(ends)
    cost = np.full((most, size), np.inf)
    came_from = np.full((most, size), -1, np.int64)
    cost[0] = upto[1:] * ends
    for k in range(1, most):
        for end in range(k, size):
            before = cost[k - 1, :end] + (upto[end + 1] - upto[1 : end + 1]) * ends[end]
            came_from[k, end] = int(before.argmin())
            cost[k, end] = before[came_from[k, end]]
    return cost, came_from


# Separates random orders of batches from random orders of samples.
_BATCHES = 1 << 31


class RaggedData(Data):
    """Sequences (steps, ...) of different lengths, and targets: an array, or sequences as well.

    A batch is (x, mask, y): x padded with zeros to (samples, steps, ...), and a mask (samples,
    steps) that is true for real steps. Both are inputs of the network: recurrent layers,
    `nn.TransformerBlock` and `nn.MeanPooling` accept them. Sequences of integers are words, with 0
    as padding: they need no mask (see `nn.Embedding(mask_zero=True)`), unless `mask` is true.
    Targets that are sequences with the lengths of x are padded like x, all other sequences to the
    longest.

    `buckets` contains the lengths to pad to, or is their maximum number; by default, the fewest
    that keep padding below a twentieth, at most 16.

    >>> import numpy as np
    >>> from caldera import data
    >>> ragged = data.RaggedData([np.ones((3, 2)), np.ones((1, 2))], [0, 1])
    >>> x, mask, y = ragged.batch([0, 1])
    >>> x.shape, mask.astype(int).tolist(), y.tolist()
    ((2, 3, 2), [[1, 1, 1], [1, 0, 0]], [0, 1])
    """

    def __init__(
        self,
        sequences: Sequence[Any],
        *others: Any,
        buckets: int | Sequence[int] | None = None,
        mask: bool | None = None,
    ) -> None:
        self._sequences = _as_sequences(sequences, "data.RaggedData")
        self.lengths: NDArray[np.int64] = np.array([len(each) for each in self._sequences])
        self._others = [self._other(each) for each in others]
        for each in self._others:
            require(
                not isinstance(each, np.ndarray) or each.ndim,
                "data.RaggedData",
                "targets, one a sequence",
                "a single number",
                error=ShapeError,
            )
            require(
                len(each) == len(self._sequences),
                "data.RaggedData",
                f"{len(self._sequences)} targets, one a sequence",
                f"{len(each)}",
                error=ShapeError,
            )
        words = is_integer(self._sequences[0].dtype)
        self.has_mask = not words if mask is None else mask
        self.inputs = 2 if self.has_mask else 1
        require(
            not words
            or self.has_mask
            or not any(bool((each == 0).any()) for each in self._sequences),
            "data.RaggedData",
            "words numbered from 1, since 0 is padding",
            "0",
            hint="add 1 to every index, or pass mask=True",
            error=DataError,
        )
        self.buckets: tuple[int, ...] = bucket_lengths(self.lengths, buckets)
        self._rows = np.arange(len(self._sequences))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.buckets[-1], *self._sequences[0].shape[1:])

    @property
    def dtype(self) -> DType:
        return self._sequences[0].dtype

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        """Return sequences padded to the bucket of the longest."""
        rows = checked_rows(indices, len(self), "data.RaggedData.batch")
        return self.padded_batch(rows, self.batch_length(rows))

    def batch_length(self, indices: NDArray[np.integer]) -> int:
        """Return the bucket in which the longest of these samples fits."""
        if not len(indices):
            return self.buckets[0]
        longest = int(self.lengths[self._rows[indices]].max())
        return next(length for length in self.buckets if length >= longest)

    def padded_batch(self, indices: NDArray[np.integer], length: int) -> Arrays:
        """Return these samples, padded to `length` steps, the same for all ranks of a batch."""
        rows = self._rows[indices]
        found = [_padded([self._sequences[row] for row in rows], length, self._sequences[0])]
        if self.has_mask:
            found.append(np.arange(length) < self.lengths[rows][:, None])
        for other in self._others:
            if isinstance(other, np.ndarray):
                found.append(other[rows])
                continue
            parts = [other[row] for row in rows]
            steps = length if self._follow(other) else max(map(len, other))
            found.append(_padded(parts, steps, other[0]))
        return tuple(found)

    @checked
    def batch_order(self, seed: int, epoch: int, batch_size: int) -> NDArray[np.int64]:
        """Return a random order in which the samples of a batch share a bucket.

        The remainder of each bucket forms batches with its neighbours. The last batch, which may be
        smaller, remains the last.
        """
        within("data.RaggedData.batch_order", "batch_size", batch_size, 1, 2**31)
        order = permutation(len(self), seed, epoch)
        bucket = np.searchsorted(self.buckets, self.lengths[self._rows[order]])
        cut = [_whole_batches(order[bucket == n], batch_size) for n in range(len(self.buckets))]
        rest, last = _whole_batches(np.concatenate([left for _, left in cut]), batch_size)
        whole = [each for batches, _ in cut for each in batches] + rest
        turns = permutation(len(whole), seed + _BATCHES, epoch)
        return np.concatenate([*(whole[turn] for turn in turns), last])

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        return self.batch_order(seed, epoch, 32)

    def subset(self, numbers: Sequence[int] | NDArray[np.integer]) -> Self:
        rows = checked_rows(numbers, len(self), "data.RaggedData.subset")
        other = copy.copy(self)
        other._rows = self._rows[rows]
        other.is_test = False
        return other

    @property
    def y(self) -> Array | None:
        if not self._others:
            return None
        targets = self._others[-1]
        if isinstance(targets, np.ndarray):
            return targets[self._rows]
        return self.batch(np.arange(len(self)))[-1]

    def padding(self, batch_size: int, seed: int = 0, epoch: int = 0) -> float:
        """Return the part of all steps of an epoch that is padding.

        >>> import numpy as np
        >>> from caldera import data
        >>> lengths = np.random.default_rng(0).integers(20, 400, 2000)
        >>> ragged = data.RaggedData([np.ones((n, 1), "float32") for n in lengths])
        >>> ragged.padding(32) < 0.1
        True
        """
        order = self.batch_order(seed, epoch, batch_size)
        batches = (order[start : start + batch_size] for start in range(0, len(order), batch_size))
        padded = sum(len(rows) * self.batch_length(rows) for rows in batches)
        return 1 - float(self.lengths[self._rows].sum()) / padded

    def __repr__(self) -> str:
        lengths = ", ".join(map(str, self.buckets))
        return f"RaggedData({len(self)} sequences, padded to {lengths})"

    def _follow(self, other: list[Array]) -> bool:
        """Return True if these have the same lengths as the sequences."""
        return [len(each) for each in other] == self.lengths.tolist()

    def _other(self, given: Any) -> Array | list[Array]:
        if isinstance(given, np.ndarray) or not isinstance(given, list):
            return real_array_of(given, "data.RaggedData")
        items = [array_of_item(each, "data.RaggedData") for each in given]
        if len({each.shape for each in items}) == 1:
            return np.stack(items)
        return _as_sequences(items, "data.RaggedData")


def _whole_batches(numbers: Array, size: int) -> tuple[list[Array], Array]:
    """Return full batches of this size, and the remaining numbers."""
    end = len(numbers) - len(numbers) % size
    return np.split(numbers[:end], end // size) if end else [], numbers[end:]


def _as_sequences(given: Sequence[Any], where: str) -> list[Array]:
    """Return arrays that differ only in their first axis, of the same dtype.

    float64 becomes float32.
    """
    if isinstance(given, np.ndarray) and given.dtype != object:
        given = list(given)
    items = [array_of_item(each, where) for each in given]
    require(items, where, "sequences", error=DataError)
    for number, each in enumerate(items):
        if not each.ndim or each.shape[1:] != items[0].shape[1:] or not len(each):
            raise ShapeError.build(
                f"{where}, sequence {number}",
                expected=f"at least one step of shape {items[0].shape[1:]}",
                got=f"{each.shape}",
            )
    dtype = np.result_type(*{each.dtype for each in items})
    dtype = float32 if dtype == np.float64 else dtype
    return [each.astype(dtype, copy=False) for each in items]


def _padded(parts: Sequence[Array], length: int, like: Array) -> Array:
    found = np.zeros((len(parts), length, *like.shape[1:]), like.dtype)
    for row, part in enumerate(parts):
        require(
            len(part) <= length,
            "data.RaggedData",
            f"sequences of at most {length} steps",
            f"{len(part)}",
        )
        found[row, : len(part)] = part
    return found
