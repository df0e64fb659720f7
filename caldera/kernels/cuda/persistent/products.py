"""Products as parts: tiles on tensor cores, with what follows them done on the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.cuda.persistent.parts import SHARED_FLOATS, WARPS, Part, units_of
from caldera.kernels.cuda.persistent.writer import Held, Places
from caldera.kernels.table import Call
from caldera.memory.device_array import address_of

Array = np.ndarray[Any, np.dtype[Any]]
Finish = Callable[[Places, str], list[str]]
"""Statements for one element of a product, whose coordinates are `row` and `column`."""


@dataclass(frozen=True)
class Tiling:
    """A tile of rows x columns that a block makes; down x across warps lie over it.

    The warps that are left share the inner dimension.
    """

    rows: int
    columns: int
    down: int
    across: int

    @property
    def parts(self) -> int:
        """How many warps share the inner dimension."""
        return WARPS // (self.down * self.across)

    def depth(self, inner: int, a: Operand, b: Operand) -> int:
        """How many inner indices are brought to shared memory at once."""
        lines = [
            count + (0 if along else 8)
            for count, along in ((self.rows, not a.transposed), (self.columns, b.transposed))
        ]
        # Lines along the inner dimension are rounded up to 32, and 4 more.
        most = (SHARED_FLOATS - 4 * (self.rows + self.columns)) // sum(lines) // 32 * 32
        return min(most, units_of(inner, 32) * 32)

    def units(self, rows: int, columns: int) -> int:
        """How many tiles a result takes."""
        return units_of(rows, self.rows) * units_of(columns, self.columns)

    def cycles(self, rows: int, columns: int, inner: int, blocks: int) -> float:
        """What a product is thought to take: from measurements on an H200, roughly."""
        waves = units_of(self.units(rows, columns), blocks)
        fetched = 4 * (self.rows + self.columns) * inner / 48
        steps = units_of(inner, 8) * self.down * self.across
        fragments = steps * (self.rows / self.down + self.columns / self.across) / 4
        ended = self.rows * self.columns / 512 * (60 + 4 * self.parts)
        return waves * (1500 + fetched + fragments + ended)


TILINGS = (
    Tiling(16, 16, 1, 1), Tiling(32, 16, 1, 1), Tiling(32, 32, 1, 1), Tiling(64, 32, 2, 1),
    Tiling(64, 64, 2, 2), Tiling(64, 64, 4, 4),
)  # fmt: skip


def tiling_for(rows: int, columns: int, inner: int, blocks: int) -> Tiling:
    """The tiling that is thought to be fastest.

    >>> tiling_for(100, 528, 784, 132), tiling_for(784, 528, 100, 132)
    (Tiling(rows=32, columns=16, down=1, across=1), Tiling(rows=64, columns=64, down=4, across=4))
    """
    return min(TILINGS, key=lambda each: each.cycles(rows, columns, inner, blocks))


@dataclass(frozen=True)
class Operand:
    """A matrix in memory, seen with the rows and columns that the product wants."""

    array: Array
    transposed: bool
    lead: int

    def type_text(self, count: int, *, along: bool) -> str:
        """Its C++ type; `along` says whether its lines run along the inner axis."""
        aligned = self.lead % 4 == 0 and address_of(self.array) % 16 == 0
        return f"Operand<{self.lead}, {count}, {_truth(along)}, {_truth(aligned)}>"


def operand(array: Array, transposed: bool) -> Operand | None:
    """The matrix of a product; None if neither its rows nor its columns lie densely."""
    if array.ndim != 2 or array.dtype != np.float32 or not array.size:
        return None
    seen = array.transpose(1, 0) if transposed else array
    down, across = (stride // 4 for stride in seen.strides)
    rows, columns = seen.shape
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return Operand(seen, False, max(down, columns))
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return Operand(seen, True, max(across, rows))
    return None


def operands(call: Call) -> tuple[Operand, Operand] | None:
    """The two matrices of a product of matrices in float32; None if it is something else."""
    first = 1 if call.node.op.name == "matmul_accumulate" else 0
    attrs = call.node.attrs
    a = operand(call.inputs[first], attrs["ta"])
    b = operand(call.inputs[first + 1], attrs["tb"])
    if a is None or b is None or call.outputs[0].ndim != 2:
        return None
    return a, b


def product_part(
    call: Call, matrices: tuple[Operand, Operand], finish: Finish, blocks: int,
    reads: list[Array], writes: list[Array],
) -> Part:  # fmt: skip
    """The product of a call; `finish` writes what becomes of each sum."""
    a, b = matrices
    rows, inner = a.array.shape
    columns = b.array.shape[1]
    tiling = tiling_for(rows, columns, inner, blocks)
    exact = _truth(call.node.attrs.get("compute") != "tf32")
    depth = tiling.depth(inner, a, b)
    shape = f"{tiling.rows}, {tiling.columns}, {tiling.down}, {tiling.across}"

    def code(places: Places) -> list[str]:
        held = Held(places, "i")
        ending = finish(held, "sum")
        left = a.type_text(rows, along=not a.transposed)
        right = b.type_text(columns, along=b.transposed)
        arrays = f"{{{places.name(a.array)}}}, {{{places.name(b.array)}}}"
        down, corner = units_of(rows, tiling.rows), "first_row, first_column"
        each = [
            "#pragma unroll",
            "for (i32 i = 0; i < T::EACH; i++) {",
            "    i32 below = threadIdx.x / T::N + i * (T::THREADS / T::N);",
            "    i32 row = first_row + below;",
            f"    if (below < T::M && row < {rows} && column < {columns}) {{",
        ]
        return [
            f"typedef Tiling<{WARPS}, {shape}, {exact}> T;",
            f"i32 first_row = unit % {down} * T::M, first_column = unit / {down} * T::N;",
            "i32 column = first_column + threadIdx.x % T::N;",
            *held.declarations("T::EACH"),
            *held.once,
            f"Multiplication<T, {left}, {right}, {inner}, {depth}> product = {{{arrays}}};",
            f"block_begin(product, 0, {corner}, shared);",
            "// These are read while the operands are on their way.",
            *each,
            *(f"        {line}" for line in held.statements),
            "    }",
            "}",
            f"block_product(product, {corner}, shared);",
            *each,
            "        float sum = tile_sum<T>(shared, threadIdx.x + i * T::THREADS);",
            *(f"        {line}" for line in ending),
            "    }",
            "}",
            "__syncthreads();",
        ]

    return Part(
        f"{call.node.op.name} {rows}x{columns}x{inner}", tiling.units(rows, columns),
        [a.array, b.array, *reads], writes, code,
    )  # fmt: skip


def is_product(node: Node) -> bool:
    """Whether a node is one of the ops that this file knows."""
    return node.op.name in ("matmul", "matmul_epilogue", "matmul_accumulate")


def _truth(value: bool) -> str:
    return "true" if value else "false"
