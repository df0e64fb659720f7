"""The passes in their order. Each takes a program and gives back one that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caldera.errors import ConfigError
from caldera.graph.body import Body, rewrite
from caldera.graph.node import Node
from caldera.graph.opdef import parameter
from caldera.graph.program import Program
from caldera.passes.fuse import fuse
from caldera.passes.lower import HasKernel, lower

NAMES = ("fuse", "in_place")
"""Passes that can be switched off. (`in_place` is decided while a plan is laid out.)"""


def optimise(
    program: Program,
    *,
    has_kernel: HasKernel,
    without: Sequence[str] = (),
    precision: str | None = None,
) -> Program:
    """Run all passes but those named in `without`."""
    for name in without:
        if name not in NAMES:
            raise ConfigError.build("passes", expected="one of " + ", ".join(NAMES), got=repr(name))

    def step(name: str, run: Callable[[Program], Program], program: Program) -> Program:
        return program if name in without else run(program)

    program = _in_bodies(
        program, lambda inner: optimise(inner, has_kernel=has_kernel, without=without)
    )
    program = lower(program, has_kernel)
    program = step("fuse", fuse, program)
    return program


def _in_bodies(program: Program, run: Callable[[Program], Program]) -> Program:
    """Apply `run` to the body of every loop."""

    def rule(node: Node) -> Node | None:
        if node.op.name != "scan":
            return None
        body: Body = node.attrs["body"]
        inner = run(Program(body.outputs))
        arguments = [parameter(i, spec) for i, spec in enumerate(body.parameters)]
        attrs = {**node.attrs, "body": Body(arguments, inner.outputs)}
        return node.op.node(*node.inputs, **attrs)

    return program.with_roots(rewrite(program.roots, rule))
