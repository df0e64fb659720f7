"""Metrics: what a user wants to know of a model, as sums that add up over batches and ranks.

Sums are float64, so that any number of samples is counted exactly and no precision pass touches
them. A sample of weight 0 counts for nothing, so 0 marks padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.configurable import Configurable, Family
from caldera.errors import ConfigError, ShapeError
from caldera.lazy import Expr
from caldera.nn.classification import classify, in_shape_of, labels
from caldera.nn.losses import mean_by_sample
from caldera.tensor.shape import normalise_axis


class Metric(Configurable, ABC):
    """A number (or several) about predictions and targets.

    `sums` gives expressions for one batch; sums of several batches are added, and `result` is what
    they amount to. Where a metric is the mean of something over samples, `MeanMetric` is shorter.

    >>> import caldera as cd
    >>> import numpy as np
    >>> from caldera import op
    >>> from caldera.nn.metrics import Metric
    >>> class Largest(Metric):
    ...     def sums(self, prediction, target, weights=None):
    ...         return {"counts": op.sum(op.one_hot(op.argmax(prediction, axis=1), 3), axis=0)}
    ...     def result(self, sums):
    ...         return float(np.argmax(sums["counts"]))
    >>> sums = Largest().sums(cd.tensor([[0.0, 1.0, 0.0], [0.0, 2.0, 1.0]]), None)
    >>> Largest().result({"counts": sums["counts"].numpy()})
    1.0
    """

    @property
    def name(self) -> str:
        """The name under which it is reported: that of the class unless it says otherwise."""
        return metrics.name_of(type(self)) or type(self).__name__

    @abstractmethod
    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        """What to add up over batches and ranks; `weights` has one number for each sample."""

    @abstractmethod
    def result(self, sums: Mapping[str, np.ndarray]) -> float | np.ndarray:
        """The value, from the sums over all batches and ranks."""


metrics: Family[Metric] = Family("metric", Metric)
"""Metrics by name."""


class MeanMetric(Metric):
    """The weighted mean over samples of what `per_sample` gives.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.nn.metrics import MeanMetric
    >>> class Within(MeanMetric):
    ...     def per_sample(self, prediction, target):
    ...         return op.max(op.abs(prediction - target), axis=1) < 0.1
    >>> sums = Within().sums(cd.tensor([[1.0], [2.0]]), cd.tensor([[1.0], [1.0]]))
    >>> Within().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    @abstractmethod
    def per_sample(self, prediction: Any, target: Any) -> Expr:
        """A number or a truth value for each of the N samples, of shape (N,)."""

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        values = op.cast(self.per_sample(prediction, target), "float64")
        if values.shape != tuple(prediction.shape)[:1]:
            raise ShapeError.build(
                self.name, expected="one value for each sample along the first axis",
                got=f"values of shape {values.shape} for predictions of {prediction.shape}",
            )  # fmt: skip
        factors = _factors(weights, prediction)
        # Not a mere product: padding may have no value at all (0 * nan would be nan).
        counted = op.where(factors == 0.0, 0.0, values * factors)
        return {"sum": op.sum(counted), "weight": op.sum(factors)}

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        return float(_ratio(sums["sum"], sums["weight"], empty=np.nan))


