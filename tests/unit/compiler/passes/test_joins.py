"""The driver of passes that join nodes."""

from __future__ import annotations

from caldera.compiler.passes.pattern import Join, Joins, Uses
from caldera.core.graph.node import Node
from caldera.core.graph.ops.elementwise import add, exp, mul, neg, sub
from caldera.core.graph.program import Program
from tests.unit.compiler.passes.tools import variable


def _difference(uses: Uses, node: Node) -> Join | None:
    """a + -b, if only the sum reads -b."""
    a, b = node.inputs
    if b.op is not neg or uses.only_reader(b) is not node:
        return None
    return Join((a, *b.inputs), lambda *inputs: (sub(*inputs),), {node: (0,)})


SUBTRACT = Joins((add, _difference))


def test_matches_are_replaced_and_their_readers_rebuilt() -> None:
    a, b = variable(2), variable(2)
    assert SUBTRACT(Program((exp(add(a, neg(b))),))).outputs == (exp(sub(a, b)),)


def test_values_with_other_readers_or_that_leave_are_kept() -> None:
    a, b = variable(2), variable(2)
    total = add(a, neg(b))
    for more in (neg(b), mul(neg(b), a)):
        program = Program((total, more))
        assert SUBTRACT(program) is program


def test_a_program_without_the_op_is_returned_as_it_is() -> None:
    program = Program((exp(variable(2)),))
    assert SUBTRACT(program) is program
