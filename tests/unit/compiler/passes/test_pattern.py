"""The pattern language, and rewriting to a fixed point."""

from __future__ import annotations

import pytest

from caldera.compiler.passes.pattern import Rules, anything, number, p, settle
from caldera.core.graph.ops.base import full
from caldera.core.graph.ops.elementwise import add, exp, mul, neg, sub
from caldera.core.tensor.dtype import float32
from tests.unit.compiler.passes.tools import number as constant
from tests.unit.compiler.passes.tools import rewritten, variable

x, y = anything("x"), anything("y")


def test_commutative_ops_match_in_either_order() -> None:
    rules = Rules((p.mul(x, 2), lambda x: add(x, x)))
    v = variable(3)
    assert rewritten(rules, mul(v, constant(2))) is add(v, v)
    assert rewritten(rules, mul(constant(2), v)) is add(v, v)


def test_other_ops_match_in_the_order_written() -> None:
    rules = Rules((p.sub(x, 1), lambda x: x))
    v = variable(3)
    assert rewritten(rules, sub(v, constant(1))) is v
    assert rewritten(rules, sub(constant(1), v)) is sub(constant(1), v)


def test_a_name_used_twice_stands_for_one_node() -> None:
    rules = Rules((p.sub(x, p.neg(x)), lambda x: exp(x)))
    v, w = variable(3), variable(3)
    assert rewritten(rules, sub(v, neg(v))) is exp(v)
    assert rewritten(rules, sub(v, neg(w))) is sub(v, neg(w))


def test_a_failed_order_leaves_no_names_behind() -> None:
    # Tried as written, x is bound to neg(v) before the second part fails.
    rules = Rules((p.add(x, p.neg(x)), lambda x: exp(x)))
    v = variable(3)
    assert rewritten(rules, add(neg(v), v)) is exp(v)


def test_numbers_are_seen_through_broadcasts() -> None:
    rules = Rules((p.mul(x, 2), lambda x: x))
    v = variable(3)
    assert rewritten(rules, mul(v, full((3,), 2, float32))) is v


def test_a_named_number_comes_as_a_python_number() -> None:
    found = []
    rules = Rules((p.mul(x, number("k", lambda k: k > 5)), lambda x, k: found.append(k)))
    rewritten(rules, mul(variable(3), constant(3)))
    rewritten(rules, mul(variable(3), constant(7)))
    assert found == [7.0]


def test_any_inputs() -> None:
    rules = Rules((p.add(..., name="node"), lambda node: neg(node.inputs[0])))
    v, w = variable(3), variable(3)
    assert rewritten(rules, add(v, w)) is neg(v)


def test_a_result_of_a_smaller_shape_is_broadcast() -> None:
    rules = Rules((p.mul(x, 1), lambda x: x))
    v = variable(3)
    result = rewritten(rules, mul(v, full((2, 3), 1, float32)))
    assert result.op.name == "broadcast_to"
    assert result.shape == (2, 3)
    assert result.inputs == (v,)


def test_zero_needs_a_sign() -> None:
    with pytest.raises(AssertionError, match="sign"):
        p.add(x, 0.0)


def test_an_unknown_op_is_noticed_when_the_rule_is_written() -> None:
    with pytest.raises(AttributeError, match="no op 'multiply'"):
        p.multiply(x, y)


def test_what_a_rule_gives_is_rewritten_in_turn() -> None:
    rules = Rules(
        (p.exp(x), lambda x: neg(neg(x))),
        (p.neg(p.neg(x)), lambda x: x),
    )
    v = variable(3)
    assert rewritten(rules, exp(exp(v))) is v


def test_rules_that_undo_each_other_are_noticed() -> None:
    rules = Rules((p.exp(x), lambda x: neg(x)), (p.neg(x), lambda x: exp(x)))
    with pytest.raises(AssertionError, match="circles"):
        rewritten(rules, exp(variable(3)))


def test_long_chains_need_no_recursion() -> None:
    v = node = variable(3)
    for _ in range(5000):
        node = neg(neg(node)) if node is v else mul(node, constant(1))
    rules = Rules((p.mul(x, 1), lambda x: x), (p.neg(p.neg(x)), lambda x: x))
    assert rewritten(rules, node) is v


def test_shared_nodes_are_visited_once() -> None:
    node = variable(3)
    for _ in range(200):
        node = add(node, node)
    seen = []
    settle((node,), lambda each: seen.append(each))
    assert len(seen) == 201
