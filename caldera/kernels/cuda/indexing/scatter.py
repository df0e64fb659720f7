"""Adding at computed positions: `scatter_add` and `put_along_axis_add`, the same bits every run.

There are two methods here, and a third in scatter_few_rows.py:

- "scanning" assigns a thread to every element of the result, which scans all updates of its column:
one launch, good for few updates.
- "sorting" sorts the updates by row and sums them in chunks of equal length. A row that occurs
  thousands of times (the padding of a batch of texts) then takes no longer than thousands of
  different rows.

A run on a GPU cannot stop at an invalid position. Such an update is not added; instead the result
it would be added to becomes nan (integers stay unchanged).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isqrt, prod

from caldera.core.graph.node import Node
from caldera.core.memory.software import address_of
from caldera.kernels.common.binding import may_overwrite
from caldera.kernels.cuda.codegen import (
    Array,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    StridedAxis,
    axes_of,
    blocks_for,
    const_pointer,
    counted,
    counter_type,
    element_strides,
    elements,
    function_launch,
    header_launch,
    i64,
    merged,
    pointer,
    strided_axes,
    type_of,
    u32,
    unless_empty,
)
from caldera.kernels.cuda.movement import copy_calls
from caldera.kernels.cuda.sorting import THREADS as SORT_THREADS
from caldera.kernels.cuda.sorting import TILE, merge_runs, tiles_of
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_ITEM = 8
_VECTOR = 16
"""Maximum number of bytes that a thread reads or writes per access."""
_SCAN_SECONDS = 3e-13
"""Time to check an update for an element."""
LAUNCH_SECONDS = 2.5e-6
BYTES_PER_SECOND = 3e12


@dataclass(frozen=True)
class _Geometry:
    """Layout of the arrays of a call around the axis of the additions.

    `added`: the updates of a column, with strides in updates and positions. `columns`: axes whose
    elements are added in the same way, with strides in out and updates. `targets` and `rows`: the
    same for sorting, where rows are counted over all columns with separate positions.
    """

    out: Array
    x: Array
    updates: Array
    positions: Array
    length: int
    all_axes: list[StridedAxis]
    added: list[StridedAxis]
    targets: list[StridedAxis]
    rows: list[StridedAxis]
    columns: list[StridedAxis]


def _of_scatter_add(call: Call) -> _Geometry:
    (out,), (x, positions, updates) = call.outputs, call.inputs
    axis, new = call.node.attrs["axis"], positions.ndim
    to, given = element_strides(out), element_strides(updates)
    beside = (*given[:axis], 0, *given[axis + new :])
    every = axes_of(
        out.shape, to, element_strides(x), beside, (0,) * out.ndim, _unit(out.ndim, axis)
    )
    added = merged(axes_of(positions.shape, given[axis : axis + new], element_strides(positions)))
    others = [each for i, each in enumerate(axes_of(out.shape, to, beside)) if i != axis]
    return _Geometry(
        out,
        x,
        updates,
        positions,
        out.shape[axis],
        every,
        added,
        targets=added,
        rows=[StridedAxis(out.shape[axis], (to[axis],))],
        columns=merged(others),
    )


def _of_put_along(call: Call) -> _Geometry:
    (out,), (x, positions, updates) = call.outputs, call.inputs
    axis = call.node.attrs["axis"]
    to, given, seen = (element_strides(each) for each in (out, updates, positions))
    every = axes_of(
        out.shape,
        to,
        element_strides(x),
        without(given, axis),
        without(seen, axis),
        _unit(out.ndim, axis),
    )
    along = axes_of(positions.shape, given, seen)
    last = [*(i for i in range(out.ndim) if i != axis), axis]
    return _Geometry(
        out,
        x,
        updates,
        positions,
        out.shape[axis],
        every,
        merged([along[axis]]),
        targets=merged(along[i] for i in last),
        rows=merged(StridedAxis(out.shape[i], (to[i],)) for i in last),
        columns=[],
    )


def _unit(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(int(i == axis) for i in range(rank))


def without(strides: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the strides with 0 along one axis."""
    return tuple(0 if i == axis else step for i, step in enumerate(strides))


Geometry = Callable[[Call], _Geometry]


# --- few updates


