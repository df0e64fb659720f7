"""Many small loops that compute the same in one launch.

A step of training updates a hundred parameters, each in a launch that takes longer than its work.
Here a table among the kernel's parameters says where the arrays of each loop lie and which blocks
are its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from caldera.core.memory.device_array import address_of
from caldera.kernels.cuda.codegen.expression import HEADER, element_function
from caldera.kernels.cuda.codegen.loop_operands import Numbers
from caldera.kernels.cuda.codegen.signature import Parameter, Signature
from caldera.kernels.cuda.codegen.strided import next_power_of_two
from caldera.kernels.cuda.elementwise.loop import THREADS, Loop, LoopText, are_many, is_light
from caldera.kernels.cuda.runtime.launch import Launch

MOST_ELEMENTS = 1 << 22
"""Elements of a loop beyond which a launch of its own is as good."""
_PARAMETERS = 4096 - 512
"""Bytes of a kernel's parameters that a table may take."""
_ROUND = 8
"""Entries of a table are a multiple of this: few sources for all numbers of loops."""
_NOBODY = 0xFFFFFFFF


def kind_of(loop: Loop) -> Hashable | None:
    """What loops must have in common to be in one launch; None for one that cannot be."""
    if not loop.is_flat or loop.total > MOST_ELEMENTS:
        return None
    return loop.loop_body, tuple(each.mode for each in loop.operands), loop.lanes


def most_together(loop: Loop) -> int:
    """How many loops of this kind a launch takes."""
    fitting = _PARAMETERS // (8 * len(loop.arrays) + 8)
    return max(fitting // _ROUND * _ROUND, 1)


def launch_of_many(loops: Sequence[Loop]) -> Launch:
    """One launch for loops of one kind that do not depend on each other."""
    first = loops[0]
    unroll = 2 if is_light(first.loop_body) and are_many(sum(loop.items for loop in loops)) else 1
    most = max(loop.items for loop in loops)
    threads = min(max(32, 1 << most.bit_length()), THREADS)
    blocks = [max(-(-loop.items // (threads * unroll)), 1) for loop in loops]
    entries = -(-len(loops) // _ROUND) * _ROUND
    numbers = Numbers(wide=False)
    text = LoopText(first, numbers, "")
    items = text.items()
    pointers = [each.kind for each in text.pointers.values()]
    passed = ", ".join(["n", *(f"({kind})t.at[own][{k}]" for k, kind in enumerate(pointers))])
    table = _table(loops, np.cumsum(blocks), entries)
    signature = Signature({"n": numbers.parameter, "t": Parameter("const Table", table)})
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
    return Launch(source, "loops", sum(blocks), threads, signature, kept=arrays)


def _table(loops: Sequence[Loop], ends: np.ndarray, entries: int) -> ctypes.Array[Any]:
    at = np.zeros((entries, len(loops[0].arrays)), np.uint64)
    total = np.zeros(entries, np.uint32)
    end = np.full(next_power_of_two(entries), _NOBODY, np.uint32)
    for k, loop in enumerate(loops):
        at[k] = [address_of(array) for array in loop.arrays]
        total[k] = loop.total
    end[: len(loops)] = ends
    stored = at.tobytes() + total.tobytes() + end.tobytes()
    return (ctypes.c_ulonglong * (len(stored) // 8)).from_buffer_copy(stored)
