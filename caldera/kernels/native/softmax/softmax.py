"""Softmax, log-softmax and cross entropy with their gradients.

Cross entropy takes class indices or probabilities, and is computed from logits in one pass.
"""

from __future__ import annotations

import math
from functools import partial

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
from caldera.kernels.table import Call, Runner


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


class _Labels:
    """The labels of the current samples, and the logits of these labels."""

    def __init__(self, sample: Sample, logits: ClassOperand, labels: Single) -> None:
        k = self.k = sample.k
        self.index = labels.load_index(sample.samples)
        self.known = (self.index >= 0) & (self.index < sample.classes)
        self.logit = logits.load_at(k.select(self.known, self.index, 0))

    def below(self, largest: RegisterValue) -> RegisterValue:
        """Return the label's logit minus the largest one; 0 for a logit of +inf."""
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


def _bind(full: tuple[int, ...], singles: tuple[int, ...], call: Call) -> Runner | None:
    """Bind an op to its arrays with and without classes, given by their positions."""
    arrays = (*call.inputs, *call.outputs)
    return bind_classes(
        call.node.op.name,
        call.node.attrs["axis"],
        [arrays[i] for i in full],
        [arrays[i] for i in singles],
    )


for _name, _write, _full, _singles in (
    ("softmax", _softmax, (0, 1), ()),
    ("softmax_grad", _softmax_grad, (0, 1, 2), ()),
    ("log_softmax", _log_softmax, (0, 1), ()),
    ("log_softmax_grad", _log_softmax_grad, (0, 1, 2), ()),
    ("cross_entropy", _cross_entropy, (0,), (1, 2)),
    ("cross_entropy_grad", _cross_entropy_grad, (1, 3), (0, 2)),
    ("cross_entropy_probabilities", _probabilities, (0, 1), (2,)),
    ("cross_entropy_probabilities_grad", _probabilities_grad, (1, 2, 3), (0,)),
):
    WRITERS[_name] = _write
    offer(
        _name,
        "native",
        any_layout(partial(_bind, _full, _singles)),
        priority=10,
        # The weights wait in the output: that may be where the logits are, not the targets.
        in_place=lambda node: "softmax" in node.op.name or node.op.name == "cross_entropy_grad",
    )
