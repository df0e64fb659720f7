"""Recipes as native code."""

from __future__ import annotations

from caldera.graph.node import Node
from caldera.kernels.native.emit import Emitter, Value
from caldera.kernels.native.loop.elements import constant
from caldera.kernels.native.loop.operations import apply, can_apply
from caldera.kernels.recipe import Recipe, Reference, is_computable


def computed_values(
    recipe: Recipe, k: Emitter, values: list[Value], lanes: int
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

    for op, dtype, sources, operands in recipe.steps:
        done.append(apply(k, op, dtype, sources, *[find(each) for each in operands]))
    written = [find(each) for _, each in recipe.outputs]
    return written, [find(each) for *_, each in recipe.reductions]


def is_known(node: Node) -> bool:
    """Whether a node's loop can be compiled."""
    return is_computable(node, can_apply)
