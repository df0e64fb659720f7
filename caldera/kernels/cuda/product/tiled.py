"""Matrix products by custom kernels: tiles in shared memory, or a thread per result.

Very small matrices have a thread per result. All dtypes and layouts are supported.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from caldera.core.graph.node import Node, Spec
from caldera.core.memory.software import address_of
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    KernelTemplate,
    StridedAxis,
    blocks_for,
    computed_type,
    counter_type,
    element_strides,
    flags,
)
from caldera.kernels.cuda.product.problem import (
    MOST_BATCH_AXES,
    EpilogueCode,
    Multiplication,
    ProductTiling,
    ThreadTile,
    described_call,
    tiling,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

THREADS = 256
SMALL = 16
"""Rows, columns and length up to which every result is computed by a separate thread."""
WIDEST = 16
"""Maximum number of bytes that a thread reads per access."""


# --- what kernels are told


class StrideParameters(ctypes.Structure):
    """`StrideParameters` of the kernels: distances in elements."""

    _fields_ = [
        *[
            (name, ctypes.c_longlong)
            for name in (
                "left_row",
                "left_step",
                "right_column",
                "right_step",
                "out_row",
                "out_column",
            )
        ],
        ("rows", ctypes.c_int),
        ("columns", ctypes.c_int),
    ]


class BatchNumbers(ctypes.Structure):
    """`Batch` of tiled_product.cuh."""

    _fields_ = [
        (name, ctypes.c_longlong * MOST_BATCH_AXES) for name in ("size", "left", "right", "out")
    ]


class EpilogueArguments(ctypes.Structure):
    """Arguments of the epilogue; the creator keeps alive the arrays whose addresses it stores."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("bias", "start", "alpha", "beta")],
        *[(name, ctypes.c_longlong) for name in ("bias_step", "start_row", "start_column")],
    ]


def places_of(product: Multiplication) -> StrideParameters:
    """Return the strides of the matrices."""
    rows, columns, _ = product.extent
    left, right, out = (
        element_strides(each)[-2:] for each in (product.left, product.right, product.out)
    )
    return StrideParameters(
        left_row=left[0],
        left_step=left[1],
        right_column=right[1],
        right_step=right[0],
        out_row=out[0],
        out_column=out[1],
        rows=rows,
        columns=columns,
    )


def batch_numbers(axes: Sequence[StridedAxis]) -> BatchNumbers:
    """Return the batch axes, the last one first."""
    numbers: Any = BatchNumbers()
    numbers.size[:] = [1] * MOST_BATCH_AXES
    for index, axis in enumerate(reversed(axes)):
        numbers.size[index] = axis.length
        numbers.left[index], numbers.right[index], numbers.out[index] = axis.strides
    return numbers


def epilogue_arguments(product: Multiplication) -> EpilogueArguments:
    """Return the arguments of a product's epilogue."""
    given: Any = EpilogueArguments()
    if product.bias is not None:
        given.bias, given.bias_step = address_of(product.bias), element_strides(product.bias)[0]
    if product.accumulation is not None:
        found = product.accumulation
        given.start, given.alpha, given.beta = map(
            address_of, (found.start, found.alpha, found.beta)
        )
        given.start_row, given.start_column = element_strides(found.start)
    given.kept = product
    return given


# --- how operands are read


