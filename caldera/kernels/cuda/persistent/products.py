"""Products as parts: tiles on tensor cores, with what follows them done on the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.cuda.persistent.parts import WARPS, Part, units_of
from caldera.kernels.cuda.persistent.writer import Places
from caldera.kernels.table import Call
from caldera.memory.device_array import address_of

Array = np.ndarray[Any, np.dtype[Any]]
Finish = Callable[[Places, str], list[str]]
"""Statements for one element of a product, whose coordinates are `row` and `column`."""
TILE = 16
SPLITS = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Operand:
    """A matrix in memory, seen with the rows and columns that the product wants."""

    array: Array
    transposed: bool
    lead: int

    def type_text(self) -> str:
        """The C++ type through which it is read."""
        rows, columns = self.array.shape
        aligned = self.lead % 4 == 0 and address_of(self.array) % 16 == 0
        flags = f"{_truth(self.transposed)}, {_truth(aligned)}"
        return f"Matrix<{rows}, {columns}, {self.lead}, {flags}>"


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
    tiles = units_of(rows, TILE) * units_of(columns, TILE)
    split = split_for(tiles, inner, blocks)
    exact = _truth(call.node.attrs.get("compute") != "tf32")

    def code(places: Places) -> list[str]:
        sizes = f"{WARPS}, {split}, {exact}, {rows}, {columns}, {inner}"
        first = f"{a.type_text()}{{{places.name(a.array)}}}"
        second = f"{b.type_text()}{{{places.name(b.array)}}}"
        return [
            f"block_product<{sizes}>({first}, {second}, unit, shared,",
            "    [&](i32 row, i32 column, float sum) {",
            *(f"        {line}" for line in finish(places, "sum")),
            "    });",
        ]

    return Part(
        f"{call.node.op.name} {rows}x{columns}x{inner}", units_of(tiles, WARPS // split),
        [a.array, b.array, *reads], writes, code,
    )  # fmt: skip


def split_for(tiles: int, inner: int, blocks: int) -> int:
    """Among how many warps the inner dimension is shared: the most that all blocks can do at once.

    >>> split_for(231, 784, 132), split_for(1617, 100, 132)
    (8, 1)
    """
    useful = [split for split in SPLITS if split * TILE <= max(inner, TILE)]
    for split in useful:
        if units_of(tiles, WARPS // split) <= blocks:
            return split
    return 1


def is_product(node: Node) -> bool:
    """Whether a node is one of the ops that this file knows."""
    return node.op.name in ("matmul", "matmul_epilogue", "matmul_accumulate")


def _truth(value: bool) -> str:
    return "true" if value else "false"
