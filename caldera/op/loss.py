"""Losses. `reduction` is "mean" (over all samples or elements), "sum" or "none".

Targets have the shape of the predictions and are taken in their dtype. The losses over classes give
one number a sample, the others one an element, before they are reduced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.node import Node, describe
from caldera.core.graph.opdef import Op, location
from caldera.core.graph.ops import loss
from caldera.core.graph.ops.base import cast, reduced_shape, sum_
from caldera.core.graph.ops.elementwise import div, mul
from caldera.core.graph.ops.reduction import mean
from caldera.core.tensor import Tensor
from caldera.core.tensor.convert import array_of
from caldera.core.tensor.dtype import DType, is_integer
from caldera.core.tensor.shape import normalise_axis
from caldera.errors import ConfigError, DataError, ShapeError
from caldera.op.arguments import as_number

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: Any, labels: Any, reduction: str = "mean", weights: Any = None, axis: int = -1
) -> Expr:
    """-log(softmax(logits)) at the labels, the loss of a classifier, without overflow.

    The classes lie along `axis` (use axis=1 for images of logits, (N, classes, H, W)). `labels` are
    class indices, one a sample, or probabilities in the shape of the logits. An index that is no
    class is refused where it can be seen, and gives NaN otherwise.

    `weights` has one number a sample; the mean is then the weighted one, sum(w * loss) / sum(w).
    Weights by class are `weights=op.gather(class_weights, labels)`; 0 leaves a sample out.

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
    """-1/N sum(y log(p + epsilon)): cross entropy from probabilities, such as a softmax's.

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
    """The Kullback-Leibler divergence from a prediction to the targets, summed along `axis`.

    The prediction comes as log-probabilities (as `op.log_softmax` gives them), the targets as
    probabilities: sum(t * (log(t) - log_p)). A target of 0 adds nothing.

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
    """-(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))), without overflow; targets from 0 to 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.binary_cross_entropy(cd.tensor([1000.0, 1000.0]), [1.0, 0.0], reduction="none").tolist()
    [0.0, 1000.0]
    """
    name = "binary_cross_entropy"
    return _elementwise(loss.binary_cross_entropy, logits, targets, reduction, name)


def mean_squared_error(predictions: Any, targets: Any, reduction: str = "mean") -> Expr:
    """(p - t)^2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mean_squared_error(cd.tensor([1.0, 5.0]), [1.0, 1.0]).item()
    8.0
    """
    return _elementwise(loss.squared_error, predictions, targets, reduction, "mean_squared_error")


def mean_absolute_error(predictions: Any, targets: Any, reduction: str = "mean") -> Expr:
    """|p - t|; the derivative where they are equal is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mean_absolute_error(cd.tensor([1.0, 5.0]), [1.0, 1.0]).item()
    2.0
    """
    return _elementwise(loss.absolute_error, predictions, targets, reduction, "mean_absolute_error")


def huber(predictions: Any, targets: Any, delta: float = 1.0, reduction: str = "mean") -> Expr:
    """(p - t)^2 / 2 up to a difference of `delta`, and straight on from there.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.huber(cd.tensor([1.0, 5.0]), [0.0, 0.0], delta=2.0, reduction="none").tolist()
    [0.5, 8.0]
    """
    number = as_number(delta, "delta", "huber", above=0)
    return _elementwise(loss.huber, predictions, targets, reduction, "huber", delta=number)


def hinge(predictions: Any, targets: Any, reduction: str = "mean") -> Expr:
    """max(0, 1 - t p) for targets -1 and 1: the loss of a support vector machine.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hinge(cd.tensor([2.0, 0.5, -1.0]), [1.0, 1.0, 1.0], reduction="none").tolist()
    [0.0, 0.5, 2.0]
    """
    return _elementwise(loss.hinge, predictions, targets, reduction, "hinge")


def _targets(targets: Any, dtype: DType) -> Node:
    """Targets written in Python: whole numbers stay class indices, others are of `dtype`."""
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
            hint="reshape one of them",
        )


def _check_range(labels: Any, classes: int, name: str) -> None:
    """Refuse labels out of range, where they are written as a plain array that never changes."""
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
    """Losses as `reduction` says: their (weighted) mean, their sum, or all of them."""
    if reduction not in REDUCTIONS:
        raise ConfigError.build(
            location(name),
            expected="reduction= one of " + ", ".join(REDUCTIONS),
            got=repr(reduction),
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
