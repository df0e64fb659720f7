"""Small matrix products by a kernel of our own: no rearranging of operands, no call of a library.

A tile of the result is kept in registers while the sum runs. The size of the tile follows that of
the result; a batch of many small products is one loop.
"""

from __future__ import annotations

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import Scratch
from caldera.kernels.common.product import Epilogue, ProductArrays, offsets_of, steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Pointer,
    computed_type,
    host_target,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.product.gemm import epilogue_of
from caldera.kernels.native.product.microkernel import PackedMatrix, add_products, most_vectors
from caldera.kernels.native.product.problem import (
    apply_epilogue,
    copied,
    copy_workspace,
    dense,
    extent_of,
    parts_for,
)
from caldera.kernels.table import Array, Call, Runner

MOST_WORK = 1 << 22
"""Operations of one product from which on rearranging the operands is sure to pay."""
_HEIGHTS = (8, 6, 4, 2, 1)


def tile_for(rows: int, columns: int, dtype: str) -> tuple[int, int, int]:
    """Lanes of a vector, vectors and rows of the tile for a result of this size."""
    widest = natural_lanes(computed_type(dtype))
    lanes = 1 << (min(widest, columns).bit_length() - 1)
    needed = -(-columns // lanes)
    vectors = -(-needed // -(-needed // most_vectors()))
    # One register for the element of the left matrix, and one to spare.
    most_rows = (host_target().registers - 2 - vectors) // vectors
    heights = [height for height in _HEIGHTS if height <= most_rows]
    return lanes, vectors, min(heights, key=lambda height: (-(-rows // height) * height, -height))


@native_kernel
def _multiply(
    k: Emitter,
    table: Pointer,
    a: Pointer,
    b: Pointer,
    c: ElementPointer,
    a_down: Integer,
    a_right: Integer,
    b_down: Integer,
    c_down: Integer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    length: Integer,
    bias: Pointer | None,
    epilogue: Epilogue,
    lanes: int,
    vectors: int,
    height: int,
) -> None:
    """Each row of the table is one product: where its matrices begin."""
    kind = computed_type(c.name)
    width = lanes * vectors
    across, down = (columns + (width - 1)) // width, (rows + (height - 1)) // height
    begin, end = k.part_range(count * across * down)
    with k.loop(begin, end) as task:
        product = table.at(task // (across * down) * 3)
        # All rows of one column of tiles, then the next: what they share stays in cache.
        top, left = task % down * height, task // down % across * width
        lines = [k.minimum(top + i, rows - 1) for i in range(height)]
        places = [k.minimum(left + j * lanes, columns - lanes) for j in range(vectors)]
        sums = [
            [k.variable(0.0, vector(kind, lanes)) for _ in range(vectors)] for _ in range(height)
        ]
        left_matrix = PackedMatrix(a.at(product.load(0)), a_down, a_right)
        right_matrix = PackedMatrix(b.at(product.load(1)), b_down)
        add_products(k, sums, left_matrix, lines, right_matrix, places, length, c.name)
        for line, row in zip(lines, sums, strict=True):
            goal = c.at(product.load(2) + line * c_down)
            for place, total in zip(places, row, strict=True):
                goal.store(place, apply_epilogue(k, epilogue, bias, total.value, place))


def _with_dense_rows(array: Array, scratch: Scratch) -> tuple[Array, list[NativeCall]]:
    if steps(array)[1] == 1 or array.shape[-1] == 1:
        return array, []
    copy = dense(array.shape, array.dtype, scratch)
    return copy, copied(array, copy)


def _bind(call: Call) -> Runner:
    if call.outputs[0].size == 0:
        return NativeRunner([])
    product = ProductArrays.of(call, *call.inputs[:2])
    scratch = Scratch(call.workspace)
    right, calls = _with_dense_rows(product.right, scratch)
    out = product.out
    place = out if steps(out)[1] == 1 or out.shape[-1] == 1 else np.empty(out.shape, out.dtype)
    epilogue, bias, more = epilogue_of(call, scratch)
    calls += more
    rows, columns, length = product.extent
    lanes, vectors, height = tile_for(rows, columns, out.dtype.name)
    batch = product.batch
    table = np.stack([offsets_of(each, batch) for each in (product.left, right, place)], axis=1)
    tiles = len(table) * -(-rows // height) * -(-columns // (lanes * vectors))
    a_down, a_right = steps(product.left)
    calls.append(
        _multiply.call(
            table=table,
            a=product.left,
            b=right,
            c=place,
            a_down=a_down,
            a_right=a_right,
            b_down=steps(right)[0],
            c_down=steps(place)[0],
            count=size(batch),
            rows=rows,
            columns=columns,
            length=length,
            bias=bias,
            epilogue=epilogue,
            lanes=lanes,
            vectors=vectors,
            height=height,
            parts=min(parts_for(product.work), tiles),
        )
    )
    if place is not out:
        calls += copied(place, out)
    return NativeRunner(calls)


def _is_small(node: Node) -> bool:
    _, rows, columns, length = extent_of(node)
    return 2 * rows * columns * length <= MOST_WORK


offer(("matmul", "matmul_epilogue"), "tiles", _bind, _is_small, copy_workspace, priority=11)
