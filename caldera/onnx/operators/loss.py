"""Losses of classifiers."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.onnx.operators.registry import Value, operator


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    scores: Value,
    target: Value,
    weight: Value = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Expr:
    """Less the score of the right class (axis 1), weighted by class."""
    classes = scores.shape[1]
    counts = op.broadcast(np.ones((), np.bool_), target.shape)
    if ignore_index is not None:
        counts = op.not_equal(target, ignore_index)
    labels = op.clip(target, 0, classes - 1)
    chosen = op.take_along_axis(scores, op.unsqueeze(labels, 1), 1)
    weights = np.ones(classes, scores.dtype) if weight is None else weight
    own = op.where(counts, op.gather(weights, labels), 0.0)
    losses = op.where(counts, op.neg(op.mul(op.squeeze(chosen, 1), own)), 0.0)
    if reduction == "none":
        return losses
    total = op.sum(losses)
    return total if reduction == "sum" else op.div(total, op.sum(own))


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Value,
    labels: Value,
    weights: Value = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Expr, Expr]:
    """The same on the logarithm of the softmax, which is the second result."""
    logarithms = op.log_softmax(scores, 1)
    loss = negative_log_likelihood_loss(
        logarithms, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, logarithms
