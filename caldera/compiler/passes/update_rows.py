"""The step of plain gradient descent goes to those rows of a table that a batch has named.

The gradient of an embedding is a table of zeros to which rows are added, and `W - rate * gradient`
reads and writes all of W for the sake of a few rows. Here the rows, times the rate, are added to W
itself. Where a row is named twice, its updates are added one after the other and not their sum, so
its last digit may differ.
"""

from __future__ import annotations

from caldera.compiler.passes.constants import uniform
from caldera.compiler.passes.update_product import Update, joined_updates
from caldera.core.graph.node import Node
from caldera.core.graph.ops.elementwise import mul, where
from caldera.core.graph.ops.indexing import scatter_add
from caldera.core.graph.ops.leaf import constant
from caldera.core.graph.program import Program


def update_rows(program: Program) -> Program:
    """Add rows to the variable that they change."""
    return joined_updates(program, scatter_add, _added)


def _added(weight: Node, update: Update) -> Node | None:
    start, indices, rows = update.gradient.inputs
    is_whole = update.beta.attrs.get("value") == 1 and uniform(start) == 0
    if not is_whole or rows.spec.size >= weight.spec.size:
        # Decay changes every row, and so does a batch that names them all.
        return None
    scaled = mul(rows, update.alpha)
    if update.condition is not None:
        # Nothing changes when -0.0 is added, not even the sign of nought.
        scaled = where(update.condition, scaled, constant(-0.0, rows.dtype))
    return scatter_add(weight, indices, scaled, **update.gradient.attrs)
