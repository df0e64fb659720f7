"""Classification metrics of classes and labels, and the area under the ROC curve."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.nn.losses import MULTILABEL, PredictionKind
from caldera.nn.metrics.base import MeanMetric, Metric, metrics, ratio, sample_factors
from caldera.nn.metrics.decision import Decision, labels
from caldera.nn.sample_means import mean_by_sample


class ClassMetric(Metric):
    """Metric of classes or labels. The loss determines which of the two, and their axis.

    >>> from caldera.nn.metrics import Accuracy, ClassMetric
    >>> issubclass(Accuracy, ClassMetric)
    True
    """

    threshold: float | None
    axis: int | None
    _task: ClassVar[PredictionKind | None] = None

    def for_task(self, task: PredictionKind | None) -> Self:
        made = copy.copy(self)
        # Past the guard of frozen dataclasses.
        object.__setattr__(made, "_task", task)
        made.decision.check()
        return made

    @property
    def decision(self) -> Decision:
        """Rule that converts predictions to classes."""
        return Decision(self.name, self.threshold, self.axis, self._task)


@metrics.register("accuracy")
@dataclass(frozen=True)
class Accuracy(ClassMetric, MeanMetric):
    """Fraction of predictions whose class is right; for labels, the fraction of correct labels.

    The predicted class has the largest number along `axis`; targets are class indices, or
    distributions in the shape of the predictions. Where each number is a separate label, as for
    binary cross-entropy, a number above `threshold` means yes. Every label has the same weight: the
    result is 1 minus the Hamming loss. Where the loss takes logits, `threshold` is a probability,
    by default 0.5; otherwise it applies to the numbers themselves, by default 0. Without a loss,
    predictions with a single number are labels, and all longer ones classes.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import Accuracy
    >>> sums = Accuracy().sums(cd.tensor([[0.1, 2.0], [3.0, 1.0]]), cd.tensor([1, 1]))
    >>> Accuracy().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    threshold: float | None = None
    axis: int | None = None

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        found = self.decision.of(prediction, target)
        return mean_by_sample(op.cast(found.predicted == found.actual, "float64"))


@metrics.register("top_k")
@dataclass(frozen=True)
class TopKAccuracy(ClassMetric, MeanMetric):
    """The part of predictions with the right class among their `k` largest numbers along `axis`.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import TopK
    >>> scores = cd.tensor([[0.1, 2.0, 1.0], [3.0, 1.0, 2.0]])
    >>> sums = TopK(2).sums(scores, cd.tensor([2, 1]))
    >>> TopK(2).name, TopK(2).result({name: value.numpy() for name, value in sums.items()})
    ('top_2', 0.5)
    """

    k: int = 5
    axis: int | None = None
    threshold: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require(self.k >= 1, "TopK", "a k >= 1", self.k)

    @property
    def name(self) -> str:
        return f"top_{self.k}"

    def for_task(self, task: PredictionKind | None) -> Self:
        if task is not None and task.kind == MULTILABEL:
            raise ConfigError.build(
                self.name,
                expected="a loss of classes",
                got=f"a {task.kind} loss",
                hint="use metrics=['accuracy', 'f1']",
            )
        return super().for_task(task)

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        axis = self.decision.position(tuple(prediction.shape))
        wanted = labels(self.name, prediction, target, axis)
        _, best = op.top_k(prediction, self.k, axis=axis)
        found = op.any(best == op.unsqueeze(wanted, axis), axis=axis)
        return mean_by_sample(op.cast(found, "float64"))


