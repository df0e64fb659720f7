"""Losses: one number per sample or element; the public functions reduce them.

`cross_entropy` computes losses from logits and class indices in one op. Its gradient is one op as
well, so that a backend can implement each as a single pass over the logits. An invalid label is
NaN: training must not continue silently.

Conventions, all of them tested: a class with target 0 adds 0, even if its probability is 0. huber
is quadratic up to and including delta. absolute_error has derivative 0 at 0, hinge at the margin,
and kl_divergence with respect to a target of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from caldera.core.graph import Node, Nodes, Op, composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    abs_,
    add,
    broadcast,
    broadcasting,
    cast,
    constant,
    equal,
    exp,
    expand_reduced,
    greater_equal,
    iota,
    less_equal,
    log,
    log1p,
    logical_and,
    maximum,
    minimum,
    mul,
    neg,
    relu,
    reshape,
    scalar,
    sigmoid,
    square,
    sub,
    sum_,
    where,
    widened,
)
from caldera.core.graph.ops.activation import below_largest, log_softmax, softmax
from caldera.core.tensor import Shape, int64, is_float, is_integer


def _check_dtypes(predictions: Node, targets: Node) -> None:
    if predictions.dtype != targets.dtype or not is_float(predictions.dtype):
        refuse_dtype("predictions and targets of the same floating-point dtype")


def _check_pair(predictions: Node, targets: Node) -> None:
    _check_dtypes(predictions, targets)
    if predictions.shape != targets.shape:
        refuse_shape("predictions and targets of the same shape", hint="reshape one operand")


# --- cross entropy with class indices


def is_label(labels: Node, shape: Shape, axis: int) -> Node:
    """Return True at each sample's class in an array of `shape`, with classes along `axis`."""
    classes = iota(shape=shape, axis=axis, dtype=int64)
    column = (*labels.shape[:axis], 1, *labels.shape[axis:])
    return equal(reshape(cast(labels, int64), column), classes)


def _check_labels(logits: Node, labels: Node, axis: int) -> None:
    if not is_float(logits.dtype):
        refuse_dtype("logits of a floating-point dtype", hint="cast them with op.cast")
    if not is_integer(labels.dtype):
        refuse_dtype(
            "labels that are class indices (integers)",
            hint="give probabilities in the shape of the logits, or cast the labels",
        )
    wanted = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    if labels.shape != wanted:
        refuse_shape(f"labels of shape {wanted}: one a sample, with the classes on axis {axis}")
    if logits.shape[axis] == 0:
        refuse_shape("at least one class")


@composite("cross_entropy_grad")
@widened
def cross_entropy_grad(g: Node, logits: Node, labels: Node, *, axis: int) -> Node:
    """Return the gradient of cross_entropy with respect to the logits: g * (softmax - one_hot)."""
    own = cast(is_label(labels, logits.shape, axis), logits.dtype)
    spread = expand_reduced(g, logits.shape, (axis,))
    return mul(spread, sub(softmax(logits, axis=axis), own))


@composite(
    "cross_entropy",
    gradient=lambda g, y, logits, labels, *, axis: (
        cross_entropy_grad(g, logits, labels, axis=axis),
        None,
    ),
)
@widened
def cross_entropy(logits: Node, labels: Node, *, axis: int) -> Node:
    """-log(softmax(logits)) at each sample's label, without overflow."""
    _check_labels(logits, labels, axis)
    below = below_largest(logits, axis)
    own = where(is_label(labels, logits.shape, axis), below, scalar(0, below))
    loss = sub(log(sum_(exp(below), (axis,))), sum_(own, (axis,)))
    index = cast(labels, int64)
    last = constant(logits.shape[axis] - 1, int64)
    known = logical_and(greater_equal(index, constant(0, int64)), less_equal(index, last))
    return where(known, loss, scalar(math.nan, loss))


# --- cross entropy with probabilities as targets


@composite("cross_entropy_probabilities")
@widened
def cross_entropy_probabilities(logits: Node, targets: Node, *, axis: int) -> Node:
    """-sum(targets * log(softmax(logits))) along `axis`, without overflow."""
    _check_pair(logits, targets)
    terms = mul(targets, neg(log_softmax(logits, axis=axis)))
    absent = equal(targets, scalar(0, targets))
    return sum_(where(absent, scalar(0, terms), terms), (axis,))


