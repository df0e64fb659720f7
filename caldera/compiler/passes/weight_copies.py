"""Weights in half precision are written by the update that changes them.

In mixed precision a product reads a cast of its float32 weights. Where a program updates these, the
cast would be made of what the update of the run before had in its registers. So a second variable
keeps it: the update writes both, and products read the second one. It holds the same bits.

The program is one whose casts are explicit already, before `fuse` joins them with other loops.
"""

from __future__ import annotations

from collections.abc import Callable

from caldera.core.graph.body import rewrite
from caldera.core.graph.node import Node, Symbol
from caldera.core.graph.ops.base import cast
from caldera.core.graph.ops.leaf import variable
from caldera.core.graph.program import Program
from caldera.core.tensor.dtype import HALVES, DType, float32

VIEWS = frozenset({"reshape", "transpose", "broadcast_to"})
"""Ops that only look at a variable in another way."""

CopyOf = Callable[[Symbol, DType], Symbol | None]
"""The variable that holds another one in this dtype, or None if there can be none."""


def weight_copies(program: Program, copy_of: CopyOf) -> tuple[Program, dict[Symbol, Symbol]]:
    """The program that reads such copies and updates them; the variable that each is a copy of."""
    updates = dict(program.updates)
    copies: dict[tuple[Symbol, DType], Symbol | None] = {}

    def copied(node: Node, half: DType) -> Node | None:
        """A view of a variable's copy instead of one of the variable."""
        if node.op.name in VIEWS:
            below = copied(node.inputs[0], half)
            return None if below is None else node.op.rebuild(node, (below,))
        symbol = node.attrs.get("symbol")
        if node.op is not variable or node.dtype != float32 or symbol not in updates:
            return None
        if (symbol, half) not in copies:
            copies[symbol, half] = copy_of(symbol, half)
        copy = copies[symbol, half]
        return None if copy is None else variable(symbol=copy)

    def rule(node: Node) -> Node | None:
        is_narrowing = node.op.name == "cast" and node.dtype in HALVES
        return copied(node.inputs[0], node.dtype) if is_narrowing else None

    new = program.with_roots(rewrite(program.roots, rule))
    values = dict(new.updates)
    made = {copy: (symbol, half) for (symbol, half), copy in copies.items() if copy is not None}
    written = tuple((copy, cast(values[symbol], half)) for copy, (symbol, half) in made.items())
    originals = {copy: symbol for copy, (symbol, _) in made.items()}
    return Program(new.outputs, new.updates + written), originals
