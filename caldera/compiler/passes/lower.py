"""Composite ops for which the device has no kernel of their own are replaced by their parts."""

from __future__ import annotations

from collections.abc import Callable

from caldera.core.graph import Node, Nodes, Program, as_tuple, rebuild

HasKernel = Callable[[str], bool]


def lower(program: Program, has_kernel: HasKernel) -> Program:
    """Expand until every op has a kernel."""

    def is_expanded(node: Node) -> bool:
        return node.op.decompose is not None and not has_kernel(node.op.name)

    def expand(node: Node, inputs: Nodes) -> Nodes | None:
        decompose = node.op.decompose if is_expanded(node) else None
        return None if decompose is None else as_tuple(decompose(*inputs, **node.attrs))

    while any(is_expanded(node) for node in program.order()):
        program = rebuild(program, expand)
    return program
