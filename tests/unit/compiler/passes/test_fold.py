"""Constant folding."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.compiler.lazy import lift
from caldera.compiler.passes.constants import LARGEST_ARRAY, uniform
from caldera.compiler.passes.fold import ARRAYS, NUMBERS, is_exact_sum
from caldera.core.graph.node import Node
from caldera.core.graph.ops.activation import gelu
from caldera.core.graph.ops.base import broadcast_to, cast, constant, full, iota, reshape, sum_
from caldera.core.graph.ops.elementwise import add, div, exp, mul, pow_
from caldera.core.graph.ops.movement import concat, flip, pad, slice_, transpose
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.ops.reduction import max_
from caldera.core.tensor import Tensor
from caldera.core.tensor.dtype import float16, float32, float64, int8, int32, int64
from tests.unit.compiler.passes.tools import compute, number, rewritten, variable


def folded(node: Node) -> Node:
    return rewritten(ARRAYS, node)


def test_numbers_are_computed() -> None:
    result = folded(add(mul(number(2), number(3)), number(1)))
    assert uniform(result) == 7


def test_the_same_number_everywhere_stays_one_number() -> None:
    result = folded(exp(mul(full((1000, 1000), 0, float32), number(3))))
    assert uniform(result) == 1
    assert result.shape == (1000, 1000)


def test_composite_ops_fold_too() -> None:
    result = folded(gelu(full((2, 3), 0, float32), approximate=True))
    assert uniform(result) == 0


def test_results_are_those_of_the_dtype() -> None:
    third = folded(div(constant(1, float16), constant(3, float16)))
    assert uniform(third) == float(np.float16(1) / np.float16(3))
    wrapped = folded(add(constant(127, int8), constant(1, int8)))
    assert uniform(wrapped) == -128


def test_division_by_zero_gives_what_it_gives_at_run_time() -> None:
    assert uniform(folded(div(number(1), number(0)))) == np.inf
    assert np.isnan(uniform(folded(div(number(0), number(0)))))


def test_a_negative_power_of_an_integer_is_left_to_fail_when_it_runs() -> None:
    node = pow_(constant(2, int32), constant(-1, int32))
    assert folded(node) is node


@pytest.mark.parametrize(
    "move",
    [
        lambda x: reshape(x, (6,)),
        lambda x: transpose(x, (1, 0)),
        lambda x: slice_(x, ((0, 1, 1), (0, 3, 2))),
        lambda x: flip(x, (0,)),
        lambda x: pad(x, ((1, 1), (0, 0)), 5.0),
        lambda x: concat((x, x), 0),
        lambda x: broadcast_to(x, (4, 2, 3)),
    ],
)
def test_moving_a_constant_leaves_it_a_constant(move) -> None:
    node = move(full((2, 3), 5, float32))
    result = folded(node)
    assert uniform(result) == 5
    assert result.shape == node.shape


def test_padding_with_another_number_is_not_uniform() -> None:
    result = folded(pad(full((2,), 0.0, float32), ((1, 0),), -0.0))
    assert uniform(result) is None
    np.testing.assert_array_equal(np.signbit(compute((result,), {})[0]), [True, False, False])


def test_sums_fold_only_where_no_rounding_can_happen() -> None:
    assert uniform(folded(sum_(full((2, 1 << 20), 1, float32), (1,)))) == 1 << 20
    assert uniform(folded(max_(full((3,), 0.1, float32), axis=(0,), keepdims=False))) is not None
    tenth = sum_(full((1 << 17,), 0.1, float32), (0,))
    assert folded(tenth) is tenth


@pytest.mark.parametrize(
    ("value", "count", "dtype", "exact"),
    [
        (1.0, 1 << 24, float32, True),
        (1.0, (1 << 24) + 1, float32, False),
        (0.5, 1 << 24, float32, True),
        (0.1, 2, float32, False),
        (0.1, 1, float64, True),
        (np.inf, 2, float32, False),
        (3e38, 2, float32, False),
        (-0.0, 5, float32, True),
        (100, 2, int8, False),
        (3, 40, int8, True),
    ],
)
def test_exact_sums(value, count, dtype, exact) -> None:
    assert is_exact_sum(value, count, dtype) == exact


def test_a_sum_of_negative_zeros_is_positive() -> None:
    result = uniform(folded(sum_(full((3,), -0.0, float32), (0,))))
    assert result == 0
    assert not np.signbit(result)


def test_arrays_are_computed() -> None:
    a = lift(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    result = folded(add(matmul(a, transpose(a, (1, 0)), ta=False, tb=False), number(1)))
    assert result.op.name == "array"
    np.testing.assert_array_equal(compute((result,), {})[0], [[6, 12], [12, 26]])


def test_equal_results_are_one_node() -> None:
    a = lift(np.array([1.0, 2.0], np.float32))
    b = lift(np.array([2.0, 4.0], np.float32))
    assert folded(mul(a, number(2))) is folded(mul(b, number(1)))


def test_an_array_of_one_number_becomes_that_number() -> None:
    a = lift(np.array([1.0, 2.0], np.float32))
    assert uniform(folded(mul(a, lift(np.array([2.0, 1.0], np.float32))))) == 2


def test_ranges_fold() -> None:
    result = folded(cast(iota(shape=(4,), axis=0, dtype=int64), float32))
    assert result.op.name == "array"
    np.testing.assert_array_equal(compute((result,), {})[0], [0, 1, 2, 3])


def test_views_of_arrays_stay_views() -> None:
    a = lift(np.arange(3, dtype=np.float32))
    node = broadcast_to(a, (1000, 3))
    assert folded(node) is node


def test_large_arrays_are_left_to_the_plan() -> None:
    a = lift(np.zeros(LARGEST_ARRAY, np.float32))
    node = exp(a)
    assert folded(node) is node


def test_live_data_never_folds() -> None:
    tensor = Tensor.from_numpy(np.ones(3, np.float32))
    for leaf in (variable(3), lift(tensor)):
        node = exp(leaf)
        assert folded(node) is node


def test_a_loop_body_gets_no_arrays() -> None:
    node = exp(cast(iota(shape=(4,), axis=0, dtype=int64), float32))
    assert rewritten(NUMBERS, node) is node
