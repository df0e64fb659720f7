"""Products of bfloat16 matrices in tile registers, with float32 sums.

As packed products are: each thread packs what it needs for a rectangle of the result of its own.
Sums are never cut, so that they are rounded to bfloat16 once, after bias and activation. The
registers take numbers below 1.2e-38 for 0.
"""

from __future__ import annotations

import numpy as np

from caldera.graph.node import Node, Spec
from caldera.kernels.common.epilogue import Epilogue
from caldera.kernels.common.matrices import Matrices, as_matrices, offsets_of, steps
from caldera.kernels.common.product import Product
from caldera.kernels.common.scratch import Scratch, workspace_bytes
from caldera.kernels.native.codegen.amx import (
    ROW_BYTES,
    ROWS,
    TERMS,
    TileRegisters,
    has_amx,
    tile_configuration,
)
from caldera.kernels.native.codegen.dtypes import ElementPointer
from caldera.kernels.native.codegen.emitter import F32, Emitter, Pointer, Value, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer, NativeCall, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.native.product.amx_packing import BLOCK, SIDE, pack_left, pack_right
from caldera.kernels.native.product.blocking import Tile, blocking_of
from caldera.kernels.native.product.epilogue import apply_epilogue
from caldera.kernels.native.product.gemm import epilogue_of
from caldera.kernels.native.product.problem import copied, dense, extent_of, parts_for
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.dtype import bfloat16, float32, uint8

