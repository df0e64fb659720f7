"""Reverse mode: what it adds up, where it stops, and what it says where there is no derivative."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph import differentiate
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import OPS, Op, composite
from caldera.core.graph.ops.base import sum_
from caldera.core.graph.ops.elementwise import exp, mul
from caldera.core.graph.program import topological
from caldera.errors import ConfigError, GradientError, ShapeError
from caldera.testing import check_gradients


def scalar(value: float, name: str = "x") -> Variable:
    return op.var(name, (), fill=cd.constant(value), dtype="float64")


# --- adding up


def test_every_use_of_a_variable_counts() -> None:
    x = scalar(3.0)
    assert op.grad(x, x).item() == 1.0
    assert op.grad(x + x + x, x).item() == 3.0
    assert op.grad(x * x * x, x).item() == 27.0
    y = x * x
    assert op.grad(y * y + y, x).item() == 4 * 27 + 6


def test_paths_of_different_length_meet() -> None:
    x = scalar(0.5)
    y = op.exp(x)
    z = op.sin(y) * x + y
    expected = np.cos(np.exp(0.5)) * np.exp(0.5) * 0.5 + np.sin(np.exp(0.5)) + np.exp(0.5)
    assert op.grad(z, x).item() == pytest.approx(expected, rel=1e-12)


def test_intermediate_expressions_can_be_differentiated_by() -> None:
    x = scalar(2.0)
    y = x * x
    dx, dy = op.grad(y * y * x, [x, y])
    assert dy.item() == 2 * 4 * 2.0
    # With respect to x itself, the way through y counts as well.
    assert dx.item() == 5 * 2.0**4


def test_outputs_of_a_node_with_several_are_collected() -> None:
    x = op.var("x", (6,), fill=np.arange(6.0), dtype="float64")
    first, _, third = op.split(x, 3)
    gradient = op.grad(op.sum(first * first) + op.sum(third), x)
    assert gradient.tolist() == [0.0, 2.0, 0.0, 0.0, 1.0, 1.0]


def test_higher_derivatives_are_derivatives_of_derivatives() -> None:
    x = scalar(2.0)
    y: Expr = x**5
    for expected in (80.0, 160.0, 240.0, 240.0, 120.0, 0.0):
        y = op.grad(y, x, unused="zero")
        assert y.item() == expected


def test_one_expression_for_one_and_a_list_for_a_list() -> None:
    x = scalar(2.0)
    assert isinstance(op.grad(x * x, x), Expr)
    assert isinstance(op.grad(x * x, [x]), list)
    assert op.grad(x * x, []) == []


def test_a_seed_weighs_the_elements() -> None:
    x = op.var("x", (3,), fill=np.array([1.0, 2.0, 3.0]))
    assert op.grad(x * x, x, seed=[1.0, 0.0, 10.0]).tolist() == [2.0, 0.0, 60.0]


def test_long_chains_need_no_deep_stack() -> None:
    x = scalar(1.0)
    y: Expr = x
    for _ in range(2000):
        y = op.sin(y)
    gradient = op.grad(y, x)
    assert sum(node.op.name == "cos" for node in topological([gradient.node])) == 2000


# --- composites


@pytest.fixture
def tangled() -> Iterator[Op]:
    """A composite of two inputs without a gradient of its own; taken out again afterwards."""

    @composite("tangled")
    def made(a: Node, b: Node) -> Node:
        return sum_(mul(exp(a), b), (0,))

    assert isinstance(made, Op)
    yield made
    del OPS["tangled"]


def test_a_composite_input_made_from_another_is_counted_once(tangled: Op) -> None:
    def function(x: Expr) -> Expr:
        return Expr(tangled(x.node, (x * x).node))

    check_gradients(function, [np.array([0.3, -0.7])], order=2)


def test_a_composite_whose_parts_are_its_inputs_is_counted_once(tangled: Op) -> None:
    # exp(x) is both the second input and, inside, a part made from the first.
    check_gradients(lambda x: Expr(tangled(x.node, op.exp(x).node)), [np.array([0.3])], order=2)


def test_differentiating_composites_takes_time_in_proportion_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked = 0

    def counted(roots: Iterable[Node]) -> list[Node]:
        nonlocal walked
        order = topological(roots)
        walked += len(order)
        return order

    monkeypatch.setattr(differentiate, "topological", counted)
    x = op.var("x", (2,))
    y: Expr = x
    for _ in range(100):
        y = y * op.norm(y)
    op.grad(op.sum(y), x)
    # The graph has 200 nodes, and each of the 100 norms about ten parts.
    assert walked < 3000


# --- stopping


def test_stop_gradient_gives_zero() -> None:
    x = scalar(3.0)
    assert op.grad(op.stop_gradient(x * x), x).item() == 0.0
    assert op.grad(op.stop_gradient(x) * x, x).item() == 3.0
    assert op.grad(op.grad(op.stop_gradient(x) * x * x, x), x).item() == 6.0


def test_flat_functions_give_zero_and_not_an_error() -> None:
    x = scalar(3.5)
    assert op.grad(op.floor(x), x).item() == 0.0
    assert op.grad(op.sign(x) * 2.0, x).item() == 0.0


def test_branches_without_a_derivative_do_not_hide_those_with_one() -> None:
    x = scalar(3.0)
    y = x * op.cast(x > 1.0, "float64")
    assert op.grad(y, x).item() == 1.0


# --- saying that there is no derivative


def test_only_scalars_are_differentiated_without_a_seed() -> None:
    x = op.var("weights", (2, 3))
    with pytest.raises(ShapeError) as caught:
        op.grad(x * x, x)
    for part in ("op.grad", "a scalar", "mul(weights, weights) (2, 3) float32", "op.sum"):
        assert part in str(caught.value)


def test_a_seed_must_look_like_the_output() -> None:
    x = op.var("x", (3,))
    with pytest.raises(ShapeError, match=r"op\.grad: expected a seed like the output, \(3,\)"):
        op.grad(x * x, x, seed=[1.0, 2.0])


def test_integers_are_not_differentiated() -> None:
    n = op.var("n", (), dtype="int64")
    with pytest.raises(GradientError, match=r"op\.grad: expected a floating-point value"):
        op.grad(n * n, n)


def test_a_variable_that_is_not_used_is_named() -> None:
    x, other = scalar(1.0), op.var("other", (2,), dtype="float64")
    with pytest.raises(GradientError, match=r"op\.grad: .*depends on, got other \(2,\) float64"):
        op.grad(x * x, [x, other])
    dx, zero = op.grad(x * x, [x, other], unused="zero")
    assert dx.item() == 2.0
    assert zero.tolist() == [0.0, 0.0]


def test_paths_without_a_derivative_are_named() -> None:
    x = op.var("x", (3,), dtype="float64")
    position = op.cast(op.argmax(x), "float64")
    larger = op.sum(op.cast(x > 0.0, "float64"))
    with pytest.raises(GradientError, match=r"path from x .*only paths through op\.argmax"):
        op.grad(position, x)
    with pytest.raises(GradientError, match=r"only paths through op\.greater") as caught:
        op.grad(larger, x)
    assert "unused='zero'" in str(caught.value)
    assert op.grad(larger, x, unused="zero").tolist() == [0.0, 0.0, 0.0]


def test_an_op_without_a_derivative_is_named_where_one_is_needed() -> None:
    x, target = scalar(1.0), scalar(0.0, "target")
    with pytest.raises(GradientError, match=r"op\.assign: .*has no derivative; use op\.stop_grad"):
        op.grad(op.assign(target, x * x), x)


def test_unknown_ways_to_treat_unused_variables_are_refused() -> None:
    x = scalar(1.0)
    with pytest.raises(ConfigError, match=r"op\.grad: expected unused='error' or 'zero'"):
        op.grad(x, x, unused="none")
