"""Normalisation and loss operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor.dtype import DType
from caldera.errors import ConfigError
from caldera.nn.tracing import context
from caldera.onnx.library import dtype_of
from caldera.onnx.operators.registry import Value, axis_of, known, operator


@operator("BatchNormalization")
def batch_normalization(
    x: Value,
    scale: Value,
    shift: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int = 1,
    consumed_inputs: tuple[int, ...] = (),
) -> Any:
    """Normalise by given statistics or, in training, by statistics of the batch.

    A model in further training keeps running statistics, as `nn.BatchNorm` does.
    """
    if training_mode:
        y, own_mean, own_variance = op.batch_norm(x, scale, shift, eps=epsilon)
        return y, *[
            op.cast(op.add(op.mul(old, momentum), op.mul(new, 1 - momentum)), old.dtype)
            for old, new in ((mean, own_mean), (variance, own_variance))
        ]
    now = context()
    if not now.training or not isinstance(mean, Variable) or not isinstance(variance, Variable):
        return op.batch_norm(x, scale, shift, mean, variance, epsilon)
    y, own_mean, own_variance = op.batch_norm(x, scale, shift, eps=epsilon)
    count = math.prod(x.shape) // x.shape[1]
    unbiased = own_variance * (count / max(count - 1, 1))
    for kept, new in ((mean, own_mean), (variance, unbiased)):
        old = now.latest(kept)
        now.update(kept, old + (1 - momentum) * (op.stop_gradient(new) - old))
    return y


def _over_last(x: Value, axis: int) -> tuple[int, ...]:
    return tuple(range(axis_of(axis, len(x.shape)), len(x.shape)))


def _working(x: Value, stash_type: int) -> DType:
    """Return the dtype of the first stage: the requested one, but at least as wide as x."""
    asked = dtype_of(stash_type)
    return x.dtype if x.dtype.itemsize > asked.itemsize else asked


@operator("LayerNormalization")
def layer_normalization(
    x: Value,
    scale: Value,
    bias: Value = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Expr, Expr, Expr]:
    """Over all axes from `axis` on, with the mean and the inverse deviation."""
    axes = _over_last(x, axis)
    wide = op.cast(x, _working(x, stash_type))
    mean = op.mean(wide, axes, keepdims=True)
    centred = op.sub(wide, mean)
    inverse = op.rsqrt(op.add(op.mean(op.square(centred), axes, keepdims=True), epsilon))
    y = op.mul(op.cast(op.mul(centred, inverse), x.dtype), scale)
    return y if bias is None else op.add(y, bias), mean, inverse


@operator("RMSNormalization")
def rms_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Expr:
    """Divided by the root of the mean square over all axes from `axis` on."""
    wide = op.cast(x, _working(x, stash_type))
    mean = op.mean(op.square(wide), _over_last(x, axis), keepdims=True)
    return op.mul(op.cast(op.mul(wide, op.rsqrt(op.add(mean, epsilon))), x.dtype), scale)


@operator("GroupNormalization")
def group_normalization(
    x: Value,
    scale: Value,
    bias: Value,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    opset: int,
) -> Expr:
    """Over groups of channels; before version 21 with one scale a group."""
    if opset < 21:
        width = x.shape[1] // num_groups
        scale, bias = op.repeat(scale, width, 0), op.repeat(bias, width, 0)
    return op.group_norm(x, num_groups, scale, bias, epsilon)


@operator("InstanceNormalization")
def instance_normalization(
    x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, consumed_inputs: Any = None
) -> Expr:
    """Normalise each channel of each sample."""
    return op.group_norm(x, x.shape[1], scale, bias, epsilon)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x: Value, *, axes: tuple[int, ...] = (0, 2, 3)) -> Expr:
    """Scale to mean 0 and variance 1."""
    centred = op.sub(x, op.mean(x, axes, keepdims=True))
    deviation = op.sqrt(op.mean(op.square(centred), axes, keepdims=True))
    return op.div(centred, op.add(deviation, 1e-9))


@operator("LpNormalization")
def lp_normalization(x: Value, *, axis: int = -1, p: int = 2) -> Expr:
    """Divided by the norm along an axis; 0 where that is 0."""
    length = op.norm(x, p, axis, keepdims=True)
    is_zero = op.equal(length, 0.0)
    return op.where(is_zero, 0.0, op.div(x, op.where(is_zero, 1.0, length)))


@operator("LRN")
def lrn(x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Expr:
    """Divided by a power of the squares of neighbouring channels.

    Of an even number of neighbours, ONNX has one more above; Caldera has it below.
    """
    if size % 2:
        return op.local_response_norm(x, size, alpha, beta, bias)
    return op.flip(op.local_response_norm(op.flip(x, 1), size, alpha, beta, bias), 1)


@operator("Dropout")
def dropout(
    x: Value,
    ratio: Value = None,
    training_mode: Value = None,
    *,
    seed: int | None = None,
    is_test: int = 1,
    consumed_inputs: Any = None,
) -> tuple[Value, np.ndarray]:
    """Return x unchanged, and a mask of True: only training would drop elements."""
    is_training = training_mode is not None and bool(known(training_mode).item())
    if is_training and (ratio is None or float(known(ratio).item()) != 0):
        raise ConfigError.build(
            "onnx Dropout",
            expected="a model for inference",
            got="training_mode",
            hint="random numbers of ONNX are not defined; use nn.Dropout to train",
        )
    return x, np.ones(x.shape, np.bool_)


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
    """Return the same on the logarithm of the softmax, which is the second result."""
    logarithms = op.log_softmax(scores, 1)
    loss = negative_log_likelihood_loss(
        logarithms, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, logarithms
