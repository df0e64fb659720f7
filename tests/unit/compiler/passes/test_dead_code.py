"""Outputs and inputs that nobody needs."""

from __future__ import annotations

import numpy as np

from caldera.compiler.passes.redundancy import eliminate_dead_code
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.control import fused, scan
from caldera.core.graph.program import Body, Program
from caldera.core.tensor.dtype import float32
from tests.unit.compiler.passes.tools import compute, variable

STEP = Spec((2,), float32)


def _loop_program(*wanted: int) -> tuple[Program, dict]:
    """A loop with two carries, two sequences, two constants and three outputs a step."""
    a, b, x, y, k, m = (parameter(index, STEP) for index in range(6))
    new_a, new_b = e.tanh(e.add(a, x)), e.mul(b, k)
    outputs = (new_a, new_b, e.mul(new_a, x), e.add(y, m), e.sub(b, y))
    leaves = [variable(2), variable(2), variable(3, 2), variable(3, 2), variable(2), variable(2)]
    results = scan.outputs(
        *leaves,
        body=Body((a, b, x, y, k, m), outputs),
        carries=2,
        sequences=2,
        length=3,
        reverse=False,
    )
    generator = np.random.default_rng(0)
    values = {leaf: generator.uniform(-1, 1, leaf.shape).astype(np.float32) for leaf in leaves}
    return Program(tuple(results[index] for index in wanted)), values


def _check(wanted: tuple[int, ...], carries: int, sequences: int, constants: int) -> None:
    program, values = _loop_program(*wanted)
    trimmed = eliminate_dead_code(program)
    (loop,) = [node for node in trimmed.order() if node.op is scan]
    attrs = loop.attrs
    found = (attrs["carries"], attrs["sequences"], len(loop.inputs) - carries - sequences)
    assert found == (carries, sequences, constants)
    before, after = compute(program.roots, values), compute(trimmed.roots, values)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_loop_keeps_what_its_outputs_need() -> None:
    _check((0,), carries=1, sequences=1, constants=0)
    _check((1,), carries=1, sequences=0, constants=1)
    _check((2,), carries=1, sequences=1, constants=0)
    _check((3,), carries=0, sequences=1, constants=1)
    _check((4,), carries=1, sequences=1, constants=1)
    _check((2, 0), carries=1, sequences=1, constants=0)
    _check((4, 3, 2, 1, 0), carries=2, sequences=2, constants=2)


def test_a_loop_hands_out_nothing_twice_and_not_what_it_was_given() -> None:
    carry, x, y = (parameter(index, STEP) for index in range(3))
    total = e.add(carry, x)
    leaves = [variable(2), variable(3, 2), variable(3, 2)]
    results = scan.outputs(
        *leaves,
        body=Body((carry, x, y), (total, e.mul(total, y), x, e.mul(total, y), y)),
        carries=1,
        sequences=2,
        length=3,
        reverse=False,
    )
    trimmed = eliminate_dead_code(Program(results))
    (loop,) = [node for node in trimmed.order() if node.op is scan]
    assert len(loop.outputs) == 2
    assert trimmed.roots[1] is trimmed.roots[3]
    assert (trimmed.roots[2], trimmed.roots[4]) == (leaves[1], leaves[2])
    given = eliminate_dead_code(Program((results[2],)))
    assert given.roots == (leaves[1],)


def test_a_loop_of_which_everything_is_read_is_left_alone() -> None:
    program, _ = _loop_program(0, 1, 2, 3, 4)
    assert eliminate_dead_code(program).roots == program.roots


def test_unread_outputs_of_fused_bodies_go() -> None:
    a, b = variable(3), variable(3)
    first, second = fused.outputs(a, b, body=Body((a, b), (e.exp(a), e.mul(a, b))))
    (result,) = eliminate_dead_code(Program((first,))).roots
    assert result.op is fused
    assert result.inputs == (a,)
    assert len(result.outputs) == 1
    both = Program((second, first))
    assert eliminate_dead_code(both).roots == both.roots
