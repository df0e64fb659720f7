"""From predictions and targets to classes: what metrics of classifiers begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caldera import op
from caldera.errors import ShapeError
from caldera.lazy import Expr
from caldera.tensor.shape import normalise_axis


@dataclass(frozen=True)
class Classification:
    """The class predicted and the true one, at each position of each sample."""

    predicted: Expr
    actual: Expr
    classes: int
    binary: bool

    def indicators(self) -> tuple[Expr, Expr]:
        """1 at the class of each position: predicted and true, of shape (positions, classes)."""
        return (
            op.one_hot(op.flatten(self.predicted, 0), self.classes, dtype="float64"),
            op.one_hot(op.flatten(self.actual, 0), self.classes, dtype="float64"),
        )

    def spread(self, factors: Expr) -> Expr:
        """The weights of samples as those of their positions, of shape (positions, 1)."""
        shape = self.predicted.shape
        column = op.reshape(factors, (shape[0], *(1 for _ in shape[1:])))
        return op.reshape(op.broadcast(column, shape), (-1, 1))


def classify(
    where: str, prediction: Any, target: Any, axis: int, threshold: float | None
) -> Classification:
    """Classes along `axis`, or one against the other where there is one number or a threshold."""
    position = normalise_axis(axis, len(prediction.shape), where)
    if threshold is not None or position == 0 or prediction.shape[position] == 1:
        predicted = prediction > (0.0 if threshold is None else threshold)
        actual = in_shape_of(where, prediction, target) > 0.5
        return Classification(op.cast(predicted, "int64"), op.cast(actual, "int64"), 2, binary=True)
    return Classification(
        op.argmax(prediction, axis=position),
        labels(where, prediction, target, position),
        prediction.shape[position],
        binary=False,
    )


def labels(where: str, prediction: Any, target: Any, axis: int) -> Expr:
    """Class indices: the targets themselves, or where the largest of each distribution is."""
    shape = tuple(prediction.shape)
    if tuple(target.shape) == shape:
        return op.argmax(target, axis=axis)
    if tuple(target.shape) != (*shape[:axis], *shape[axis + 1 :]):
        raise ShapeError.build(
            where, expected="a class for each sample, or as many numbers as the prediction has",
            got=f"targets of shape {tuple(target.shape)} for predictions of {shape}",
            hint="say along which axis= the classes are",
        )  # fmt: skip
    return op.cast(target, "int64")


def in_shape_of(where: str, prediction: Any, target: Any) -> Expr:
    """The targets in the shape of the predictions; (N,) and (N, 1) stand for each other."""
    shape, given = tuple(prediction.shape), tuple(target.shape)
    if given[:1] != shape[:1] or _long_axes(given) != _long_axes(shape):
        raise ShapeError.build(
            where, expected="targets in the shape of the predictions", got=f"{given} and {shape}"
        )
    return op.reshape(target, shape)


def _long_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape[1:] if length != 1)
