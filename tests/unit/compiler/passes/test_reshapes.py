"""Reshapes move out of the way of loops and copies."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.compiler.passes.reshapes import RULES
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import cast, reshape, sum_
from caldera.core.graph.ops.elementwise import exp
from caldera.core.graph.ops.movement import concat, transpose
from caldera.core.graph.program import Program
from caldera.core.tensor.dtype import bfloat16, float32, float64
from tests.unit.compiler.passes.tools import compute, names, rewritten, variable


def ops(node: Node) -> list[str]:
    return names(Program((node,)))


def same(before: Node, *leaves: Node) -> Node:
    """What the rules make of a node; it must compute the same."""
    after = rewritten(RULES, before)
    draw = np.random.default_rng(0)
    values = {leaf: draw.normal(size=leaf.shape).astype(leaf.dtype) for leaf in leaves}
    for one, other in zip(compute((before,), values), compute((after,), values), strict=True):
        np.testing.assert_allclose(one.astype("float64"), other.astype("float64"), rtol=1e-5)
        assert one.shape == other.shape
    return after


def test_what_is_narrower_is_made_before_a_reshape() -> None:
    x = variable(4, 3, 2)
    assert ops(same(cast(reshape(exp(x), (12, 2)), bfloat16), x)) == ["exp", "cast", "reshape"]
    wide = cast(reshape(exp(x), (12, 2)), float64)
    assert rewritten(RULES, wide) is wide
    # So the same cast of both forms is one.
    both = cast(exp(x), bfloat16), cast(reshape(exp(x), (12, 2)), bfloat16)
    assert names(RULES(Program(both))) == ["exp", "cast", "reshape"]


@pytest.mark.parametrize(
    ("shape", "seen", "axis", "fits"),
    [
        ((2, 3, 4), (6, 4), (0,), True),
        ((2, 3, 4), (6, 4), (1,), True),
        ((2, 3, 4), (2, 12), (1,), True),
        ((6, 4), (2, 3, 4), (0, 1), True),
        ((6, 4), (2, 3, 4), (0,), False),
        ((2, 3, 4), (6, 1, 4), (0, 1), True),
        ((2, 3, 4), (4, 6), (0,), False),
        ((2, 1, 3), (2, 3), (1,), True),
        ((2, 3), (1, 2, 3), (0, 2), True),
        ((0, 3), (3, 0), (0,), False),
    ],
)
def test_a_sum_over_merged_axes_is_one_over_what_was_merged(
    shape: tuple[int, ...], seen: tuple[int, ...], axis: tuple[int, ...], fits: bool
) -> None:
    x = variable(*shape)
    for keepdims in (False, True):
        plain = sum_(reshape(exp(x), seen), axis, keepdims)
        found = ops(same(plain, x))
        assert (found[:2] == ["exp", "sum"]) == fits
    half = variable(*shape, dtype="bfloat16")
    wide = sum_(cast(reshape(exp(half), seen), float32), axis)
    assert (ops(same(wide, half))[:3] == ["exp", "cast", "sum"]) == fits


def test_a_sum_of_what_no_loop_makes_stays() -> None:
    node = sum_(reshape(variable(2, 3, 4), (6, 4)), (0,))
    assert rewritten(RULES, node) is node


def test_parts_in_another_order_are_copied_once() -> None:
    parts = [variable(2, heads, 3, 5) for heads in (4, 4, 2)]
    seen = [transpose(part, (0, 2, 1, 3)) for part in parts]
    merged = tuple(reshape(each, (2, 3, each.shape[2] * 5)) for each in seen)
    joined = same(concat(merged, 2), *parts)
    assert ops(joined) == ["transpose", "transpose", "transpose", "concat", "reshape"]
    assert joined.inputs[0].shape == (2, 3, 10, 5)


def test_parts_that_do_not_fit_stay_as_they_are() -> None:
    x, y = variable(2, 4, 3, 5), variable(2, 3, 20)
    seen = transpose(x, (0, 2, 1, 3))
    for node in (
        concat((reshape(seen, (2, 3, 20)), y), 2),
        concat((reshape(seen, (6, 20)), reshape(seen, (6, 20))), 1),
        concat((reshape(seen, (2, 3, 20)), reshape(transpose(x, (0, 2, 3, 1)), (2, 3, 20))), 2),
        concat((y, y), 2),
    ):
        assert rewritten(RULES, node) is node


@pytest.mark.parametrize("merged", [(0, 8), (0,), (4, 0)])
@pytest.mark.parametrize("axis", [(0,), (-1,)])
def test_sums_of_nothing(merged: tuple[int, ...], axis: tuple[int, ...]) -> None:
    x = variable(0, 2, 4)
    same(sum_(reshape(exp(x), merged), tuple(each % len(merged) for each in axis)), x)
