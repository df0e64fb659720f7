"""Softmax, its logarithm and cross entropy, with their gradients: see include/classes.cuh.

Where the classes of a sample lie side by side, a warp or a block takes a sample. Else neighbouring
threads take samples that lie side by side, if there are enough of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int
from dataclasses import dataclass

from caldera.kernels.common.scratch import compute_dtype
from caldera.kernels.cuda.codegen.source import kernel_source, type_of
from caldera.kernels.cuda.codegen.strided import (
    index,
    index_type,
    indices,
    is_large,
    neighbours,
    strides_of,
    walk,
)
from caldera.kernels.cuda.codegen.thread_groups import Team, team_for, thread_team
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import Array, Runner
from caldera.tensor.shape import size

_FEW_CLASSES, _MANY_SAMPLES = 64, 1 << 15
"""A thread takes a sample of strided classes if they are few, or if the samples are many."""


@dataclass(frozen=True)
class Operand:
    """An array of samples: with classes, or with one number for each sample."""

    array: Array
    has_classes: bool = True
    is_written: bool = False

    def strides(self, axis: int) -> tuple[int, ...]:
        """Those along the axes of the arrays with classes."""
        own = strides_of(self.array)
        return own if self.has_classes else (*own[:axis], 0, *own[axis:])

    def parameter(self, name: str) -> str:
        """Its pointer in a kernel's text."""
        return f"{'' if self.is_written else 'const '}{type_of(self.array)}* {name}"


def bind_classes(
    function: str, axis: int, operands: Sequence[Operand], kept: int, options: str = ""
) -> Runner:
    """A function of softmax.cuh on these operands, in the order of its parameters.

    The first with classes decides how threads share the work; of each class a thread keeps `kept`
    numbers. `options` are template arguments that stand before the team.
    """
    lead = next(each.array for each in operands if each.has_classes)
    shape, length = lead.shape, lead.shape[axis]
    strides = [each.strides(axis) for each in operands]
    others = [a for a in range(len(shape)) if a != axis]
    # The array with classes leads the walk: its samples decide which threads are neighbours.
    order = sorted(range(len(operands)), key=lambda i: not operands[i].has_classes)
    rows = walk(shape, others, [strides[i] for i in order])
    count = size(rows.sizes)
    if count == 0:
        return CudaRunner([])
    steps = [each[axis] for each in strides]
    full = [
        (operands[i].array, far) for i, far in zip(order, rows.strides, strict=True)
        if operands[i].has_classes
    ]  # fmt: skip
    dense = all(step == 1 for step, each in zip(steps, operands, strict=True) if each.has_classes)
    together = neighbours(length, full) if dense else 1
    team = _team(lead, length, count, rows.inner[0], steps, together, kept)
    large = is_large(*(each.array for each in operands))
    integer = index_type(large)
    names = [f"a{i}" for i in range(len(operands))]
    places = {i: f"at[{place}]" for place, i in enumerate(order)}
    given = [
        f"classes_at({name}, {places[i]}, step{i})" if operands[i].has_classes
        else f"{name} + {places[i]}"
        for i, name in enumerate(names)
    ]  # fmt: skip
    source = kernel_source(
        "softmax.cuh", f"{function}_samples", team.threads,
        [*(each.parameter(name) for each, name in zip(operands, names, strict=True)),
         *(f"{integer} step{i}" for i in range(len(operands))),
         f"Walk<{rows.rank}, {len(operands)}, {integer}> rows", f"{integer} count", "int length"],
        f"typedef {team.text} Team;\n"
        f"    {integer} which = blockIdx.x * Team::count() + Team::index(), at[{len(operands)}];\n"
        "    if (which >= count) return;\n    rows.at(which, at);\n"
        f"    {function}<{options}Team>({', '.join(given)}, length);",
    )  # fmt: skip
    return CudaRunner([Launch(source, f"{function}_samples", team.blocks(count), team.threads, [
        *(each.array for each in operands), *(index(step, large) for step in steps),
        indices(rows.numbers, large), index(count, large), c_int(length),
    ])])  # fmt: skip


def _team(
    lead: Array, length: int, count: int, beside: int, steps: Sequence[int], together: int,
    kept: int,
) -> Team:  # fmt: skip
    step = max(abs(each) for each in steps)
    strided = length > 1 and step > 1 and abs(beside) < step
    if strided and (length <= _FEW_CLASSES or count >= _MANY_SAMPLES):
        return thread_team()
    registers = 32 // (kept * compute_dtype(lead.dtype).itemsize // 4)
    return team_for(length, together, registers)