@metrics.register("accuracy")
@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """The part of predictions whose class is right.

    The predicted class is that of the largest number along `axis`; targets are class indices, or
    one-hot in the shape of the predictions. A prediction of one number is that of class 1 against
    class 0: 1 if it is above 0, as for logits. With `threshold` every number is such a prediction,
    above that threshold (0.5 for probabilities), as where several labels can be right.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import Accuracy
    >>> sums = Accuracy().sums(cd.tensor([[0.1, 2.0], [3.0, 1.0]]), cd.tensor([1, 1]))
    >>> Accuracy().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    threshold: float | None = None
    axis: int = -1

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        decision = classify(self.name, prediction, target, self.axis, self.threshold)
        return mean_by_sample(op.cast(decision.predicted == decision.actual, "float64"))


@metrics.register("top_k")
@dataclass(frozen=True)
class TopK(MeanMetric):
    """The part of predictions with the right class among their `k` largest numbers.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import TopK
    >>> scores = cd.tensor([[0.1, 2.0, 1.0], [3.0, 1.0, 2.0]])
    >>> sums = TopK(2).sums(scores, cd.tensor([2, 1]))
    >>> TopK(2).name, TopK(2).result({name: value.numpy() for name, value in sums.items()})
    ('top_2', 0.5)
    """

    k: int = 5
    axis: int = -1

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError.build("TopK", expected="a k of 1 or more", got=f"{self.k}")

    @property
    def name(self) -> str:
        return f"top_{self.k}"

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        axis = normalise_axis(self.axis, len(prediction.shape), self.name)
        wanted = labels(self.name, prediction, target, axis)
        _, best = op.top_k(prediction, self.k, axis=axis)
        found = op.any(best == op.unsqueeze(wanted, axis), axis=axis)
        return mean_by_sample(op.cast(found, "float64"))


@dataclass(frozen=True)
class ByClass(Metric):
    """What precision, recall and F1 share: hits, predictions and occurrences of each class.

    Classes are decided as in `Accuracy`. The value is the mean over the classes that occur among
    targets or predictions, and with `per_class` an array, with nan for those that do not; where
    predictions are of one number, it is that of class 1.

    >>> from caldera.nn.metrics import ByClass, Precision
    >>> issubclass(Precision, ByClass)
    True
    """

    per_class: bool = False
    threshold: float | None = None
    axis: int = -1

    @property
    def name(self) -> str:
        return super().name + ("_per_class" if self.per_class else "")

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        decision = classify(self.name, prediction, target, self.axis, self.threshold)
        predicted, actual = decision.indicators()
        if decision.binary:
            predicted, actual = predicted[:, 1:], actual[:, 1:]
        factors = decision.spread(_factors(weights, prediction))
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
        """The value for each class."""


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
        return _ratio(hits, predicted)


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
        return _ratio(hits, actual)


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
        return _ratio(2 * hits, predicted + actual)


@metrics.register("confusion_matrix")
@dataclass(frozen=True)
class ConfusionMatrix(Metric):
    """How often each class (row) was taken for each class (column), by weight.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import ConfusionMatrix
    >>> sums = ConfusionMatrix().sums(cd.tensor([2.0, 1.0, -1.0]), cd.tensor([1, 0, 1]))
    >>> ConfusionMatrix().result({"counts": sums["counts"].numpy()}).tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """

    threshold: float | None = None
    axis: int = -1

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        decision = classify(self.name, prediction, target, self.axis, self.threshold)
        predicted, actual = decision.indicators()
        factors = decision.spread(_factors(weights, prediction))
        return {"counts": op.transpose(actual) @ (factors * predicted)}

    def result(self, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        return sums["counts"]


@metrics.register("mae", "mean_absolute")
@dataclass(frozen=True)
class MeanAbsoluteError(MeanMetric):
    """The mean of |prediction - target|.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import MeanAbsoluteError
    >>> sums = MeanAbsoluteError().sums(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]]))
    >>> MeanAbsoluteError().result({name: value.numpy() for name, value in sums.items()})
    2.0
    """

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        return mean_by_sample(op.abs(_difference(self.name, prediction, target)))


@metrics.register("mse", "mean_squared")
@dataclass(frozen=True)
class MeanSquaredError(MeanMetric):
    """The mean of (prediction - target) ** 2.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import MeanSquaredError
    >>> sums = MeanSquaredError().sums(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]]))
    >>> MeanSquaredError().result({name: value.numpy() for name, value in sums.items()})
    8.0
    """

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        return mean_by_sample(op.square(_difference(self.name, prediction, target)))


@metrics.register("r2")
@dataclass(frozen=True)
class R2(Metric):
    """The part of the targets' variance that predictions explain; the mean over several outputs.

    1 is perfect, 0 no better than the mean of the targets. Where targets do not vary, it is 1 if
    they are met and 0 if not.

    >>> import caldera as cd
    >>> from caldera.nn.metrics import R2
    >>> sums = R2().sums(cd.tensor([1.0, 2.0, 4.0]), cd.tensor([1.0, 2.0, 3.0]))
    >>> R2().result({name: value.numpy() for name, value in sums.items()})
    0.5
    """

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        count = prediction.shape[0]
        missed = op.reshape(_difference(self.name, prediction, target), (count, -1))
        wanted = op.reshape(op.cast(target, "float64"), (count, -1))
        factors = op.unsqueeze(_factors(weights, prediction), 1)
        parts = {"missed": op.square(missed), "target": wanted, "square": op.square(wanted)}
        counted = {
            name: op.sum(op.where(factors == 0.0, 0.0, factors * part), axis=0)
            for name, part in parts.items()
        }
        return {"weight": op.sum(factors), **counted}

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        if not sums["weight"] > 0:
            return float("nan")
        spread = sums["square"] - sums["target"] ** 2 / sums["weight"]
        # Below rounding, there is no variance to explain.
        varies = spread > 1e-14 * sums["square"]
        explained = 1 - sums["missed"] / np.where(varies, spread, 1.0)
        return float(np.where(varies, explained, sums["missed"] == 0).mean())


# --- what several of them need


def _difference(where: str, prediction: Any, target: Any) -> Expr:
    wanted = op.cast(in_shape_of(where, prediction, target), "float64")
    return op.cast(prediction, "float64") - wanted


def _factors(weights: Any, prediction: Any) -> Expr:
    """The weights of the samples in float64: 1 for all if none are given."""
    count = prediction.shape[0]
    if weights is None:
        return op.broadcast(op.cast(1.0, "float64"), (count,))
    factors = op.cast(weights, "float64")
    if factors.shape != (count,):
        raise ShapeError.build(
            "weights", expected=f"shape {(count,)}, one a sample", got=f"{factors.shape}"
        )
    return factors


def _ratio(part: np.ndarray, whole: np.ndarray, empty: float = 0.0) -> np.ndarray:
    """part / whole, and `empty` where the whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), empty)
