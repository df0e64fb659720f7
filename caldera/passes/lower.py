"""Composite ops for which the device has no kernel of their own are replaced by their parts."""

from __future__ import annotations

from collections.abc import Callable

from caldera.graph.body import rewrite
from caldera.graph.node import Node
from caldera.graph.opdef import ITEM, OPS, as_tuple
from caldera.graph.program import Program

HasKernel = Callable[[str], bool]


def lower(program: Program, has_kernel: HasKernel) -> Program:
    """Expand until every op has a kernel."""
    expanded: dict[Node, tuple[Node, ...]] = {}

    def expand(node: Node) -> Node | None:
        if node.op is ITEM and node.inputs[0] in expanded:
            return expanded[node.inputs[0]][node.attrs["index"]]
        if node.op.decompose is None or has_kernel(node.op.name):
            return None
        parts = as_tuple(node.op.decompose(*node.inputs, **node.attrs))
        if len(node.outputs) == 1:
            return parts[0]
        # Kept until its items are met; nobody reads the node itself.
        expanded[node] = parts
        return None

    while any(
        node.op.decompose is not None and not has_kernel(node.op.name) for node in program.order()
    ):
        program = program.with_roots(rewrite(program.roots, expand))
    return program


def without_kernel(family_has: HasKernel) -> list[str]:
    """The ops that neither have a kernel nor can be expanded."""
    return [
        name
        for name, op in OPS.items()
        if op.decompose is None and op.kind not in ("leaf", "state") and not family_has(name)
    ]
