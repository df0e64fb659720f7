"""Weights of samples in the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.core.tensor.dtype import is_float, real_array_of
from caldera.data import Batch, Pipeline
from caldera.errors import DataError


@dataclass(frozen=True)
class SampleWeights:
    """Weights by sample, by class, or both, which are then multiplied.

    >>> import numpy as np
    >>> from caldera.data import Pipeline
    >>> from caldera.train.sample_weights import SampleWeights
    >>> labels = np.array([0, 1, 1])
    >>> weights = SampleWeights.of(Pipeline((np.zeros((3, 1)), labels)), by_class={1: 5.0})
    >>> weights.of_samples(np.arange(3), labels).tolist()
    [1.0, 5.0, 5.0]
    """

    by_sample: np.ndarray | None
    by_class: np.ndarray | None
    is_partial: bool = False
    """True if labels beyond `by_class` may occur; samples with these have weight 1."""

    @classmethod
    def of(
        cls, data: Pipeline, by_sample: Any = None, by_class: Any = None
    ) -> SampleWeights | None:
        """Build weights from the user's arguments; None if all samples have equal weight."""
        if by_sample is None and by_class is None:
            return None
        return cls(
            None if by_sample is None else _by_sample(by_sample, data),
            None if by_class is None else _by_label(by_class, data),
            isinstance(by_class, Mapping | str),
        )

    def check_classes(self, classes: int) -> None:
        """Raise if the weights are for other classes than the model's."""
        if self.by_class is None:
            return
        given = len(self.by_class)
        require(
            given <= classes and (given >= classes or self.is_partial),
            "fit",
            f"class_weights for {classes} classes, 0 to {classes - 1}",
            f"one for class {given - 1}" if self.is_partial else f"{given}",
            "a dict such as {1: 5.0} lists only the weights other than 1",
            error=DataError,
        )
        require(
            given != classes or self.by_class.any(),
            "fit",
            "class_weights of which some are above 0",
            "only 0",
            error=DataError,
        )

    def of_batch(self, batch: Batch) -> np.ndarray:
        """Return the weights of a batch's samples."""
        return self.of_samples(batch.indices, batch.y)

    def of_samples(self, indices: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Return the weights of samples with these indices and labels."""
        weights = np.ones(len(indices))
        if self.by_sample is not None:
            weights = weights * self.by_sample[indices]
        if self.by_class is not None:
            weights = weights * self._of_classes(_classes(labels))
        return weights

    def _of_classes(self, labels: np.ndarray) -> np.ndarray:
        assert self.by_class is not None
        known = (labels >= 0) & (labels < len(self.by_class))
        if not self.is_partial and not known.all():
            raise DataError.build(
                "fit",
                expected=f"labels from 0 to {len(self.by_class) - 1}, one for each weight",
                got=f"label {labels[~known][0]}",
                hint="pass a weight for each class, or a dict of the weights other than 1",
            )
        return np.where(known, self.by_class[np.where(known, labels, 0)], 1.0)


def _classes(labels: np.ndarray | None) -> np.ndarray:
    if labels is None or labels.ndim != 1 or is_float(labels.dtype):
        raise DataError.build(
            "fit",
            expected="class numbers as targets for class_weights",
            got="none" if labels is None else f"{labels.dtype} {labels.shape}",
            hint="weigh the samples with sample_weights instead",
        )
    return labels.astype(np.int64)


def _by_sample(given: Any, data: Pipeline) -> np.ndarray:
    require(
        not data.is_stream,
        "fit",
        "data with numbered samples for sample_weights",
        "a stream",
        "use arrays, or class_weights",
        error=DataError,
    )
    weights = _numbers(given, "sample_weights")
    count = len(data)
    require(
        weights.shape == (count,),
        "fit",
        f"one weight for each of {count} samples",
        weights.shape,
        error=DataError,
    )
    require(
        weights.any(),
        "fit",
        "sample_weights of which some are above 0",
        "only 0",
        "a sample of weight 0 is ignored",
        error=DataError,
    )
    return weights


def _by_label(given: Any, data: Pipeline) -> np.ndarray:
    """Return class weights by label.

    `given` is a sequence, a dict from label or name to weight (1 for missing ones), or "balanced".
    """
    if isinstance(given, str):
        return _balanced(given, data)
    if not isinstance(given, Mapping):
        weights = _numbers(given, "class_weights")
        require(
            weights.ndim == 1,
            "fit",
            "class_weights= one for each class, a dict or 'balanced'",
            f"an array of shape {weights.shape}",
            error=DataError,
        )
        return weights
    labels = [_label(each, data) for each in given]
    require(
        len(set(labels)) >= len(labels),
        "fit",
        "class_weights with each class once",
        repr(dict(given)),
        "identify a class by its number or by its name",
        error=DataError,
    )
    require(labels, "fit", "class_weights= of a class", "an empty dict", error=DataError)
    found = np.ones(max(labels) + 1)
    found[labels] = _numbers(list(given.values()), "class_weights")
    return found


def _balanced(given: str, data: Pipeline) -> np.ndarray:
    """Return weights with which all classes that occur count the same, and samples 1 on average."""
    require(
        given == "balanced",
        "fit",
        "class_weights= one for each class, a dict or 'balanced'",
        repr(given),
        error=DataError,
    )
    require(
        not data.is_stream,
        "fit",
        "data whose classes can be counted for class_weights='balanced'",
        "a stream",
        "give the weights of classes, as in class_weights={1: 5.0}",
        error=DataError,
    )
    counts = np.bincount(np.maximum(_classes(data.y), 0))
    found = np.ones(len(counts))
    found[counts > 0] = counts.sum() / (np.count_nonzero(counts) * counts[counts > 0])
    return found


def _label(given: Any, data: Pipeline) -> int:
    """Return the number of a class, from its number or its name."""
    names = data.schema.classes if data.schema is not None else ()
    if isinstance(given, str) and given in names:
        return names.index(given)
    if isinstance(given, int | np.integer) and not isinstance(given, bool) and given >= 0:
        return int(given)
    raise DataError.build(
        "fit",
        expected="class_weights by the numbers of classes, from 0"
        + (f", or their names: {', '.join(names)}" if names else ""),
        got=repr(given),
        hint=f"for example class_weights={{{(names or (1,))[0]!r}: 5.0}}",
    )


def _numbers(given: Any, name: str) -> np.ndarray:
    """Return weights: numbers of at least 0."""
    array = real_array_of(given, f"fit {name}")
    require(
        array.dtype.kind in "biuf" or is_float(array.dtype),
        "fit",
        f"{name}= numbers",
        array.dtype,
        error=DataError,
    )
    weights = array.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise DataError.build(
            "fit",
            expected=f"{name} of at least 0",
            got=f"{weights[wrong][0]}",
            hint="0 leaves a sample out, 2 counts it twice",
        )
    return weights
