"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from caldera.kernels.native.codegen.emitter import Value
from caldera.kernels.native.codegen.math import exp, log
from caldera.kernels.native.codegen.strides import any_layout
from caldera.kernels.native.softmax.operands import Operand, Single
from caldera.kernels.native.softmax.sample import WRITERS, Sample, bind_classes
from caldera.kernels.table import TABLE, Call, Kernel, Runner


def _softmax(sample: Sample, operands: list[Operand], singles: list[Single]) -> None:
    x, y = operands
    weight, total, _ = sample.weights(x, again=True)
    share = 1.0 / total

    def finish(index: Value, count: int) -> None:
        y.store(index, weight(index, count) * share)

    sample.each(finish)


def _softmax_grad(sample: Sample, operands: list[Operand], singles: list[Single]) -> None:
    g, y, dx = operands
    mean = sample.sum(lambda index, count: g.load(index, count) * y.load(index, count))

    def finish(index: Value, count: int) -> None:
        dx.store(index, y.load(index, count) * (g.load(index, count) - mean))

    sample.each(finish)


def _log_softmax(sample: Sample, operands: list[Operand], singles: list[Single]) -> None:
    x, y = operands
    _, total, largest = sample.weights(x, again=False)
    below, logarithm = sample.below(x, largest), log(sample.k, total)

    def finish(index: Value, count: int) -> None:
        y.store(index, below(index, count) - logarithm)

    sample.each(finish)


def _log_softmax_grad(sample: Sample, operands: list[Operand], singles: list[Single]) -> None:
    g, y, dx = operands
    total = sample.sum(g.load)

    def finish(index: Value, count: int) -> None:
        share = exp(sample.k, y.load(index, count))
        dx.store(index, g.load(index, count) - share * total)

    sample.each(finish)


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
    TABLE.add(
        Kernel(_name, "cpu", "native", any_layout(_bind), priority=10, in_place=lambda node: True)
    )
