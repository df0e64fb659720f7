"""Recipes as native code."""

from __future__ import annotations

from caldera.graph.node import Node
from caldera.kernels.common.loop_body import LoopBody, Reference, is_computable
from caldera.kernels.native.codegen.dtypes import constant
from caldera.kernels.native.codegen.emitter import Emitter, Value
from caldera.kernels.native.elementwise.operations import apply, can_apply


def computed_values(
    loop_body: LoopBody, k: Emitter, values: list[Value], lanes: int
) -> tuple[list[Value], list[Value]]:
    """What is written and what is reduced, for these values of the operands."""
    done: list[Value] = []

    def find(reference: Reference) -> Value:
        if reference[0] == "in":
            return values[int(reference[1])]
        if reference[0] == "step":
            return done[int(reference[1])]
        _, value, dtype = reference  # type: ignore[misc]
        return constant(k, value, dtype, lanes)

    for op, dtype, sources, operands in loop_body.steps:
        done.append(apply(k, op, dtype, sources, *[find(each) for each in operands]))
    written = [find(each) for _, each in loop_body.outputs]
    return written, [find(each) for *_, each in loop_body.reductions]


def is_known(node: Node) -> bool:
    """Whether a node's loop can be compiled."""
    return is_computable(node, can_apply)
