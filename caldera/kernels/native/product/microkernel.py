"""A tile of a matrix product in registers: a few rows, each of a few vectors.

Tiles at the edges are moved inwards and compute some elements twice, which is cheaper than a case
of its own for every size of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import (
    F64,
    I64,
    POINTER,
    Emitter,
    Number,
    Pointer,
    Value,
    Variable,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.emitter import lanes as lanes_of
from caldera.kernels.native.codegen.half import load_wide
from caldera.kernels.native.codegen.target import host_target


def most_vectors() -> int:
    """How many vectors wide a tile may be."""
    return 4 if host_target().registers >= 32 else 2


@dataclass(frozen=True)
class Matrix:
    """A matrix inside a kernel: its address and the distances between rows and between columns."""

    pointer: Pointer
    down: Number
    right: Number = 1

    def row(self, index: Number) -> Pointer:
        """Where a row begins."""
        return self.pointer.at(self.pointer.k.constant(index, I64) * self.down)

    @property
    def transposed(self) -> Matrix:
        """The same with rows and columns exchanged."""
        return Matrix(self.pointer, self.right, self.down)


def add_products(
    k: Emitter,
    sums: Sequence[Sequence[Variable]],
    a: Matrix,
    lines: Sequence[Value],
    b: Matrix,
    places: Sequence[Value],
    length: Number,
    dtype: str,
) -> None:
    """sums[i][j] += a[lines[i], :] @ b[:, places[j]...] for matrices of a dtype.

    The rows of b are dense.
    """
    lanes = lanes_of(sums[0][0].type)
    rows = [a.row(line) for line in lines]
    with k.loop(0, length) as i:
        across = b.row(i)
        factors = [load_wide(k, across, place, lanes, dtype) for place in places]
        for pointer, totals in zip(rows, sums, strict=True):
            one = load_wide(k, pointer, i * a.right, 1, dtype)
            for total, factor in zip(totals, factors, strict=True):
                total.value = k.fma(one, factor, total.value)


_HEIGHT = 4
"""Rows of the tiles of `multiply`: few enough for 16 registers, with two vectors each."""


def multiply(
    k: Emitter,
    c: Matrix,
    a: Matrix,
    b: Matrix,
    extent: tuple[Number, Number, Number],
    *,
    accumulate: bool = False,
) -> None:
    """c = a @ b, or c += a @ b, inside a kernel: for matrices that fit into the cache.

    `extent` is rows, columns and the length of the sums. The rows of b and c are dense, and the
    number of columns is a multiple of the vector's lanes (so the matrices are padded ones).
    """
    kind = c.pointer.type
    suffix = "add" if accumulate else "set"
    function = k.internal_function(
        f"multiply_{suffix}_{kind}",
        [POINTER, I64, POINTER, I64, I64, POINTER, I64, I64, I64, I64],
        lambda inside, *given: _multiply(inside, kind, accumulate, *given),
    )
    # It is called from several places, and each call is long.
    function.attributes.add("noinline")
    numbers = [k.constant(n, I64) for n in (c.down, a.down, a.right, b.down, *extent)]
    c_down, a_down, a_right, b_down, rows, columns, length = numbers
    k.call(
        function,
        c.pointer,
        c_down,
        a.pointer,
        a_down,
        a_right,
        b.pointer,
        b_down,
        rows,
        columns,
        length,
    )


def _multiply(k: Emitter, kind: ir.Type, accumulate: bool, *given: Value) -> None:
    c_raw, c_down, a_raw, a_down, a_right, b_raw, b_down, rows, columns, length = given
    a, b, c = (
        Matrix(Pointer(k, raw.raw, kind), down, right)
        for raw, down, right in ((a_raw, a_down, a_right), (b_raw, b_down, 1), (c_raw, c_down, 1))
    )
    lanes, vectors = natural_lanes(kind), most_vectors()
    dtype = "float64" if kind == F64 else "float32"
    with k.loop(0, columns, lanes * vectors) as left, k.loop(0, rows, _HEIGHT) as top:
        lines = [k.minimum(top + i, rows - 1) for i in range(_HEIGHT)]
        places = [k.minimum(left + j * lanes, columns - lanes) for j in range(vectors)]
        goals = [c.row(line) for line in lines]
        zero = k.constant(0.0, vector(kind, lanes))
        # All is read before any of it is written: a row that is there twice counts once.
        sums = [
            [k.variable(goal.load(place, lanes) if accumulate else zero) for place in places]
            for goal in goals
        ]
        add_products(k, sums, a, lines, b, places, length, dtype)
        for goal, totals in zip(goals, sums, strict=True):
            for place, total in zip(places, totals, strict=True):
                goal.store(place, total.value)
