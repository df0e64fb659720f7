"""Matrix products by built-in micro-kernels: packed products, and small ones without packing.

Packed products follow GotoBLAS. A tile of the result stays in registers during the summation, a
panel of the right matrix in the nearest cache, and a band of the left matrix in the next cache.
Each thread has a separate rectangle of the result, or several if there are many threads, and packs
its operands. Threads thus never wait for each other, and bias and activation are applied while a
tile is in the nearest cache.

With many threads, each one would pack much of the right matrix and multiply it by only a few rows.
The threads can instead pack the right matrix together, wait for each other once, and all read it.

Small products need no packing of operands: a tile of the result stays in registers during the
summation. The size of the tile depends on the size of the result, and a batch of many small
products is one loop.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.base.threads import part_count, thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor import DType, float32, float64, size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.product import (
    NOTHING,
    Epilogue,
    Matrices,
    ProductArrays,
    offsets_of,
    steps,
)
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
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.product.gemm import (
    Binder,
    accumulates_in_place,
    bind_accumulate,
    bind_product,
    epilogue_of,
    has_long_sums,
    pieces_of,
    product_workspace,
    split_k_workspace,
)
from caldera.kernels.native.product.microkernel import (
    PackedMatrix,
    add_products,
    most_vectors,
    tile_address,
)
from caldera.kernels.native.product.packed_kernel import multiply_packed
from caldera.kernels.native.product.packing import (
    Blocking,
    blocking_of,
    pack_together,
    shared_elements,
    tile_of,
)
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
"""Number of operations in a product from which on packing the operands always pays."""
TINY, MEASURED = 1 << 14, 1 << 17
"""Numbers of operations up to which this kernel is the best guess, and from which on kernels are
measured. Between them a call of BLAS is: measured on 291 shapes it takes 1.04 times as long as the
better of the two on average, this kernel 1.58 times (AVX-512, two cores).
"""
_HEIGHTS = (8, 6, 4, 2, 1)


def tile_for(rows: int, columns: int, dtype: str) -> tuple[int, int, int]:
    """Return lanes of a vector, vectors and rows of the tile for a result of this size."""
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
    """Compute products; each row of the table has the offsets of a product's matrices."""
    kind = computed_type(c.name)
    width = lanes * vectors
    across, down = (columns + (width - 1)) // width, (rows + (height - 1)) // height
    with k.loop(*k.part_range(count * across * down)) as task:
        product = table.at(task // (across * down) * 3)
        # All rows of a column of tiles, then the next column: the shared operand stays in cache.
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
    count, rows, columns, length = extent_of(node)
    work = 2 * rows * columns * length
    is_guessed = TINY < count * work < MEASURED and node.outputs[0].dtype in (float32, float64)
    return work <= MOST_WORK and not (is_guessed and blas() is not None)


offer(("matmul", "matmul_epilogue"), "tiles", _bind, _is_small, copy_workspace, priority=11)


class _PackedBinder(Binder):
    """Builder of the calls of a product by packed micro-kernels."""

    shares_panels = False

    def add_products(
        self,
        table: np.ndarray,
        goal: Matrices,
        parts: int,
        scales: tuple[Array, ...] = (),
        bias: Array = None,
        epilogue: Epilogue = NOTHING,
    ) -> None:
        """Add the call that computes every product of the table in `parts` parts."""
        rows, columns, _ = self.product.extent
        dtype = goal.array.dtype
        tile = tile_of(dtype.name)
        shares = self.shares_panels and len(table) == 1
        workers, parts = parts, part_count(parts)
        length = int(table[:, 3].max())
        table = np.ascontiguousarray(table, np.int64)
        cut = blocking_of(len(table), rows, columns, length, parts, tile, shares_panels=shares)
        shared = self._packed_together(table, length, cut, workers, dtype) if shares else None
        parts = min(parts, len(table) * -(-rows // cut.height) * -(-columns // cut.width))
        room = cut.left_elements(tile) if shares else cut.elements(tile)
        self.calls.append(
            multiply_packed.call(
                table=table,
                a=self.left.array,
                b=self.right.array,
                c=goal.array,
                packed=dense((parts, max(1, room)), dtype, self.scratch),
                shared=shared,
                leading_a=self.left.leading,
                leading_b=self.right.leading,
                leading_c=goal.leading,
                count=len(table),
                rows=rows,
                columns=columns,
                height=cut.height,
                width=cut.width,
                depth=cut.depth,
                band=cut.band,
                strip=cut.width if shares else cut.strip,
                room=room,
                tile_address=tile_address(dtype, tile, packed=cut.packs_left),
                scales=list(scales),
                bias=bias,
                epilogue=epilogue,
                ta=self.left.transposed,
                tb=self.right.transposed,
                packs_left=cut.packs_left,
                tile=(tile.height, tile.vectors),
                parts=parts,
            )
        )

    def _packed_together(
        self, table: np.ndarray, length: int, cut: Blocking, parts: int, dtype: np.dtype
    ) -> Array:
        """Return memory for the right matrix, which a call before the product packs."""
        tile, columns = tile_of(dtype.name), self.product.extent[1]
        shared = dense((max(1, shared_elements(columns, length, tile)),), dtype, self.scratch)
        self.calls.append(
            pack_together.call(
                table=table,
                b=self.right.array,
                shared=shared,
                leading=self.right.leading,
                columns=columns,
                length=length,
                depth=cut.depth,
                tb=self.right.transposed,
                width=tile.width,
                parts=parts,
            )
        )
        return shared


class _SharingBinder(_PackedBinder):
    """The same with the right matrix packed by all threads together, if it is only one."""

    shares_panels = True


def _packed_bytes(dtype: DType, count: int, extent: tuple[int, int, int], parts: int) -> int:
    """Return the bytes that packing needs on all threads."""
    wide = compute_dtype(dtype)
    tile, parts = tile_of(wide.name), part_count(parts)
    room = blocking_of(count, *extent, parts, tile).elements(tile)
    return workspace_bytes(Spec((parts, room), wide))


def _workspace(node: Node) -> int:
    count, *extent = extent_of(node)
    rows, columns, length = extent
    parts = parts_for(2 * count * rows * columns * length)
    return product_workspace(node) + max(
        _packed_bytes(node.dtype, n, (m, columns, length), parts)
        # Matrices that all meet the same one on the right are one tall matrix.
        for n, m in ((count, rows), (1, count * rows))
    )


def _sharing_workspace(node: Node) -> int:
    _, _, columns, length = extent_of(node)
    wide = compute_dtype(node.dtype)
    shared = shared_elements(columns, length, tile_of(wide.name))
    # Memory per thread: the packed left matrix is smaller than both matrices packed.
    return _workspace(node) + workspace_bytes(Spec((shared,), wide))


def _split_k_workspace(node: Node, most: int | None = None) -> int:
    rows, columns, length = extent_of(node)[1:]
    pieces = pieces_of(length, most)
    parts = max(pieces, parts_for(2 * rows * columns * length))
    return split_k_workspace(node, most) + _packed_bytes(
        node.dtype, pieces, (rows, columns, -(-length // pieces)), parts
    )


def _is_cut_and_shared(node: Node) -> bool:
    """Return True if several threads share each piece of a long sum.

    Threads then read less than with either pieces or blocks.
    """
    return thread_count() >= 2 * _PIECES and _is_worth_packing(node) and has_long_sums(node)


def _is_worth_sharing(node: Node) -> bool:
    """Return True if enough threads read the same right matrix for packing it together to pay."""
    right = node.inputs[2 if node.op.name == "matmul_accumulate" else 1]
    is_one = size(right.shape[:-2]) == 1
    count, rows, columns, length = extent_of(node)
    parts = parts_for(2 * count * rows * columns * length)
    return parts >= _FEWEST_SHARING and is_one and _is_worth_packing(node)


def _is_worth_packing(node: Node) -> bool:
    """Return True if elements are reused often enough."""
    _, rows, columns, length = extent_of(node)
    return min(rows, columns, length) > 0 and rows >= _FEWEST_ROWS


_PIECES = 4
"""Number of pieces of sums whose pieces are also split into blocks."""
_FEWEST_ROWS = 4
"""Packing an element of the right matrix takes as long as multiplying it by this number of rows."""
_FEWEST_SHARING = 8
"""Minimum number of threads; with fewer, each has enough rows to make packing cheap."""

offer(
    ("matmul", "matmul_epilogue"),
    "packed",
    partial(bind_product, make=_PackedBinder),
    _is_worth_packing,
    _workspace,
    priority=8,
)
offer(
    ("matmul", "matmul_epilogue"),
    "packed together",
    partial(bind_product, make=_SharingBinder),
    _is_worth_sharing,
    _sharing_workspace,
    priority=5,
)
offer(
    ("matmul", "matmul_epilogue"),
    "packed, sums cut",
    partial(bind_product, make=_PackedBinder, multiply=_PackedBinder.multiply_split_k),
    lambda node: _is_worth_packing(node) and has_long_sums(node),
    _split_k_workspace,
    priority=7,
)
offer(
    ("matmul", "matmul_epilogue"),
    f"packed, sums cut in {_PIECES}",
    partial(
        bind_product,
        make=_PackedBinder,
        multiply=partial(_PackedBinder.multiply_split_k, most=_PIECES),
    ),
    _is_cut_and_shared,
    partial(_split_k_workspace, most=_PIECES),
    priority=6,
)
offer(
    "matmul_accumulate",
    "packed",
    partial(bind_accumulate, make=_PackedBinder),
    workspace=_workspace,
    priority=8,
    in_place=accumulates_in_place,
)
offer(
    "matmul_accumulate",
    "packed together",
    partial(bind_accumulate, make=_SharingBinder),
    _is_worth_sharing,
    _sharing_workspace,
    priority=5,
    in_place=accumulates_in_place,
)
