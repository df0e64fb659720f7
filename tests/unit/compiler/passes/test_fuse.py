"""Which nodes become one loop, and which must not."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.fuse import LARGEST, fuse
from caldera.core.graph.node import Node
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import broadcast_to, cast, sum_
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.ops.reduction import max_
from caldera.core.graph.program import Program, topological
from caldera.core.tensor.dtype import float16
from tests.unit.compiler.passes.tools import compute, names, number, variable


def check(*outputs: Node) -> Program:
    """Fuse, compare with the plain program, give back what came out."""
    program = Program(outputs)
    result = fuse(program)
    generator = np.random.default_rng(0)
    values = {
        node: generator.uniform(0.5, 2, node.shape).astype(node.dtype)
        for node in program.order()
        if node.op.name == "variable"
    }
    before, after = compute(program.roots, values), compute(result.roots, values)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    return result


def body_sizes(program: Program) -> list[int]:
    return [
        sum(part.op.kind in ("elementwise", "reduction") for part in node.attrs["body"].order())
        for node in program.order()
        if node.op is fused
    ]


def test_a_chain_is_one_loop() -> None:
    a, b = variable(2, 3), variable(3)
    assert names(check(e.exp(e.mul(e.add(a, b), number(2))))) == ["fused"]


def test_a_reduction_ends_the_loop_that_feeds_it() -> None:
    a = variable(4, 5)
    result = check(sum_(e.exp(e.neg(a)), (1,)))
    assert names(result) == ["fused"]
    assert body_sizes(result) == [3]


def test_values_that_others_read_are_outputs_too() -> None:
    a = variable(4, 5)
    middle = e.exp(a)
    result = check(sum_(e.neg(middle), (0,)), middle, e.sin(middle))
    loop = next(node for node in result.order() if node.op is fused)
    assert len(loop.outputs) == 3


def test_nothing_in_a_loop_reads_its_reductions() -> None:
    a = variable(4, 5)
    shifted = e.neg(a)
    largest = max_(shifted, axis=(1,), keepdims=True)
    weights = e.exp(e.sub(shifted, largest))
    result = check(e.div(weights, sum_(weights, (1,), keepdims=True)))
    # neg with max; exp(sub) with sum; div alone.
    assert body_sizes(result) == [2, 3]
    for node in result.order():
        if node.op is fused:
            order = node.attrs["body"].order()
            assert not any(given.op.kind == "reduction" for part in order for given in part.inputs)


def test_no_loop_waits_for_itself() -> None:
    a, w = variable(3, 3), variable(3, 3)
    first = e.exp(a)
    product = matmul(first, w, ta=False, tb=False)
    # first -> product -> last, and first -> last: one loop for both could never start.
    result = check(e.add(e.neg(product), e.sin(first)))
    assert sorted(body_sizes(result)) in ([2, 2], [3])


def test_no_two_loops_wait_for_each_other() -> None:
    a, b, w = variable(3, 3), variable(3, 3), variable(3, 3)
    f, g = e.exp(a), e.exp(b)
    left = e.add(f, matmul(g, w, ta=False, tb=False))
    right = e.add(g, matmul(f, w, ta=False, tb=False))
    # Each sum may join one of the exponentials, but not both sums both of them.
    check(left, right)
    check(e.mul(left, right))


def test_other_shapes_are_other_loops() -> None:
    a, b = variable(4, 5), variable(5)
    result = check(e.add(e.exp(a), e.exp(b)))
    assert names(result) == ["exp", "fused"]


def test_broadcasts_and_constants_are_part_of_the_body() -> None:
    a, b = variable(4, 5), variable(5)
    twos = broadcast_to(number(2), (4, 5))
    result = check(e.add(e.mul(a, twos), broadcast_to(b, (4, 5))))
    assert names(result) == ["fused"]
    (loop,) = result.roots
    assert loop.inputs == (b, a) or loop.inputs == (a, b)


def test_half_precision_reductions_stay_outside() -> None:
    # They are added up in float32, which is the kernel's business.
    a = variable(4, 5)
    result = check(sum_(e.neg(e.exp(cast(a, float16))), (0,)))
    assert names(result) == ["fused", "sum"]


def test_scalars_are_loops_as_well() -> None:
    a = variable()
    assert names(check(e.exp(e.add(a, number(1))))) == ["fused"]


@pytest.mark.parametrize("length", [LARGEST, LARGEST + 1, 3 * LARGEST + 7])
def test_bodies_have_a_largest_size(length: int) -> None:
    node = variable(3)
    for _ in range(length):
        node = e.sin(node)
    sizes = body_sizes(check(node))
    assert max(sizes) <= LARGEST
    # A single node left over is no loop of its own.
    assert length - sum(sizes) == (length % LARGEST == 1)


def test_the_same_node_as_two_outputs() -> None:
    a = variable(3)
    node = e.exp(e.neg(a))
    result = check(node, e.sin(node), node)
    assert result.roots[0] is result.roots[2]


def test_a_loop_over_nothing() -> None:
    a = variable(0, 3)
    total = sum_(e.exp(e.neg(a)), (0,))
    np.testing.assert_array_equal(cd.compile([Expr(total)]).run()[0].numpy(), [0, 0, 0])


def test_updates_in_place_read_the_old_value_first() -> None:
    # More than one block; v is read by its own update and by another output of the same loop.
    start = np.arange(100_000, dtype=np.float32)
    v = op.var("v", start.shape, fill=start)
    plan = cd.compile([op.sin(v) * 2.0, op.assign(v, v * 3.0 + v), v - 1.0])
    first, last = plan.run()
    np.testing.assert_allclose(first.numpy(), np.sin(start) * 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last.numpy(), start - 1)
    np.testing.assert_array_equal(v.numpy(), start * 4)


def test_of_a_relu_whose_result_is_kept_no_answers_are() -> None:
    """Products keep the results for their gradients, which say what was positive as well."""
    x = op.var("x", (8, 32, 6, 6), fill=cd.uniform(-1, 1))
    weights = [op.var(f"w{i}", (32, 32, 3, 3), fill=cd.uniform(-0.1, 0.1)) for i in range(4)]
    y: Expr = x
    for weight in weights:
        y = op.relu(op.conv2d(y, weight, padding=1) * 2.0)
    plan = cd.compile([op.sum(y * y), *op.grad(op.sum(y * y), weights)])
    kept = [buffer.spec for buffer in plan.schedule.buffers if buffer.spec.dtype == np.bool_]
    assert not kept


def test_derivatives_of_a_gate_are_computed_where_they_are_read() -> None:
    """The gradients keep both factors of a gate, from which its derivatives are computed."""
    x = op.var("x", (64, 32), fill=cd.uniform(-1, 1))
    weights = [op.var(f"w{i}", (32, 64), fill=cd.uniform(-0.3, 0.3)) for i in range(3)]
    y: Expr = x
    for weight in weights:
        value, gate = op.split(op.matmul(y, weight), 2, axis=1)
        y = y + op.tanh(value) * op.sigmoid(gate)
    plan = cd.compile([op.sum(y * y), *op.grad(op.sum(y * y), weights)])
    written = [
        len(step.outputs)
        for step in plan.schedule.steps
        if step.node.op is fused
        and any(node.op is e.tanh for node in topological(step.node.attrs["body"].outputs))
    ]
    # tanh, sigmoid and the sum; the loss is in the last loop as well.
    assert written[:2] == [3, 3]
