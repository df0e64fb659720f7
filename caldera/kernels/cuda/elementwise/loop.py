"""Element-wise loops on a GPU: one pass over operands of any layout and dtype.

A thread processes items: 16 bytes of neighbours if all operands have that alignment, else single
elements. All inputs of an item are read before its outputs are written, so an output may replace an
input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.core.graph.opdef import OPS
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.loops import LoopBody, axes_of, loop_body_of, loop_shape
from caldera.kernels.cuda.codegen import (
    HEADER,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    LaunchIntegers,
    LoopOperand,
    OffsetEmitter,
    can_apply,
    computed_type,
    const_pointer,
    element_function,
    is_known,
    is_wide,
    lanes_for,
    lines,
    operand,
    pointer,
)
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Kernel, Runner

THREADS = 256
FULL = 2048
"""Threads that a multiprocessor holds: beyond that a thread takes more than one item."""
MOST_WORK = 24
"""Instructions, roughly, beyond which a thread takes one item at a time: registers are few."""
HEAVY_WORK = 8
"""Weight of an op that consists of many instructions."""


@dataclass(frozen=True)
class ElementwiseLoop:
    """Loop over at least one element: its computation and the layout of its operands.

    `lengths` are the lengths of the axes, the innermost in items of `lanes` elements; `total` is
    the number of elements. An operand that is counted has no array.
    """

    loop_body: LoopBody
    operands: Sequence[LoopOperand]
    arrays: Sequence[np.ndarray]
    lengths: tuple[int, ...]
    lanes: int
    total: int
    wide: bool

    @property
    def items(self) -> int:
        """Number of whole items."""
        return self.total // self.lanes

    @property
    def is_flat(self) -> bool:
        """True if all operands are contiguous, except for single numbers shared by all elements."""
        modes = {each.mode for each in self.operands}
        return not self.wide and len(self.lengths) == 1 and modes <= {"0", "1"}


def loop_over(
    loop_body: LoopBody,
    shape: Shape,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    counted: bool = False,
) -> ElementwiseLoop:
    """Return the loop of a loop body without reductions.

    With `counted`, the first input (of int64) is not read: its elements are what its strides add
    up to, in elements.
    """
    total = size(shape)
    axes = axes_of(shape, [*outputs, *inputs])
    # Outputs come first when the order of axes is chosen, inputs in the kernel.
    count = len(outputs)
    arrays = [*inputs, *outputs]
    strides = [*axes.strides[count:], *axes.strides[:count]]
    inner = axes.lengths[-1]
    operands = [operand(*each, inner) for each in zip(arrays, strides, strict=True)]
    if counted:
        steps = tuple(stride // inputs[0].itemsize for stride in strides[0])
        operands[0] = LoopOperand("int64", steps, "#")
    lanes = lanes_for(arrays, operands, inner, exact=len(axes.lengths) > 1)
    lengths = (*axes.lengths[:-1], max(inner // lanes, 1))
    wide = is_wide(total, operands, axes.lengths)
    return ElementwiseLoop(
        loop_body, operands, arrays[1:] if counted else arrays, lengths, lanes, total, wide
    )


def loop_calls(
    loop_body: LoopBody,
    shape: Shape,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> list[KernelLaunch]:
    """Return the launches that compute a loop body without reductions."""
    if not size(shape) or not outputs:
        return []
    return [launch_of([loop_over(loop_body, shape, inputs, outputs)])]


class LoopRunner:
    """One loop. It is compiled when it first runs: a plan may have put it with others by then."""

    def __init__(self, loop: ElementwiseLoop) -> None:
        self.loop = loop

    @cached_property
    def launch(self) -> KernelLaunch:
        """Launch of this loop as a separate kernel; reading the property starts the compiler."""
        return launch_of([self.loop])

    def __call__(self) -> None:
        self.launch()


def loop_runner(
    loop_body: LoopBody,
    shape: Shape,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> Runner:
    """Return a runner that computes a loop body without reductions."""
    if not size(shape) or not outputs:
        return CudaRunner([])
    return LoopRunner(loop_over(loop_body, shape, inputs, outputs))


def launch_of(loops: Sequence[ElementwiseLoop]) -> KernelLaunch:
    """Return one launch for loops with the same body that do not depend on each other."""
    numbers = LaunchIntegers(any(loop.wide for loop in loops))
    unroll = _unroll(loops)
    threads = _threads(max(-(-loop.items // unroll) for loop in loops))
    blocks = [max(-(-loop.items // (threads * unroll)), 1) for loop in loops]
    texts = [LoopText(loop, numbers, f"{k}_" if k else "") for k, loop in enumerate(loops)]
    functions = [text.items() for text in texts]
    calls = [text.call(unroll) for text in texts]
    # Blocks are dealt out to the loops in order.
    for k, count in enumerate(blocks[:-1]):
        calls[k] = f"if (block < (Index){numbers.add(count)}) {{ {calls[k]} return; }}"
        calls[k] += f"\n    block -= (Index){numbers.add(count)};"
    signature = KernelSignature({"n": numbers.parameter})
    for text in texts:
        signature |= text.pointers
    source = f"""#include "{HEADER}"
