"""Sorting on a GPU: short rows in shared memory, long ones in tiles that are merged two by two."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from caldera.core.graph.node import Node
from caldera.kernels.cuda.codegen import (
    Array,
    CudaRunner,
    KernelLaunch,
    Parameter,
    axes_of,
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

TILE = 2048
"""Items that a block sorts in shared memory: 32 KiB of the wide ones."""
THREADS = 512
_FEW = 256
"""Items of a tile that holds several short rows, at least: enough work for a block."""
_WIDE = ("float64", "int64", "uint64")
"""Dtypes whose keys take 64 bits."""


def item_bytes(dtype: str) -> int:
    """Return bytes of a key with its position."""
    return 16 if dtype in _WIDE else 8


def merge_runs(length: int) -> list[int]:
    """The lengths of the sorted runs that each pass of merging starts from.

    >>> merge_runs(2048), merge_runs(5000)
    ([], [2048, 4096])
    """
    runs = []
    run = TILE
    while run < length:
        runs.append(run)
        run *= 2
    return runs


def tiles_of(length: int) -> int:
    """Return tiles of a row."""
    return -(-length // TILE)


@unless_empty
def _bind(call: Call) -> Runner:
    (values, positions), (x,) = call.outputs, call.inputs
    axis, dtype = call.node.attrs["axis"], x.dtype.name
    length = x.shape[axis]
    rows = x.size // length
    arrays = _arrays(x, values, positions, axis)
    item = "WideItem" if dtype in _WIDE else "Item"
    deliver = (
        f"Deliver<{type_of(x)}, I>"
        "{x, values, positions, &rows, step, values_step, positions_step}"
    )
    width = min(1 << max(length - 1, 0).bit_length(), TILE)
    rows_in_tile = min(rows, max(_FEW // width, 1)) if length <= TILE else 1
    tiles = tiles_of(length)
    runs = merge_runs(length)
    size = item_bytes(dtype)
    first, second = _buffers(call, min(len(runs), 2), x.size * size)
    in_tile = rows_in_tile * width
    calls = [
        header_launch(
            "sort.cuh",
            "sort_tiles",
            -(-rows // rows_in_tile) * tiles,
            min(THREADS, max(in_tile // 2, 32)),
            {
                **arrays,
                "items": pointer(first, item),
                "row_count": u32(rows),
                "length": u32(length),
                "width": u32(width),
                "rows_in_tile": u32(rows_in_tile),
                "tiles_in_row": u32(tiles),
            },
            f"typedef {item} I;\n    DYNAMIC_SHARED(I, tile);\n"
            f"    Rows<{type_of(x)}, I, {flags(call.node.attrs['descending'])}> "
            "take{x, &rows, step};\n"
            "    block_sort_tile(tile, row_count, length, width, rows_in_tile, tiles_in_row, take, "
            f"{'Keep<I>{items, length}' if runs else deliver});",
            bounded=False,
            shared=in_tile * size,
        )
    ]
    for run in runs:
        moved = {**arrays, "from": const_pointer(first, item), "to": pointer(second, item)}
        target = deliver if run == runs[-1] else "Keep<I>{to, length}"
        calls.append(_merging(moved, rows, length, run, item, target))
        first, second = second, first
    return CudaRunner(calls)


def _merging(
    moved: Mapping[str, Parameter], rows: int, length: int, run: int, item: str, target: str
) -> KernelLaunch:
    """Return the launch that merges sorted runs of this length two by two."""
    tiles = tiles_of(length)
    return header_launch(
        "sort.cuh",
        "sort_merge",
        rows * tiles,
        THREADS,
        {
            **moved,
            "length": u32(length),
            "run": u32(run),
            "tile": u32(TILE),
            "tiles_in_row": u32(tiles),
        },
        f"typedef {item} I;\n    DYNAMIC_SHARED(I, items);\n"
        f"    block_merge_tile(items, from, length, run, tile, tiles_in_row, {target});",
        bounded=False,
        shared=TILE * (16 if item == "WideItem" else 8),
    )


def _arrays(x: Array, values: Array, positions: Array, axis: int) -> dict[str, Parameter]:
    """Return the parameters that define the positions of rows."""
    strides = [element_strides(array) for array in (x, values, positions)]
    axes = axes_of(x.shape, *strides)
    rows = merged(each for i, each in enumerate(axes) if i != axis)
    step, values_step, positions_step = (i64(each[axis]) for each in strides)
    return {
        "x": const_pointer(x),
        "values": pointer(values),
        "positions": pointer(positions),
        "rows": strided_axes(rows, 3),
        "step": step,
        "values_step": values_step,
        "positions_step": positions_step,
    }


def _buffers(call: Call, count: int, nbytes: int) -> tuple[Array, Array]:
    """Return the two buffers for items, which alternate between passes."""
    if count == 0:
        # A single tile holds all items: no buffers are required.
        return call.outputs[1], call.outputs[1]
    assert call.workspace is not None
    return call.workspace[:nbytes], call.workspace[(count - 1) * nbytes : count * nbytes]


def _workspace(node: Node) -> int:
    shape = node.inputs[0].shape
    length = shape[node.attrs["axis"]]
    buffers = min(len(merge_runs(length)), 2)
    return buffers * prod(shape) * item_bytes(node.inputs[0].dtype.name)


def _supports(node: Node) -> bool:
    shape = node.inputs[0].shape
    length = shape[node.attrs["axis"]]
    # Rows, positions and tiles are counted in 32 bits.
    return length < 2**31 and prod(shape) // max(length, 1) * max(tiles_of(length), 1) < 2**31


TABLE.add(Kernel("sort", "cuda", "merging", _bind, _supports, _workspace))
