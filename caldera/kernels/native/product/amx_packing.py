"""Pack bfloat16 matrices in the order in which tile registers read them, in blocks of 32 by 32.

A block of the left matrix has 32 rows of 32 terms. A block of the right one has 16 rows, each with
two terms of every column, interleaved. Blocks at the edges are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from caldera.kernels.native.codegen import (
    I16,
    I32,
    I64,
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    vector,
)
from caldera.kernels.native.codegen.matrix_multiply import TERMS
from caldera.kernels.native.movement import transposed

SIDE = 32
"""Rows and columns of the result that are computed together, in four registers."""
BLOCK = SIDE * TERMS
"""Elements of a block."""


@dataclass(frozen=True)
class TileOperand:
    """A matrix in memory.

    Rows have a stride of `leading` elements, or begin at the offsets in `rows`. In the latter case,
    `blocks` has the offset of every 32 elements of a row.
    """

    memory: Pointer
    leading: Integer
    rows: Pointer | None
    blocks: Pointer | None

    def at(self, row: Number, column: Number) -> Pointer:
        """The address of an element, from which on 32 lie side by side if that begins a block."""
        k = self.memory.k
        if self.rows is None or self.blocks is None:
            return self.memory.at(self.leading * row + column)
        number = k.constant(column, I64)
        start = self.rows.load(row) + self.blocks.load(number // SIDE)
        return self.memory.at(start + number % SIDE)

    def from_place(self, start: RegisterValue, *, by_rows: bool) -> TileOperand:
        """Return the part of the matrix that begins at `start`.

        `start` is an offset in memory. For a matrix with offsets, it is the number of the first row
        or, if not `by_rows`, of the first block of each row.
        """
        if self.rows is None or self.blocks is None:
            return replace(self, memory=self.memory.at(start))
        if by_rows:
            return replace(self, rows=self.rows.at(start))
        return replace(self, blocks=self.blocks.at(start))


def pack_left(
    k: Emitter,
    target: Pointer,
    source: TileOperand,
    first: RegisterValue,
    length: RegisterValue,
    rows: RegisterValue,
    *,
    flipped: bool,
) -> None:
    """Pack rows of the left matrix, starting at `first`; `flipped` if its columns are dense."""

    def whole(block: Pointer, row: RegisterValue, term: RegisterValue) -> None:
        if flipped:
            lines = [source.at(term + i, first + row).load(0, SIDE) for i in range(TERMS)]
            for i, line in enumerate(transposed(k, lines)):
                block.store(i * TERMS, line)
        else:
            with k.loop(0, SIDE) as step:
                line = source.at(first + row + step, term).load(0, TERMS)
                block.store(step * TERMS, line)

    def place(line: RegisterValue, term: RegisterValue) -> RegisterValue:
        return line * TERMS + term

    _pack(k, target, source, first, length, rows, whole, place, across=flipped)


def pack_right(
    k: Emitter,
    target: Pointer,
    source: TileOperand,
    first: RegisterValue,
    length: RegisterValue,
    columns: RegisterValue,
    *,
    flipped: bool,
) -> None:
    """Pack columns of the right matrix, starting at `first`; `flipped` if these are dense."""
    half = SIDE // 2

    def whole(block: Pointer, column: RegisterValue, term: RegisterValue) -> None:
        if flipped:
            for start in (0, half):
                lines = [
                    source.at(first + column + start + i, term).load(0, TERMS) for i in range(half)
                ]
                pairs = [k.bitcast(line, vector(I32, half)) for line in lines]
                for i, line in enumerate(transposed(k, pairs)):
                    block.store(i * 2 * SIDE + 2 * start, k.bitcast(line, vector(I16, SIDE)))
            return
        with k.loop(0, TERMS, 2) as step:
            even, odd = (source.at(term + step + j, first + column).load(0, SIDE) for j in (0, 1))
            for start in (0, half):
                picks = [start + n // 2 + SIDE * (n % 2) for n in range(SIDE)]
                block.store(step * SIDE + 2 * start, k.shuffle(even, odd, picks))

    def place(line: RegisterValue, term: RegisterValue) -> RegisterValue:
        return term // 2 * (2 * SIDE) + line * 2 + term % 2

    _pack(k, target, source, first, length, columns, whole, place, across=not flipped)


def _pack(
    k: Emitter,
    target: Pointer,
    source: TileOperand,
    first: RegisterValue,
    length: RegisterValue,
    lines: RegisterValue,
    whole: Callable[[Pointer, RegisterValue, RegisterValue], None],
    place: Callable[[RegisterValue, RegisterValue], RegisterValue],
    *,
    across: bool,
) -> None:
    """Pack blocks of lines, each split into blocks of terms.

    `whole` packs a full block, and `place` returns the index of an element in its block. `across`
    means that lines, not terms, are dense in the source.
    """
    padded = (length + (TERMS - 1)) // TERMS * TERMS
    with k.loop(0, lines, SIDE) as line, k.loop(0, length, TERMS) as term:
        block = target.at(line * padded + term * SIDE)
        high, deep = k.minimum(lines - line, SIDE), k.minimum(length - term, TERMS)
        with k.if_else(high.equals(SIDE) & deep.equals(TERMS)) as (full, partial):
            with full:
                whole(block, line, term)
            with partial:
                k.clear_bytes(block, 2 * BLOCK)
                with k.loop(0, high) as i, k.loop(0, deep) as j:
                    own = first + line + i
                    element = source.at(term + j, own) if across else source.at(own, term + j)
                    block.store(place(i, j), element.load())
