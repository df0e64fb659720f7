"""Lowering: composite ops without a kernel on the device are replaced by their parts.

Integer products are also replaced, because no library is faster than a loop for them.
"""

from __future__ import annotations

from collections.abc import Callable

from caldera.core.graph import Node, Nodes, Program, as_tuple, rebuild
from caldera.core.graph.ops.product import matmul, product_loop
from caldera.core.tensor.dtype import is_integer

HasKernel = Callable[[str], bool]


def lower(program: Program, has_kernel: HasKernel) -> Program:
    """Return the program with ops expanded until every op has a kernel."""

    def parts_of(node: Node) -> Callable[..., Node | Nodes] | None:
        if node.op is matmul:
            return product_loop if is_integer(node.dtype) else None
        return None if has_kernel(node.op.name) else node.op.decompose

    def expand(node: Node, inputs: Nodes) -> Nodes | None:
        parts = parts_of(node)
        return None if parts is None else as_tuple(parts(*inputs, **node.attrs))

    while any(parts_of(node) for node in program.order()):
        program = rebuild(program, expand)
    return program
