"""Fused loops on a GPU: one pass over the data, and horizontal fusion of small loops.

A fused body includes its reductions. A step of training updates a hundred parameters, each in a
launch that takes longer than its work; horizontal fusion runs loops of the same body in one
launch. A table among the kernel's parameters holds the arrays and the blocks of each loop.

Calls that are not loops keep their order. A loop is delayed until a call needs its results or
overwrites its operands; then all loops that could run with it do. Dependencies follow from the
memory that calls touch, independent of the plan's memory layout, and from other state that
kernels share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from caldera.core.graph import Body, Node
from caldera.core.memory.software import address_of
from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import (
    elementwise_outputs,
    fused_tasks,
    loop_body_of,
    loop_shape,
    reductions_by_axes,
)
from caldera.kernels.cuda.codegen import (
    HEADER,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    LaunchIntegers,
    Parameter,
    element_function,
    is_known,
    next_power_of_two,
)
from caldera.kernels.cuda.elementwise.loop import (
    THREADS,
    ElementwiseLoop,
    LoopRunner,
    LoopText,
    are_many,
    is_light,
    loop_runner,
)
from caldera.kernels.cuda.persistent.fusion import Array, span
from caldera.kernels.cuda.reduction.reduce import of_nothing, reduction_calls, workspace_of
from caldera.kernels.table import LAUNCH_GROUPERS, TABLE, Call, Kernel, Runner, StepPiece


def _bind(call: Call) -> Runner:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    if not size(shape):
        # A loop over an empty shape still has to write the results of its reductions.
        return CudaRunner(
            [
                launch
                for array, part in zip(call.outputs, body.outputs, strict=True)
                if part.op.kind == "reduction" and array.size
                for launch in of_nothing(part, array)
            ]
        )
    tasks = fused_tasks(call)
    if not tasks:
        return loop_runner(loop_body_of(call.node), shape, call.inputs, elementwise_outputs(call))
    return CudaRunner(launch for task in tasks for launch in reduction_calls(task, call.workspace))


def _workspace(node: Node) -> int:
    body: Body = node.attrs["body"]
    shape = loop_shape(node)
    busy = any(output.op.kind == "elementwise" for output in body.outputs)
    sizes = [
        workspace_of(shape, axes, [body.outputs[index].op.name for index in indices], busy=busy)
        for axes, indices in reductions_by_axes(body).items()
    ]
    # Loops run sequentially, so each loop may reuse the memory of the previous loop.
    return max(sizes, default=0)


TABLE.add(
    Kernel(
        "fused",
        "cuda",
        "loop",
        _bind,
        supports=is_known,
        workspace=_workspace,
        in_place=lambda node: all(
            output.op.kind == "elementwise" for output in node.attrs["body"].outputs
        ),
    )
)


MOST_ELEMENTS = 1 << 22
"""Number of elements of a loop beyond which a separate launch is as fast."""
_PARAMETERS = 4096 - 512
"""Bytes of a kernel's parameters that a table may take."""
_ROUND = 8
"""Tables have a multiple of this number of entries, so that few sources have to be compiled."""
_NOBODY = 0xFFFFFFFF


def kind_of(loop: ElementwiseLoop) -> Hashable | None:
    """Return a key shared by loops that fit in one launch; None if the loop cannot be grouped."""
    if not loop.is_flat or loop.total > MOST_ELEMENTS:
        return None
    return loop.loop_body, tuple(each.mode for each in loop.operands), loop.lanes


