"""Keys by which samples are split: groups that stay together, or the time of each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.errors import DataError


class SplitParts(NamedTuple):
    """Numbers of the samples in the two parts of a split."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class SplitKeys:
    """The group of each sample, or its time.

    Samples of a group are in the same part. With times, the latest samples are the test part.

    >>> SplitKeys(np.array([1, 2, 3, 3]), is_time=True).split(1, 0)
    SplitParts(train=array([0, 1]), test=array([2, 3]))
    """

    values: NDArray[Any]
    is_time: bool = False

    def subset(self, numbers: NDArray[np.int64]) -> SplitKeys:
        """Return the keys of some samples."""
        return SplitKeys(self.values[numbers], self.is_time)

    def split(self, wanted: int, seed: int) -> SplitParts:
        """Split into parts, the second with about `wanted` samples."""
        apart = np.zeros(len(self.values), bool)
        if self.is_time and wanted:
            # Samples of the same time are in the same part.
            apart = self.values >= np.sort(self.values)[-wanted]
        elif wanted:
            _, codes, counts = np.unique(self.values, return_inverse=True, return_counts=True)
            order = np.random.default_rng(seed).permutation(len(counts))
            before = np.cumsum(counts[order]) - counts[order]
            chosen = order[before + counts[order] / 2 <= max(wanted, counts[order[0]] / 2)]
            apart = np.isin(codes, chosen)
        if wanted and apart.all():
            kind = "times" if self.is_time else "groups"
            raise DataError.build("split", expected=f"at least two {kind}", got="one")
        return SplitParts(np.flatnonzero(~apart), np.flatnonzero(apart))

    def folds(self, count: int, seed: int = 0) -> NDArray[np.int64]:
        """Return the fold of each sample; -1 for samples that no fold holds out.

        Groups are distributed to folds of similar size. With times there is a single fold, the
        latest samples, because no model may learn from later samples than it predicts; `parts` has
        several.

        >>> np.bincount(SplitKeys(np.array([7, 7, 7, 8, 8, 9])).folds(2)).tolist()
        [3, 3]
        """
        if self.is_time:
            found = np.full(len(self.values), -1)
            found[self.split(max(len(found) // count, 1), seed).test] = 0
            return found
        _, codes, counts = np.unique(self.values, return_inverse=True, return_counts=True)
        require(
            len(counts) >= count, "folds", f"at least {count} groups", len(counts), error=DataError
        )
        random = np.random.default_rng(seed).permutation(len(counts))
        sizes, fold_of = np.zeros(count), np.empty(len(counts), np.int64)
        for group in random[np.argsort(-counts[random], kind="stable")]:
            fold_of[group] = sizes.argmin()
            sizes[fold_of[group]] += counts[group]
        return fold_of[codes]

    def parts(self, count: int, seed: int = 0) -> list[SplitParts]:
        """Return the training and test samples of each fold of cross-validation.

        Times are divided into `count` + 1 periods of similar size. Each period but the first is
        the test part of a fold, and all earlier periods are its training part.

        >>> SplitKeys(np.array([2, 1, 3, 3]), is_time=True).parts(2)[1]
        SplitParts(train=array([0, 1]), test=array([2, 3]))
        """
        numbers = self._periods(count) if self.is_time else self.folds(count, seed)
        return [
            SplitParts(
                np.flatnonzero(numbers < fold if self.is_time else numbers != fold),
                np.flatnonzero(numbers == fold),
            )
            for fold in range(count)
        ]

    def _periods(self, count: int) -> NDArray[np.int64]:
        """Return the period of each sample, from -1; samples of the same time are in one period."""
        times, codes, counts = np.unique(self.values, return_inverse=True, return_counts=True)
        require(
            len(times) > count,
            "folds",
            f"at least {count + 1} times for {count} folds",
            len(times),
            hint="request fewer folds",
            error=DataError,
        )
        before = np.cumsum(counts) - counts
        periods = np.arange(1, count + 1)
        starts = np.searchsorted(before, len(self.values) * periods / (count + 1))
        # No period is empty, even if one time has most of the samples.
        starts = np.maximum.accumulate(starts - periods) + periods
        starts = np.minimum(starts, len(times) - 1 - count + periods)
        return np.searchsorted(starts, np.arange(len(times)), side="right")[codes] - 1
