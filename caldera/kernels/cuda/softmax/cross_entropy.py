"""Cross entropy with class indices or probabilities, and the gradients: from logits in one go.

A label that is no class gives a loss of nan, as on every device; nothing is read for it.
"""

from __future__ import annotations

from caldera.kernels.cuda.softmax.sample import Operand, bind_classes
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner


def _single(array: Array) -> Operand:
    return Operand(array, has_classes=False)


def _bind(call: Call) -> Runner:
    logits, labels = call.inputs
    (loss,) = call.outputs
    operands = [Operand(logits), _single(labels), Operand(loss, False, is_written=True)]
    return bind_classes("cross_entropy", call.node.attrs["axis"], operands, 1)


def _bind_gradient(call: Call) -> Runner:
    g, logits, labels = call.inputs
    (dx,) = call.outputs
    operands = [_single(g), Operand(logits), _single(labels), Operand(dx, is_written=True)]
    return bind_classes("cross_entropy_slopes", call.node.attrs["axis"], operands, 1)


def _bind_soft(call: Call) -> Runner:
    logits, targets = call.inputs
    (loss,) = call.outputs
    operands = [Operand(logits), Operand(targets), Operand(loss, False, is_written=True)]
    return bind_classes("soft_cross_entropy", call.node.attrs["axis"], operands, 2)


def _bind_soft_gradient(call: Call) -> Runner:
    g, logits, targets = call.inputs
    (dx,) = call.outputs
    operands = [_single(g), Operand(logits), Operand(targets), Operand(dx, is_written=True)]
    return bind_classes("soft_cross_entropy_slopes", call.node.attrs["axis"], operands, 2)


for _op, _its_bind in (
    ("cross_entropy", _bind),
    ("cross_entropy_grad", _bind_gradient),
    ("cross_entropy_probabilities", _bind_soft),
    ("cross_entropy_probabilities_grad", _bind_soft_gradient),
):
    TABLE.add(Kernel(_op, "cuda", "rows", _its_bind, in_place=lambda node: True))