def most_together(loop: ElementwiseLoop) -> int:
    """Return the maximum number of loops of this kind in a launch."""
    fitting = _PARAMETERS // (8 * len(loop.arrays) + 8)
    return max(fitting // _ROUND * _ROUND, 1)


def launch_of_many(loops: Sequence[ElementwiseLoop]) -> KernelLaunch:
    """Return one launch for loops of the same kind that do not depend on each other."""
    first = loops[0]
    unroll = 2 if is_light(first.loop_body) and are_many(sum(loop.items for loop in loops)) else 1
    most = max(loop.items for loop in loops)
    threads = min(max(32, 1 << most.bit_length()), THREADS)
    blocks = [max(-(-loop.items // (threads * unroll)), 1) for loop in loops]
    entries = -(-len(loops) // _ROUND) * _ROUND
    numbers = LaunchIntegers(wide=False)
    text = LoopText(first, numbers, "")
    items = text.items()
    pointers = [each.kind for each in text.pointers.values()]
    passed = ", ".join(["n", *(f"({kind})t.at[own][{k}]" for k, kind in enumerate(pointers))])
    table = _table(loops, np.cumsum(blocks), entries)
    signature = KernelSignature({"n": numbers.parameter, "t": Parameter("const Table", table)})
    source = f"""#include "{HEADER}"
#include "vector_access.cuh"
{numbers.declaration}
{element_function(first.loop_body)}
{items}
struct Table {{
    u64 at[{entries}][{len(pointers)}];
    u32 total[{entries}], end[{next_power_of_two(entries)}];
}};
extern "C" __global__ void loops({signature.declaration}) {{
    u32 own = 0;
#pragma unroll
    for (u32 half = {next_power_of_two(entries) // 2}; half; half /= 2)
        if (blockIdx.x >= t.end[own + half - 1]) own += half;
    const u32 total = t.total[own], full = total / {first.lanes};
    const u32 block = blockIdx.x - (own ? t.end[own - 1] : 0);
    items<{first.lanes}, {unroll}>(block * (blockDim.x * {unroll}) + threadIdx.x, blockDim.x, full,
        {passed});
    if (block == 0)
        items<1, 1>(full * {first.lanes} + threadIdx.x, 0, total, {passed});
}}
"""
    arrays = [array for loop in loops for array in loop.arrays]
    return KernelLaunch(source, "loops", sum(blocks), threads, signature, kept=arrays)


def _table(loops: Sequence[ElementwiseLoop], ends: np.ndarray, entries: int) -> ctypes.Array[Any]:
    at = np.zeros((entries, len(loops[0].arrays)), np.uint64)
    total = np.zeros(entries, np.uint32)
    end = np.full(next_power_of_two(entries), _NOBODY, np.uint32)
    for k, loop in enumerate(loops):
        at[k] = [address_of(array) for array in loop.arrays]
        total[k] = loop.total
    end[: len(loops)] = ends
    stored = at.tobytes() + total.tobytes() + end.tobytes()
    return (ctypes.c_ulonglong * (len(stored) // 8)).from_buffer_copy(stored)


Touched = tuple[Sequence[Array], Sequence[Array]]
"""Arrays that a call reads, and arrays that it writes."""
_LAUNCH_SECONDS, _BANDWIDTH, _FLOPS = 2e-6, 2e12, 2e14
"""Minimum time of a call, and approximate memory bandwidth and FLOP/s of a GPU."""


def grouped(bound: Sequence[tuple[Call, Runner]]) -> list[StepPiece]:
    """Return the step pieces that run these calls."""
    calls = [call for call, _ in bound]
    kinds = [kind_of(each.loop) if isinstance(each, LoopRunner) else None for _, each in bound]
    needed = needed_before([_touched(call) for call in calls])
    _keep_apart(calls, needed)
    groups = in_groups(needed, kinds)
    place = {index: number for number, group in enumerate(groups) for index in group}
    return [
        StepPiece(
            _together([bound[index][1] for index in group]),
            frozenset(place[other] for index in group for other in needed[index]),
            _LAUNCH_SECONDS + sum(_seconds(calls[index]) for index in group),
        )
        for group in groups
    ]


def _touched(call: Call) -> Touched:
    spare = () if call.workspace is None else (call.workspace,)
    return call.inputs, (*call.outputs, *spare)


def _keep_apart(calls: Sequence[Call], needed: list[set[int]]) -> None:
    """Add dependencies between calls that share something."""
    last: dict[str, int] = {}
    for index, call in enumerate(calls):
        for what in call.shares:
            if what in last:
                needed[index].add(last[what])
            last[what] = index


def _seconds(call: Call) -> float:
    """Return the approximate time of a call."""
    spans = [span(array) for arrays in _touched(call) for array in arrays]
    nbytes = sum(last - first for first, last in spans)
    return nbytes / _BANDWIDTH + call.node.op.count_flops(call.node) / _FLOPS


def _together(runners: Sequence[Runner]) -> Runner:
    """Return a runner for a group, with the minimum number of launches."""
    if len(runners) == 1:
        (runner,) = runners
        if isinstance(runner, LoopRunner):
            # Starts the compiler: this loop is not merged with any other.
            runner.launch  # noqa: B018
        return runner
    loops = [each.loop for each in runners if isinstance(each, LoopRunner)]
    most = most_together(loops[0])
    # Split as evenly as possible: a launch for a single loop would not be worth a separate kernel.
    count = -(-len(loops) // most)
    return CudaRunner([launch_of_many(loops[part::count]) for part in range(count)])


def in_groups(needed: list[set[int]], kinds: Sequence[Hashable | None]) -> list[list[int]]:
    """Return the indices of calls, in groups that run sequentially.

    `needed` has for each call the earlier calls that have to be done first. Calls of kind None keep
    their order and are not grouped.
    """
    order = _Order(needed, kinds)
    for index, kind in enumerate(kinds):
        if kind is None:
            order.until(index)
    order.rest()
    return order.groups


def needed_before(touched: Sequence[Touched]) -> list[set[int]]:
    """Return, for each call, the earlier calls that have to be done first."""
    places = [
        (*span(array), owner, written)
        for owner, sides in enumerate(touched)
        for written, arrays in enumerate(sides)
        for array in arrays
    ]
    first, last, owner, written = np.array(places, np.int64).reshape(-1, 4).T
    starts = np.searchsorted(owner, range(len(touched) + 1))
    found = []
    for index in range(len(touched)):
        before = starts[index]
        meeting = np.zeros(before, bool)
        for place in range(before, starts[index + 1]):
            shared = (first[:before] < last[place]) & (last[:before] > first[place])
            meeting |= shared if written[place] else shared & (written[:before] == 1)
        found.append(set(owner[:before][meeting].tolist()))
    return found


class _Order:
    """Groups formed so far, and waiting calls."""

    def __init__(self, needed: list[set[int]], kinds: Sequence[Hashable | None]) -> None:
        self.groups: list[list[int]] = []
        self._kinds = kinds
        self._needed = [set(each) for each in needed]
        self._needing: list[list[int]] = [[] for _ in needed]
        for index, before in enumerate(needed):
            for other in before:
                self._needing[other].append(index)
        self._waiting: dict[Hashable, set[int]] = {}
        for index, kind in enumerate(kinds):
            if kind is not None:
                self._waiting.setdefault(kind, set()).add(index)

    def until(self, index: int) -> None:
        """Run all requirements of a call, then the call."""
        while self._needed[index]:
            self._run_kind(self._kinds[self._first_able(index)])
        self._run([index])

    def rest(self) -> None:
        """Run the remaining calls, on which no other call depends."""
        while self._waiting:
            # Those first of which none still waits for another.
            self._run_kind(min(self._waiting, key=self._to_wait_for))

    def _first_able(self, index: int) -> int:
        """Return the first call without requirements among the direct and indirect requirements of
        a call.
        """
        found: list[int] = []
        seen: set[int] = set()
        ahead = list(self._needed[index])
        while ahead:
            other = ahead.pop()
            if other not in seen:
                seen.add(other)
                ahead += self._needed[other]
                if not self._needed[other]:
                    found.append(other)
        return min(found)

    def _able(self, kind: Hashable) -> list[int]:
        return sorted(index for index in self._waiting[kind] if not self._needed[index])

    def _to_wait_for(self, kind: Hashable) -> tuple[bool, int]:
        able = len(self._able(kind))
        return able < len(self._waiting[kind]), -able

    def _run_kind(self, kind: Hashable) -> None:
        able = self._able(kind)
        self._waiting[kind].difference_update(able)
        if not self._waiting[kind]:
            del self._waiting[kind]
        self._run(able)

    def _run(self, group: list[int]) -> None:
        self.groups.append(group)
        for index in group:
            for other in self._needing[index]:
                self._needed[other].discard(index)


LAUNCH_GROUPERS["cuda"] = grouped