def _access(array: Array, axis: int, tile: ThreadTile) -> tuple[bool, int]:
    """Return the memory access for an operand.

    The first result is True if neighbours in memory are neighbours along `axis`, the axis of the
    sum. The second is the number of neighbours per access.
    """
    steps = element_strides(array)
    other = -3 - axis
    along = array.shape[axis] > 1 and (steps[axis] == 1 or abs(steps[axis]) <= abs(steps[other]))
    near = axis if along else other
    many = min(WIDEST // array.itemsize, tile.carried)
    borders = [
        step for i, step in enumerate(steps) if i != array.ndim + near and array.shape[i] > 1
    ]
    fits = (
        steps[near] == 1
        and array.shape[near] % many == 0
        and address_of(array) % (many * array.itemsize) == 0
        and all(step % many == 0 for step in borders)
    )
    return along, many if fits else 1


# --- the kernels' text

_PLACES = """
struct Places {
    i64 left_row, left_step, right_column, right_step, out_row, out_column;
    i32 rows, columns;
};
"""

_TILES = KernelTemplate(
    "product",
    {
        "out": "{result}*",
        "left": "const T*",
        "right": "const T*",
        "at": "Places",
        "scheduler": "TileScheduler",
        "batch": "Batch",
        "given": "EpilogueArguments",
    },
    """{{
    typedef {tile} Block;
    WorkTile mine = scheduler.of(blockIdx.x, Block::SIDE);
    i64 of_left, of_right, of_out;
    batch.locate(mine.product, of_left, of_right, of_out);
    Matrix<T> a = {{left + of_left, at.left_row, at.left_step, at.rows, mine.end}};
    Matrix<T> b = {{right + of_right, at.right_column, at.right_step, at.columns, mine.end}};
    S sums[Block::PER][Block::PER];
    block_product<Block, Access<{left}>, Access<{right}>>(a, b, mine.row, mine.column, mine.begin,
                                                    mine.end, sums);
    int down = threadIdx.x / Block::GRID, across = threadIdx.x % Block::GRID;
{place}
#pragma unroll
    for (int i = 0; i < Block::PER; i++) {{
        i32 row = mine.row + Block::line(down, i);
        if (row >= at.rows) continue;
#pragma unroll
        for (int j = 0; j < Block::PER; j++) {{
            i32 column = mine.column + Block::line(across, j);
            if (column < at.columns) {store}
        }}
    }}
}}
""",
)
_WHOLE = (
    "    T* goal = out + of_out;",
    "goal[row * at.out_row + column * at.out_column] = epilogue(sums[i][j], row, column, given);",
)
_PARTIAL = (
    "    i64 products = gridDim.x / ((u32)scheduler.across * scheduler.down * scheduler.splits);\n"
    "    S* goal = out + (mine.split * products + mine.product) * at.rows * at.columns;",
    "goal[(i64)row * at.columns + column] = sums[i][j];",
)

_EACH = KernelTemplate(
    "each",
    {
        "out": "T*",
        "left": "const T*",
        "right": "const T*",
        "at": "Places",
        "length": "i32",
        "batch": "Batch",
        "given": "EpilogueArguments",
        "count": "u32",
    },
    """{{
    u32 index = grid_index<u32>();
    if (index >= count) return;
    u32 column = index % (u32)at.columns, line = index / (u32)at.columns;
    u32 row = line % (u32)at.rows;
    i64 of_left, of_right, of_out;
    batch.locate((i32)(line / (u32)at.rows), of_left, of_right, of_out);
    const T* a = left + of_left + row * at.left_row;
    const T* b = right + of_right + column * at.right_column;
    S sum = (S)0;
    for (i32 k = 0; k < length; k++)
        sum += (S)wide(a[k * at.left_step]) * (S)wide(b[k * at.right_step]);
    out[of_out + row * at.out_row + column * at.out_column] = epilogue(sum, row, column, given);
}}
""",
)

_SPLIT_K_REDUCE = KernelTemplate(
    "split_k_reduce",
    {
        "out": "T*",
        "terms": "const {term}*",
        "at": "Places",
        "splits": "i32",
        "batch": "Batch",
        "given": "EpilogueArguments",
        "count": "i64",
    },
    """{{
    typedef {index} Index;
    for (Index i = grid_index<Index>(); i < (Index)count; i += grid_stride<Index>()) {{
        S sum = (S)wide(terms[i]);
        for (i32 split = 1; split < splits; split++) sum += (S)wide(terms[split * count + i]);
        Index line = i / (Index)at.columns, column = i - line * (Index)at.columns;
        Index product = line / (Index)at.rows, row = line - product * (Index)at.rows;
        i64 of_left, of_right, of_out;
        batch.locate((i32)product, of_left, of_right, of_out);
        out[of_out + row * at.out_row + column * at.out_column] = epilogue(sum, row, column, given);
    }}
}}
""",
)

_INCLUDE = '#include "tiled_product.cuh"\n'


@lru_cache(maxsize=1024)
def _tiles_text(
    epilogue: EpilogueCode,
    tile: ThreadTile,
    left: tuple[bool, int],
    right: tuple[bool, int],
    whole: bool,
) -> str:
    place, store = _WHOLE if whole else _PARTIAL
    kernel = _TILES.source(
        bounds=tile.bounds(computed_type(epilogue.dtype)),
        result="T" if whole else "S",
        tile=tile.text,
        left=_words(left),
        right=_words(right),
        place=place,
        store=store,
    )
    return (
        _INCLUDE + (epilogue if whole else EpilogueCode(epilogue.dtype)).text() + _PLACES + kernel
    )


def _words(access: tuple[bool, int]) -> str:
    return f"{flags(access[0])}, {access[1]}"


@lru_cache(maxsize=1024)
def _text(kernel: KernelTemplate, epilogue: EpilogueCode, **words: str) -> str:
    return _INCLUDE + epilogue.text() + _PLACES + kernel.source(**words)


# --- launches


def launches(product: Multiplication, workspace: Array = None) -> list[KernelLaunch]:
    """Return the launches of a product; the workspace limits the number of parts of its sums."""
    if product.out.size == 0:
        return []
    return [call for part in product.parts() for call in _launches(part, workspace)]


def _launches(product: Multiplication, workspace: Array) -> list[KernelLaunch]:
    if max(product.extent) <= SMALL and product.out.size < 2**31:
        return [_each(product)]
    cut = _tiling(product, workspace)
    epilogue = EpilogueCode.of(product)
    left, right = _access(product.left, -1, cut.tile), _access(product.right, -2, cut.tile)
    out = product.out
    if cut.splits > 1:
        sums = (cut.splits, product.out.size)
        out = Scratch(workspace).array(sums, compute_dtype(product.dtype))
    source = _tiles_text(epilogue, cut.tile, left, right, cut.splits == 1)
    signature = _TILES.bind(
        out=out,
        left=product.left,
        right=product.right,
        at=places_of(product),
        scheduler=cut.scheduler,
        batch=batch_numbers(product.batch),
        given=epilogue_arguments(product),
    )
    calls = [KernelLaunch(source, _TILES.name, cut.blocks, cut.tile.threads, signature)]
    return calls if cut.splits == 1 else [*calls, epilogue_launch(product, out)]


def epilogue_launch(product: Multiplication, terms: Array) -> KernelLaunch:
    """Return the launch that adds up the terms of a product and stores the epilogue's results.

    The terms have the shape (splits, results in a row), and the dtype of the sums or of the
    results.
    """
    count = product.out.size
    kind = computed_type(product.dtype.name) if terms.dtype != product.dtype else "T"
    epilogue, index = EpilogueCode.of(product), counter_type(count)
    source = _text(_SPLIT_K_REDUCE, epilogue, index=index, term=kind)
    blocks = blocks_for(count, THREADS)
    signature = _SPLIT_K_REDUCE.bind(
        out=product.out,
        terms=terms,
        at=places_of(product),
        splits=terms.shape[0],
        batch=batch_numbers(product.batch),
        given=epilogue_arguments(product),
        count=count,
    )
    return KernelLaunch(source, _SPLIT_K_REDUCE.name, blocks, THREADS, signature)


def _each(product: Multiplication) -> KernelLaunch:
    count = product.out.size
    signature = _EACH.bind(
        out=product.out,
        left=product.left,
        right=product.right,
        at=places_of(product),
        length=product.extent[2],
        batch=batch_numbers(product.batch),
        given=epilogue_arguments(product),
        count=count,
    )
    return KernelLaunch(
        _text(_EACH, EpilogueCode.of(product)), "each", -(-count // THREADS), THREADS, signature
    )


def _tiling(product: Multiplication, workspace: Array) -> ProductTiling:
    itemsize = compute_dtype(product.dtype).itemsize
    most = 0 if workspace is None else workspace.nbytes // max(1, product.out.size * itemsize)
    return tiling(*product.extent, product.count, itemsize, most)


def workspace(product: Multiplication) -> int:
    """Return the workspace for partial sums of split-K."""
    if product.out.size == 0 or max(product.extent) <= SMALL:
        return 0
    sums = compute_dtype(product.dtype)
    part = product.parts()[0]
    cut = tiling(*part.extent, part.count, sums.itemsize)
    return workspace_bytes(Spec((cut.splits, part.out.size), sums)) if cut.splits > 1 else 0


def _bind(call: Call) -> Runner:
    return CudaRunner(launches(Multiplication.of(call), call.workspace))


def _workspace(node: Node) -> int:
    return workspace(Multiplication.of(described_call(node)))


def accumulates_in_place(node: Node) -> bool:
    """Return a matrix that is also a factor must not change while the product is computed."""
    return node.inputs[0] not in node.inputs[1:3]


for _op in ("matmul", "matmul_epilogue"):
    TABLE.add(Kernel(_op, "cuda", "tiles", _bind, workspace=_workspace))
TABLE.add(
    Kernel(
        "matmul_accumulate",
        "cuda",
        "tiles",
        _bind,
        workspace=_workspace,
        in_place=accumulates_in_place,
    )
)
