"""Nodes are interned: equal expressions are one object, and different ones never are."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caldera as cd
from caldera import op
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec, Symbol, describe, intern
from caldera.core.graph.opdef import OPS, Op, item
from caldera.core.graph.ops.base import constant, input_
from caldera.core.graph.ops.elementwise import add, exp, mul, sub
from caldera.core.graph.ops.movement import arrange, split, transpose
from caldera.core.graph.program import Body, topological
from caldera.core.tensor.dtype import bool_, float32, float64, int64
from caldera.errors import ShapeError
from caldera.kernels.reference import evaluate


def leaf(name: str = "x", *shape: int) -> Node:
    node: Node = input_(symbol=Symbol(name, Spec(shape, float32), "input"))
    return node


# --- equal expressions are one node


def test_equal_expressions_are_one_node() -> None:
    x, y = leaf("x", 2, 3), leaf("y", 2, 3)
    assert exp(add(x, mul(x, y))) is exp(add(x, mul(x, y)))
    assert transpose(x, (1, 0)) is transpose(x, (1, 0))
    assert op.sum(op.var("w", (3,)) * 1.0).node is not op.sum(op.var("w", (3,)) * 1.0).node


def test_attributes_tell_nodes_apart() -> None:
    x = leaf("x", 4, 4)
    assert split(x, (1, 3), 0)[0] is not split(x, (3, 1), 0)[0]
    assert split(x, (1, 3), 0)[0] is not split(x, (1, 3), 1)[0]
    first, second = split(x, (2, 2), 0)
    assert first is not second
    assert item(first.inputs[0], 0) is first


def test_leaves_are_told_apart_by_their_symbol_not_their_name() -> None:
    assert leaf("x", 2) is not leaf("x", 2)
    symbol = Symbol("x", Spec((2,), float32), "input")
    assert input_(symbol=symbol) is input_(symbol=symbol)


def test_a_tensor_is_one_leaf_and_an_array_each_time_another() -> None:
    tensor, array = cd.tensor([1.0, 2.0]), np.ones(2, np.float32)
    assert (tensor + 1.0).node is (tensor + 1.0).node
    assert op.exp(array).node is not op.exp(array).node


def test_orders_in_memory_tell_nodes_apart() -> None:
    x = leaf("x", 2, 3, 4, 5)
    plain = exp(x)
    laid = intern(plain.op, (x,), {}, (Spec(plain.shape, plain.dtype, NHWC),))
    assert laid is not plain
    assert laid is intern(plain.op, (x,), {}, (Spec(plain.shape, plain.dtype, NHWC),))
    assert arrange(x, NHWC) is arrange(x, NHWC)
    assert arrange(laid, NHWC) is laid
    assert str(laid.spec) == "(2, 3, 4, 5) float32 nhwc"
    assert laid.spec.logical == plain.spec


def test_rules_of_ops_do_not_see_orders() -> None:
    x = arrange(leaf("x", 2, 3, 4, 5), NHWC)
    assert add(x, leaf("y", 2, 3, 4, 5)).spec.order is None
    with pytest.raises(ShapeError, match="permutation"):
        arrange(x, (0, 1, 2))


# --- constants go by type and bits


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (constant(1, int64), constant(True, bool_)),
        (constant(1, int64), constant(1.0, float64)),
        (constant(1.0, float64), constant(True, bool_)),
        (constant(1.0, float32), constant(1.0, float64)),
        (constant(0.0, float64), constant(-0.0, float64)),
    ],
)
def test_equal_numbers_of_other_types_or_signs_differ(first: Node, second: Node) -> None:
    assert first is not second


def test_the_same_constant_is_one_node_nan_too() -> None:
    assert constant(0.1, float32) is constant(0.1, float32)
    assert constant(math.nan, float64) is constant(math.nan, float64)
    assert constant(-0.0, float64) is constant(-0.0, float64)


def test_constants_of_numpys_numbers_are_those_of_the_same_number() -> None:
    for kind in (np.float16, np.float32, np.float64):
        assert constant(kind(0.0).item(), float32) is constant(kind(0.0), float32)  # type: ignore[arg-type]
        assert constant(-0.0, float32) is constant(kind(-0.0), float32)  # type: ignore[arg-type]
    assert constant(2.5, float64) is constant(np.array(2.5), float64)  # type: ignore[arg-type]
    assert constant(1, int64) is constant(True, int64) is constant(np.int8(1), int64)  # type: ignore[arg-type]


def test_a_constant_is_rounded_to_its_dtype() -> None:
    assert constant(0.1, float32) is constant(float(np.float32(0.1)), float32)
    assert constant(0.1, float32).attrs["value"] != 0.1


def test_signs_of_zero_survive_in_results() -> None:
    x = op.var("x", (), fill=cd.constant(0.0))
    assert math.copysign(1, (x * -0.0).item()) == -1
    assert math.copysign(1, (x * 0.0).item()) == 1


# --- random numbers


def test_two_dropouts_never_merge() -> None:
    x = op.var("x", (100,), fill=cd.one())
    first, second = op.dropout(x, 0.5), op.dropout(x, 0.5)
    assert first.node is not second.node
    assert first.tolist() != second.tolist()


def test_one_stream_is_one_node() -> None:
    assert op.random_normal((2,), stream=7).node is op.random_normal((2,), stream=7).node
    assert op.random_normal((2,)).node is not op.random_normal((2,)).node


# --- commutative ops


COMMUTATIVE = sorted(name for name, each in OPS.items() if each.commutative)


def test_operands_of_commutative_ops_may_change_places() -> None:
    x, y = leaf("x", 2), leaf("y", 2)
    assert add(x, y) is add(y, x)
    assert mul(x, exp(y)) is mul(exp(y), x)
    assert sub(x, y) is not sub(y, x)


def test_the_order_that_was_written_first_is_the_one_shown() -> None:
    x, y = leaf("x", 2), leaf("y", 2)
    node = add(y, x)
    assert add(x, y) is node
    assert describe(node) == "add(y, x) (2,) float32"


@given(
    st.sampled_from(COMMUTATIVE),
    st.sampled_from([0.0, 1.0, -2.5, math.inf, -math.inf, math.nan]),
    st.sampled_from([0.0, 3.0, -2.5, math.inf, -math.inf, math.nan]),
)
def test_what_is_called_commutative_is(name: str, first: float, second: float) -> None:
    kinds: dict[str, Any] = {"logical": np.bool_, "bitwise": np.int8}
    kind = kinds.get(name.partition("_")[0], np.float64)
    with np.errstate(invalid="ignore"):
        arrays = [np.asarray(each).astype(kind) for each in (first, second)]
    nodes = [input_(symbol=Symbol("", Spec((), array.dtype), "input", array)) for array in arrays]
    node = OPS[name](*nodes)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(node, arrays), evaluate(node, arrays[::-1]))


def test_broadcasting_gradients_do_not_mind_who_was_first() -> None:
    x, b = op.var("x", (2, 3), fill=cd.one()), op.var("b", (3,), fill=cd.one())
    for total in (b * x, x * b):
        dx, db = op.grad(op.sum(total), [x, b])
        assert (dx.shape, db.tolist()) == ((2, 3), [2.0, 2.0, 2.0])


# --- lives


def test_nodes_die_when_nobody_refers_to_them() -> None:
    x = leaf("x", 2)
    node = exp(add(x, x))
    gone = [weakref.ref(node), weakref.ref(node.inputs[0])]
    serial = node.serial
    del node
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert exp(add(x, x)).serial > serial


def test_a_node_keeps_what_it_is_made_of() -> None:
    node = exp(leaf("x", 2))
    gc.collect()
    assert node.inputs[0].attrs["symbol"].name == "x"


def test_the_value_of_a_dead_leaf_is_given_back() -> None:
    expression = op.exp(np.ones(2, np.float32))
    held = weakref.ref(expression.node.inputs[0].attrs["symbol"])
    assert held() is not None
    del expression
    gc.collect()
    assert held() is None


def test_bodies_are_interned_and_die_too() -> None:
    x, y = leaf("x", 2), leaf("y", 2)
    body = Body([x], [mul(x, x)])
    assert Body([y], [mul(y, y)]) is body
    gone = weakref.ref(body)
    del body
    gc.collect()
    assert gone() is None


def test_threads_that_write_the_same_expression_get_the_same_node() -> None:
    x = leaf("x", 2)
    found: list[Node] = []
    start = threading.Barrier(4)

    def write() -> None:
        start.wait()
        node = x
        for _ in range(200):
            node = exp(add(node, x))
        found.append(node)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_threads_may_drop_nodes_that_others_write() -> None:
    x = leaf("x", 2)
    others: list[Node] = []

    def write() -> None:
        for _ in range(3000):
            node = exp(add(x, x))
            if exp(add(x, x)) is not node:
                others.append(node)

    threads = [threading.Thread(target=write) for _ in range(4)]
    before, _ = sys.getswitchinterval(), sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not others


# --- reading them


def test_a_node_is_shown_as_it_would_be_written() -> None:
    w, x = op.var("W", (6, 5)), op.var("X", (5, 3))
    assert describe((w @ x).node) == "matmul(W, X) (6, 3) float32"
    assert describe((w * 2.0).node) == "mul(W, 2.0) (6, 5) float32"
    deep = op.exp(op.exp(op.exp(op.exp(w))))
    assert describe(deep.node) == "exp(exp(exp(…))) (6, 5) float32"


def test_a_rule_is_not_asked_again_for_the_same_shapes() -> None:
    asked: list[Spec] = []

    def rule(x: Spec, *, power: int) -> Spec:
        asked.append(x)
        return x

    made = Op("tested", rule, "other")
    first, y = made(leaf("x", 3), power=2), leaf("y", 3)
    other = made.rebuild(first, (y,))
    assert len(asked) == 1
    assert other is made(y, power=2)
    assert made.rebuild(first, (leaf("z", 4),)).shape == (4,)
    laid_out = intern(
        made, (leaf("x", 1, 1, 1, 1),), {"power": 1}, (Spec((1,) * 4, float32, NHWC),)
    )
    assert made.rebuild(laid_out, (leaf("y", 1, 1, 1, 1),)).spec.order is None


def test_an_order_is_that_of_a_walk_in_depth() -> None:
    x, y = leaf("x"), leaf("y")
    below = mul(x, y)
    left, right = exp(below), sub(y, x)
    top = add(left, right)
    assert topological([right, top, x]) == [y, x, right, below, left, top]
    seen = {below}
    assert topological([top], seen) == [left, y, x, right, top]
    assert seen == {x, y, below, left, right, top}
