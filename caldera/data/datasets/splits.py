"""Splits of samples into training and test parts: at random, by class, by group and by time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from caldera.base.arguments import require
from caldera.data.random_draws import permutation
from caldera.data.sources.base import Array, Data
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.sources.split_keys import SplitKeys
from caldera.data.tables.column_checks import codes_of
from caldera.data.tables.kinds import DATE, NUMBER, guess_kind
from caldera.data.tables.table import Table
from caldera.errors import ConfigError

# Samples are set aside in an order that no epoch of training has.
_NO_EPOCH = (1 << 32) - 1


def split(
    samples: Data | tuple[ArrayLike, ...],
    *,
    test: float = 0.2,
    seed: int = 0,
    stratify: bool | None = None,
) -> tuple[Data, Data]:
    """Split samples at random into training and test samples.

    `test` is the fraction or the number of test samples; windows of a series are split at the end
    instead. With `stratify`, each class contributes the same fraction; this is the default if y has
    one integer per sample.

    >>> import numpy as np
    >>> from caldera import data
    >>> train, test = data.split((np.zeros((10, 2)), [0] * 5 + [1] * 5), test=0.4)
    >>> sorted(test.y.tolist())
    [0, 0, 1, 1]
    """
    if not isinstance(samples, Data):
        samples = ArrayData(*samples)
    train, apart = split_rows(samples, test, seed, stratify)
    return samples.subset(train), samples.subset(apart)


def split_rows(
    samples: Data, test: float, seed: int, stratify: bool | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the samples in the two parts of `split`."""
    total = len(samples)
    wanted = _test_count(test, total)
    labels = samples.y
    are_classes = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iub"
    require(
        not stratify or are_classes,
        "data.split",
        "one integer for each sample to stratify by",
        "others",
    )
    if samples.overlap is not None:
        first = total - wanted
        return np.arange(max(first - samples.overlap, 0)), np.arange(first, total)
    if samples.keys is not None:
        return samples.keys.split(wanted, seed)
    order = permutation(total, seed, _NO_EPOCH)
    if labels is not None and are_classes and stratify is not False:
        chosen = _stratified(labels[order], wanted)
    else:
        chosen = np.arange(total) < wanted
    return np.sort(order[~chosen]), np.sort(order[chosen])


def _test_count(test: float, total: int) -> int:
    is_part = isinstance(test, float) and 0 <= test < 1
    is_count = isinstance(test, int) and not isinstance(test, bool) and 0 <= test <= total
    if not is_part and not is_count:
        raise ConfigError.build(
            "data.split",
            expected=f"test as a part from 0 to 1, or as a number of samples up to {total}",
            got=repr(test),
            hint="set it with test= (--test-part), for example 0.2",
        )
    return round(test * total) if is_part else int(test)


def _stratified(labels: Array, wanted: int) -> NDArray[np.bool_]:
    """Return a mask of `wanted` samples in which each class has its share.

    >>> _stratified(np.array([0, 0, 0, 0, 1, 1]), 3).tolist()
    [True, True, False, False, True, False]
    """
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shares = counts * (wanted / max(labels.size, 1))
    quota = np.floor(shares).astype(np.int64)
    # The remainder is assigned to the classes that lost most by rounding.
    short = wanted - int(quota.sum())
    quota[np.argsort(quota - shares, kind="stable")[:short]] += 1
    grouped = np.argsort(numbers, kind="stable")
    place_in_class = np.empty(labels.size, np.int64)
    starts = np.cumsum(counts) - counts
    place_in_class[grouped] = np.arange(labels.size) - np.repeat(starts, counts)
    return place_in_class < quota[numbers]


def split_keys(
    table: Table, group: int | str | None, time: int | str | None, decimal: str | None = None
) -> SplitKeys | None:
    """Return the groups or times of the rows in these columns; None if neither is given."""
    require(group is None or time is None, table.where, "group= or time=", "both")
    wanted = group if time is None else time
    if wanted is None:
        return None
    place = table.column(wanted)
    gone = table.missing(place)
    if gone.any():
        raise table.refused(int(gone.argmax()), place, "a group" if time is None else "a time")
    if time is None:
        return SplitKeys(codes_of(table.columns[place]))
    kind = guess_kind(table, place, decimal)
    if kind.name not in (NUMBER, DATE):
        raise table.refused(0, place, "a date or a number")
    return SplitKeys(kind.parse(table, place), is_time=True)
