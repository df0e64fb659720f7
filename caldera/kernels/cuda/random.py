"""Random numbers on a card: the bits of `caldera.tensor.philox`, a thread for each four words."""

from __future__ import annotations

import ctypes
from functools import cache, partial

from caldera.kernels.cuda.codegen.dtypes import STORED
from caldera.kernels.cuda.codegen.merged_axes import (
    axes_of,
    blocks_for,
    element_strides,
    merged,
    walk,
)
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_FEWEST_IN_BLOCK = 2
"""Numbers that four words give, at least."""


@cache
def _source(stored: str, distribution: str, dense: bool) -> str:
    return f"""#include "random.cuh"
extern "C" __global__ void draw(
    {stored}* out, const i64* state, i64 apart, const i64* offset, u32 stream, i64 count,
    Walk<1> places) {{
    draw_elements<{stored}, {distribution}<{stored}>, {str(dense).lower()}>(
        out, state, apart, offset, stream, (u64)count, places);
}}
"""


def _bind(distribution: str, call: Call) -> Runner:
    (out,), (state, offset) = call.outputs, call.inputs
    if out.size == 0:
        return CudaRunner([])
    places = merged(axes_of(out.shape, element_strides(out)))
    dense = not places or (len(places) == 1 and places[0].strides == (1,))
    source = _source(STORED[out.dtype.name], distribution, dense)
    # One block of words more than it takes: the first number may stand inside one.
    blocks = blocks_for(out.size // _FEWEST_IN_BLOCK + 1, _THREADS, driver().multiprocessors)
    return CudaRunner([Launch(
        source, "draw", blocks, _THREADS,
        [out, state, ctypes.c_longlong(element_strides(state)[0]), offset,
         ctypes.c_uint(call.node.attrs["stream"]), ctypes.c_longlong(out.size), walk(places, 1)],
    )])  # fmt: skip


TABLE.add(Kernel("random_uniform", "cuda", "philox", partial(_bind, "Uniform")))
TABLE.add(Kernel("random_normal", "cuda", "philox", partial(_bind, "Normal")))
