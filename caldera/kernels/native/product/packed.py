"""Matrix products by packed micro-kernels of our own.

The way of GotoBLAS: a tile of the result stays in registers while it is summed up, a panel of the
right matrix in the nearest cache, a band of the left matrix in the next. Each thread has a
rectangle of the result of its own and packs what it needs for it, so threads never wait for each
other, and bias and activation are applied while a tile is in the nearest cache.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.graph.node import Node, Spec
from caldera.kernels.common.epilogue import NOTHING, Epilogue
from caldera.kernels.common.matrices import Matrices
from caldera.kernels.common.scratch import compute_dtype, workspace_bytes
from caldera.kernels.native.codegen.emitter import (
    I64,
    Emitter,
    Pointer,
    Value,
    line_lanes,
    natural_lanes,
)
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.product.blocking import Tile, blocking_of, tile_of
from caldera.kernels.native.product.epilogue import apply_epilogue
from caldera.kernels.native.product.gemm import (
    Binder,
    accumulates_in_place,
    bind_accumulate,
    bind_product,
    bind_split_k,
    has_long_sums,
    pieces_of,
    product_workspace,
    split_k_workspace,
)
from caldera.kernels.native.product.packed_tile import call_tile, tile_address
from caldera.kernels.native.product.packing import pack_panels, pack_strips
from caldera.kernels.native.product.problem import dense, extent_of, parts_for
from caldera.kernels.table import TABLE, Array, Kernel
from caldera.tensor.dtype import DType
from caldera.threads import thread_count


@native_kernel
def _multiply(
    k: Emitter, table: Pointer, a: Pointer, b: Pointer, c: Pointer, packed: Pointer,
    leading_a: Integer, leading_b: Integer, leading_c: Integer, count: Integer, rows: Integer,
    columns: Integer, height: Integer, width: Integer, depth: Integer, band: Integer,
    strip: Integer, room: Integer, tile_address: Integer, scales: list[Pointer],
    bias: Pointer | None, epilogue: Epilogue, ta: bool, tb: bool, packs_left: bool,
    tile: tuple[int, int],
) -> None:  # fmt: skip
    """The rectangles that are this part's. Each row of the table is one product: where its
    matrices begin, and how long the sum is. `packed` has `room` elements for each part."""
    alpha, beta = k.constant(1.0, c.type), k.constant(0.0, c.type)
    if scales:
        alpha, beta = (each.load(0) for each in scales)
    shape = Tile(*tile, natural_lanes(c.type))
    across, down = (columns + width - 1) // width, (rows + height - 1) // height
    begin, end = k.part_range(count * across * down)
    panels = packed.at(k.part * room)
    strips = panels.at((strip + (shape.width - 1)) // shape.width * shape.width * depth)
    with k.loop(begin, end) as task:
        product = table.at(task // (across * down) * 4)
        top, left = task // across % down * height, task % across * width
        bottom, right = k.minimum(top + height, rows), k.minimum(left + width, columns)
        source, other, out = (each.at(product.load(i)) for i, each in enumerate((a, b, c)))
        # What is multiplied by 0 is not looked at: it may be a nan.
        length = product.load(3)
        if scales:
            length = k.select(alpha.equals(0.0), 0, length)
        pieces = k.maximum((length + depth - 1) // depth, 1)
        with k.loop(0, pieces) as piece, k.loop(left, right, strip) as first_column:
            start = piece * depth
            terms = k.minimum(depth, length - start)
            last_column = k.minimum(first_column + strip, right)
            corner = other.at(_corner(start, first_column, leading_b, flipped=tb))
            pack_panels(
                k, panels, corner, leading_b, terms, last_column - first_column,
                shape.width, flipped=tb,
            )  # fmt: skip
            # What is packed next is brought near meanwhile, unless it is packed already.
            is_last = last_column.equals(right)
            after = k.select(is_last, start + depth, start), k.select(is_last, left, last_column)
            next_corner = other.at(_corner(*after, leading_b, flipped=tb))
            is_ahead = (after[0] < length) & (strip <= shape.width)
            with k.loop(top, bottom, band) as first_row:
                last_row = k.minimum(first_row + band, bottom)
                lines = source.at(_corner(first_row, start, leading_a, flipped=ta))
                if packs_left:
                    # A band that is the only one is still there from the first columns.
                    with k.if_then(first_column.equals(left) | (bottom - top > band)):
                        pack_strips(
                            k, strips, lines, leading_a, terms, last_row - first_row,
                            shape.height, flipped=ta,
                        )  # fmt: skip
                with (
                    k.loop(first_column, last_column, shape.width) as column,
                    k.loop(first_row, last_row, shape.height) as row,
                ):
                    goal = out.at(row * leading_c + column)
                    high = k.minimum(last_row - row, shape.height)
                    wide = k.minimum(last_column - column, shape.width)
                    strip_of_row = strips.at((row - first_row) * terms)
                    panel = panels.at((column - first_column) * terms)
                    ahead = _line(k, next_corner, (row - first_row) // shape.height, shape.width,
                                  leading_b if tb else k.constant(1, I64))  # fmt: skip
                    call_tile(
                        k, tile_address, strip_of_row if packs_left else lines, panel, goal,
                        k.either(is_ahead, ahead, panel),
                        step=k.select(is_ahead, leading_b, shape.width),
                        at=0 if packs_left else row - first_row, down=1 if ta else leading_a,
                        right=leading_a if ta else 1, leading=leading_c, terms=terms, high=high,
                        wide=wide, alpha=alpha, keep=k.select(piece.equals(0), beta, 1.0),
                    )  # fmt: skip
                    if epilogue.changes:
                        with k.if_then(piece.equals(pieces - 1)):
                            _finish(k, goal, leading_c, high, wide, column, bias, epilogue)


def _corner(row: Value, column: Value, leading: Value, *, flipped: bool) -> Value:
    """Where the rest of a matrix begins."""
    return column * leading + row if flipped else row * leading + column


def _line(k: Emitter, corner: Pointer, number: Value, width: int, right: Value) -> Pointer:
    """Where the cache line of this number begins of those beside each other in a panel; the last
    one stands for those after it."""
    lanes = line_lanes(corner.type)
    return corner.at(k.minimum(number, -(-width // lanes) - 1) * lanes * right)


def _finish(
    k: Emitter, tile: Pointer, leading: Value, high: Value, wide: Value, column: Value,
    bias: Pointer | None, epilogue: Epilogue,
) -> None:  # fmt: skip
    with k.loop(0, high) as line:
        row = tile.at(line * leading)

        def apply(i: Value, count: int) -> None:
            row.store(i, apply_epilogue(k, epilogue, bias, row.load(i, count), column + i))

        k.vector_loop(0, wide, natural_lanes(row.type), apply)


# --- binding


class _PackedBinder(Binder):
    """Makes the calls of one product by packed micro-kernels."""

    def add_products(
        self, table: np.ndarray, goal: Matrices, parts: int, scales: tuple[Array, ...] = (),
        bias: Array = None, epilogue: Epilogue = NOTHING,
    ) -> None:  # fmt: skip
        """The call that computes every product of the table, on so many threads."""
        rows, columns, _ = self.product.extent
        dtype = goal.array.dtype
        tile = tile_of(dtype.name)
        cut = blocking_of(len(table), rows, columns, int(table[:, 3].max()), parts, tile)
        parts = min(parts, len(table) * -(-rows // cut.height) * -(-columns // cut.width))
        room = cut.elements(tile)
        self.calls.append(
            _multiply.call(
                table=np.ascontiguousarray(table, np.int64),
                a=self.left.array, b=self.right.array, c=goal.array,
                packed=dense((parts, room), dtype, self.scratch),
                leading_a=self.left.leading, leading_b=self.right.leading, leading_c=goal.leading,
                count=len(table), rows=rows, columns=columns, height=cut.height, width=cut.width,
                depth=cut.depth, band=cut.band, strip=cut.strip, room=room,
                tile_address=tile_address(
                    dtype, tile, packed=cut.packs_left, flipped=self.right.transposed
                ),
                scales=list(scales),
                bias=bias, epilogue=epilogue, ta=self.left.transposed, tb=self.right.transposed,
                packs_left=cut.packs_left, tile=(tile.height, tile.vectors), parts=parts,
            )
        )  # fmt: skip


def _packed_bytes(dtype: DType, count: int, extent: tuple[int, int, int], parts: int) -> int:
    """What packing takes on all threads."""
    wide = compute_dtype(dtype)
    tile = tile_of(wide.name)
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


def _split_k_workspace(node: Node, most: int | None = None) -> int:
    rows, columns, length = extent_of(node)[1:]
    pieces = pieces_of(length, most)
    parts = max(pieces, parts_for(2 * rows * columns * length))
    return split_k_workspace(node, most) + _packed_bytes(
        node.dtype, pieces, (rows, columns, -(-length // pieces)), parts
    )


def _is_cut_and_shared(node: Node) -> bool:
    """Whether there are several threads for each piece of a long sum: then they read less than
    with pieces or blocks alone."""
    return thread_count() >= 2 * _PIECES and _is_worth_packing(node) and has_long_sums(node)


def _is_worth_packing(node: Node) -> bool:
    """Whether elements are used often enough."""
    _, rows, columns, length = extent_of(node)
    return min(rows, columns, length) > 0 and rows >= _FEWEST_ROWS


_PIECES = 4
"""Of sums whose pieces are cut into blocks as well."""
_FEWEST_ROWS = 4
"""Packing an element of the right matrix takes as long as multiplying it by so many rows."""

for _op in ("matmul", "matmul_epilogue"):
    TABLE.add(
        Kernel(
            _op, "cpu", "packed", partial(bind_product, make=_PackedBinder), _is_worth_packing,
            _workspace, priority=8,
        )
    )  # fmt: skip
    TABLE.add(
        Kernel(
            _op, "cpu", "packed, sums cut", partial(bind_split_k, make=_PackedBinder),
            lambda node: _is_worth_packing(node) and has_long_sums(node), _split_k_workspace,
            priority=7,
        )
    )  # fmt: skip
    TABLE.add(
        Kernel(
            _op, "cpu", f"packed, sums cut in {_PIECES}",
            partial(bind_split_k, make=_PackedBinder, most=_PIECES), _is_cut_and_shared,
            partial(_split_k_workspace, most=_PIECES), priority=6,
        )
    )  # fmt: skip
TABLE.add(
    Kernel(
        "matmul_accumulate", "cpu", "packed", partial(bind_accumulate, make=_PackedBinder),
        workspace=_workspace, priority=8, in_place=accumulates_in_place,
    )
)  # fmt: skip
