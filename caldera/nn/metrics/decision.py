"""Conversion of predictions and targets to classes, for the metrics of classifiers.

Numbers may be scores of classes, of which the largest is right, or of labels, each yes or no. The
shape of an array does not distinguish them. The loss determines it (`PredictionKind`); without a
loss, an ambiguous shape is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.shape import normalise_axis
from caldera.errors import ShapeError
from caldera.nn.losses import MULTICLASS, MULTILABEL, REGRESSION, SEQUENCE, PredictionKind

UNKNOWN = -1


@dataclass(frozen=True)
class Decision:
    """Rule for deciding classes: settings of the metric, and the task it is used for.

    Labels are yes above `threshold`, classes are along `axis`; None selects the task's default.
    """

    where: str
    threshold: float | None = None
    axis: int | None = None
    task: PredictionKind | None = None

    def check(self) -> None:
        """Refuse what cannot be decided for such a task."""
        kind = None if self.task is None else self.task.kind
        require(
            kind != MULTICLASS or self.threshold is None,
            self.where,
            "no threshold where the largest output decides the class",
            f"threshold={self.threshold}",
            "leave it out, or use a loss of labels: binary_cross_entropy",
        )
        require(
            kind != SEQUENCE,
            self.where,
            "a loss of classes or labels",
            "a loss of sequences",
            "use metrics=['cer'] or ['wer']",
        )
        require(
            kind != REGRESSION or self.threshold is not None or self.axis is not None,
            self.where,
            "a loss of classes or labels",
            "one of values",
            "use metrics=['mae'], or define the decision: threshold= for labels, or axis= of "
            "the classes",
        )
        require(
            not self._logits or self.threshold is None or 0 < self.threshold < 1,
            self.where,
            "a threshold between 0 and 1, for probabilities",
            self.threshold,
        )

    def of(self, prediction: Any, target: Any) -> Classification:
        """Return the predicted and the true classes."""
        self.check()
        if self._kind(tuple(prediction.shape), tuple(target.shape)) == MULTILABEL:
            return self._labels(prediction, target)
        axis = self.position(tuple(prediction.shape))
        return Classification(
            self.where,
            op.argmax(prediction, axis=axis),
            labels(self.where, prediction, target, axis),
            prediction.shape[axis],
        )

    def position(self, shape: tuple[int, ...]) -> int:
        """Return the axis of the classes, in predictions of this shape."""
        axis = self.axis
        if axis is None:
            axis = -1 if self.task is None else self.task.axis
        found = normalise_axis(axis, len(shape), self.where)
        require(
            found != 0,
            self.where,
            "classes along an axis after the sample axis",
            f"axis={axis} of predictions of shape {shape}",
            error=ShapeError,
        )
        return found

    def _kind(self, prediction: tuple[int, ...], target: tuple[int, ...]) -> str:
        """Return classes or labels."""
        if self.task is not None and self.task.kind != REGRESSION:
            return self.task.kind
        if self.threshold is not None or len(prediction) < 2:
            return MULTILABEL
        if prediction[self.position(prediction)] == 1:
            return MULTILABEL
        require(
            self.axis is not None or target != prediction,
            self.where,
            "a class for each sample, or a loss that defines the meaning of the outputs",
            f"targets in the shape of the predictions, {prediction}",
            "pass axis=-1 for one-hot targets, threshold= for several labels per sample, or "
            "call for_task(loss.task())",
            error=ShapeError,
        )
        return MULTICLASS

    @property
    def _logits(self) -> bool:
        return self.task is not None and self.task.logits and self.task.kind == MULTILABEL

    def _labels(self, prediction: Any, target: Any) -> Classification:
        threshold = 0.0 if self.threshold is None else self.threshold
        if self._logits and self.threshold is not None:
            threshold = math.log(self.threshold) - math.log1p(-self.threshold)
        said = op.cast(prediction > threshold, "int64")
        true = op.cast(in_shape_of(self.where, prediction, target) > 0.5, "int64")
        return Classification(self.where, said, true, 2, self._label_axis(prediction.shape))

    def _label_axis(self, shape: tuple[int, ...]) -> int:
        """Return the axis of the labels; the number of axes if there is only one label."""
        rank = len(shape)
        if self.axis is not None:
            return normalise_axis(self.axis, rank, self.where)
        if rank < 2 or shape[-1] == 1:
            return rank
        return UNKNOWN if rank > 2 else 1


@dataclass(frozen=True)
class Classification:
    """Predicted and true class at each position of each sample.

    For labels the class is 1 or 0, and `label_axis` is their axis: the number of axes if there is
    only one label, UNKNOWN if the axis was not specified.
    """

    where: str
    predicted: Expr
    actual: Expr
    classes: int
    label_axis: int | None = None

    def by_class(self) -> tuple[Expr, Expr]:
        """1 at each class or label of each position: predicted and true, (positions, classes)."""
        if self.label_axis is None:
            return self.one_hot()
        require(
            self.label_axis != UNKNOWN,
            self.where,
            "axis= of the labels",
            f"predictions of shape {self.predicted.shape}",
            "for example nn.metrics.F1(axis=1) for images of labels",
            error=ShapeError,
        )
        return self.in_order(self.predicted), self.in_order(self.actual)

    def in_order(self, values: Expr) -> Expr:
        """Return numbers of labels, in the shape of the predictions, as (positions, labels)."""
        values = op.cast(values, "float64")
        assert self.label_axis is not None
        if self.label_axis == values.ndim:
            return op.reshape(values, (-1, 1))
        order = [axis for axis in range(values.ndim) if axis != self.label_axis]
        last = op.transpose(values, [*order, self.label_axis])
        return op.reshape(last, (-1, last.shape[-1]))

    def one_hot(self) -> tuple[Expr, Expr]:
        """1 at the class of each position: predicted and true, of shape (positions, classes)."""
        require(
            self.label_axis is None or self.by_class()[0].shape[1] <= 1,
            self.where,
            "a single label, or mutually exclusive classes",
            f"predictions of shape {self.predicted.shape}, each number a label",
            "inspect each label with nn.metrics.F1(per_class=True)",
            error=ShapeError,
        )
        return (
            op.one_hot(op.flatten(self.predicted, 0), self.classes, dtype="float64"),
            op.one_hot(op.flatten(self.actual, 0), self.classes, dtype="float64"),
        )

    def spread(self, factors: Expr) -> Expr:
        """Return the weights of samples repeated for their positions, of shape (positions, 1)."""
        shape = list(self.predicted.shape)
        if self.label_axis is not None and 0 < self.label_axis < len(shape):
            del shape[self.label_axis]
        column = op.reshape(factors, (shape[0], *(1 for _ in shape[1:])))
        return op.reshape(op.broadcast(column, shape), (-1, 1))


def labels(where: str, prediction: Any, target: Any, axis: int) -> Expr:
    """Return class indices: the targets themselves, or the largest of each distribution."""
    shape = tuple(prediction.shape)
    if tuple(target.shape) == shape:
        return op.argmax(target, axis=axis)
    require(
        tuple(target.shape) == (*shape[:axis], *shape[axis + 1 :]),
        where,
        "a class for each sample, or an array of the prediction's shape",
        f"targets of shape {tuple(target.shape)} for predictions of {shape}",
        "pass the axis= of the classes",
        error=ShapeError,
    )
    return op.cast(target, "int64")


def in_shape_of(where: str, prediction: Any, target: Any) -> Expr:
    """Return the targets in the shape of the predictions; (N,) and (N, 1) are equivalent."""
    shape, given = tuple(prediction.shape), tuple(target.shape)
    require(
        given[:1] == shape[:1] and _long_axes(given) == _long_axes(shape),
        where,
        "targets in the shape of the predictions",
        f"{given} and {shape}",
        error=ShapeError,
    )
    return op.reshape(target, shape)


def _long_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape[1:] if length != 1)
