"""Random numbers on a GPU: the bits of `caldera.core.tensor.philox`, one thread per four words."""

from __future__ import annotations

from functools import partial

from caldera.kernels.cuda.codegen import (
    CudaRunner,
    axes_of,
    blocks_for,
    const_pointer,
    element_strides,
    flags,
    header_launch,
    i64,
    merged,
    pointer,
    strided_axes,
    type_of,
    u32,
    unless_empty,
)
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_FEWEST_IN_BLOCK = 2
"""Numbers that four words give, at least."""


@unless_empty
def _bind(distribution: str, call: Call) -> Runner:
    (out,), (state, offset) = call.outputs, call.inputs
    places = merged(axes_of(out.shape, element_strides(out)))
    dense = not places or (len(places) == 1 and places[0].strides == (1,))
    kind = type_of(out)
    # One block of words more than it takes: the first number may stand inside one.
    return CudaRunner(
        [
            header_launch(
                "random.cuh",
                "draw",
                blocks_for(out.size // _FEWEST_IN_BLOCK + 1, _THREADS),
                _THREADS,
                {
                    "out": pointer(out),
                    "state": const_pointer(state),
                    "apart": i64(element_strides(state)[0]),
                    "offset": const_pointer(offset),
                    "stream": u32(call.node.attrs["stream"]),
                    "count": i64(out.size),
                    "places": strided_axes(places, 1),
                },
                f"draw_elements<{kind}, {distribution}<{kind}>, {flags(dense)}>("
                "out, state, apart, offset, stream, (u64)count, places);",
                bounded=False,
            )
        ]
    )


TABLE.add(Kernel("random_uniform", "cuda", "philox", partial(_bind, "Uniform")))
TABLE.add(Kernel("random_normal", "cuda", "philox", partial(_bind, "Normal")))
