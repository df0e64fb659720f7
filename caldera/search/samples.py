"""The samples of a search: to train with, to choose by, and to test with once at the end."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.data import Dataset, Pipeline
from caldera.data.random_draws import permutation
from caldera.errors import DataError
from caldera.train.data_adapters import Parts

_NO_EPOCH = (1 << 32) - 2


class TrialData:
    """Training, validation and test samples, the same for all trials and seeds.

    `data` is a data set, samples or (x, y). `validation` is the fraction used for selection, or
    other data. `test` samples are evaluated only once, at the end. A data set may contain both.

    >>> import numpy as np
    >>> found = TrialData((np.zeros((10, 2)), np.zeros(10, "int64")), 0.2)
    >>> train, validation = found.parts()
    >>> len(train), len(validation)
    (8, 2)
    """

    def __init__(
        self, data: Any, validation: Any = 0.2, test: Any = None, folds: int = 1, seed: int = 0
    ) -> None:
        self.folds, self._seed = folds, seed
        if isinstance(data, Dataset):
            self._given = data.train
            self._validation = validation if data.validation is None else data.validation
            self.test = test if test is not None else (data.test if len(data.test) else None)
        else:
            self._given, self._validation, self.test = data, validation, test
        if folds > 1:
            require(
                isinstance(validation, int | float),
                "search",
                "folds of the training data",
                "validation data as well",
            )
            self._given = Pipeline.of(self._given)
            require(
                not self._given.is_stream and len(self._given) >= folds,
                "search",
                f"at least {folds} samples, one for each fold",
                "a stream" if self._given.is_stream else f"{len(self._given)}",
                error=DataError,
            )

    def parts(self, fold: int | None = None) -> tuple[Any, Any]:
        """Return the training and the validation samples."""
        if fold is None:
            return self._parts.train, self._parts.validation
        order = permutation(len(self._given), self._seed, _NO_EPOCH)
        held = np.array_split(order, self.folds)[fold]
        rest = np.setdiff1d(np.arange(len(self._given)), held)
        return self._given.subset(rest), self._given.subset(np.sort(held))

    @cached_property
    def _parts(self) -> Parts:
        return Parts.of(Pipeline.of(self._given), self._validation, None, self._seed)

    @property
    def chosen_by(self) -> int | None:
        """Number of samples on which a trial is evaluated; None for a stream."""
        if self.folds > 1:
            return len(self._given)
        held = self._parts.validation
        return None if held is None or held.is_stream else len(held)

    def sample(self) -> tuple[np.ndarray, ...]:
        """Return a batch with one sample, for building a model."""
        return Pipeline.of(self._given).blank()
