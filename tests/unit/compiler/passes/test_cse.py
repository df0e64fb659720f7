"""Common subexpressions that are not one node by themselves."""

from __future__ import annotations

import numpy as np

from caldera.compiler.lazy import lift
from caldera.compiler.passes.redundancy import RULES, merge_loops
from caldera.core.graph.differentiate import gradients
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import Nodes, as_tuple, parameter
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import constant, full, sum_
from caldera.core.graph.ops.control import scan
from caldera.core.graph.program import Body, Program
from caldera.core.tensor.dtype import float32, int32
from tests.unit.compiler.passes.tools import compute, rewritten, variable

STEP = Spec((2,), float32)


def test_operands_in_another_order_are_the_same() -> None:
    a, b = variable(3), variable(3)
    assert rewritten(RULES, e.add(a, b)) is rewritten(RULES, e.add(b, a))
    assert rewritten(RULES, e.sub(a, b)) is not rewritten(RULES, e.sub(b, a))


def test_arrays_with_the_same_bits_are_the_same() -> None:
    def array(*values: float) -> Nodes:
        return (rewritten(RULES, lift(np.array(values, np.float32))),)

    assert array(1, 2) == array(1, 2)
    assert array(0.0, 2) != array(-0.0, 2)
    assert array(1, 2) != (rewritten(RULES, lift(np.array([1, 2], np.int32))),)


def _loop(*emitted: int, gain: float = 0.5) -> Body:
    carry, x = parameter(0, STEP), parameter(1, STEP)
    new = e.tanh(e.add(e.mul(carry, constant(gain, float32)), x))
    given = (new, e.mul(new, x), e.exp(new))
    return Body((carry, x), (new, *[given[i] for i in emitted]))


def _run(body: Body, start, xs, reverse: bool = False) -> Nodes:
    return as_tuple(
        scan.outputs(start, xs, body=body, carries=1, sequences=1, length=3, reverse=reverse)
    )


def _loops(program: Program) -> int:
    return sum(node.op is scan for node in program.order())


def test_loops_that_hand_out_different_things_become_one() -> None:
    start, xs = variable(2), variable(3, 2)
    first, second = _run(_loop(1), start, xs), _run(_loop(2, 1), start, xs)
    program = Program((*first, *second))
    merged = merge_loops(program)
    assert _loops(merged) == 1
    assert merged.roots[1] is merged.roots[4]
    values = {start: np.ones(2, np.float32), xs: np.arange(6, dtype=np.float32).reshape(3, 2) / 4}
    before, after = compute(program.roots, values), compute(merged.roots, values)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_loop_without_outputs_but_its_carry_joins_in() -> None:
    start, xs = variable(2), variable(3, 2)
    program = Program((*_run(_loop(), start, xs), *_run(_loop(2), start, xs)))
    merged = merge_loops(program)
    assert _loops(merged) == 1
    assert merged.roots[0] is merged.roots[1]


def test_loops_that_compute_something_else_stay_apart() -> None:
    start, xs, other = variable(2), variable(3, 2), variable(3, 2)
    for second in (
        _run(_loop(1, gain=0.25), start, xs),
        _run(_loop(1), start, xs, reverse=True),
        _run(_loop(1), start, other),
    ):
        program = Program((*_run(_loop(2), start, xs), *second))
        assert _loops(merge_loops(program)) == 2


def test_loops_over_merged_loops_merge_as_well() -> None:
    start, xs = variable(2), variable(3, 2)
    roots: list = []
    for emitted in ((1,), (1, 2)):
        inner = _run(_loop(*emitted), start, xs)
        roots.extend(_run(_loop(1), start, inner[1]))
    assert _loops(merge_loops(Program(tuple(roots)))) == 2


def test_the_derivative_of_a_loop_runs_it_once_more_only_backwards() -> None:
    start, xs = variable(2), variable(3, 2)
    _, ys = _run(_loop(1), start, xs)
    total = sum_(e.mul(ys, ys), (0, 1))
    slopes = gradients(total, [xs])
    program = Program((total, *slopes))
    assert _loops(program) == 3
    assert _loops(merge_loops(program)) == 2


def test_the_same_program_comes_back_if_there_is_nothing_to_merge() -> None:
    program = Program((e.add(full((3,), 1, int32), constant(1, int32)),))
    assert merge_loops(program) is program
