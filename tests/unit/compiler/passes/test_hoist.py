"""What is the same in every step of a loop."""

from __future__ import annotations

import numpy as np

from caldera.compiler.passes.redundancy import hoist
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import as_tuple, parameter
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import broadcast_to, full
from caldera.core.graph.ops.control import scan
from caldera.core.graph.program import Body, Program
from caldera.core.tensor.dtype import float32
from tests.unit.compiler.passes.tools import compute, number, variable

STEP = Spec((2,), float32)
CARRY, X, K = (parameter(index, STEP) for index in range(3))


def _hoisted(*outputs: Node) -> tuple[list[str], list[str]]:
    """The ops inside and outside of the loop with these outputs, after comparing the results."""
    start, xs, k = variable(2), variable(3, 2), variable(2)
    results = scan.outputs(
        start,
        xs,
        k,
        body=Body((CARRY, X, K), outputs),
        carries=1,
        sequences=1,
        length=3,
        reverse=False,
    )
    program = Program(as_tuple(results))
    better = hoist(program)
    generator = np.random.default_rng(0)
    values = {leaf: generator.uniform(0, 1, leaf.shape).astype("f") for leaf in (start, xs, k)}
    for one, other in zip(
        compute(program.roots, values), compute(better.roots, values), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    (loop,) = [node for node in better.order() if node.op is scan]
    inside = [node.op.name for node in loop.attrs["body"].order() if node.inputs]
    outside = [
        node.op.name for node in better.order() if node.op.kind in ("elementwise", "movement")
    ]
    return inside, outside


def test_what_depends_on_constants_alone_is_computed_before_the_loop() -> None:
    inside, outside = _hoisted(e.add(e.mul(CARRY, e.exp(e.neg(K))), X))
    assert inside == ["mul", "add"]
    assert outside == ["neg", "exp"]


def test_also_where_a_step_only_hands_it_out() -> None:
    inside, outside = _hoisted(e.add(CARRY, X), e.exp(K))
    assert inside == ["add"]
    assert outside == ["exp"]


def test_what_changes_stays() -> None:
    for outputs in ((e.add(CARRY, e.exp(X)),), (e.mul(e.sin(CARRY), K), e.add(X, K))):
        _, outside = _hoisted(*outputs)
        assert outside == []


def test_numbers_and_views_stay() -> None:
    wide = full((4, 2), 1, float32)
    spread = e.add(e.add(CARRY, X), e.add(broadcast_to(K, (4, 2)), wide))
    inside, outside = _hoisted(e.add(CARRY, number(1)), e.mul(spread, broadcast_to(K, (4, 2))))
    assert outside == ["broadcast_to", "broadcast_to", "add"]
    assert inside.count("broadcast_to") == 1
