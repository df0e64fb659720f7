"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from caldera.kernels.cuda.softmax.sample import Operand, bind_classes
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_FUNCTIONS = {
    "softmax": ("softmax", "", 1),
    "log_softmax": ("log_softmax", "", 2),
    "softmax_grad": ("softmax_slopes", "false, ", 2),
    "log_softmax_grad": ("softmax_slopes", "true, ", 2),
}
"""By op: the function, its first template arguments, and the numbers it keeps of a class."""


def _bind(call: Call) -> Runner:
    function, options, kept = _FUNCTIONS[call.node.op.name]
    given = [Operand(array) for array in call.inputs]
    result = Operand(call.outputs[0], is_written=True)
    return bind_classes(function, call.node.attrs["axis"], [*given, result], kept, options)


for _op in _FUNCTIONS:
    TABLE.add(Kernel(_op, "cuda", "rows", _bind, in_place=lambda node: True))
