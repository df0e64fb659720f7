"""Copies on a card between arrays that lie differently in memory.

A copy is brought to its simplest form when it is bound. Where the elements of a row lie across the
rows of the other array, tiles pass through shared memory; everything else is a loop like any other,
over elements that are only bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from caldera.core.graph.memory_format import as_pairs
from caldera.kernels.common.loops import LoopAxes, LoopBody, axes_of
from caldera.kernels.cuda.codegen.kernel import (
    STORED,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    const_pointer,
    pointer,
)
from caldera.kernels.cuda.codegen.loop_operands import (
    LaunchIntegers,
    LoopOperand,
    OffsetEmitter,
    is_wide,
    lines,
)
from caldera.kernels.cuda.elementwise.loop import THREADS, ElementwiseLoop, launch_of, loop_over
from caldera.kernels.table import COPY, TABLE, Call, Kernel, Runner

BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""For each size of element a dtype that carries its bits."""
THINNEST = 8
"""Rows and columns below which a tile is mostly empty."""
MOST_TOGETHER = 8
"""Copies in one launch."""


def as_bits(array: np.ndarray) -> np.ndarray:
    """The same memory as integers, so that one kernel copies all dtypes of a size."""
    return array.view(BITS[array.itemsize])


def copy_calls(target: np.ndarray, source: np.ndarray) -> list[KernelLaunch]:
    """The launches that do `target[...] = source`, of one shape and dtype.

    The source may be repeated (strides of 0) or run backwards; the two must not overlap.
    """
    return copying([(target, source)])


def copying(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[KernelLaunch]:
    """The launches that copy each source to its target: (target, source), all of one dtype."""
    calls: list[KernelLaunch] = []
    loops: list[ElementwiseLoop] = []
    for given in pairs:
        if not given[0].size:
            continue
        # No dtype has the bits of complex128; its parts have.
        target, source = map(as_bits, map(as_pairs, given) if given[0].itemsize == 16 else given)
        axes = axes_of(target.shape, [target, source])
        across = _lying_across(axes, target.itemsize)
        if across is not None:
            calls.append(_transposing(target, source, axes, across))
            continue
        name = target.dtype.name
        loop_body = LoopBody((name,), (), ((name, ("in", 0)),))
        loops.append(loop_over(loop_body, target.shape, [source], [target]))
    together = [loops[k : k + MOST_TOGETHER] for k in range(0, len(loops), MOST_TOGETHER)]
    return calls + [launch_of(some) for some in together]


def _lying_across(axes: LoopAxes, itemsize: int) -> int | None:
    """The axis that is innermost in the source, if another one is in the target."""
    target, source = axes.strides
    last = len(axes.lengths) - 1
    if target[last] != itemsize or source[last] in (0, itemsize) or axes.lengths[last] < THINNEST:
        return None
    found = [axis for axis in range(last) if source[axis] == itemsize]
    return found[0] if found and axes.lengths[found[0]] >= THINNEST else None


def _transposing(
    target: np.ndarray, source: np.ndarray, axes: LoopAxes, across: int
) -> KernelLaunch:
    size = target.itemsize
    to, given = (tuple(step // size for step in each) for each in axes.strides)
    last = len(axes.lengths) - 1
    rows, columns = axes.lengths[across], axes.lengths[last]
    others = [axis for axis in range(last) if axis != across]
    lengths = [axes.lengths[axis] for axis in others]
    name = target.dtype.name
    both = [LoopOperand(name, to, "s"), LoopOperand(name, given, "s")]
    numbers = LaunchIntegers(is_wide(prod(axes.lengths), both, axes.lengths))
    offsets_of = OffsetEmitter(
        numbers,
        lengths,
        [LoopOperand(name, tuple(each[axis] for axis in others), "s") for each in (to, given)],
        "",
    )
    split, offsets = offsets_of.statements("place", "a")
    side = 32 if size >= 4 else 64
    rows_at_once = THREADS // side
    down, right = -(-rows // side), -(-columns // side)
    counts = [numbers.add(each) for each in (rows, columns, given[last], to[across])]
    tiles, tiles_down = numbers.add(down * right), numbers.add(down)
    kind = STORED[name]
    at_target, at_source = (offsets[group] for group in offsets_of.group)
    signature = KernelSignature(
        {
            "n": numbers.parameter,
            "target": pointer(target, kind),
            "source": const_pointer(source, kind),
        }
    )
    text = f"""#include "vector_access.cuh"
#include "transpose.cuh"
{numbers.declaration}
extern "C" __global__ void transpose({signature.declaration}) {{
    const Index place = blockIdx.x / (Index){tiles};
    const Index tile = blockIdx.x - place * (Index){tiles};
    const Index column = tile / (Index){tiles_down}, row = tile - column * (Index){tiles_down};
    {lines(split, 4)}
    block_transposed<{side}, {rows_at_once}>(target + ({at_target}), source + ({at_source}),
        (Offset)row * {side}, (Offset)column * {side}, {", ".join(counts)});
}}
"""
    grid, block = prod(lengths) * down * right, (side, rows_at_once, 1)
    return KernelLaunch(text, "transpose", grid, block, signature)


def bind_copy(call: Call) -> Runner:
    """target = source."""
    return CudaRunner(copy_calls(call.outputs[0], call.inputs[0]))


TABLE.add(Kernel(COPY, "cuda", "copy", bind_copy))
