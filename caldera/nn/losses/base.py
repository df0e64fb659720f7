"""Losses: one number per sample, and their weighted mean over a batch.

`PredictionKind` states the kind of a loss's predictions (classes, labels, values or sequences), so
that metrics and reports judge predictions in the same way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.configurable import Configurable, Family
from caldera.base.foreign_names import answer_foreign
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape, canonical, int64, normalise_axis
from caldera.errors import ConfigError, DataError, ShapeError
from caldera.nn.sample_means import mean_by_sample, without_mean

MULTICLASS = "multi-class"
MULTILABEL = "multi-label"
REGRESSION = "regression"
SEQUENCE = "sequence"


@dataclass(frozen=True)
class PredictionKind:
    """Kind of targets with which a loss compares predictions.

    - `multi-class`: one class of several, with the class scores along `axis` of a prediction.
    - `multi-label`: yes or no for each number independently; one number per sample means two
      classes.
    - `regression`: the numbers themselves.
    - `sequence`: labels in order, fewer than the frames that they are read from; the class `blank`
      marks frames without a label. With `lengths`, targets begin with the number of valid frames.

    With `logits`, sigmoid or softmax convert predictions to probabilities.

    >>> from caldera.nn.losses import BinaryCrossEntropy
    >>> BinaryCrossEntropy().task()
    PredictionKind(kind='multi-label', axis=-1, logits=True, blank=None, lengths=False)
    """

    kind: str
    axis: int = -1
    logits: bool = False
    blank: int | None = None
    lengths: bool = False


Task = PredictionKind
"""Former name of `PredictionKind`, for existing custom losses."""


class Loss(Configurable, ABC):
    """Base class of losses, which training minimises.

    A subclass implements `per_sample`, and is registered by name to be saved. Calling a loss with
    predictions and targets returns the mean over samples, or the weighted mean. A sample of weight
    0 is ignored regardless of its target, so 0 marks padding. `total` is the divisor of the sum;
    the default is the number (or total weight) of the samples on this rank. If it is the total over
    all ranks, the ranks' losses and gradients add up to the loss and gradient for the whole batch.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.nn.losses import Loss
    >>> class Quartic(Loss):
    ...     def per_sample(self, prediction, target):
    ...         return op.sum((prediction - target) ** 4, axis=1)
    >>> prediction, target = cd.tensor([[2.0], [1.0]]), cd.tensor([[0.0], [0.0]])
    >>> float(Quartic()(prediction, target)), float(Quartic()(prediction, target, [0.0, 1.0]))
    (8.5, 1.0)
    """

    @abstractmethod
    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        """Return the loss of each of the N samples, of shape (N,)."""

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        """Return shape and dtype of the targets for predictions of this shape and dtype."""
        return tuple(prediction_shape), canonical(dtype)

    def for_targets(self, targets: Shape, predictions: Shape) -> Self:
        """Return this loss for these shapes, which training sees first; itself if unchanged."""
        return self

    def check_targets(self, targets: np.ndarray) -> None:
        """Refuse targets with values that the loss is not made for."""

    def task(self) -> PredictionKind | None:
        """Return the kind of targets, for metrics; None if it is unknown."""
        return None

    def meaning(self, prediction: Expr) -> Expr:
        """Convert predictions to values whose mean over models makes sense.

        For logits these are probabilities; for most losses, the predictions themselves.
        """
        return prediction

    def prediction_of(self, meaning: Expr) -> Expr:
        """Return the prediction for a meaning: the inverse of `meaning`.

        >>> import caldera as cd
        >>> from caldera.nn.losses import CrossEntropy
        >>> loss = CrossEntropy()
        >>> halves = loss.prediction_of(cd.tensor([[0.5, 0.5]]) * 1.0)
        >>> loss.meaning(halves).tolist()
        [[0.5, 0.5]]
        """
        return meaning

    def judged(self, prediction: Expr) -> Expr:
        """Return the prediction that metrics compare with targets.

        For most losses it is unchanged.
        """
        return prediction

    def __call__(
        self, prediction: Any, target: Any, weights: Any = None, total: Any = None
    ) -> Expr:
        where = type(self).__name__
        losses = self.per_sample(prediction, target)
        require(
            losses.ndim == 1 and losses.shape == tuple(prediction.shape)[:1],
            where,
            "one loss for each sample along the first axis",
            f"losses of shape {losses.shape} for predictions of {prediction.shape}",
            error=ShapeError,
        )
        count: Any = float(len(losses))
        if weights is not None:
            factors = op.cast(weights, losses.dtype)
            require(
                factors.shape == losses.shape,
                where,
                f"weights of shape {losses.shape}, one a sample",
                factors.shape,
                error=ShapeError,
            )
            # Not a mere product: padding may have no loss at all (0 * nan would be nan).
            losses = op.where(factors == 0.0, 0.0, losses * factors)
            count = op.sum(factors)
        return op.sum(losses) / op.cast(count if total is None else total, losses.dtype)


losses: Family[Loss] = Family("loss", Loss)
"""Losses by name."""


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """Loss computed by a function of predictions and targets, averaged for each sample.

    The function may return numbers for each sample or element, or their mean. Targets have the
    shape of the predictions. A model that is to be saved needs a registered loss: a file contains
    names, not code.

    >>> import caldera as cd
    >>> from caldera.nn.losses import FunctionLoss
    >>> loss = FunctionLoss(lambda prediction, target: (prediction - target) ** 4)
    >>> loss(cd.tensor([[2.0, 1.0]]), cd.tensor([[0.0, 0.0]])).item()
    8.5
    """

    function: Callable[[Expr, Expr], Expr]

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        values = self.function(prediction, target)
        if getattr(values, "ndim", 0) > 0:
            return mean_by_sample(values)
        by_sample = None
        if isinstance(values, Expr):
            by_sample = without_mean(self.function, prediction, target)
        if by_sample is None:
            raise ShapeError.build(
                f"loss {getattr(self.function, '__name__', 'function')}",
                expected=f"a number for each of the {prediction.shape[0]} samples, or their mean",
                got="a single loss for all samples that is not a mean",
                hint="end with op.mean(...) over all axes, or leave out the reduction: the mean is "
                "taken where weights are known",
            )
        return by_sample

    def config(self) -> dict[str, Any]:
        raise ConfigError.build(
            "saving",
            expected="a loss that files can name",
            got=f"the function {getattr(self.function, '__name__', repr(self.function))}",
            hint="write it as a class: @nn.losses.losses.register('my_loss') before class "
            "MyLoss(nn.losses.Loss), with per_sample; or assign another loss, such as "
            "model.loss = 'mse', to save the weights",
        )


def as_loss(given: str | Loss | Callable[[Expr, Expr], Expr]) -> Loss:
    """Return a loss by its name, as it is, or from a function of predictions and targets.

    >>> from caldera.nn.losses import as_loss
    >>> as_loss("mse")
    MeanSquared()
    """
    # A class is not a loss; `losses` raises the error.
    is_function = callable(given) and not isinstance(given, Loss | type)
    return FunctionLoss(given) if is_function else losses.make(given)  # type: ignore[arg-type]


class ClassLoss(Loss):
    """Base class of losses with logits of classes along `axis`."""

    axis: int

    def task(self) -> PredictionKind:
        return PredictionKind(MULTICLASS, self.axis, logits=True)

    def meaning(self, prediction: Expr) -> Expr:
        return op.softmax(prediction, axis=self.axis)

    def prediction_of(self, meaning: Expr) -> Expr:
        return _log(meaning)


class ElementLoss(Loss):
    """Base class of elementwise losses: the mean of an operation over each sample."""

    kind: ClassVar[PredictionKind] = PredictionKind(REGRESSION)
    operation: ClassVar[Callable[..., Expr]]

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return mean_by_sample(self.operation(prediction, target, reduction="none"))

    def task(self) -> PredictionKind:
        return self.kind


@losses.register("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(ClassLoss):
    """Cross entropy from logits: -log(softmax(prediction)) at the target's class.

    The classes are along `axis`: 1 for images of logits (N, classes, H, W), which `fit` selects
    where targets (N, H, W) have no other interpretation. Targets are class indices, or with
    `probabilities` distributions in the shape of the predictions. Label smoothing mixes the targets
    with the uniform distribution: a fraction of that size is spread over all classes.

    >>> import caldera as cd
    >>> from caldera.nn.losses import CrossEntropy
    >>> CrossEntropy()(cd.tensor([[1000.0, 0.0], [0.0, 1000.0]]), cd.tensor([0, 0])).item()
    500.0
    >>> CrossEntropy().target_spec((32, 10))
    ((32,), dtype('int64'))
    """

    label_smoothing: float = 0.0
    axis: int = -1
    probabilities: bool = False

    def __post_init__(self) -> None:
        require(
            0 <= self.label_smoothing < 1,
            "CrossEntropy",
            "0 <= label_smoothing < 1",
            self.label_smoothing,
        )

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        each = op.cross_entropy(prediction, target, reduction="none", axis=self.axis)
        smoothing = self.label_smoothing
        if smoothing:
            even = -op.mean(op.log_softmax(prediction, axis=self.axis), axis=self.axis)
            each = (1 - smoothing) * each + smoothing * even
        return mean_by_sample(each)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        shape = tuple(prediction_shape)
        axis = normalise_axis(self.axis, len(shape), "CrossEntropy")
        require(
            axis != 0,
            "CrossEntropy",
            "a batch of samples with an axis of classes",
            f"predictions of shape {shape} with axis={self.axis}",
            error=ShapeError,
        )
        if self.probabilities:
            return shape, canonical(dtype)
        return (*shape[:axis], *shape[axis + 1 :]), int64

    def for_targets(self, targets: Shape, predictions: Shape) -> Self:
        # Class indices have one axis fewer than the predictions, so the two cases are distinct.
        if targets == predictions:
            return replace(self, probabilities=True)
        # Images of class numbers, where classes are the channels of the predictions.
        channels_first = targets == (*predictions[:1], *predictions[2:]) != predictions[:-1]
        return replace(self, axis=1) if self.axis == -1 and channels_first else self

    def check_targets(self, targets: np.ndarray) -> None:
        if self.probabilities:
            _check_distributions(type(self).__name__, targets, self.axis)


@losses.register("binary_cross_entropy")
@dataclass(frozen=True)
class BinaryCrossEntropy(ElementLoss):
    """-log(p) for target 1 and -log(1 - p) for target 0, with p = sigmoid(prediction).

    >>> import caldera as cd
    >>> from caldera.nn.losses import BinaryCrossEntropy
    >>> BinaryCrossEntropy()(cd.tensor([[1000.0], [1000.0]]), cd.tensor([[1.0], [0.0]])).item()
    500.0
    """

    kind: ClassVar[PredictionKind] = PredictionKind(MULTILABEL, logits=True)
    operation = staticmethod(op.binary_cross_entropy)

    def check_targets(self, targets: np.ndarray) -> None:
        if not np.all((targets >= 0) & (targets <= 1)):
            hint = "(y + 1) / 2 for -1 and 1; for class indices use cross_entropy"
            raise _wrong_values(type(self).__name__, "from 0 (no) to 1 (yes)", targets, hint)

    def meaning(self, prediction: Expr) -> Expr:
        return op.sigmoid(prediction)

    def prediction_of(self, meaning: Expr) -> Expr:
        return _log(meaning) - _log(1.0 - meaning)


@losses.register("mean_squared", "mse")
@dataclass(frozen=True)
class MeanSquared(ElementLoss):
    """(prediction - target) ** 2.

    >>> import caldera as cd
    >>> from caldera.nn.losses import MeanSquared
    >>> MeanSquared()(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]])).item()
    8.0
    """

    operation = staticmethod(op.mean_squared_error)


@losses.register("mean_absolute", "mae")
@dataclass(frozen=True)
class MeanAbsolute(ElementLoss):
    """|prediction - target|.

    >>> import caldera as cd
    >>> from caldera.nn.losses import MeanAbsolute
    >>> MeanAbsolute()(cd.tensor([[1.0], [5.0]]), cd.tensor([[1.0], [1.0]])).item()
    2.0
    """

    operation = staticmethod(op.mean_absolute_error)


@losses.register("huber")
@dataclass(frozen=True)
class Huber(ElementLoss):
    """Half the squared error up to a difference of `delta`, linear with the same slope beyond it.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Huber
    >>> Huber(delta=2.0)(cd.tensor([[1.0], [5.0]]), cd.tensor([[0.0], [0.0]])).item()
    4.25
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.delta < math.inf, "Huber", "a delta above 0", self.delta)

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        return mean_by_sample(op.huber(prediction, target, delta=self.delta, reduction="none"))