@unless_empty
def _bind_scanning(geometry: Geometry, call: Call) -> Runner:
    shape = geometry(call)
    out = shape.out
    axes = merged(shape.all_axes)
    steps = axes[-1].strides if axes else (1, 0, 0, 0, 0)
    # Neighbours that one thread looks after must have the same positions.
    vector = vector_of(out.itemsize, axes, [(out, 0)], most=1 if steps[3] else 4)
    axes = in_vectors(axes, vector)
    count = elements(axes)
    index = counter_type(count)
    _, x_step, update_step, _, place_step = steps
    kinds = f"{type_of(out)}, {type_of(shape.positions)}, {vector}, {index}"
    return CudaRunner(
        [
            function_launch(
                "scatter.cuh",
                "scatter_few",
                blocks_for(count, _THREADS),
                _THREADS,
                f"scatter_scanning<{kinds}>",
                {
                    "out": pointer(out),
                    "x": const_pointer(shape.x),
                    "updates": const_pointer(shape.updates),
                    "positions": const_pointer(shape.positions),
                    "elements": strided_axes(axes, 5),
                    "x_step": i64(x_step),
                    "update_step": i64(update_step),
                    "place_step": i64(place_step),
                    "added": strided_axes(shape.added, 2),
                    "additions": u32(elements(shape.added)),
                    "length": i64(shape.length),
                    "count": counted(index, count),
                },
                bounded=False,
            )
        ]
    )


