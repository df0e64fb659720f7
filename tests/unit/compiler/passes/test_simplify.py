"""Algebra that is exact, and what must not be touched because it is not."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.compiler.passes.simplify import RULES
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Op
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import broadcast_to, cast, constant, full, iota, reshape, sum_
from caldera.core.graph.ops.movement import flip, slice_, split, transpose
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.ops.reduction import argmax, argmin, max_, prod
from caldera.core.tensor.dtype import bfloat16, float16, float32, float64, int32, int64, uint8
from tests.unit.compiler.passes.tools import compute, number, rewritten, variable

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 1.5, -3.0, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32
)
x = variable(len(SPECIAL))
i = variable(3, dtype="int32")
u = variable(3, dtype="uint8")
t = variable(3, dtype="bool")


def simple(node: Node) -> Node:
    return rewritten(RULES, node)


def one(shape: tuple[int, ...] = ()) -> Node:
    return full(shape, 1, float32)


GOES: list[tuple[str, Node, Node]] = [
    ("x + -0.0", e.add(x, number(-0.0)), x),
    ("x - 0.0", e.sub(x, number(0.0)), x),
    ("-0.0 - x", e.sub(number(-0.0), x), e.neg(x)),
    ("x * 1", e.mul(x, number(1)), x),
    ("x * full 1", e.mul(x, one(x.shape)), x),
    ("x * -1", e.mul(x, number(-1)), e.neg(x)),
    ("x / 1", e.div(x, number(1)), x),
    ("1 / x", e.div(number(1), x), e.reciprocal(x)),
    ("x / 4", e.div(x, number(4)), e.mul(x, number(0.25))),
    ("x / -0.5", e.div(x, number(-0.5)), e.mul(x, number(-2))),
    ("x ** 1", e.pow_(x, number(1)), x),
    ("x ** 2", e.pow_(x, number(2)), e.square(x)),
    ("x ** -1", e.pow_(x, number(-1)), e.reciprocal(x)),
    ("x ** 0", e.pow_(x, number(0)), one(x.shape)),
    ("x * x", e.mul(x, x), e.square(x)),
    ("--x", e.neg(e.neg(x)), x),
    ("x + -y", e.add(x, e.neg(e.exp(x))), e.sub(x, e.exp(x))),
    ("-(x * 3)", e.neg(e.mul(x, number(3))), e.mul(x, number(-3))),
    ("-x * 3", e.mul(e.neg(x), number(3)), e.mul(x, number(-3))),
    ("(-x)^2", e.square(e.neg(x)), e.square(x)),
    ("|-x|", e.abs_(e.neg(x)), e.abs_(x)),
    ("relu(relu)", e.relu(e.relu(x)), e.relu(x)),
    ("max(x, x)", e.maximum(x, x), x),
    ("stop_gradient", e.stop_gradient(x), x),
    ("x < x", e.less(x, x), full(x.shape, False, np.dtype(bool))),
    ("x != x", e.not_equal(x, x), e.isnan(x)),
    ("not x == y", e.logical_not(e.equal(x, e.exp(x))), e.not_equal(x, e.exp(x))),
    ("where(c, x, x)", e.where(e.greater(x, number(0)), x, x), x),
]


@pytest.mark.parametrize(
    ("node", "expected"), [case[1:] for case in GOES], ids=[c[0] for c in GOES]
)
def test_exact_rules(node: Node, expected: Node) -> None:
    assert simple(node) is expected
    # The rule is right, on every special number there is.
    before, after = compute((node, expected), {x: SPECIAL})
    np.testing.assert_array_equal(before, after)
    zero = (before == 0) & (before.dtype.kind == "f")
    np.testing.assert_array_equal(np.signbit(before[zero]), np.signbit(after[zero]))


STAYS: list[tuple[str, Node]] = [
    ("x * 0: NaN for inf", e.mul(x, number(0))),
    ("x + 0.0: turns -0.0 into 0.0", e.add(x, number(0.0))),
    ("0.0 - x: 0.0 for 0.0", e.sub(number(0.0), x)),
    ("x - x: NaN for inf", e.sub(x, x)),
    ("x / x", e.div(x, x)),
    ("x / 3: 1/3 is rounded", e.div(x, number(3))),
    ("x / 0", e.div(x, number(0))),
    ("x / 2^-149: its inverse is infinite", e.div(x, number(2.0**-149))),
    ("x ** 0.5: differs at -inf", e.pow_(x, number(0.5))),
    ("-(x - y): differs at 0", e.neg(e.sub(x, e.exp(x)))),
    ("x == x: false for NaN", e.equal(x, x)),
    ("x <= x: false for NaN", e.less_equal(x, x)),
    ("not x < y: true for NaN", e.logical_not(e.less(x, e.exp(x)))),
    ("log(exp(x))", e.log(e.exp(x))),
    ("(x * 2) * 0.5: may overflow", e.mul(e.mul(x, number(2)), number(0.5))),
]


@pytest.mark.parametrize("node", [case[1] for case in STAYS], ids=[case[0] for case in STAYS])
def test_inexact_rules_do_not_exist(node: Node) -> None:
    assert simple(node) is node


def test_integers_have_one_zero() -> None:
    zero = constant(0, int32)
    assert simple(e.add(i, zero)) is i
    assert simple(e.sub(i, zero)) is i
    assert simple(e.sub(zero, i)) is e.neg(i)
    assert simple(e.equal(i, i)) is full((3,), True, np.dtype(bool))


def test_integers_have_no_reciprocal() -> None:
    node = e.pow_(i, constant(-1, int32))
    assert simple(node) is node


def test_unsigned_numbers_wrap_round() -> None:
    node = e.abs_(e.neg(u))
    assert simple(node) is node
    value = np.array([0, 1, 200], np.uint8)
    product = e.mul(e.neg(u), constant(3, uint8))
    np.testing.assert_array_equal(*compute((product, simple(product)), {u: value}))


def test_logic() -> None:
    true, false = (constant(value, np.dtype(bool)) for value in (True, False))
    assert simple(e.logical_not(e.logical_not(t))) is t
    assert simple(e.logical_and(t, true)) is t
    assert simple(e.logical_and(t, t)) is t
    assert simple(e.logical_or(t, false)) is t
    assert simple(e.logical_xor(t, true)) is e.logical_not(t)
    assert simple(e.logical_and(t, false)) is full((3,), False, np.dtype(bool))
    assert simple(e.logical_or(t, true)) is full((3,), True, np.dtype(bool))
    a, b = variable(3), variable(3)
    assert simple(e.where(true, a, b)) is a
    assert simple(e.where(false, a, b)) is b
    assert simple(e.where(e.logical_not(t), a, b)) is e.where(t, b, a)


def test_casts_by_way_of_a_wider_dtype() -> None:
    half = variable(3, dtype="float16")
    assert simple(cast(cast(half, float32), float16)) is half
    assert simple(cast(cast(half, float32), float64)) is cast(half, float64)
    assert simple(cast(cast(half, float32), bfloat16)) is cast(half, bfloat16)
    assert simple(cast(cast(t, float32), int64)) is cast(t, int64)


@pytest.mark.parametrize("position", [argmax, argmin])
def test_the_place_of_the_largest_needs_no_wider_dtype(position: Op) -> None:
    half, whole = variable(3, 4, dtype="bfloat16"), variable(3, 4, dtype="int32")
    wide = position(cast(half, float32), axis=1, keepdims=False)
    assert simple(wide) is position(half, axis=1, keepdims=False)
    for node in (
        position(cast(half, float16), axis=1, keepdims=False),
        position(cast(whole, float64), axis=1, keepdims=False),
    ):
        assert simple(node) is node


def test_casts_by_way_of_a_narrower_dtype_round() -> None:
    for node in (
        cast(cast(x, float16), float32),
        cast(cast(x, int32), float32),
        cast(cast(variable(3, dtype="int64"), float64), int64),
        cast(cast(x, float64), int32),
    ):
        assert simple(node) is node


def test_movement_composes() -> None:
    a = variable(2, 3, 4)
    assert simple(reshape(reshape(a, (6, 4)), (2, 12))) is reshape(a, (2, 12))
    assert simple(reshape(reshape(a, (6, 4)), (2, 3, 4))) is a
    assert simple(transpose(transpose(a, (1, 2, 0)), (2, 0, 1))) is a
    assert simple(transpose(transpose(a, (1, 2, 0)), (1, 0, 2))) is transpose(a, (2, 1, 0))
    assert simple(flip(flip(a, (0, 1)), (1, 2))) is flip(a, (0, 2))
    twice = slice_(slice_(a, ((0, 2, 1), (1, 3, 1), (0, 4, 2))), ((1, 2, 1), (0, 2, 1), (1, 2, 1)))
    assert simple(twice) is slice_(a, ((1, 2, 1), (1, 3, 1), (2, 3, 2)))


def test_broadcasts_compose() -> None:
    a = variable(3)
    assert simple(broadcast_to(broadcast_to(a, (2, 3)), (4, 2, 3))) is broadcast_to(a, (4, 2, 3))
    assert simple(broadcast_to(reshape(a, (1, 3)), (2, 3))) is broadcast_to(a, (2, 3))
    column = broadcast_to(reshape(a, (3, 1)), (3, 2))
    assert simple(column) is column


def test_an_operand_that_is_broadcast_anyway_is_not_broadcast_first() -> None:
    a, b = variable(2, 3), variable(3)
    assert simple(e.add(a, broadcast_to(b, (2, 3)))) is e.add(a, b)
    assert simple(e.where(e.greater(a, full((2, 3), 0, float32)), a, b)) is e.where(
        e.greater(a, number(0)), a, b
    )


def test_no_element_is_computed_twice() -> None:
    b = variable(3)
    assert simple(e.exp(broadcast_to(b, (1000, 3)))) is broadcast_to(e.exp(b), (1000, 3))


def test_pieces_of_a_split_are_slices() -> None:
    a = variable(5, 2)
    first, second = split(a, (2, 3), 0)
    assert simple(first) is slice_(a, ((0, 2, 1), (0, 2, 1)))
    assert simple(second) is slice_(a, ((2, 5, 1), (0, 2, 1)))


def test_a_range_over_many_axes_is_one_range() -> None:
    node = iota(shape=(2, 3, 4), axis=1, dtype=int64)
    result = simple(node)
    assert {each.spec.size for each in (result.inputs[0], result.inputs[0].inputs[0])} == {3}
    np.testing.assert_array_equal(*compute((node, result), {}))


def test_reductions_over_single_elements() -> None:
    a = variable(2, 1)
    assert simple(max_(a, axis=(1,), keepdims=False)) is reshape(a, (2,))
    assert simple(prod(a, axis=(1,), keepdims=True)) is a
    total = sum_(a, (1,))
    value = np.array([[-0.0], [2.0]], np.float32)
    before, after = compute((total, simple(total)), {a: value})
    assert simple(total).op.name != "sum"
    np.testing.assert_array_equal(np.signbit(before), np.signbit(after))


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
def test_transposes_go_into_the_product(ta: bool, tb: bool) -> None:
    a, b = variable(4, 3, 3), variable(4, 3, 3)
    swap = (0, 2, 1)
    node = matmul(transpose(a, swap), transpose(b, swap), ta=ta, tb=tb)
    assert simple(node) is matmul(a, b, ta=not ta, tb=not tb)


def test_other_transposes_stay() -> None:
    a, b = variable(4, 4, 4), variable(4, 4, 4)
    node = matmul(transpose(a, (1, 0, 2)), b, ta=False, tb=False)
    assert simple(node) is node