@losses.register("hinge")
@dataclass(frozen=True)
class Hinge(ElementLoss):
    """max(0, 1 - target * prediction) for targets -1 and 1: the loss of a support vector machine.

    >>> import caldera as cd
    >>> from caldera.nn.losses import Hinge
    >>> Hinge()(cd.tensor([[2.0], [0.5]]), cd.tensor([[1.0], [1.0]])).item()
    0.25
    """

    kind: ClassVar[PredictionKind] = PredictionKind(MULTILABEL)
    operation = staticmethod(op.hinge)

    def check_targets(self, targets: np.ndarray) -> None:
        if not np.all(np.abs(targets) == 1):
            hint = "2 * y - 1 for 0 and 1"
            raise _wrong_values(type(self).__name__, "-1 (no) or 1 (yes)", targets, hint)


@losses.register("kl")
@dataclass(frozen=True)
class KullbackLeibler(ClassLoss):
    """sum(target * log(target / p)) for p = softmax(prediction), with the classes along `axis`.

    Targets are probabilities. Log-probabilities are logits as well, so both may be predicted.

    >>> import caldera as cd
    >>> from caldera.nn.losses import KullbackLeibler
    >>> KullbackLeibler()(cd.tensor([[3.0, 3.0]]), cd.tensor([[0.5, 0.5]])).item()
    0.0
    """

    axis: int = -1

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        logarithms = op.log_softmax(prediction, axis=self.axis)
        each = op.kl_divergence(logarithms, target, reduction="none", axis=self.axis)
        return mean_by_sample(each)

    def check_targets(self, targets: np.ndarray) -> None:
        _check_distributions(type(self).__name__, targets, self.axis)


def _check_distributions(where: str, targets: np.ndarray, axis: int) -> None:
    sums = np.sum(targets, axis=axis, dtype=np.float64)
    if np.any(targets < 0) or not np.allclose(sums, 1, atol=1e-2):
        raise _wrong_values(where, "probabilities, which are not below 0 and add up to 1", targets)


def _wrong_values(where: str, expected: str, targets: np.ndarray, hint: str = "") -> DataError:
    return DataError.build(
        f"targets for {where}",
        expected=expected,
        got=f"{targets.min()} to {targets.max()}",
        hint=hint,
    )


def _log(probability: Expr) -> Expr:
    # One that was rounded to 0 still has a finite logarithm.
    return op.log(op.maximum(probability, float(np.finfo(np.float32).tiny)))


answer_foreign(globals())
