"""Small things that the tests of the passes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.compiler.lazy import Expr, var
from caldera.compiler.passes.lower import lower
from caldera.compiler.passes.pattern import Rules
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import assign, constant
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from caldera.core.tensor.dtype import float32
from caldera.kernels.reference import interpret
from tests.unit.compiler.passes.graphs import Graph


def variable(*shape: int, dtype: str = "float32") -> Node:
    """A new variable's node."""
    return var("v", shape, dtype=dtype).node


def number(value: float) -> Node:
    """A float32 constant."""
    return constant(value, float32)


def rewritten(rules: Rules, node: Node) -> Node:
    """What rules make of one node."""
    (result,) = rules(Program((node,))).outputs
    return result


def names(program: Program) -> list[str]:
    """The ops of a program that are not leaves, in order."""
    return [node.op.name for node in program.order() if node.op.kind != "leaf"]


def joined(run: Callable[[Program], Program], outputs: Sequence[Expr], near: float) -> Program:
    """What a pass makes of outputs; it must compute the same."""
    result = run(program_of([output.node for output in outputs]))
    verify(result)
    for before, after in zip(outputs, result.outputs, strict=True):
        found = Expr(after).numpy()
        np.testing.assert_allclose(found, before.numpy(), rtol=near, atol=near, strict=True)
    return result


def compute(nodes: tuple[Node, ...], values: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """Values by the oracle; constant arrays bring their own."""
    leaves = {
        node: node.attrs["symbol"].value.numpy()
        for node in Program(nodes).order()
        if node.op.name == "array"
    }
    with np.errstate(all="ignore"):
        return interpret(nodes, {**leaves, **values})


def program_for(graph: Graph) -> Program:
    """The program of a random graph."""
    return program_of(graph.outputs, [assign(each.node, new) for each, new in graph.updates])


def product_flops(program: Program) -> int:
    """The work of all matrix products and convolutions, those inside of other nodes included."""
    total = 0
    for node in lower(program, has_kernel=lambda name: False).order():
        if node.op.name == "scan":
            inner = product_flops(Program(node.attrs["body"].outputs))
            total += node.attrs["length"] * inner
        elif node.op.kind == "product":
            total += node.op.count_flops(node)
    return total
