"""Matrix products by packed micro-kernels of our own.

The way of GotoBLAS: a tile of the result stays in registers while it is summed up, a panel of the
right matrix in the nearest cache, a band of the left matrix in the next. Each thread has a
rectangle of the result of its own, or several where threads are many, and packs what it needs for
it, so threads never wait for each other, and bias and activation are applied while a tile is in the
nearest cache. Many threads may instead pack the right matrix together, wait for each other once,
and all read it: each would pack as much of it as it multiplies a few rows with.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.base.threads import part_count, thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import DType
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import compute_dtype, workspace_bytes
from caldera.kernels.common.product import NOTHING, Epilogue, Matrices
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
    offer,
)
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
from caldera.kernels.native.product.microkernel import TileCalls, tile_address
from caldera.kernels.native.product.packing import (
    Blocking,
    RegisterTile,
    Unpacked,
    ask_ahead,
    blocking_of,
    corner_of,
    pack_panels,
    pack_strips,
    pack_together,
    panel_of,
    shared_elements,
    tile_of,
)
from caldera.kernels.native.product.problem import apply_epilogue, dense, extent_of, parts_for
from caldera.kernels.table import Array


@native_kernel
def _multiply(
    k: Emitter,
    table: Pointer,
    a: Pointer,
    b: Pointer,
    c: Pointer,
    packed: Pointer,
    shared: Pointer | None,
    leading_a: Integer,
    leading_b: Integer,
    leading_c: Integer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    height: Integer,
    width: Integer,
    depth: Integer,
    band: Integer,
    strip: Integer,
    room: Integer,
    tile_address: Integer,
    scales: list[Pointer],
    bias: Pointer | None,
    epilogue: Epilogue,
    ta: bool,
    tb: bool,
    packs_left: bool,
    tile: tuple[int, int],
) -> None:
    """The rectangles that are this part's. Each row of the table is one product: where its
    matrices begin, and how long the sum is. `packed` has `room` elements for each part, `shared`
    the right matrix of the only product if it is packed already."""
    alpha, beta = k.constant(1.0, c.type), k.constant(0.0, c.type)
    if scales:
        alpha, beta = (each.load(0) for each in scales)
    shape = RegisterTile(*tile, natural_lanes(c.type))
    across, down = (columns + width - 1) // width, (rows + height - 1) // height
    begin, end = k.part_range(count * across * down)
    strips = own = packed.at(k.part * room)
    if shared is None:
        strips = own.at((strip + (shape.width - 1)) // shape.width * shape.width * depth)
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
            # What is packed after these columns begins here, if there is more of the product.
            ends = last_column.equals(right)
            next_start = k.select(ends, start + depth, start)
            next_column = k.select(ends, left, last_column)
            is_more = next_start < length
            panels = own
            if shared is not None:
                panels = panel_of(shared, start, terms, columns, shape.width, first_column)
            with k.loop(top, bottom, band) as first_row:
                last_row = k.minimum(first_row + band, bottom)
                is_first, is_last = first_row.equals(top), last_row.equals(bottom)
                lines = source.at(corner_of(first_row, start, leading_a, flipped=ta))
                # A band that is the only one is still there from the first columns.
                again = bottom - top > band
                if packs_left:
                    with k.if_then(first_column.equals(left) | again):
                        pack_strips(
                            k,
                            strips,
                            lines,
                            leading_a,
                            terms,
                            last_row - first_row,
                            shape.height,
                            flipped=ta,
                        )
                with k.loop(first_column, last_column, shape.width) as column:
                    wide = k.minimum(last_column - column, shape.width)
                    panel = panels.at((column - first_column) * terms)
                    # What comes next: a panel, which may be packed already, and rows.
                    following = column + shape.width
                    inside = following < last_column
                    next_panel = k.either(inside, panel.at(terms * shape.width), panels)
                    next_columns = None
                    if shared is None:
                        with k.if_then(is_first):
                            pack_panels(
                                k,
                                panel,
                                other.at(corner_of(start, column, leading_b, flipped=tb)),
                                leading_b,
                                terms,
                                wide,
                                shape.width,
                                flipped=tb,
                            )
                        place = corner_of(
                            k.select(inside, start, next_start),
                            k.select(inside, following, next_column),
                            leading_b,
                            flipped=tb,
                        )
                        is_next = k.select(inside, is_first, is_last & is_more)
                        next_columns = Unpacked(other.at(place), leading_b, tb, is_next)
                    place = corner_of(
                        k.select(is_last, top, last_row),
                        k.select(is_last, next_start, start),
                        leading_a,
                        flipped=ta,
                    )
                    is_next = ~is_last | (is_more & (ends | again))
                    next_rows = Unpacked(source.at(place), leading_a, not ta, is_next)
                    tiles = (last_row - first_row + (shape.height - 1)) // shape.height
                    sum_up = TileCalls.of(
                        k,
                        tile_address,
                        panel,
                        down=1 if ta else leading_a,
                        right=leading_a if ta else 1,
                        leading=leading_c,
                        terms=terms,
                        wide=wide,
                        alpha=alpha,
                        keep=k.select(piece.equals(0), beta, 1.0),
                    )
                    with k.loop(0, tiles) as number:
                        row = first_row + number * shape.height
                        goal = out.at(row * leading_c + column)
                        high = k.minimum(last_row - row, shape.height)
                        if packs_left:
                            ask_ahead(
                                k,
                                sum_up.ask,
                                number,
                                tiles,
                                terms,
                                shape.width,
                                next_panel,
                                next_columns,
                                next_rows,
                                (last_column - column - 1) // shape.width,
                                band,
                            )
                            sum_up(strips.at((row - first_row) * terms), goal, at=0, high=high)
                        else:
                            sum_up(lines, goal, at=row - first_row, high=high)
                        if epilogue.changes:
                            with k.if_then(piece.equals(pieces - 1)):
                                _finish(
                                    k, shape, goal, leading_c, high, wide, column, bias, epilogue
                                )


def _finish(
    k: Emitter,
    shape: RegisterTile,
    tile: Pointer,
    leading: RegisterValue,
    high: RegisterValue,
    wide: RegisterValue,
    column: RegisterValue,
    bias: Pointer | None,
    epilogue: Epilogue,
) -> None:
    with k.loop(0, high) as line:
        row = tile.at(line * leading)

        def apply(i: RegisterValue, count: int) -> None:
            row.store(i, apply_epilogue(k, epilogue, bias, row.load(i, count), column + i))

        lanes = natural_lanes(row.type)
        # A whole row at once: each vector of it waits long for itself.
        k.vector_loops(0, wide, (shape.width, lanes, 1), apply)


# --- binding


class _PackedBinder(Binder):
    """Makes the calls of one product by packed micro-kernels."""

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
        """The call that computes every product of the table, on so many threads."""
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
            _multiply.call(
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
        """Memory for the right matrix, which a call before the product packs."""
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
    """What packing takes on all threads."""
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
    # What each thread packs of the left matrix is less than what it would pack of both.
    return _workspace(node) + workspace_bytes(Spec((shared,), wide))


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


def _is_worth_sharing(node: Node) -> bool:
    """Whether so many threads read the same right matrix that packing it together may pay."""
    right = node.inputs[2 if node.op.name == "matmul_accumulate" else 1]
    is_one = size(right.shape[:-2]) == 1
    count, rows, columns, length = extent_of(node)
    parts = parts_for(2 * count * rows * columns * length)
    return parts >= _FEWEST_SHARING and is_one and _is_worth_packing(node)


def _is_worth_packing(node: Node) -> bool:
    """Whether elements are used often enough."""
    _, rows, columns, length = extent_of(node)
    return min(rows, columns, length) > 0 and rows >= _FEWEST_ROWS


_PIECES = 4
"""Of sums whose pieces are cut into blocks as well."""
_FEWEST_ROWS = 4
"""Packing an element of the right matrix takes as long as multiplying it by so many rows."""
_FEWEST_SHARING = 8
"""Threads: fewer have so many rows each that packing is little beside multiplying."""

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
    partial(bind_split_k, make=_PackedBinder),
    lambda node: _is_worth_packing(node) and has_long_sums(node),
    _split_k_workspace,
    priority=7,
)
offer(
    ("matmul", "matmul_epilogue"),
    f"packed, sums cut in {_PIECES}",
    partial(bind_split_k, make=_PackedBinder, most=_PIECES),
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
