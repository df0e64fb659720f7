"""Products of bfloat16 matrices in tile registers, with float32 sums.

They are blocked like packed products: each thread packs the operands of its rectangle of the
result. If the result is small and the sums are long, as in gradients of filters, the sums are split
instead. Rectangles would be so small that threads pack more than they multiply, and the packed
operands would not stay in their caches. Sums stay in float32 until they are complete. They are
rounded to bfloat16 once, after bias and activation. The registers treat numbers below 1.2e-38 as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import bfloat16, float32
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.product import (
    NOTHING,
    Epilogue,
    Matrices,
    ProductArrays,
    as_matrices,
    offsets_of,
    steps,
)
from caldera.kernels.native.codegen import (
    F32,
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
    offer,
)
from caldera.kernels.native.codegen.matrix_multiply import (
    ROW_BYTES,
    ROWS,
    TERMS,
    TileRegisters,
    has_amx,
    tile_configuration,
)
from caldera.kernels.native.product.amx_packing import (
    BLOCK,
    SIDE,
    TileOperand,
    pack_left,
    pack_right,
)
from caldera.kernels.native.product.gemm import add_pieces, epilogue_of
from caldera.kernels.native.product.packing import RegisterTile, blocking_of
from caldera.kernels.native.product.problem import (
    apply_epilogue,
    blocks_of_part,
    copied,
    dense,
    extent_of,
    parts_for,
)
from caldera.kernels.table import Array, Call

_TILE = RegisterTile(SIDE, 2, SIDE // 2)
_CACHED_ELEMENTS = 1 << 18
"""Elements of either matrix that a thread packs per step: half of a second-level cache."""
_PIECE = 1024
"""Approximate number of terms in a piece of a split sum."""


@native_kernel
def _multiply(
    k: Emitter,
    table: Pointer,
    configuration: Pointer,
    a: TileOperand,
    b: TileOperand,
    c: ElementPointer,
    packed: Pointer,
    leading_c: Integer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    height: Integer,
    width: Integer,
    band: Integer,
    strip: Integer,
    room: Integer,
    bias: Pointer | None,
    epilogue: Epilogue,
    ta: bool,
    tb: bool,
) -> None:
    """Compute the rectangles of this part.

    Each row of the table is one product: offsets of its matrices, and length of its sums. `packed`
    has `room` elements for each part.
    """
    right_blocks = packed.at(k.part * room)
    registers = TileRegisters(k)
    registers.configure(configuration)
    with blocks_of_part(k, table, count, (rows, columns), (height, width)) as block:
        # Terms are the columns of the left matrix, and the rows of the right one.
        source = a.from_place(block.product.load(0), by_rows=ta)
        other = b.from_place(block.product.load(1), by_rows=not tb)
        out, length = c.at(block.product.load(2)), block.product.load(3)
        padded = (length + (TERMS - 1)) // TERMS * TERMS
        left_blocks = right_blocks.at(strip * padded)
        with k.loop(block.left, block.right, strip) as first_column:
            last_column = k.minimum(first_column + strip, block.right)
            span = last_column - first_column
            pack_right(k, right_blocks, other, first_column, length, span, flipped=tb)
            with k.loop(block.top, block.bottom, band) as first_row:
                last_row = k.minimum(first_row + band, block.bottom)
                # A band that is the only one is still there from the first columns.
                with k.if_then(first_column.equals(block.left) | (block.bottom - block.top > band)):
                    pack_left(
                        k, left_blocks, source, first_row, length, last_row - first_row, flipped=ta
                    )
                with (
                    k.loop(first_column, last_column, SIDE) as column,
                    k.loop(first_row, last_row, SIDE) as row,
                ):
                    sums = _sums(
                        k,
                        registers,
                        left_blocks.at((row - first_row) * padded),
                        right_blocks.at((column - first_column) * padded),
                        padded // TERMS,
                    )
                    shape = k.minimum(last_row - row, SIDE), k.minimum(last_column - column, SIDE)
                    goal = out.at(row * leading_c + column)
                    _finish(k, sums, goal, leading_c, shape, column, bias, epilogue)
    registers.release()


def _sums(
    k: Emitter, registers: TileRegisters, left: Pointer, right: Pointer, blocks: RegisterValue
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
            registers.store(2 * i + j, found.at(i * ROWS * SIDE + j * ROWS), 4 * SIDE)
    return found


def _finish(
    k: Emitter,
    sums: Pointer,
    goal: ElementPointer,
    leading: RegisterValue,
    shape: tuple[RegisterValue, RegisterValue],
    column: RegisterValue,
    bias: Pointer | None,
    epilogue: Epilogue,
) -> None:
    """Write rows and columns of 32 by 32 sums, after applying the epilogue."""
    high, wide = shape
    with k.loop(0, high) as line:
        row, target = sums.at(line * SIDE), goal.at(line * leading)
        for i, lanes in k.vectors(0, wide, natural_lanes(F32), 1):
            target.store(i, apply_epilogue(k, epilogue, bias, row.load(i, lanes), column + i))


# --- binding


def _dense(array: Array, scratch: Scratch) -> tuple[Matrices, list[NativeCall]]:
    """Return matrices with a dense axis, and the calls that copy them, if any."""
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
    """Return the blocking of a product and the number of elements that a thread packs.

    The result is (rows, columns) of a thread's rectangle, then rows and columns packed per step,
    and last the elements of memory for them.
    """
    cut = blocking_of(count, rows, columns, length, parts, _TILE)
    padded = max(TERMS, -(-length // TERMS) * TERMS)
    most = max(SIDE, _CACHED_ELEMENTS // padded // SIDE * SIDE)
    band, strip = (min(most, -(-n // SIDE) * SIDE) for n in (cut.height, cut.width))
    return cut.height, cut.width, band, strip, (band + strip) * padded


def _pieces(count: int, rows: int, columns: int, length: int, parts: int) -> int:
    """Return the number of pieces into which sums are split.

    It is 1 unless the sums of the pieces are small compared with the matrices.
    """
    pieces = -(-length // (_PIECE * parts)) * parts
    is_little = pieces * rows * columns <= length * (rows + columns)
    return pieces if count == 1 and length >= 2 * _PIECE and is_little else 1


@dataclass(frozen=True)
class Gathered:
    """A matrix whose rows begin anywhere in an array, in elements from its own beginning, and of
    which each 32 elements are `blocks` further on: an indirection buffer, for windows of images."""

    array: np.ndarray
    rows: np.ndarray
    blocks: np.ndarray
    transposed = False


class _Binder:
    """Builder of the calls of a product: copies of operands, the product itself, the epilogue."""

    def __init__(self, call: Call, gathered: tuple[Gathered | None, Gathered | None]) -> None:
        self._scratch = Scratch(call.workspace)
        self._product = ProductArrays.of(call, *call.inputs[:2])
        self._epilogue, self._bias, self._calls = epilogue_of(call, self._scratch)
        left, right = gathered
        self._left = left or self._prepared(self._product.left)
        self._right = right or self._prepared(self._product.right)

    def _prepared(self, array: Array) -> Matrices:
        ready, calls = _dense(array, self._scratch)
        self._calls += calls
        return ready

    def runner(self) -> NativeRunner:
        """Return the runner of all calls."""
        out = self._product.out
        count = len(offsets_of(out, self._product.batch))
        pieces = _pieces(count, *self._product.extent, parts_for(self._product.work))
        place = self._summed(pieces) if pieces > 1 else self._multiplied()
        if place is not out:
            self._calls += copied(place, out)
        return NativeRunner(self._calls)

    def _multiplied(self) -> Array:
        """Add the calls for the product, or for a batch of products; return its array."""
        out, batch = self._product.out, self._product.batch
        is_dense = steps(out)[1] == 1 or self._product.extent[1] == 1
        place = out if is_dense else dense(out.shape, out.dtype, self._scratch)
        starts = [
            np.zeros(1, np.int64) if isinstance(each, Gathered) else offsets_of(each.array, batch)
            for each in (self._left, self._right)
        ]
        starts.append(offsets_of(place, batch))
        lengths = np.full(len(starts[0]), self._product.extent[2])
        self._multiply(np.stack([*starts, lengths], axis=1), place, self._bias, self._epilogue)
        return place

    def _summed(self, pieces: int) -> Array:
        """Add the calls of a product whose sums are split into pieces."""
        rows, columns, length = self._product.extent
        found = dense((pieces, rows, columns), np.dtype(float32), self._scratch)
        place = dense((rows, columns), np.dtype(float32), self._scratch)
        # Only the last one has less than a whole block of terms to be filled up.
        cuts = np.arange(pieces + 1) * -(-length // TERMS) // pieces * TERMS
        cuts[-1] = length
        table = np.stack(
            [
                _starts(self._left, cuts[:-1], by_rows=self._left.transposed),
                _starts(self._right, cuts[:-1], by_rows=not self._right.transposed),
                np.arange(pieces) * rows * columns,
                np.diff(cuts),
            ],
            axis=1,
        )
        self._multiply(table, found)
        self._calls.append(
            add_pieces(found, place, columns, bias=self._bias, epilogue=self._epilogue)
        )
        return place

    def _multiply(
        self, table: np.ndarray, goal: Array, bias: Array = None, epilogue: Epilogue = NOTHING
    ) -> None:
        """The call that computes every product of the table."""
        rows, columns, _ = self._product.extent
        count, longest = len(table), int(table[:, 3].max())
        parts = parts_for(self._product.work)
        height, width, band, strip, room = _cut(count, rows, columns, longest, parts)
        if isinstance(self._right, Gathered):
            # Its columns are loaded block by block.
            width = -(-width // SIDE) * SIDE
        parts = min(parts, count * -(-rows // height) * -(-columns // width))
        self._calls.append(
            _multiply.call(
                table=np.ascontiguousarray(table, np.int64),
                configuration=tile_configuration(),
                a=_operand(self._left),
                b=_operand(self._right),
                c=goal,
                packed=dense((parts, room), bfloat16, self._scratch),
                leading_c=steps(goal)[0],
                count=count,
                rows=rows,
                columns=columns,
                height=height,
                width=width,
                band=band,
                strip=strip,
                room=room,
                bias=bias,
                epilogue=epilogue,
                ta=self._left.transposed,
                tb=self._right.transposed,
                parts=parts,
            )
        )


def _starts(matrix: Matrices | Gathered, terms: np.ndarray, *, by_rows: bool) -> np.ndarray:
    """Return the offset of the first of these terms, as `TileOperand.from_place` takes it."""
    if isinstance(matrix, Gathered):
        return terms if by_rows else terms // SIDE
    return terms * (matrix.leading if by_rows else 1)


def _operand(matrix: Matrices | Gathered) -> dict[str, Any]:
    """Return the arguments of a kernel for one of its matrices."""
    if isinstance(matrix, Gathered):
        rows, blocks = matrix.rows, matrix.blocks
        return {"memory": matrix.array, "leading": 0, "rows": rows, "blocks": blocks}
    return {"memory": matrix.array, "leading": matrix.leading, "rows": None, "blocks": None}


def bind(call: Call, left: Gathered | None = None, right: Gathered | None = None) -> NativeRunner:
    """Return the product with its epilogue, ready to run.

    Either matrix may be a gathered one; the call's own operand then has its shape.
    """
    if not call.outputs[0].size:
        return NativeRunner([])
    return _Binder(call, (left, right)).runner()


def supports(node: Node) -> bool:
    """Return True if all matrices are bfloat16 and the processor has tile registers."""
    _, rows, columns, length = extent_of(node)
    halves = node.dtype == bfloat16 and all(each.dtype == bfloat16 for each in node.inputs[:2])
    return halves and min(rows, columns, length) > 0 and has_amx()


def workspace(node: Node, gathered: int | None = None) -> int:
    """Return the bytes of workspace for packing and for copies of operands.

    `gathered` is the number of the operand that is gathered and thus never copied.
    """
    count, rows, columns, length = extent_of(node)
    parts = parts_for(2 * count * rows * columns * length)
    # Matrices that all meet the same one on the right are one tall matrix.
    taken = [_taken(n, m, columns, length, parts) for n, m in ((count, rows), (1, count * rows))]
    copied_first = [each for i, each in enumerate(node.inputs[:2]) if i != gathered]
    copies = [each.spec for each in (*copied_first, node)]
    biases = [Spec(each.shape, float32) for each in node.inputs[2:]]
    return max(taken) + workspace_bytes(*copies, *biases)


def _taken(count: int, rows: int, columns: int, length: int, parts: int) -> int:
    """Return the bytes for packing on all threads and for the pieces of sums."""
    pieces = _pieces(count, rows, columns, length, parts)
    if pieces == 1:
        room = _cut(count, rows, columns, length, parts)[-1]
        return workspace_bytes(Spec((parts, room), bfloat16))
    longest = -(-length // (TERMS * pieces)) * TERMS
    room = _cut(pieces, rows, columns, longest, parts)[-1]
    sums = (Spec((each, rows, columns), float32) for each in (pieces, 1))
    return workspace_bytes(Spec((parts, room), bfloat16), *sums)


offer(("matmul", "matmul_epilogue"), "amx", bind, supports, workspace, priority=12)
