"""Softmax, log-softmax and cross entropy with their gradients.

Cross entropy takes class indices or probabilities, and is computed from logits in one pass.
"""

from __future__ import annotations

import math

from caldera.kernels.native.codegen import (
    RegisterValue,
    any_layout,
    offer,
)
from caldera.kernels.native.codegen.math import exp, exp_of_negative, log
from caldera.kernels.native.softmax.sample import (
    WRITERS,
    ClassOperand,
    Sample,
    Single,
    bind_classes,
)
from caldera.kernels.table import Array, Call, Runner


def _softmax(sample: Sample, operands: list[ClassOperand], singles: list[Single]) -> None:
    x, y = operands
    weight, total, _ = sample.weights(x, again=True)
    share = 1.0 / total
    for index, count in sample.each():
        y.store(index, weight(index, count) * share)


def _softmax_grad(sample: Sample, operands: list[ClassOperand], singles: list[Single]) -> None:
    g, y, dx = operands
    mean = sample.sum(lambda index, count: g.load(index, count) * y.load(index, count))
    for index, count in sample.each():
        dx.store(index, y.load(index, count) * (g.load(index, count) - mean))


def _log_softmax(sample: Sample, operands: list[ClassOperand], singles: list[Single]) -> None:
    x, y = operands
    _, total, largest = sample.weights(x, again=False)
    below, logarithm = sample.below(x, largest), log(sample.k, total)
    for index, count in sample.each():
        y.store(index, below(index, count) - logarithm)


def _log_softmax_grad(sample: Sample, operands: list[ClassOperand], singles: list[Single]) -> None:
    g, y, dx = operands
    total = sample.sum(g.load)
    for index, count in sample.each():
        share = exp(sample.k, y.load(index, count))
        dx.store(index, g.load(index, count) - share * total)


def _bind(call: Call) -> Runner | None:
    name, axis = call.node.op.name, call.node.attrs["axis"]
    return bind_classes(name, axis, [*call.inputs, *call.outputs], [])


for _name, _write in (
    ("softmax", _softmax),
    ("softmax_grad", _softmax_grad),
    ("log_softmax", _log_softmax),
    ("log_softmax_grad", _log_softmax_grad),
):
    WRITERS[_name] = _write
    offer(_name, "native", any_layout(_bind), priority=10, in_place=lambda node: True)


class _Labels:
    """The labels of the samples at hand, and what their logits are."""

    def __init__(self, sample: Sample, logits: ClassOperand, labels: Single) -> None:
        k = self.k = sample.k
        self.index = labels.load_index(sample.samples)
        self.known = (self.index >= 0) & (self.index < sample.classes)
        self.logit = logits.load_at(k.select(self.known, self.index, 0))

    def below(self, largest: RegisterValue) -> RegisterValue:
        """The logit of the label less the largest one, and 0 where it is +inf."""
        return self.k.select(self.logit.equals(math.inf), 0.0, self.logit - largest)


def _cross_entropy(sample: Sample, operands: list[ClassOperand], singles: list[Single]) -> None:
    (logits,), (labels, loss) = operands, singles
    k = sample.k
    _, total, largest = sample.weights(logits, again=False)
    label = _Labels(sample, logits, labels)
    loss.store(k.select(label.known, log(k, total) - label.below(largest), math.nan))


def _cross_entropy_grad(
    sample: Sample, operands: list[ClassOperand], singles: list[Single]
) -> None:
    (logits, dx), (g, labels) = operands, singles
    slope = g.load(sample.samples)
    # Before the weights, which may be kept where the logits are.
    label = _Labels(sample, logits, labels)
    weight, total, largest = sample.weights(logits, again=True)
    share = 1.0 / total
    for index, count in sample.each():
        dx.store(index, weight(index, count) * share * slope)
    own = exp_of_negative(sample.k, label.below(largest)) * share
    dx.store_at(label.index, (own - 1.0) * slope, label.known)


def _probabilities(sample: Sample, operands: list[ClassOperand], singles: list[Single]) -> None:
    (logits, targets), (loss,) = operands, singles
    k = sample.k
    _, total, largest = sample.weights(logits, again=False)
    below, logarithm = sample.below(logits, largest), log(k, total)

    def term(index: RegisterValue, count: int) -> RegisterValue:
        target = targets.load(index, count)
        return k.select(target.equals(0.0), 0.0, target * (logarithm - below(index, count)))

    loss.store(sample.sum(term))


def _probabilities_grad(
    sample: Sample, operands: list[ClassOperand], singles: list[Single]
) -> None:
    (logits, targets, dx), (g,) = operands, singles
    slope = g.load(sample.samples)
    amount = sample.sum(targets.load)
    weight, total, _ = sample.weights(logits, again=True)
    share = 1.0 / total
    for index, count in sample.each():
        part = weight(index, count) * share * amount
        dx.store(index, (part - targets.load(index, count)) * slope)


Arrays = list[Array]


def _cross_entropy_bind(call: Call) -> Runner | None:
    logits, labels = call.inputs
    return _bound(call, [logits], [labels, *call.outputs])


def _bind_grad(call: Call) -> Runner | None:
    g, logits, labels = call.inputs
    return _bound(call, [logits, *call.outputs], [g, labels])


def _bind_probabilities_grad(call: Call) -> Runner | None:
    g, logits, targets = call.inputs
    return _bound(call, [logits, targets, *call.outputs], [g])


def _bound(call: Call, full: Arrays, singles: Arrays) -> Runner | None:
    return bind_classes(call.node.op.name, call.node.attrs["axis"], full, singles)


for _cross_entropy_name, _cross_entropy_write, _its_bind in (
    ("cross_entropy", _cross_entropy, _cross_entropy_bind),
    ("cross_entropy_grad", _cross_entropy_grad, _bind_grad),
    (
        "cross_entropy_probabilities",
        _probabilities,
        lambda call: _bound(call, list(call.inputs), list(call.outputs)),
    ),
    ("cross_entropy_probabilities_grad", _probabilities_grad, _bind_probabilities_grad),
):
    WRITERS[_cross_entropy_name] = _cross_entropy_write
    offer(
        _cross_entropy_name,
        "native",
        any_layout(_its_bind),
        priority=10,
        # The weights wait in the output: that may be where the logits are, not the targets.
        in_place=lambda node: node.op.name == "cross_entropy_grad",
    )
