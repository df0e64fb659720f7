"""Running sums on a GPU, along any axis.

A row is summed tile by tile by the threads of a block, or column by column by one thread each. Few
long rows are split into parts as for a reduction: their totals are computed first, and each part
starts with the sum of the previous parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import LoopBody, ReductionTask
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    LaunchIntegers,
    LoopOperand,
    OffsetEmitter,
    bounds_for,
    const_pointer,
    is_wide,
    lines,
    pointer,
    restricted,
    unless_empty,
)
from caldera.kernels.cuda.elementwise.loop import THREADS
from caldera.kernels.cuda.movement import copy_calls
from caldera.kernels.cuda.reduction.reduce import Planned, first_pass, planned, workspace_of
from caldera.kernels.cuda.reduction.source import struct
from caldera.kernels.table import TABLE, Call, Kernel, Runner


@unless_empty
def _bind(call: Call) -> Runner:
    (x,), (out,), attrs = call.inputs, call.outputs, call.node.attrs
    axis: int = attrs["axis"]
    if x.shape[axis] == 1:
        return CudaRunner(copy_calls(out, x))
    if attrs["reverse"]:
        turned = (slice(None),) * axis + (slice(None, None, -1),)
        x, out = x[turned], out[turned]
    name = x.dtype.name
    loop_body = LoopBody((name,), (), (), (("sum", name, ("in", 0)),))
    # The first element is a placeholder for the destination of the parts' totals.
    total = out[(slice(None),) * axis + (slice(0, 1),)]
    task = ReductionTask(loop_body, x.shape, (axis,), [x], [], [total])
    plan = planned(task)
    if plan.cut.parts == 1:
        return CudaRunner([_scan(task, plan, out, None)])
    return CudaRunner(
        [first_pass(task, plan, [call.workspace]), _scan(task, plan, out, call.workspace)]
    )


@dataclass(frozen=True)
class _Places:
    """Offsets of input and output along the axes that are kept, and their steps along the axis."""

    split: list[str]
    offsets: tuple[str, str]
    steps: tuple[str, str]


def _scan(
    task: ReductionTask, plan: Planned, out: np.ndarray, carried: np.ndarray | None
) -> KernelLaunch:
    loop, cut = plan.loop, plan.cut
    (x,) = task.inputs
    (given,) = loop.operands
    (axis,) = loop.reduced
    written = _output(plan, task.results[0], out, task.axes[0])
    both = (given, written)
    numbers = LaunchIntegers(is_wide(size(loop.lengths), both, loop.lengths))
    offsets_of = OffsetEmitter(
        numbers,
        [loop.lengths[each] for each in loop.kept],
        [replace(o, strides=tuple(o.strides[e] for e in loop.kept), mode="s") for o in both],
        "",
    )
    split, offsets = offsets_of.statements("item", "a")
    places = _Places(
        split,
        (offsets[offsets_of.group[0]], offsets[offsets_of.group[1]]),
        (numbers.add(given.strides[axis]), numbers.add(written.strides[axis])),
    )
    part = cut.chunk * (cut.lanes if loop.along else 1)
    counts = [numbers.add(each) for each in (plan.totals, loop.lengths[axis], part)]
    width, height = plan.block if loop.along else (THREADS, 1)
    groups = -(-plan.totals // (height if loop.along else width))
    text = _text(loop.along, given, places, [*counts, numbers.add(groups)], carried is not None)
    signature = KernelSignature(
        {
            "n": numbers.parameter,
            "x": restricted(const_pointer(x)),
            "y": restricted(pointer(out)),
        }
    )
    if carried is not None:
        signature["carried"] = const_pointer(carried, f"{_sums(given)}::Total")
    source = (
        f'#include "reduce.cuh"\n#include "vector_access.cuh"\n{numbers.declaration}\n'
        f'extern "C" __global__ void {bounds_for(width, height)}scan('
        f"{signature.declaration}) {{\n{text}\n}}\n"
    )
    return KernelLaunch(source, "scan", groups * cut.parts, (width, height, 1), signature)


def _output(plan: Planned, total: np.ndarray, out: np.ndarray, axis: int) -> LoopOperand:
    """Return the output as an operand, with the strides of its first element along kept axes."""
    loop = plan.loop
    (result,) = loop.results
    strides = [0] * len(loop.lengths)
    for place, step in zip(loop.kept, result.strides, strict=True):
        strides[place] = step
    strides[loop.reduced[0]] = out.strides[axis] // total.itemsize
    return LoopOperand(result.dtype, tuple(strides), "s")


def _text(
    along: bool, given: LoopOperand, places: _Places, counts: list[str], carried: bool
) -> str:
    sums = _sums(given)
    items, length, part, groups = counts
    kind = given.stored
    line = "y" if along else "x"
    before = [f"{sums}::Total before = {sums}::none();"]
    if carried:
        first, step = ("threadIdx.x", "blockDim.x") if along else ("0", "1")
        before.append(
            f"\n#pragma unroll 8\n    for (Index q = {first}; inside && q < part; q += {step})"
            f" before = {sums}::both(before, carried[q * (Index){items} + item]);"
        )
        if along:
            before.append(f"block_running<{sums}>(before, before);")
    element = f"{sums}::of(wide(x[from + (Offset)j * {places.steps[0]}]), 0)"
    target = f"y[to + (Offset)j * {places.steps[1]}]"
    if along:
        loop = f"""for (Index start = first; start < last; start += blockDim.x) {{
        const Index j = start + threadIdx.x;
        const bool here = inside && j < last;
        {sums}::Total whole, mine = here ? {element} : {sums}::none();
        mine = block_running<{sums}>(mine, whole);
        if (here) {target} = Stored<{kind}>::from({sums}::both(before, mine));
        before = {sums}::both(before, whole);
    }}"""
    else:
        loop = f"""if (!inside) return;
#pragma unroll 4
    for (Index j = first; j < last; j++) {{
        before = {sums}::both(before, {element});
        {target} = Stored<{kind}>::from(before);
    }}"""
    return f"""    const Index part = blockIdx.x / (Index){groups};
    const Index group = blockIdx.x - part * (Index){groups};
    const Index item = group * blockDim.{line} + threadIdx.{line};
    const Index first = part * (Index){part};
    const Index last = min(first + (Index){part}, (Index){length});
    const bool inside = item < (Index){items};
    {lines(places.split, 4)}
    const Offset from = {places.offsets[0]}, to = {places.offsets[1]};
    {lines(before, 4)}
    {loop}"""


def _sums(given: LoopOperand) -> str:
    return struct(("sum", given.dtype, ("in", 0)))


TABLE.add(
    Kernel(
        "cumsum",
        "cuda",
        "loop",
        _bind,
        workspace=lambda node: workspace_of(node.shape, (node.attrs["axis"],), ["sum"]),
    )
)