@dataclass(frozen=True)
class ByClass(ClassMetric):
    """Base class of precision, recall and F1: hits, predictions and occurrences of each class.

    Classes and labels are determined as in `Accuracy`. Labels are along `axis`, which is required
    where predictions have more axes than samples and labels. The value is the mean over the classes
    or labels that occur among targets or predictions. With `per_class` it is an array, with nan for
    classes that do not occur. For predictions with a single number it is the value for class 1.

    >>> from caldera.nn.metrics import ByClass, Precision
    >>> issubclass(Precision, ByClass)
    True
    """

    per_class: bool = False
    threshold: float | None = None
    axis: int | None = None

    @property
    def name(self) -> str:
        return super().name + ("_per_class" if self.per_class else "")

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        found = self.decision.of(prediction, target)
        predicted, actual = found.by_class()
        factors = found.spread(sample_factors(weights, prediction))
        return {
            "hits": op.sum(factors * predicted * actual, axis=0),
            "predicted": op.sum(factors * predicted, axis=0),
            "actual": op.sum(factors * actual, axis=0),
        }

    def result(self, sums: Mapping[str, np.ndarray]) -> float | np.ndarray:
        values = self.values(sums["hits"], sums["predicted"], sums["actual"])
        occurs = sums["predicted"] + sums["actual"] > 0
        if self.per_class:
            return np.where(occurs, values, np.nan)
        return float(values[occurs].mean()) if occurs.any() else float("nan")

    @abstractmethod
    def values(self, hits: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        """Return the value for each class."""


@metrics.register("precision")
@dataclass(frozen=True)
class Precision(ByClass):
    """The part of the predictions of a class that is right; 0 for one that is never predicted.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import Precision
    >>> sums = Precision().sums(cd.tensor([2.0, 1.0, -1.0, 3.0]), cd.tensor([1, 0, 1, 1]))
    >>> round(Precision().result({name: value.numpy() for name, value in sums.items()}), 4)
    0.6667
    """

    def values(self, hits: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return ratio(hits, predicted)


@metrics.register("recall")
@dataclass(frozen=True)
class Recall(ByClass):
    """The part of the samples of a class that is found; 0 for one that never occurs.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import Recall
    >>> sums = Recall().sums(cd.tensor([2.0, 1.0, -1.0]), cd.tensor([1, 0, 1]))
    >>> Recall().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    def values(self, hits: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return ratio(hits, actual)


@metrics.register("f1")
@dataclass(frozen=True)
class F1(ByClass):
    """The harmonic mean of precision and recall of each class.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import F1
    >>> sums = F1().sums(cd.tensor([2.0, 1.0, -1.0]), cd.tensor([1, 0, 1]))
    >>> F1().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    def values(self, hits: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return ratio(2 * hits, predicted + actual)


@metrics.register("f_beta")
@dataclass(frozen=True)
class FBeta(ByClass):
    """The harmonic mean of precision and recall, with recall `beta` times as important.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import FBeta
    >>> metric = FBeta(2.0)
    >>> sums = metric.sums(cd.tensor([2.0, 1.0, -1.0]), cd.tensor([1, 1, 1]))
    >>> round(metric.result({name: value.numpy() for name, value in sums.items()}), 4)
    0.7143
    """

    per_class: bool = field(default=False, kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)
    axis: int | None = field(default=None, kw_only=True)
    beta: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "FBeta", "beta > 0", self.beta)

    def values(self, hits: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        square = self.beta**2
        return ratio((1 + square) * hits, predicted + square * actual)


@metrics.register("iou")
@dataclass(frozen=True)
class IoU(ByClass):
    """Intersection over union of predicted and true classes: the mean over classes.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import IoU
    >>> sums = IoU().sums(cd.tensor([2.0, 1.0, -1.0, -1.0]), cd.tensor([1, 0, 1, 0]))
    >>> round(IoU().result({name: value.numpy() for name, value in sums.items()}), 4)
    0.3333
    """

    def values(self, hits: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return ratio(hits, predicted + actual - hits)


@metrics.register("confusion_matrix")
@dataclass(frozen=True)
class ConfusionMatrix(ClassMetric):
    """Confusion matrix, weighted: true classes in rows, predicted classes in columns.

    Multi-label targets have no such matrix: use `F1(per_class=True)`.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import ConfusionMatrix
    >>> sums = ConfusionMatrix().sums(cd.tensor([2.0, 1.0, -1.0]), cd.tensor([1, 0, 1]))
    >>> ConfusionMatrix().result({"counts": sums["counts"].numpy()}).tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """

    threshold: float | None = None
    axis: int | None = None

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        found = self.decision.of(prediction, target)
        predicted, actual = found.one_hot()
        factors = found.spread(sample_factors(weights, prediction))
        return {"counts": op.transpose(actual) @ (factors * predicted)}

    def result(self, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        return sums["counts"]


@metrics.register("auc")
@dataclass(frozen=True)
class AUC(ClassMetric):
    """Area under the ROC curve: the probability that a sample of a class scores above another.

    Labels are evaluated separately, and classes each against the rest, by their log-odds. The value
    is their mean, and with `per_class` an array. A label or class that always or never occurs has
    none (nan) and is left out of the mean.

    Samples are counted in `bins` bins by score, so that counts of batches and ranks add up; two in
    one bin count as equal. Around a score s a bin is 2 (1 + |s|)^2 / bins wide: 0.0001 at 0, 0.015
    at 10. Scores may have any scale, as a curve depends only on their order.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import AUC
    >>> sums = AUC().sums(cd.tensor([2.0, 1.0, -1.0, -2.0]), cd.tensor([1, 0, 1, 0]))
    >>> AUC().result({name: value.numpy() for name, value in sums.items()})
    0.75
    """

    per_class: bool = False
    bins: int = 1 << 14
    axis: int | None = None
    threshold: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require(2 <= self.bins <= 1 << 20, "AUC", "2 to 2^20 bins", self.bins)

    @property
    def name(self) -> str:
        return "auc_per_class" if self.per_class else "auc"

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        found = self.decision.of(prediction, target)
        _, actual = found.by_class()
        if found.label_axis is None:
            scores = _log_odds(prediction, self.decision.position(tuple(prediction.shape)))
        else:
            scores = found.in_order(op.cast(prediction, "float64"))
        factors = op.broadcast(found.spread(sample_factors(weights, prediction)), scores.shape)
        counted = factors != 0.0
        unknown = op.logical_and(op.isnan(scores), counted)
        # Between -1 and 1, finest around 0; infinite scores are at the ends.
        size = op.clip(op.where(op.isnan(scores), 0.0, scores), -1e300, 1e300)
        place = op.floor((size / (1.0 + op.abs(size)) + 1.0) * (self.bins / 2))
        first = np.arange(scores.shape[1]) * self.bins
        bins = op.flatten(op.cast(op.clip(place, 0.0, self.bins - 1.0), "int64") + first, 0)
        length = scores.shape[1] * self.bins
        return {
            "positive": op.bincount(bins, length, op.flatten(factors * actual, 0)),
            "negative": op.bincount(bins, length, op.flatten(factors * (1.0 - actual), 0)),
            "unknown": op.sum(op.cast(unknown, "float64"), axis=0),
        }

    def result(self, sums: Mapping[str, np.ndarray]) -> float | np.ndarray:
        positive = sums["positive"].reshape(-1, self.bins)
        negative = sums["negative"].reshape(-1, self.bins)
        below = np.cumsum(negative, axis=1) - negative / 2
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        higher = (positive * below).sum(axis=1)
        values = np.where(pairs > 0, higher / np.where(pairs > 0, pairs, 1.0), np.nan)
        values = np.where(sums["unknown"] > 0, np.nan, values)
        if self.per_class:
            return values
        known = values[pairs > 0]
        return float(known.mean()) if known.size else float("nan")


def _log_odds(prediction: Any, axis: int) -> Expr:
    """log(p / (1 - p)) of each class by softmax, (positions, classes)."""
    order = [each for each in range(prediction.ndim) if each != axis]
    last = op.transpose(op.cast(prediction, "float64"), [*order, axis])
    logarithms = op.log_softmax(op.reshape(last, (-1, last.shape[-1])), axis=-1)
    # For the largest class, 1 - p is computed as the sum of the remaining probabilities: the
    # difference would cancel.
    largest = op.one_hot(op.argmax(logarithms, axis=-1), last.shape[-1], dtype="bool")
    others = op.sum(op.where(largest, 0.0, op.exp(logarithms)), axis=-1, keepdims=True)
    rest = op.where(largest, others, -op.expm1(logarithms))
    return logarithms - op.log(op.maximum(rest, 1e-300))