def vector_of(
    size: int, axes: list[StridedAxis], arrays: list[tuple[Array, int]], most: int
) -> int:
    """Return the number of elements along the last axis per access, for reading and writing.

    Arrays are given with their index among the strides.
    """
    if not axes or any(axes[-1].strides[i] != 1 for _, i in arrays):
        return 1
    vector = min(_VECTOR // size, most)
    while vector > 1:
        distances = [axis.strides[i] for axis in axes[:-1] for _, i in arrays]
        if all(n % vector == 0 for n in (axes[-1].length, *distances)) and all(
            address_of(array) % (vector * size) == 0 for array, _ in arrays
        ):
            break
        vector //= 2
    return vector


def in_vectors(axes: list[StridedAxis], vector: int) -> list[StridedAxis]:
    """Return the same axes, counted in vectors."""
    if vector == 1:
        return axes
    last = axes[-1]
    return [*axes[:-1], StridedAxis(last.length // vector, tuple(vector * n for n in last.strides))]


# --- many updates


def _sum_bytes(dtype: str) -> int:
    return 8 if dtype in ("float64", "int64", "uint64") else 4


def _chunk(additions: int) -> int:
    """Return the number of updates that a thread sums.

    There are enough chunks to fill the GPU, and few enough for a fast join even if all belong to
    the same row.
    """
    chunk = 32
    while chunk * 4 < isqrt(additions) and chunk < 1024:
        chunk *= 2
    return chunk


@unless_empty
def _bind_sorting(geometry: Geometry, call: Call) -> Runner:
    shape = geometry(call)
    out, additions = shape.out, elements(shape.targets)
    in_place = address_of(out) == address_of(shape.x) and out.strides == shape.x.strides
    start = [] if in_place else copy_calls(out, shape.x)
    if additions == 0:
        return CudaRunner(start)
    items, calls = _sorted(shape, call.workspace, additions)
    return CudaRunner([*start, *calls, *_sums(shape, call.workspace, items, additions)])


def _sorted(shape: _Geometry, workspace: Array, additions: int) -> tuple[Array, list[KernelLaunch]]:
    """Return the sorted items, and the launches that sort them."""
    nbytes = _item_bytes(additions)
    items, other = workspace[: additions * _ITEM], workspace[nbytes : nbytes + additions * _ITEM]
    width = min(1 << max(additions - 1, 1).bit_length(), TILE)
    tiles = tiles_of(additions)
    calls = [
        header_launch(
            "scatter.cuh",
            "scatter_targets",
            tiles,
            min(SORT_THREADS, max(width // 2, 32)),
            {
                "positions": const_pointer(shape.positions),
                "added": strided_axes(shape.targets, 2),
                "in_column": u32(elements(shape.added)),
                "length": i64(shape.length),
                "items": pointer(items, "Item"),
                "additions": u32(additions),
                "width": u32(width),
                "tiles": u32(tiles),
            },
            "DYNAMIC_SHARED(Item, tile);\n"
            f"    Targets<{type_of(shape.positions)}> take"
            "{positions, &added, in_column, length};\n"
            "    block_sort_tile(tile, 1u, additions, width, 1u, tiles, take, "
            "Keep<Item>{items, additions});",
            bounded=False,
            shared=width * _ITEM,
        )
    ]
    for run in merge_runs(additions):
        calls.append(
            header_launch(
                "sort.cuh",
                "scatter_merge",
                tiles,
                SORT_THREADS,
                {
                    "from": const_pointer(items, "Item"),
                    "to": pointer(other, "Item"),
                    "additions": u32(additions),
                    "run": u32(run),
                    "tile": u32(TILE),
                    "tiles": u32(tiles),
                },
                "DYNAMIC_SHARED(Item, items);\n    block_merge_tile("
                "items, from, additions, run, tile, tiles, Keep<Item>{to, additions});",
                bounded=False,
                shared=TILE * _ITEM,
            )
        )
        items, other = other, items
    return items, calls


def _sums(shape: _Geometry, workspace: Array, items: Array, additions: int) -> list[KernelLaunch]:
    out, dtype = shape.out, shape.out.dtype.name
    vector = _shared_vector(shape)
    columns = in_vectors(shape.columns, vector)
    column_count = elements(columns)
    chunk = _chunk(additions)
    chunks = -(-additions // chunk)
    partial_bytes = chunks * column_count * vector * _sum_bytes(dtype)
    begin = 2 * _item_bytes(additions)
    heads = workspace[begin : begin + partial_bytes]
    tails = workspace[begin + partial_bytes : begin + 2 * partial_bytes]
    count = chunks * column_count
    index = counter_type(count)
    sums = f"Scatter<{type_of(out)}, {vector}>"
    signature = KernelSignature(
        {
            "out": pointer(out),
            "updates": const_pointer(shape.updates),
            "items": const_pointer(items, "Item"),
            "heads": pointer(heads, f"{sums}::Sums"),
            "tails": pointer(tails, f"{sums}::Sums"),
            "rows": strided_axes(shape.rows, 1),
            "columns": strided_axes(columns, 2),
            "added": strided_axes(shape.targets, 2),
            "additions": u32(additions),
            "chunk": u32(chunk),
            "column_count": u32(column_count),
            "count": counted(index, count),
        }
    )
    names = ["sum_chunk", "join_chunks"] if chunks > 1 else ["sum_chunk"]
    # A separate thread for every part: most threads of the second launch have no work.
    blocks = min(-(-count // _THREADS), 2**30)
    return [
        header_launch(
            "scatter.cuh",
            name,
            blocks,
            _THREADS,
            signature,
            f"{sums} scatter{{out, updates, items, heads, tails, &rows, &columns, &added, "
            "additions, chunk, column_count};\n"
            f"    for ({index} i = grid_index<{index}>(); i < count; i += grid_stride<{index}>())\n"
            f"        scatter.{name}((u32)(i / column_count), (u32)(i % column_count));",
            bounded=False,
        )
        for name in names
    ]


def _shared_vector(shape: _Geometry) -> int:
    """Return the number of columns that a thread sums: rows and updates must be aligned for
    vectors.
    """
    size = shape.out.itemsize
    vector = vector_of(size, shape.columns, [(shape.out, 0), (shape.updates, 1)], most=_VECTOR)
    distances = [n for axis in shape.rows for n in axis.strides]
    distances += [axis.strides[0] for axis in shape.targets]
    while vector > 1 and any(n % vector for n in distances):
        vector //= 2
    return vector


def _item_bytes(additions: int) -> int:
    """Return the bytes of a buffer of items, rounded up to a multiple of 16."""
    return -(-additions * _ITEM // _VECTOR) * _VECTOR


# --- what is supported, and what it takes


def _sizes(node: Node) -> tuple[int, int, int, int]:
    """Return the numbers of distinct rows, sorted updates, columns of each, and updates of a
    column.
    """
    x, positions, updates = node.inputs
    length = x.shape[node.attrs["axis"]]
    if node.op.name == "scatter_add":
        count = prod(positions.shape)
        return length, count, prod(x.shape) // max(length, 1), count
    return prod(x.shape), prod(updates.shape), 1, positions.shape[node.attrs["axis"]]


def _can_sort(node: Node) -> bool:
    rows, additions, columns, _ = _sizes(node)
    return rows < 2**32 - 1 and additions < 2**31 and columns < 2**31


def _sorting_bytes(node: Node) -> int:
    _, additions, columns, _ = _sizes(node)
    chunks = -(-additions // _chunk(additions))
    partial_bytes = chunks * columns * _sum_bytes(node.dtype.name)
    return 2 * _item_bytes(additions) + 2 * partial_bytes


def _scanning_seconds(node: Node) -> float:
    looks = node.spec.size * (_sizes(node)[3] + 1)
    return LAUNCH_SECONDS + looks * _SCAN_SECONDS + 2 * node.spec.nbytes / BYTES_PER_SECOND


def _sorting_seconds(node: Node) -> float:
    _, additions, columns, _ = _sizes(node)
    passes = len(merge_runs(additions))
    moved = 2 * node.spec.nbytes + 3 * additions * columns * node.dtype.itemsize
    moved += 2 * (passes + 1) * additions * _ITEM
    return LAUNCH_SECONDS * (4 + passes) + moved / BYTES_PER_SECOND


for _op, _geometry in (("scatter_add", _of_scatter_add), ("put_along_axis_add", _of_put_along)):
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "scanning",
            partial(_bind_scanning, _geometry),
            lambda node: _sizes(node)[3] < 2**32,
            in_place=may_overwrite,
            estimate=_scanning_seconds,
            measured=False,
        )
    )
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "sorting",
            partial(_bind_sorting, _geometry),
            _can_sort,
            _sorting_bytes,
            in_place=may_overwrite,
            estimate=_sorting_seconds,
            measured=False,
        )
    )
