"""Softmax, its logarithm and cross entropy, with their gradients: see include/softmax.cuh.

If the classes of a sample are contiguous, a warp or a block computes a sample. Otherwise
neighbouring threads compute neighbouring samples, if there are enough samples. A label outside the
classes produces a loss of nan, as on every device, without reading memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import compute_dtype
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    Parameter,
    ThreadGroup,
    const_pointer,
    header_launch,
    i32,
    index,
    index_type,
    is_large,
    neighbours,
    pointer,
    strided_layout,
    strides_of,
    thread_group_for,
    thread_per_row,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_FEW_CLASSES, _MANY_SAMPLES = 64, 1 << 15
"""A thread takes a sample of strided classes if they are few, or if the samples are many."""


@dataclass(frozen=True)
class _Operand:
    """An array of samples: with classes, or with one number for each sample."""

    array: Array
    has_classes: bool = True
    is_written: bool = False

    def strides(self, axis: int) -> tuple[int, ...]:
        """Return the strides along the axes of the arrays with classes."""
        own = strides_of(self.array)
        return own if self.has_classes else (*own[:axis], 0, *own[axis:])

    @property
    def parameter(self) -> Parameter:
        return pointer(self.array) if self.is_written else const_pointer(self.array)


def _over_samples(
    function: str, axis: int, operands: Sequence[_Operand], kept: int, options: str = ""
) -> Runner:
    """Return a function of softmax.cuh on these operands, in the order of its parameters.

    The first with classes decides how threads share the work; of each class a thread keeps `kept`
    numbers. `options` are template arguments that stand before the group.
    """
    lead = next(each.array for each in operands if each.has_classes)
    shape, length = lead.shape, lead.shape[axis]
    strides = [each.strides(axis) for each in operands]
    others = [a for a in range(len(shape)) if a != axis]
    # The array with classes leads the walk: its samples decide which threads are neighbours.
    order = sorted(range(len(operands)), key=lambda i: not operands[i].has_classes)
    rows = strided_layout(shape, others, [strides[i] for i in order])
    count = size(rows.sizes)
    if count == 0:
        return CudaRunner([])
    steps = [each[axis] for each in strides]
    full = [
        (operands[i].array, far)
        for i, far in zip(order, rows.strides, strict=True)
        if operands[i].has_classes
    ]
    dense = all(step == 1 for step, each in zip(steps, operands, strict=True) if each.has_classes)
    together = neighbours(length, full) if dense else 1
    group = _thread_group(lead, length, count, rows.inner[0], steps, together, kept)
    large = is_large(*(each.array for each in operands))
    integer = index_type(large)
    places = {i: f"at[{place}]" for place, i in enumerate(order)}
    given = [
        f"classes_at(a{i}, {places[i]}, step{i})" if each.has_classes else f"a{i} + {places[i]}"
        for i, each in enumerate(operands)
    ]
    return CudaRunner(
        [
            header_launch(
                "softmax.cuh",
                f"{function}_samples",
                group.blocks(count),
                group.threads,
                {
                    **{f"a{i}": each.parameter for i, each in enumerate(operands)},
                    **{f"step{i}": index(step, large) for i, step in enumerate(steps)},
                    "rows": rows.parameter(large),
                    "count": index(count, large),
                    "length": i32(length),
                },
                f"typedef {group.text} Group;\n"
                f"    {integer} which = blockIdx.x * Group::count() + Group::index();\n"
                f"    {integer} at[{len(operands)}];\n"
                "    if (which >= count) return;\n    rows.at(which, at);\n"
                f"    {function}<{options}Group>({', '.join(given)}, length);",
            )
        ]
    )


def _thread_group(
    lead: Array,
    length: int,
    count: int,
    beside: int,
    steps: Sequence[int],
    together: int,
    kept: int,
) -> ThreadGroup:
    step = max(abs(each) for each in steps)
    strided = length > 1 and step > 1 and abs(beside) < step
    if strided and (length <= _FEW_CLASSES or count >= _MANY_SAMPLES):
        return thread_per_row()
    registers = 32 // (kept * compute_dtype(lead.dtype).itemsize // 4)
    return thread_group_for(length, together, registers)


# --- softmax

_FUNCTIONS = {
    "softmax": ("softmax", "", 1),
    "log_softmax": ("log_softmax", "", 2),
    "softmax_grad": ("softmax_gradients", "false, ", 2),
    "log_softmax_grad": ("softmax_gradients", "true, ", 2),
}
"""Function of each op, its first template arguments, and the numbers it keeps per class."""


def _bind_softmax(call: Call) -> Runner:
    function, options, kept = _FUNCTIONS[call.node.op.name]
    given = [_Operand(array) for array in call.inputs]
    result = _Operand(call.outputs[0], is_written=True)
    return _over_samples(function, call.node.attrs["axis"], [*given, result], kept, options)


# --- cross entropy

_LOSSES = {
    "cross_entropy": ("cross_entropy", "x1", 1),
    "cross_entropy_grad": ("cross_entropy_gradients", "1x1", 1),
    "cross_entropy_probabilities": ("soft_cross_entropy", "xx", 2),
    "cross_entropy_probabilities_grad": ("soft_cross_entropy_gradients", "1xx", 2),
}
"""Function of each op, the kinds of its inputs, and the numbers it keeps per class.

Inputs have classes ("x") or one number per sample ("1"). A loss has one number per sample, a
gradient has classes.
"""


def _bind_loss(call: Call) -> Runner:
    function, inputs, kept = _LOSSES[call.node.op.name]
    given = [
        _Operand(array, has_classes=each == "x")
        for array, each in zip(call.inputs, inputs, strict=True)
    ]
    is_gradient = call.node.op.name.endswith("grad")
    result = _Operand(call.outputs[0], has_classes=is_gradient, is_written=True)
    return _over_samples(function, call.node.attrs["axis"], [*given, result], kept)


def _bind_loss_and_gradient(call: Call) -> Runner:
    g, logits, labels = call.inputs
    losses, gradients = call.outputs
    operands = [
        _Operand(g, has_classes=False),
        _Operand(logits),
        _Operand(labels, has_classes=False),
        _Operand(losses, has_classes=False, is_written=True),
        _Operand(gradients, is_written=True),
    ]
    return _over_samples("cross_entropy_with_gradient", call.node.attrs["axis"], operands, 1)


for _op in _FUNCTIONS:
    TABLE.add(Kernel(_op, "cuda", "rows", _bind_softmax, in_place=lambda node: True))
for _op in _LOSSES:
    TABLE.add(Kernel(_op, "cuda", "rows", _bind_loss, in_place=lambda node: True))
TABLE.add(
    Kernel(
        "cross_entropy_with_gradient",
        "cuda",
        "rows",
        _bind_loss_and_gradient,
        in_place=lambda node: True,
    )
)
