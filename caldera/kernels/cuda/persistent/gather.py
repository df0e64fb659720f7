"""Rows of a table by their indices: how a step fetches its batch from data on the GPU.

The indices of a batch are themselves rows of a table, the order of the epoch. Instead of waiting
for a gather of the indices, readers take them directly from that table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.graph.memory_format import dense_strides
from caldera.core.memory.software import address_of
from caldera.core.tensor import UNSIGNED, size
from caldera.kernels.cuda.codegen.kernel import STORED, Array
from caldera.kernels.cuda.persistent.fusion import FusedProduct, meet, same
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    TileAccess,
    TileTask,
    plain,
    units_of,
    unravelled,
)
from caldera.kernels.table import Call

VECTOR = 16
"""Number of bytes that a thread moves per access if the rows permit it."""
TURNS = 4
"""Number of elements or vectors that a thread reads before the first write."""


@dataclass(eq=False)
class Gather:
    """`output[i] = table[numbers[i]]`; `through` is the gather that makes the numbers, if known."""

    table: Array
    numbers: Array
    output: Array
    through: Gather | None = None

    @property
    def reads(self) -> Sequence[Array]:
        """Arrays that are read."""
        numbers = [self.numbers] if self.through is None else self.through.reads
        return [self.table, *numbers]

    @property
    def writes(self) -> Sequence[Array]:
        """Arrays that are written."""
        return [self.output]

    def number(self, places: TileAccess, names: Sequence[str], name: str) -> list[str]:
        """Return statements that find the row of the table for these coordinates."""
        if self.through is None:
            before: list[str] = []
            numbers, value = self.numbers, places.load(self.numbers, names)
        else:
            axes = self.through.numbers.ndim
            before = self.through.number(places, names[:axes], f"{name}_row")
            numbers = self.through.table
            value = places.element(numbers, [f"{name}_row", *names[axes:]])
        last = self.table.shape[0] - 1
        return [
            *before,
            f"i64 {name} = (i64){value};",
            *([] if numbers.dtype in UNSIGNED else [f"if ({name} < 0) {name} += {last + 1};"]),
            "// A number that is no row must not be read.",
            f"{name} = max((i64)0, min({name}, (i64){last}));",
        ]

    def task(self) -> TileTask:
        """Return the task; a thread moves single elements, or vectors of elements of a row."""
        axes = self.numbers.ndim
        wide = self._elements_at_once()
        rows, length = self.output.shape[:axes], size(self.output.shape[axes:])
        count = self.output.size // wide

        def code(places: TileAccess) -> list[str]:
            split, names = unravelled("e", (*rows, length // wide), "i")
            own, number = names[:axes], self.number(places, names[:axes], "number")
            if wide == 1:
                kind = STORED[self.output.dtype.name]
                inner, inside = unravelled(names[axes], self.output.shape[axes:], "j")
                source = places.element(self.table, ["number", *inside])
                target = places.element(self.output, [*own, *inside])
            else:
                kind, inner = "uint4", []
                first = ["0"] * (self.output.ndim - axes)
                target = places.element(self.output, [*own, *first])
                source = places.element(self.table, ["number", *first])
                at = f"{names[axes]} * {wide}"
                source, target = (
                    f"*(const uint4*)(&{source} + {at})",
                    f"*(uint4*)(&{target} + {at})",
                )
            turn = [
                "#pragma unroll",
                f"for (i32 i = 0; i < {TURNS}; i++) {{",
                f"    i32 e = unit * {TURNS * THREADS} + i * {THREADS} + threadIdx.x;",
                f"    if (e < {count}) {{",
                *(f"        {line}" for line in (*split, *inner)),
            ]
            return [
                f"{kind} moved[{TURNS}];",
                *turn,
                *(f"        {line}" for line in number),
                f"        moved[i] = {source};",
                "    }",
                "}",
                *turn,
                f"        {target} = moved[i];",
                "    }",
                "}",
            ]

        units = units_of(count, TURNS * THREADS)
        return TileTask("gather", units, self.reads, self.writes, plain(code))

    @property
    def has_plain_rows(self) -> bool:
        """True for dense rows of a float32 matrix and a one-dimensional array of indices."""
        table = self.table
        dense = table.ndim == 2 and table.strides[1] == 4 and table.strides[0] >= 4 * table.shape[1]
        return dense and table.dtype == np.float32 and self.numbers.ndim == 1

    def _elements_at_once(self) -> int:
        """Return the number of elements of a row that may be moved as one."""
        axes, item = self.numbers.ndim, self.output.itemsize
        row = self.table.shape[1:]
        wanted = dense_strides(row, None, item)
        dense = self.table.strides[1:] == wanted == self.output.strides[axes:]
        places = [
            address_of(self.output),
            address_of(self.table),
            size(row) * item,
            self.table.strides[0],
            *self.output.strides[:axes],
        ]
        return VECTOR // item if dense and not any(each % VECTOR for each in places) else 1


def gather(call: Call) -> Gather | None:
    """Return the call as a piece; None if it takes other things than rows."""
    table, numbers = call.inputs
    return Gather(table, numbers, call.outputs[0]) if call.node.attrs["axis"] == 0 else None


def fuse_gathers(pieces: Iterable[Any]) -> None:
    """Let gathers read their indices, and products their rows, directly from the source tables."""
    known: list[Gather] = []
    for piece in pieces:
        if isinstance(piece, Gather):
            piece.through = next((g for g in known if same(g.output, piece.numbers)), None)
        if isinstance(piece, FusedProduct):
            piece.rows = _rows_of(piece, known)
        known = [g for g in known if not meet(piece.writes, [g.output, *g.reads])]
        if isinstance(piece, Gather):
            known.append(piece)


def _rows_of(product: FusedProduct, known: list[Gather]) -> Gather | None:
    """Return the gather of a product's left operand, if the product reads its output only there."""
    left = product.left
    if left is None or sum(same(each, left) for each in product.given) != 1:
        return None
    return next((g for g in known if same(g.output, left) and g.has_plain_rows), None)
