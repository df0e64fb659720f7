"""Loss functions, with `reduction` "mean" (over all samples or elements), "sum" or "none".

Targets have the shape of the predictions and are converted to their dtype. Before the reduction,
losses over classes and CTC return one value per sample, all remaining losses one per element.
Connectionist temporal classification (CTC) is a loss for labels without positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph import Node, Op, describe, location
from caldera.core.graph.ops import (
    cast,
    constant,
    ctc,
    div,
    equal,
    full,
    greater_equal,
    loss,
    maximum,
    mean,
    mul,
    neg,
    reduced_shape,
    sum_,
    where,
)
from caldera.core.graph.ops.activation import log_softmax
from caldera.core.tensor import DType, Tensor, array_of, int64, is_integer, normalise_axis
from caldera.errors import DataError, DtypeError, ShapeError
from caldera.op.arguments import as_count, as_number

__all__ = [
    "binary_cross_entropy",
    "cross_entropy",
    "cross_entropy_epsilon",
    "ctc_loss",
    "hinge",
    "huber",
    "kl_divergence",
    "mean_absolute_error",
    "mean_squared_error",
]

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: Any, labels: Any, reduction: str = "mean", weights: Any = None, axis: int = -1
) -> Expr:
    """Return -log(softmax(logits)) at the labels, the loss of a classifier, without overflow.

    An index that is not a class raises an error if its value is known when the expression is built,
    and results in NaN otherwise. Weights by class are `weights=op.gather(class_weights, labels)`.

    Args:
        logits: Scores before the softmax.
        labels: Class indices, one per sample, or probabilities in the shape of the logits.
        reduction: "mean", "sum" or "none".
        weights: One number per sample; the mean is then sum(w * loss) / sum(w), and 0 leaves a
            sample out.
        axis: Axis of the classes; 1 for images of logits (N, classes, H, W).

    Returns:
        The mean or sum as a scalar, or a loss for each sample.

    >>> import caldera as cd
    >>> from caldera import op
    >>> logits = cd.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    >>> op.cross_entropy(logits, [0, 0]).item()
    500.0
    >>> op.cross_entropy(logits, [[1.0, 0.0], [0.5, 0.5]], reduction="none").tolist()
    [0.0, 500.0]
    >>> op.cross_entropy(logits, [0, 0], weights=[1.0, 0.0]).item()
    0.0
    """
    name = "cross_entropy"
    node = as_float(lift(logits))
    position = normalise_axis(axis, len(node.shape), location(name))
    given = _targets(labels, node.dtype)
    if len(given.shape) == len(node.shape):
        _check_shapes(node, given, name)
        losses = loss.cross_entropy_probabilities(node, cast(given, node.dtype), axis=position)
    else:
        _check_range(labels, node.shape[position], name)
        losses = loss.cross_entropy(node, given, axis=position)
    return reduced(losses, reduction, name, weights)


def cross_entropy_epsilon(
    probabilities: Any,
    targets: Any,
    epsilon: float = 1e-8,
    reduction: str = "mean",
    axis: int = -1,
) -> Expr:
    """Compute -1/N sum(y log(p + epsilon)): cross entropy of probabilities, such as a softmax.

    `targets` are probabilities in the shape of the first argument, or class indices. Prefer
    `cross_entropy`, which needs no epsilon, where you have logits.

    >>> import caldera as cd
    >>> from caldera import op
    >>> p = cd.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> round(op.cross_entropy_epsilon(p, [0, 1], epsilon=1e-4, reduction="sum").item(), 4)
    9.2102
    """
    name = "cross_entropy_epsilon"
    node = as_float(lift(probabilities))
    position = normalise_axis(axis, len(node.shape), location(name))
    given = _targets(targets, node.dtype)
    if is_integer(given.dtype) and given.shape == reduced_shape(node.shape, (position,), False):
        _check_range(targets, node.shape[position], name)
        given = loss.is_label(given, node.shape, position)
    _check_shapes(node, given, name)
    losses = loss.cross_entropy_epsilon(
        node, cast(given, node.dtype), axis=position, epsilon=as_number(epsilon, "epsilon", name)
    )
    return reduced(losses, reduction, name)


def kl_divergence(
    log_probabilities: Any, targets: Any, reduction: str = "mean", axis: int = -1
) -> Expr:
    """Return the Kullback-Leibler divergence from a prediction to the targets, along `axis`.

    The prediction is log-probabilities (as returned by `op.log_softmax`), the targets are
    probabilities: sum(t * (log(t) - log_p)). Targets of 0 add 0.

    >>> import numpy as np
    >>> from caldera import op
    >>> op.kl_divergence(np.log([[0.5, 0.5], [0.5, 0.5]]), [[0.5, 0.5], [0.5, 0.5]]).item()
    0.0
    """
    name = "kl_divergence"
    node, given = _pair(log_probabilities, targets, name)
    position = normalise_axis(axis, len(node.shape), location(name))
    return reduced(loss.kl_divergence(node, given, axis=position), reduction, name)


def binary_cross_entropy(logits: Any, targets: Any, reduction: str = "mean") -> Expr:
    """Compute -(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))), without overflow.

    Targets are from 0 to 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.binary_cross_entropy(cd.tensor([1000.0, 1000.0]), [1.0, 0.0], reduction="none").tolist()
    [0.0, 1000.0]
    """
    name = "binary_cross_entropy"
    return _elementwise(loss.binary_cross_entropy, logits, targets, reduction, name)


def mean_squared_error(predictions: Any, targets: Any, reduction: str = "mean") -> Expr:
    """Compute (p - t)^2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mean_squared_error(cd.tensor([1.0, 5.0]), [1.0, 1.0]).item()
    8.0
    """
    return _elementwise(loss.squared_error, predictions, targets, reduction, "mean_squared_error")


def mean_absolute_error(predictions: Any, targets: Any, reduction: str = "mean") -> Expr:
    """Compute |p - t|; the derivative where they are equal is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mean_absolute_error(cd.tensor([1.0, 5.0]), [1.0, 1.0]).item()
    2.0
    """
    return _elementwise(loss.absolute_error, predictions, targets, reduction, "mean_absolute_error")


def huber(predictions: Any, targets: Any, delta: float = 1.0, reduction: str = "mean") -> Expr:
    """Compute (p - t)^2 / 2 up to a difference of `delta`, and its tangent from there.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.huber(cd.tensor([1.0, 5.0]), [0.0, 0.0], delta=2.0, reduction="none").tolist()
    [0.5, 8.0]
    """
    number = as_number(delta, "delta", "huber", above=0)
    return _elementwise(loss.huber, predictions, targets, reduction, "huber", delta=number)


def hinge(predictions: Any, targets: Any, reduction: str = "mean") -> Expr:
    """Compute max(0, 1 - t p) for targets -1 and 1: the loss of a support vector machine.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hinge(cd.tensor([2.0, 0.5, -1.0]), [1.0, 1.0, 1.0], reduction="none").tolist()
    [0.0, 0.5, 2.0]
    """
    return _elementwise(loss.hinge, predictions, targets, reduction, "hinge")


def _targets(targets: Any, dtype: DType) -> Node:
    """Return targets written in Python: whole numbers stay class indices, others are of `dtype`."""
    if isinstance(targets, Expr | Tensor | np.ndarray):
        return lift(targets)
    array = array_of(targets, "targets")
    return lift(array if array.dtype.kind in "iub" else targets, dtype)


def _pair(predictions: Any, targets: Any, name: str) -> tuple[Node, Node]:
    node = as_float(lift(predictions))
    given = lift(targets, node.dtype)
    _check_shapes(node, given, name)
    return node, cast(given, node.dtype)


def _check_shapes(predictions: Node, targets: Node, name: str) -> None:
    # Broadcasting (n, 1) with (n,) would compare each prediction with every target.
    if predictions.shape != targets.shape:
        raise ShapeError.build(
            location(name),
            expected="targets in the shape of the predictions",
            got=f"{describe(predictions)} and {describe(targets)}",
            hint="reshape one operand",
        )


def _check_range(labels: Any, classes: int, name: str) -> None:
    """Raise an error for labels out of range, if they are a plain constant array."""
    if isinstance(labels, Expr | Tensor):
        return
    array = np.asarray(labels)
    wrong = array[(array < 0) | (array >= classes)]
    if wrong.size:
        raise DataError.build(
            location(name), expected=f"labels from 0 to {classes - 1}", got=str(wrong[0])
        )


def _elementwise(
    op: Op, predictions: Any, targets: Any, reduction: str, name: str, **attrs: float
) -> Expr:
    return reduced(op(*_pair(predictions, targets, name), **attrs), reduction, name)


def reduced(losses: Node, reduction: str, name: str, weights: Any = None) -> Expr:
    """Return the (weighted) mean of losses, their sum, or all losses, as `reduction` specifies."""
    require(
        reduction in REDUCTIONS,
        location(name),
        "reduction= one of " + ", ".join(REDUCTIONS),
        repr(reduction),
    )
    axes = tuple(range(len(losses.shape)))
    if weights is None:
        if reduction == "mean":
            return Expr(mean(losses, axis=axes, keepdims=False))
        return Expr(sum_(losses, axes) if reduction == "sum" else losses)
    factors = cast(lift(weights, losses.dtype), losses.dtype)
    if factors.shape != losses.shape:
        raise ShapeError.build(
            location(name),
            expected=f"weights of shape {losses.shape}, one a sample",
            got=describe(factors),
            hint="for weights by class, gather them by the labels",
        )
    weighted = mul(losses, factors)
    if reduction == "none":
        return Expr(weighted)
    total = sum_(weighted, axes)
    return Expr(div(total, sum_(factors, axes)) if reduction == "mean" else total)


_NAME = "ctc_loss"


def ctc_loss(
    logits: Any,
    labels: Any,
    input_lengths: Any = None,
    label_lengths: Any = None,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Expr:
    """Return the CTC loss: -log of the probability of the labels, summed over all alignments.

    `logits` are (samples, frames, classes); log-probabilities are logits too. `labels` are
    (samples, most labels), padded with -1, or with any values if `label_lengths` has the numbers of
    labels. `input_lengths` has the number of frames of each sample, by default all. The class
    `blank` represents the absence of a label, and a label that follows an equal one needs a blank
    between them.

    The mean is as in PyTorch: over samples, of the loss divided by the number of labels (at least
    1). Labels that need more frames than there are have an infinite loss and no gradient; they
    raise an error if labels and lengths are plain arrays, unless `zero_infinity` makes their loss
    0. Labels that are not a class, or are the blank, raise an error in the same cases, and result
    in NaN otherwise.

    >>> import caldera as cd
    >>> from caldera import op
    >>> even = cd.tensor([[[0.0, 0.0], [0.0, 0.0]]])
    >>> op.exp(-op.ctc_loss(even, [[1]])).item()
    0.75
    >>> op.ctc_loss(even, [[1, 1]])
    Traceback (most recent call last):
    caldera.errors.DataError: op.ctc_loss: expected at least 3 frames for the labels of sample 0 (2,
    and 1 blanks between equal ones), got 2; make frames shorter or leave the sample out;
    zero_infinity=True counts its loss as 0
    """
    scores = as_float(lift(logits))
    given = lift(labels)
    where_ = location(_NAME)
    if len(scores.shape) != 3 or len(given.shape) != 2:
        raise ShapeError.build(
            where_,
            expected="logits (samples, frames, classes) and labels (samples, labels)",
            got=f"{describe(scores)} and {describe(given)}",
            hint="labels of different lengths are padded with -1",
        )
    samples, frames, _ = scores.shape
    number = as_count(blank, "blank", _NAME, least=0)
    _check_values(labels, input_lengths, label_lengths, scores.shape, number, zero_infinity)
    if label_lengths is None:
        is_label = greater_equal(cast(given, int64), constant(0, int64))
        counts = sum_(cast(is_label, int64), (1,))
    else:
        counts = lift(label_lengths)
    lengths = full((samples,), frames, int64) if input_lengths is None else lift(input_lengths)
    logarithms = log_softmax(scores, axis=2)
    losses = neg(ctc.ctc_log_likelihood(logarithms, given, lengths, counts, blank=number))
    if zero_infinity:
        infinite = equal(losses, constant(float("inf"), losses.dtype))
        losses = where(infinite, constant(0, losses.dtype), losses)
    if reduction == "mean":
        some = maximum(cast(counts, int64), constant(1, int64))
        losses = div(losses, cast(some, losses.dtype))
    return reduced(losses, reduction, _NAME)


def _plain(given: Any) -> np.ndarray | None:
    return None if given is None or isinstance(given, Expr | Tensor) else np.asarray(given)


def _check_values(
    labels: Any,
    input_lengths: Any,
    label_lengths: Any,
    shape: tuple[int, ...],
    blank: int,
    zero_infinity: bool,
) -> None:
    """Refuse what cannot be right, where labels are written as a plain array."""
    rows, counts, frames = _plain(labels), _plain(label_lengths), _plain(input_lengths)
    most = None if rows is None or rows.ndim != 2 else rows.shape[1]
    _check_lengths("input_lengths", frames, shape[0], shape[1])
    _check_lengths("label_lengths", counts, shape[0], most)
    if rows is None or (label_lengths is not None and counts is None) or rows.ndim != 2:
        return
    counts = (rows >= 0).sum(1) if counts is None else counts
    if input_lengths is None:
        frames = np.full(len(rows), shape[1])
    for sample, row in enumerate(rows):
        used = row[: counts[sample]]
        wrong = used[(used < 0) | (used >= shape[2]) | (used == blank)]
        if wrong.size:
            raise DataError.build(
                location(_NAME),
                expected=f"labels from 0 to {shape[2] - 1} without the blank, "
                f"{blank}, padded with -1 at the end",
                got=f"{wrong[0]} in sample {sample}",
            )
        needed = ctc_frames(used)
        if frames is not None and not zero_infinity and frames[sample] < needed:
            raise DataError.build(
                location(_NAME),
                expected=f"at least {needed} frames for the labels of sample {sample} ({len(used)},"
                f" and {needed - len(used)} blanks between equal ones)",
                got=f"{frames[sample]}",
                hint="make frames shorter or leave the sample out; zero_infinity=True counts its "
                "loss as 0",
            )


def _check_lengths(name: str, given: np.ndarray | None, samples: int, most: int | None) -> None:
    if given is None:
        return
    is_whole = given.dtype.kind in "iu"
    require(is_whole, location(_NAME), f"{name} of integers", given.dtype, error=DtypeError)
    require(
        given.shape == (samples,),
        location(_NAME),
        f"{name} of shape {(samples,)}, one a sample",
        f"shape {given.shape}",
        error=ShapeError,
    )
    wrong = given < 0 if most is None else (given < 0) | (given > most)
    if wrong.any():
        sample = int(np.argmax(wrong))
        end = "" if most is None else f" to {most}"
        raise DataError.build(
            location(_NAME),
            expected=f"{name} from 0{end}",
            got=f"{given[sample]} in sample {sample}",
        )


def ctc_frames(labels: np.ndarray) -> int:
    """Return the frames that labels need: one each, and one for a blank between equal ones."""
    return len(labels) + int(np.count_nonzero(labels[1:] == labels[:-1]))
