"""Relu that stores a bit mask of its positive elements, and its gradient; see
include/relu_mask.cuh.
"""

from __future__ import annotations

import ctypes

from caldera.core.graph.node import Node, Spec
from caldera.core.memory.software import address_of
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    Parameter,
    blocks_for,
    const_pointer,
    element_strides,
    flags,
    function_launch,
    i32,
    i64,
    index,
    null_pointer,
    pointer,
    type_of,
    unless_empty,
)
from caldera.kernels.cuda.normalisation.statistics import TOTALS_BLOCK
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

HEADER = "relu_mask.cuh"
THREADS = 256
BLOCK = (32, 8, 1)
"""Threads of a block of a gradient: bytes of a row, and rows."""
ENOUGH_BLOCKS = 1 << 10
"""Number of blocks of a gradient that keep a GPU busy.

It is a constant, so that the chunks depend only on the shape.
"""
FEWEST_ROWS = 32
"""Rows of a chunk, of which a block adds up the columns."""


class MatrixSteps(ctypes.Structure):
    """`MatrixSteps` of relu_mask.cuh."""

    _fields_ = [("row", ctypes.c_longlong), ("column", ctypes.c_longlong)]


def _steps(array: Array) -> Parameter:
    row, column = element_strides(array)
    return Parameter("MatrixSteps", MatrixSteps(row=row, column=column))


def _is_whole(*matrices: Array) -> bool:
    """Return True if every 8 neighbours are contiguous, at addresses aligned for vector access."""
    for array in matrices:
        row, column = element_strides(array)
        nbytes = min(8 * array.itemsize, 16)
        fits = row * array.itemsize % nbytes == 0 and address_of(array) % nbytes == 0
        if column != 1 or array.shape[1] % 8 or not fits:
            return False
    return True


@unless_empty
def _bind(call: Call) -> Runner:
    (x,), (y, mask) = call.inputs, call.outputs
    return CudaRunner(
        [
            function_launch(
                HEADER,
                "relu_mask",
                blocks_for(mask.size, THREADS),
                THREADS,
                f"relu_bits<{flags(_is_whole(x, y))}>",
                {
                    "x": const_pointer(x),
                    "y": pointer(y),
                    "mask": pointer(mask),
                    "of_x": _steps(x),
                    "of_y": _steps(y),
                    "of_mask": _steps(mask),
                    "total": index(mask.size, mask.size >= 2**31),
                    "columns": i32(x.shape[1]),
                    "bytes": i32(mask.shape[1]),
                },
            )
        ]
    )


def _chunks(rows: int, columns: int) -> tuple[int, int]:
    """Return the number of rows of a chunk, and the number of chunks."""
    across = max(1, -(-columns // (8 * BLOCK[0])))
    wanted = max(1, ENOUGH_BLOCKS // across)
    chunk = max(FEWEST_ROWS, -(-rows // wanted))
    return chunk, -(-rows // chunk)


def _partial(node: Node) -> Spec:
    """Return the sums of the columns of each chunk."""
    rows, columns = node.inputs[0].shape
    dtype = compute_dtype(node.outputs[0].dtype)
    return Spec((_chunks(rows, columns)[1] if node.attrs["summed"] else 0, columns), dtype)


def _bind_gradient(call: Call) -> Runner:
    (g, mask), (out, *sums) = call.inputs, call.outputs
    (rows, columns), spec = g.shape, _partial(call.node)
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    calls = []
    chunk, chunks = _chunks(rows, columns)
    if g.size:
        kind = type_of(partial)
        grid = (-(-columns // (8 * BLOCK[0])), chunks, 1)
        calls.append(
            function_launch(
                HEADER,
                "masked",
                grid,
                BLOCK,
                f"block_masked<{flags(_is_whole(g, out), bool(sums))}>",
                {
                    "g": const_pointer(g),
                    "mask": const_pointer(mask),
                    "out": pointer(out),
                    "of_g": _steps(g),
                    "of_mask": _steps(mask),
                    "of_out": _steps(out),
                    "rows": i64(rows),
                    "columns": i32(columns),
                    "chunk": i64(chunk),
                    "partial": pointer(partial) if sums else null_pointer(kind),
                },
            )
        )
    if sums and columns:
        (total,) = sums
        calls.append(
            function_launch(
                HEADER,
                "column_sums",
                -(-columns // TOTALS_BLOCK[0]),
                TOTALS_BLOCK,
                "block_column_sums",
                {
                    "partial": const_pointer(partial),
                    "parts": i32(chunks if g.size else 0),
                    "columns": i32(columns),
                    "sums": pointer(total),
                    "step": i64(*element_strides(total)),
                },
            )
        )
    return CudaRunner(calls)


TABLE.add(Kernel("relu_mask", "cuda", "bits", _bind, in_place=lambda node: True))
TABLE.add(
    Kernel(
        "relu_mask_grad",
        "cuda",
        "bits",
        _bind_gradient,
        workspace=lambda node: workspace_bytes(_partial(node)),
        in_place=lambda node: True,
    )
)
