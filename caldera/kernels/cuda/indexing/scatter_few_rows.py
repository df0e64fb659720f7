"""Adding at computed positions where rows are few: one launch with a block for each row.

Every block reads all positions, so the kernel suits vocabularies of hundreds: the gradient of an
embedding of letters, or of positions in a text.
"""

from __future__ import annotations

from math import prod

from caldera.core.graph.node import Node
from caldera.kernels.common.binding import may_overwrite
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    StridedAxis,
    axes_of,
    const_pointer,
    element_strides,
    elements,
    function_launch,
    i64,
    merged,
    pointer,
    strided_axes,
    type_of,
    u32,
    unless_empty,
)
from caldera.kernels.cuda.indexing.scatter import (
    BYTES_PER_SECOND,
    LAUNCH_SECONDS,
    in_vectors,
    vector_of,
)
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_ACROSS = 16
"""Neighbouring threads along a row; the remaining threads of a block share the row's updates."""
_LOOKS_PER_SECOND = 5e11
"""Positions per second that all blocks together read."""


@unless_empty
def _bind(call: Call) -> Runner:
    (out,), (x, positions, updates) = call.outputs, call.inputs
    axis, new = call.node.attrs["axis"], positions.ndim
    to, given, old = (element_strides(each) for each in (out, updates, x))
    beside = (*given[:axis], 0, *given[axis + new :])
    every = axes_of(out.shape, to, beside, old)
    columns = merged(each for i, each in enumerate(every) if i != axis)
    added = merged(axes_of(positions.shape, given[axis : axis + new], element_strides(positions)))
    rows = [StridedAxis(out.shape[axis], (to[axis], old[axis]))]
    arrays = [(out, 0), (updates, 1), (x, 2)]
    vector = vector_of(out.itemsize, columns, arrays, most=_THREADS)
    distances = [*rows[0].strides, *(each.strides[0] for each in added)]
    while vector > 1 and any(n % vector for n in distances):
        vector //= 2
    columns = in_vectors(columns, vector)
    count = elements(columns)
    across = min(1 << (count - 1).bit_length(), _ACROSS)
    tiles = -(-count // across)
    kinds = f"{type_of(out)}, {type_of(positions)}, {vector}"
    return CudaRunner(
        [
            function_launch(
                "scatter_few_rows.cuh",
                "scatter_listed",
                out.shape[axis] * tiles,
                _THREADS,
                f"block_add_listed<{kinds}>",
                {
                    "out": pointer(out),
                    "x": const_pointer(x),
                    "updates": const_pointer(updates),
                    "positions": const_pointer(positions),
                    "rows": strided_axes(rows, 2),
                    "columns": strided_axes(columns, 3),
                    "added": strided_axes(added, 2),
                    "additions": u32(elements(added)),
                    "length": i64(out.shape[axis]),
                    "across": u32(across),
                    "tiles": u32(tiles),
                    "column_count": u32(count),
                },
            )
        ]
    )


def _sizes(node: Node) -> tuple[int, int]:
    """Return blocks, if no vectors can be read, and positions."""
    x, positions, _ = node.inputs
    length = x.shape[node.attrs["axis"]]
    return length * -(-(prod(x.shape) // max(length, 1)) // _ACROSS), prod(positions.shape)


def _supports(node: Node) -> bool:
    blocks, additions = _sizes(node)
    return blocks < 2**31 and additions < 2**31


def _seconds(node: Node) -> float:
    blocks, additions = _sizes(node)
    moved = 2 * node.spec.nbytes + node.inputs[2].spec.nbytes
    # Blocks are few where vectors can be read, which is the usual case.
    looks = blocks * node.dtype.itemsize / 16 * additions
    return 2 * LAUNCH_SECONDS + looks / _LOOKS_PER_SECOND + moved / BYTES_PER_SECOND


TABLE.add(
    Kernel(
        "scatter_add",
        "cuda",
        "listing",
        _bind,
        _supports,
        in_place=may_overwrite,
        estimate=_seconds,
        measured=False,
    )
)