@cross_entropy_probabilities.gradient
@widened
def _(g: Node, y: Node, logits: Node, targets: Node, *, axis: int) -> Nodes:
    spread = expand_reduced(g, logits.shape, (axis,))
    for_logits = cross_entropy_probabilities_grad(g, logits, targets, axis=axis)
    return for_logits, neg(mul(spread, log_softmax(logits, axis=axis)))


@composite("cross_entropy_probabilities_grad")
@widened
def cross_entropy_probabilities_grad(g: Node, logits: Node, targets: Node, *, axis: int) -> Node:
    """Return the same with respect to the logits: g * (softmax * sum(targets) - targets)."""
    spread = expand_reduced(g, logits.shape, (axis,))
    total = sum_(targets, (axis,), keepdims=True)
    return mul(spread, sub(mul(softmax(logits, axis=axis), total), targets))


@composite("cross_entropy_epsilon")
@widened
def cross_entropy_epsilon(probabilities: Node, targets: Node, *, axis: int, epsilon: float) -> Node:
    """-sum(targets * log(probabilities + epsilon)) along `axis`."""
    _check_pair(probabilities, targets)
    logarithm = log(add(probabilities, scalar(epsilon, probabilities)))
    return neg(sum_(mul(targets, logarithm), (axis,)))


@composite("kl_divergence")
@widened
def kl_divergence(log_probabilities: Node, targets: Node, *, axis: int) -> Node:
    """sum(targets * (log(targets) - log_probabilities)) along `axis`."""
    _check_pair(log_probabilities, targets)
    absent = equal(targets, scalar(0, targets))
    safe = where(absent, scalar(1, targets), targets)
    present = where(absent, scalar(0, targets), log_probabilities)
    return sum_(mul(targets, sub(log(safe), present)), (axis,))


# --- element by element; as all element-wise ops, they broadcast


def _of_elements(name: str) -> Callable[[Callable[..., Node]], Op]:
    """Decorate a loss of predictions and targets of the same floating-point dtype."""

    def define(rule: Callable[..., Node]) -> Op:
        def checked(predictions: Node, targets: Node, **attrs: float) -> Node:
            _check_dtypes(predictions, targets)
            broadcast(predictions.spec, targets.spec)
            return rule(predictions, targets, **attrs)

        return composite(name, kind="elementwise")(widened(checked))

    return define


@_of_elements("binary_cross_entropy")
def binary_cross_entropy(logits: Node, targets: Node) -> Node:
    """-(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))), without overflow or cancellation."""
    zero = scalar(0, logits)
    size = abs_(logits)
    # The loss of a certain wrong answer; a certain right answer has loss 0, even at infinity.
    positive = greater_equal(logits, zero)
    wrong = where(positive, sub(scalar(1, targets), targets), targets)
    line = where(equal(wrong, zero), zero, mul(size, wrong))
    return add(line, log1p(exp(neg(size))))


@binary_cross_entropy.gradient
@widened
@broadcasting
def _(g: Node, y: Node, logits: Node, targets: Node) -> Nodes:
    return mul(g, sub(sigmoid(logits), targets)), neg(mul(g, logits))


@_of_elements("squared_error")
def squared_error(predictions: Node, targets: Node) -> Node:
    """(p - t)^2."""
    return square(sub(predictions, targets))


@_of_elements("absolute_error")
def absolute_error(predictions: Node, targets: Node) -> Node:
    """|p - t|."""
    return abs_(sub(predictions, targets))


@_of_elements("huber")
def huber(predictions: Node, targets: Node, *, delta: float) -> Node:
    """(p - t)^2 / 2 up to a difference of delta, and straight on from there."""
    difference = sub(predictions, targets)
    size = abs_(difference)
    near = mul(square(difference), scalar(0.5, size))
    far = mul(sub(size, scalar(0.5 * delta, size)), scalar(delta, size))
    return where(less_equal(size, scalar(delta, size)), near, far)


@huber.gradient
@widened
@broadcasting
def _(g: Node, y: Node, predictions: Node, targets: Node, *, delta: float) -> Nodes:
    difference = sub(predictions, targets)
    slope = minimum(maximum(difference, scalar(-delta, g)), scalar(delta, g))
    part = mul(g, slope)
    return part, neg(part)


@_of_elements("hinge")
def hinge(predictions: Node, targets: Node) -> Node:
    """max(0, 1 - t p), with targets -1 and 1."""
    return relu(sub(scalar(1, targets), mul(targets, predictions)))