#include "vector_access.cuh"
{numbers.declaration}
{element_function(loops[0].loop_body)}
{lines(functions, 0)}
extern "C" __global__ void loop({signature.declaration}) {{
    Index block = blockIdx.x;
    {lines(calls, 4)}
}}
"""
    return KernelLaunch(source, "loop", sum(blocks), threads, signature)


def _unroll(loops: Sequence[ElementwiseLoop]) -> int:
    """Return the number of items of a thread: several if they are small and numerous."""
    if not is_light(loops[0].loop_body):
        return 1
    if not are_many(min(loop.items for loop in loops)):
        return 1
    return 4 if any(loop.lanes == 1 for loop in loops) else 2


def are_many(items: int) -> bool:
    """Return True if all threads of the GPU are busy even if each processes several items."""
    return items >= 2 * FULL * driver().multiprocessors


def is_light(loop_body: LoopBody) -> bool:
    """Return True if a thread can work on several items at a time."""
    return len(loop_body.steps) + HEAVY_WORK * loop_body.heavy <= MOST_WORK


def _threads(items: int) -> int:
    """Threads of a block: few if there is so little to do that all multiprocessors should share."""
    each = items // driver().multiprocessors
    return min(max(32, 1 << each.bit_length()), THREADS)


@dataclass(frozen=True)
class LoopText:
    """A loop in CUDA. Names start with a prefix, so that several loops can be in one kernel."""

    loop: ElementwiseLoop
    numbers: LaunchIntegers
    prefix: str

    @property
    def pointers(self) -> KernelSignature:
        """The operands that are arrays, by their names in the text."""
        inputs = len(self.loop.loop_body.inputs)
        read = [k for k, each in enumerate(self.loop.operands) if each.mode != "#"]
        return KernelSignature(
            {
                f"p{self.prefix}{k}": const_pointer(array) if k < inputs else pointer(array)
                for k, array in zip(read, self.loop.arrays, strict=True)
            }
        )

    def call(self, unroll: int) -> str:
        """Return the statements of block number `block`."""
        loop, name = self.loop, f"items{self.prefix}"
        full, total = map(self.numbers.add, (loop.items, loop.total))
        passed = f"n, {self.pointers.names}"
        text = (
            f"{name}<{loop.lanes}, {unroll}>(block * (blockDim.x * {unroll}) + threadIdx.x,"
            f" blockDim.x, (Index){full}, {passed});"
        )
        if len(loop.lengths) == 1 and loop.lanes > 1:
            # Remainder of an axis whose length is not a multiple of the lanes.
            text += (
                f"\n    if (block == 0) {name}<1, 1>((Index){full} * {loop.lanes} + threadIdx.x,"
                f" 0, (Index){total}, {passed});"
            )
        return text

    def items(self) -> str:
        """Return the function that processes U items of V elements, starting at `first` with stride
        `step`.
        """
        operands, p = self.loop.operands, f"p{self.prefix}"
        count = len(self.loop.loop_body.inputs)
        offsets_of = OffsetEmitter(self.numbers, self.loop.lengths, operands, "V")
        steps = [self.numbers.add(each.strides[-1]) for each in operands]
        split, offsets = offsets_of.statements("item", "a")
        read = list(enumerate(operands[:count]))
        written = list(enumerate(operands[count:]))
        kept = [f"Pack<{each.stored}, V> x{k}[U];" for k, each in read]
        kept += [f"Offset at{k}[U];" for k in range(len(offsets))]
        reading = [*split, *(f"at{k}[u] = {each};" for k, each in enumerate(offsets))]
        reading += [
            f"x{k}[u] = {each.load(f'{p}{k}', f'at{offsets_of.group[k]}[u]', steps[k])};"
            for k, each in read
        ]
        values = [f"wide(x{k}[u].v[k])" for k, _ in read] + [f"o{k}" for k, _ in written]
        computing = [f"{computed_type(each.dtype)} o{k};" for k, each in written]
        computing.append(f"element({', '.join(values)});")
        computing += [f"y{k}.v[k] = Stored<{each.stored}>::from(o{k});" for k, each in written]
        writing = [
            each.store(
                f"{p}{count + k}", f"at{offsets_of.group[count + k]}[u]", f"y{k}", steps[count + k]
            )
            for k, each in written
        ]
        results = [f"Pack<{each.stored}, V> y{k};" for k, each in written]
        parameters = self.pointers.declaration
        return f"""template <int V, int U> __device__ __forceinline__ void items{self.prefix}(
    Index first, Index step, Index count, const Numbers& n, {parameters}) {{
    {lines(kept, 4)}
#pragma unroll
    for (int u = 0; u < U; u++) {{
        const Index item = first + u * step;
        if (item < count) {{
            {lines(reading, 12)}
        }}
    }}
#pragma unroll
    for (int u = 0; u < U; u++) {{
        if (first + u * step < count) {{
            {lines(results, 12)}
#pragma unroll
            for (int k = 0; k < V; k++) {{
                {lines(computing, 16)}
            }}
            {lines(writing, 12)}
        }}
    }}
}}"""


for _op in OPS.values():
    if _op.kind == "elementwise" and _op.decompose is None and can_apply(_op.name, "float32"):
        TABLE.add(
            Kernel(
                _op.name,
                "cuda",
                "loop",
                lambda call: loop_runner(
                    loop_body_of(call.node), loop_shape(call.node), call.inputs, call.outputs
                ),
                supports=is_known,
                in_place=lambda node: True,
            )
        )
