"""bfloat16 matrices in the order in which tile registers take them, in blocks of 32 by 32.

A block of the left matrix has 32 rows of 32 terms. A block of the right one has 16 rows, each with
two terms of every column in turn. What is missing at the edges is zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from caldera.kernels.native.codegen.amx import TERMS
from caldera.kernels.native.codegen.emitter import I16, I32, Emitter, Pointer, Value, vector
from caldera.kernels.native.movement import transposed

SIDE = 32
"""Rows and columns of the result that are computed at once, in four registers."""
BLOCK = SIDE * TERMS
"""Elements of a block."""


def pack_left(
    k: Emitter, target: Pointer, source: Pointer, leading: Value, length: Value, rows: Value,
    *, flipped: bool,
) -> None:  # fmt: skip
    """Rows of the left matrix; `flipped` says that its columns are dense."""

    def whole(block: Pointer, row: Value, term: Value) -> None:
        if flipped:
            lines = [source.load((term + i) * leading + row, SIDE) for i in range(TERMS)]
            for i, line in enumerate(transposed(k, lines)):
                block.store(i * TERMS, line)
        else:
            with k.loop(0, SIDE) as step:
                block.store(step * TERMS, source.load((row + step) * leading + term, TERMS))

    def place(line: Value, term: Value) -> Value:
        return line * TERMS + term

    _pack(k, target, source, leading, length, rows, whole, place, across=flipped)


def pack_right(
    k: Emitter, target: Pointer, source: Pointer, leading: Value, length: Value, columns: Value,
    *, flipped: bool,
) -> None:  # fmt: skip
    """Columns of the right matrix; `flipped` says that they are dense."""
    half = SIDE // 2

    def whole(block: Pointer, column: Value, term: Value) -> None:
        if flipped:
            for start in (0, half):
                lines = [
                    source.load((column + start + i) * leading + term, TERMS) for i in range(half)
                ]
                pairs = [k.bitcast(line, vector(I32, half)) for line in lines]
                for i, line in enumerate(transposed(k, pairs)):
                    block.store(i * 2 * SIDE + 2 * start, k.bitcast(line, vector(I16, SIDE)))
            return
        with k.loop(0, TERMS, 2) as step:
            first, second = (
                source.load((term + step + j) * leading + column, SIDE) for j in (0, 1)
            )
            for start in (0, half):
                picks = [start + n // 2 + SIDE * (n % 2) for n in range(SIDE)]
                block.store(step * SIDE + 2 * start, k.shuffle(first, second, picks))

    def place(line: Value, term: Value) -> Value:
        return term // 2 * (2 * SIDE) + line * 2 + term % 2

    _pack(k, target, source, leading, length, columns, whole, place, across=not flipped)


def _pack(
    k: Emitter, target: Pointer, source: Pointer, leading: Value, length: Value, lines: Value,
    whole: Callable[[Pointer, Value, Value], None], place: Callable[[Value, Value], Value],
    *, across: bool,
) -> None:  # fmt: skip
    """Blocks of lines, and in each of them blocks of terms: `whole` packs one, `place` says where
    an element of it goes. `across` says that it is lines that are dense in the source."""
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
                    down, right = (term + j, line + i) if across else (line + i, term + j)
                    block.store(place(i, j), source.load(down * leading + right))
