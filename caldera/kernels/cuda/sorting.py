"""Sorting on a card: short rows in shared memory, long ones in tiles that are merged two by two."""

from __future__ import annotations

import ctypes
from functools import cache
from math import prod

from caldera.graph.node import Node
from caldera.kernels.cuda.codegen.dtypes import STORED
from caldera.kernels.cuda.codegen.merged_axes import Array, axes_of, element_strides, merged, walk
from caldera.kernels.cuda.runtime.launch import Argument, CudaRunner, Launch
from caldera.kernels.table import TABLE, Call, Kernel, Runner

TILE = 2048
"""Items that a block sorts in shared memory: 32 KiB of the wide ones."""
THREADS = 512
_FEW = 256
"""Items of a tile that holds several short rows, at least: enough work for a block."""
_WIDE = ("float64", "int64")
"""Dtypes whose keys take 64 bits."""


def item_bytes(dtype: str) -> int:
    """Bytes of a key with its position."""
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
    """Tiles of a row."""
    return -(-length // TILE)


_ARRAYS = """const {stored}* x, {stored}* values, i64* positions, Walk<3> rows,
    i64 step, i64 values_step, i64 positions_step"""
_DELIVER = "Deliver<{stored}, I>{{x, values, positions, &rows, step, values_step, positions_step}}"


@cache
def _tiles_source(dtype: str, descending: bool, last: bool) -> str:
    stored, item = STORED[dtype], "WideItem" if dtype in _WIDE else "Item"
    give = _DELIVER.format(stored=stored) if last else "Keep<I>{items, length}"
    return f"""#include "sort.cuh"
typedef {item} I;
extern "C" __global__ void sort_tiles(
    {_ARRAYS.format(stored=stored)},
    I* items, u32 row_count, u32 length, u32 width, u32 rows_in_tile, u32 tiles_in_row) {{
    DYNAMIC_SHARED(I, tile);
    Rows<{stored}, I, {str(descending).lower()}> take{{x, &rows, step}};
    block_sort_tile(tile, row_count, length, width, rows_in_tile, tiles_in_row, take, {give});
}}
"""


@cache
def _merge_source(dtype: str, last: bool) -> str:
    stored, item = STORED[dtype], "WideItem" if dtype in _WIDE else "Item"
    give = _DELIVER.format(stored=stored) if last else "Keep<I>{to, length}"
    return f"""#include "sort.cuh"
typedef {item} I;
extern "C" __global__ void sort_merge(
    {_ARRAYS.format(stored=stored)},
    const I* from, I* to, u32 length, u32 run, u32 tile, u32 tiles_in_row) {{
    DYNAMIC_SHARED(I, items);
    block_merge_tile(items, from, length, run, tile, tiles_in_row, {give});
}}
"""


def _bind(call: Call) -> Runner:
    (values, positions), (x,) = call.outputs, call.inputs
    if x.size == 0:
        return CudaRunner([])
    axis, dtype = call.node.attrs["axis"], x.dtype.name
    length = x.shape[axis]
    rows = x.size // length
    arrays = _arrays(x, values, positions, axis)
    width = min(1 << max(length - 1, 0).bit_length(), TILE)
    rows_in_tile = min(rows, max(_FEW // width, 1)) if length <= TILE else 1
    tiles = tiles_of(length)
    runs = merge_runs(length)
    size = item_bytes(dtype)
    first, second = _buffers(call, min(len(runs), 2), x.size * size)
    numbers = [ctypes.c_uint(n) for n in (rows, length, width, rows_in_tile, tiles)]
    in_tile = rows_in_tile * width
    calls = [Launch(
        _tiles_source(dtype, call.node.attrs["descending"], not runs), "sort_tiles",
        -(-rows // rows_in_tile) * tiles, min(THREADS, max(in_tile // 2, 32)),
        [*arrays, first, *numbers], shared=in_tile * size,
    )]  # fmt: skip
    for turn, run in enumerate(runs):
        numbers = [ctypes.c_uint(n) for n in (length, run, TILE, tiles)]
        calls.append(Launch(
            _merge_source(dtype, turn == len(runs) - 1), "sort_merge", rows * tiles, THREADS,
            [*arrays, first, second, *numbers], shared=TILE * size,
        ))  # fmt: skip
        first, second = second, first
    return CudaRunner(calls)


def _arrays(x: Array, values: Array, positions: Array, axis: int) -> list[Argument]:
    """The arguments that say where rows lie."""
    strides = [element_strides(array) for array in (x, values, positions)]
    axes = axes_of(x.shape, *strides)
    rows = merged(each for i, each in enumerate(axes) if i != axis)
    steps = [ctypes.c_longlong(each[axis]) for each in strides]
    return [x, values, positions, walk(rows, 3), *steps]


def _buffers(call: Call, count: int, nbytes: int) -> tuple[Array, Array]:
    """Where items are kept between passes, which take turns."""
    if count == 0:
        # One tile holds all: nothing is kept anywhere.
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