_TILE = Tile(SIDE, 2, SIDE // 2)
_CACHED_ELEMENTS = 1 << 18
"""Elements of either matrix that a thread packs at once: half of a cache of second level."""


@native_kernel
def _multiply(
    k: Emitter, table: Pointer, configuration: Pointer, a: Pointer, b: Pointer, c: ElementPointer,
    packed: Pointer, leading_a: Integer, leading_b: Integer, leading_c: Integer, count: Integer,
    rows: Integer, columns: Integer, length: Integer, height: Integer, width: Integer,
    band: Integer, strip: Integer, room: Integer, bias: Pointer | None, epilogue: Epilogue,
    ta: bool, tb: bool,
) -> None:  # fmt: skip
    """The rectangles that are this part's. Each row of the table is one product: where its
    matrices begin. `packed` has `room` elements for each part."""
    across, down = (columns + width - 1) // width, (rows + height - 1) // height
    begin, end = k.part_range(count * across * down)
    padded = (length + (TERMS - 1)) // TERMS * TERMS
    right_blocks = packed.at(k.part * room)
    left_blocks = right_blocks.at(strip * padded)
    registers = TileRegisters(k)
    registers.configure(configuration)
    with k.loop(begin, end) as task:
        product = table.at(task // (across * down) * 3)
        source, other = a.at(product.load(0)), b.at(product.load(1))
        out = c.at(product.load(2))
        top, left = task // across % down * height, task % across * width
        bottom, right = k.minimum(top + height, rows), k.minimum(left + width, columns)
        with k.loop(left, right, strip) as first_column:
            last_column = k.minimum(first_column + strip, right)
            corner = other.at(first_column * leading_b if tb else first_column)
            pack_right(
                k, right_blocks, corner, leading_b, length, last_column - first_column, flipped=tb
            )
            with k.loop(top, bottom, band) as first_row:
                last_row = k.minimum(first_row + band, bottom)
                corner = source.at(first_row if ta else first_row * leading_a)
                pack_left(
                    k, left_blocks, corner, leading_a, length, last_row - first_row, flipped=ta
                )
                with (
                    k.loop(first_column, last_column, SIDE) as column,
                    k.loop(first_row, last_row, SIDE) as row,
                ):
                    sums = _sums(
                        k, registers, left_blocks.at((row - first_row) * padded),
                        right_blocks.at((column - first_column) * padded), padded // TERMS,
                    )  # fmt: skip
                    high = k.minimum(last_row - row, SIDE)
                    wide = k.minimum(last_column - column, SIDE)
                    with k.loop(0, high) as line:
                        goal = out.at((row + line) * leading_c + column)
                        _finish(k, sums.at(line * SIDE), goal, wide, column, bias, epilogue)
    registers.release()


def _sums(
    k: Emitter, registers: TileRegisters, left: Pointer, right: Pointer, blocks: Value
) -> Pointer:
    """32 by 32 sums, on the stack."""
    found = k.alloca(F32, SIDE * SIDE)
    halves = (0, 1)
    for i in range(4):
        registers.clear(i)
    with k.loop(0, blocks) as block:
        for i in halves:
            registers.load(4 + i, left.at(block * BLOCK + i * ROWS * TERMS), ROW_BYTES)
            registers.load(6 + i, right.at(block * BLOCK + i * SIDE), 2 * ROW_BYTES)
        for i in halves:
            for j in halves:
                registers.multiply(2 * i + j, 4 + i, 6 + j)
    for i in halves:
        for j in halves:
            place = found.at(i * ROWS * SIDE + j * ROWS)
            registers.store(2 * i + j, place, 4 * SIDE)
    return found


def _finish(
    k: Emitter, sums: Pointer, goal: ElementPointer, wide: Value, column: Value,
    bias: Pointer | None, epilogue: Epilogue,
) -> None:  # fmt: skip
    def store(i: Value, lanes: int) -> None:
        goal.store(i, apply_epilogue(k, epilogue, bias, sums.load(i, lanes), column + i))

    k.vector_loop(0, wide, natural_lanes(F32), store)


# --- binding


def _dense(array: Array, scratch: Scratch) -> tuple[Matrices, list[NativeCall]]:
    """Matrices one of whose axes is dense, and what has to run before they can be read."""
    found = as_matrices(array)
    if found is not None:
        return found, []
    copy = dense(array.shape, array.dtype, scratch)
    ready = as_matrices(copy)
    assert ready is not None
    return ready, copied(array, copy)


def _cut(
    count: int, rows: int, columns: int, length: int, parts: int
) -> tuple[int, int, int, int, int]:
    """Rows and columns of a thread's rectangle, rows and columns packed at once, and elements of
    memory for that."""
    cut = blocking_of(count, rows, columns, length, parts, _TILE)
    padded = max(TERMS, -(-length // TERMS) * TERMS)
    most = max(SIDE, _CACHED_ELEMENTS // padded // SIDE * SIDE)
    band, strip = (min(most, -(-n // SIDE) * SIDE) for n in (cut.height, cut.width))
    return cut.height, cut.width, band, strip, (band + strip) * padded


def bind(call: Call) -> Runner:
    """The product, with what follows it, ready to run."""
    if call.outputs[0].size == 0:
        return NativeRunner([])
    product = Product.of(call, *call.inputs[:2])
    scratch = Scratch(call.workspace)
    rows, columns, length = product.extent
    parts = parts_for(product.work)
    batch = product.batch
    count = len(offsets_of(product.out, batch))
    height, width, band, strip, room = _cut(count, rows, columns, length, parts)
    parts = min(parts, count * -(-rows // height) * -(-columns // width))
    packed = dense((parts, room), bfloat16, scratch)
    (left, calls), (right, more) = (_dense(each, scratch) for each in (product.left, product.right))
    calls = [*calls, *more]
    out = product.out
    place = out if steps(out)[1] == 1 or columns == 1 else dense(out.shape, out.dtype, scratch)
    epilogue, bias, more = epilogue_of(call, scratch)
    calls += more
    table = np.stack([offsets_of(each, batch) for each in (left.array, right.array, place)], axis=1)
    calls.append(
        _multiply.call(
            table=table, configuration=tile_configuration(), a=left.array, b=right.array, c=place,
            packed=packed, leading_a=left.leading, leading_b=right.leading,
            leading_c=steps(place)[0], count=count, rows=rows, columns=columns, length=length,
            height=height, width=width, band=band, strip=strip, room=room, bias=bias,
            epilogue=epilogue, ta=left.transposed, tb=right.transposed, parts=parts,
        )
    )  # fmt: skip
    if place is not out:
        calls += copied(place, out)
    return NativeRunner(calls)


def supports(node: Node) -> bool:
    """Whether all is bfloat16, and there are tile registers."""
    _, rows, columns, length = extent_of(node)
    halves = node.dtype == bfloat16 and all(each.dtype == bfloat16 for each in node.inputs[:2])
    return halves and min(rows, columns, length) > 0 and has_amx()


def workspace(node: Node) -> int:
    """Bytes for what is packed, and for what must be copied first."""
    count, rows, columns, length = extent_of(node)
    parts = parts_for(2 * count * rows * columns * length)
    # Matrices that all meet the same one on the right are one tall matrix.
    room = max(
        _cut(n, m, columns, length, parts)[-1] for n, m in ((count, rows), (1, count * rows))
    )
    copies = [each.spec for each in (*node.inputs[:2], node)]
    biases = [Spec(each.shape, float32) for each in node.inputs[2:]]
    return workspace_bytes(Spec((2 * parts * room,), uint8), *copies, *biases)


for _op in ("matmul", "matmul_epilogue"):
    TABLE.add(Kernel(_op, "cpu", "amx", bind, supports, workspace, priority=12))
