"""Loops: what a body may read and return, how they are differentiated, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.node import Node
from caldera.core.graph.ops.control import close_over, fused
from caldera.core.graph.ops.elementwise import mul
from caldera.core.graph.program import Body, topological
from caldera.errors import CalderaError, DtypeError, ShapeError
from caldera.kernels.reference import evaluate
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers


def scans_below(*expressions: Expr) -> list[Node]:
    order = topological([each.node for each in expressions])
    return [node for node in order if node.op.name == "scan"]


# --- values


def test_carries_may_change_places() -> None:
    def step(carry: Any, _: None) -> tuple[Any, Any]:
        a, b = carry
        return (b, a + b), a

    (a, b), numbers_ = op.scan(step, (0, 1), length=10)
    assert numbers_.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    assert (a.item(), b.item()) == (55, 89)


def test_results_have_the_structure_of_what_went_in() -> None:
    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        (a,), b = carry
        first, (second, nothing) = x
        assert nothing is None
        return ((a + first,), b), (a, (b, second), None)

    carry, ys = op.scan(step, ((0.0,), 1.0), (cd.tensor([1.0, 2.0]), (cd.tensor([3, 4]), None)))
    assert carry[0][0].item() == 3.0
    assert carry[1].item() == 1.0
    assert ys[0].tolist() == [0.0, 1.0]
    assert [part.tolist() for part in ys[1]] == [[1.0, 1.0], [3, 4]]
    assert ys[2] is None


def test_a_loop_of_no_steps_gives_back_what_it_started_with() -> None:
    last, ys = op.scan(lambda c, x: (c + x, c), 5.0, np.zeros((0,), "float32"))
    assert last.item() == 5.0
    assert ys.shape == (0,)
    assert ys.tolist() == []


def test_without_a_y_there_is_none() -> None:
    last, ys = op.scan(lambda c, x: (c * x, None), 1.0, cd.tensor([2.0, 3.0]))
    assert ys is None
    assert last.item() == 6.0


def test_reverse_starts_at_the_end_and_leaves_every_y_in_its_place() -> None:
    x = np.array([1.0, 2.0, 4.0])
    last, sums = op.scan(lambda c, x: (c + x, c + x), np.zeros(()), x, reverse=True)
    assert sums.tolist() == [7.0, 6.0, 4.0]
    assert last.item() == 7.0


def test_a_loop_reads_variables_and_inputs_as_they_are_at_each_run() -> None:
    w = op.var("w", (), fill=cd.constant(2.0))
    x = op.input("x", (3,))
    total, _ = op.scan(lambda c, x: (c * w + x, None), 0.0, x)
    assert total.eval(x=[1.0, 1.0, 1.0]).item() == 7.0
    w.assign(10.0)
    assert total.eval(x=[1.0, 2.0, 3.0]).item() == 123.0


def test_the_oracle_and_the_planned_loop_agree() -> None:
    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        h, count = carry
        return (op.tanh(h * x + w), count + 1), (h, count)

    w = cd.tensor(numbers(2))
    arrays = [numbers(2, seed=1), np.asarray(0), numbers(4, 2, seed=2), numbers(2)]
    for reverse in (False, True):
        carry, ys = op.scan(step, (arrays[0], arrays[1]), arrays[2], reverse=reverse)
        (node,) = scans_below(carry[0])
        for planned, right in zip((*carry, *ys), evaluate(node, arrays), strict=True):
            np.testing.assert_allclose(planned.numpy(), right, rtol=1e-14)


def test_random_numbers_in_a_body_are_those_of_each_offset() -> None:
    def same(_: Any, x: Any) -> tuple[Any, Any]:
        return (), op.random_uniform((2,), stream=4) + 0.0 * x

    def new(index: Any, _: Any) -> tuple[Any, Any]:
        return index + 2, op.random_uniform((2,), stream=4, offset=index)

    whole = op.random_uniform((3, 2), stream=4).numpy()
    repeated = op.scan(same, (), np.zeros(3, "float32"))[1].numpy()
    np.testing.assert_array_equal(repeated, whole[[0, 0, 0]])
    np.testing.assert_array_equal(op.scan(new, 0, length=3)[1].numpy(), whole)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_stay_halves_in_a_loop(dtype: str) -> None:
    x = cd.Tensor((3,), fill=cd.constant(1.5), dtype=dtype)
    last, ys = op.scan(lambda c, x: (c * x, c + x), op.cast(1.0, dtype), x)
    assert (last.dtype.name, ys.dtype.name) == (dtype, dtype)
    assert last.item() == 3.375
    assert ys.tolist() == [2.5, 3.0, 3.75]


# --- what a body reads from outside


def test_equal_loops_are_one_node() -> None:
    x = op.var("x", (3,))
    first, second = (op.scan(lambda c, e: (c + e * e, c), 0.0, x) for _ in range(2))
    assert first[0].node is second[0].node


def test_expressions_from_outside_are_computed_once() -> None:
    x, w = op.var("x", (3, 2)), op.var("w", (2, 2))
    last, _ = op.scan(lambda h, e: (h + e @ (w @ w), None), op.broadcast(0.0, (2,)), x)
    (loop,) = scans_below(last)
    assert [node.op.name for node in loop.attrs["body"].order()].count("matmul") == 1
    outside = [node.op.name for node in topological([last.node])]
    assert outside.count("matmul") == 1


def test_constants_stay_in_the_body_and_others_become_inputs() -> None:
    x, y = op.var("x", (2,)), op.var("y", (2,))
    outer, ones = op.broadcast(y[0], (2,)), op.broadcast(1.0, (2,))
    read = close_over([x.node], [(x * ones + outer).node, y.node, ones.node])
    assert read == (outer.node, y.node)


# --- derivatives (their values are checked against finite differences with the cases)


def test_the_gradient_of_a_recurrent_weight_is_one_product_after_the_loop() -> None:
    x, w = op.var("x", (5, 2, 3)), op.var("w", (3, 3))
    last, _ = op.scan(lambda h, e: (op.tanh(h @ w + e), None), x[0], x)
    gradient = op.grad(op.sum(last), w)
    assert gradient.node.op.name == "matmul"
    assert gradient.node.inputs[0].shape == (10, 3)


def test_what_the_first_loop_gives_is_not_computed_again() -> None:
    x, w = op.var("x", (5, 2)), op.var("w", (2,))
    _, before = op.scan(lambda h, e: (op.tanh(h * w + e), h), x[0], x)
    gradient = op.grad(op.sum(before), [x, w])
    # The carry each step started from is a y of the loop: forward, and backward, nothing else.
    assert len(scans_below(before, *gradient)) == 2


def test_what_no_derivative_reaches_has_slope_zero() -> None:
    x, w = op.var("x", (3,), fill=cd.one()), op.var("w", (), fill=cd.one())
    _, larger = op.scan(lambda c, e: (c + 1, op.cast(e > w, "float32") + e * 0.0), 0, x)
    gradients = op.grad(op.sum(larger), [x, w], unused="zero")
    assert gradients[0].tolist() == [0.0, 0.0, 0.0]
    assert gradients[1].item() == 0.0


def test_an_integer_sequence_picks_and_gets_no_gradient() -> None:
    table = op.var("table", (3, 2), fill=np.arange(6.0).reshape(3, 2), dtype="float64")
    picks = cd.tensor([2, 0, 2])
    total, _ = op.scan(lambda c, i: (c + op.gather(table, i), None), np.zeros(2), picks)
    assert total.tolist() == [8.0, 11.0]
    assert op.grad(op.sum(total), table).tolist() == [[1, 1], [0, 0], [2, 2]]


def test_a_thousand_steps_can_be_differentiated() -> None:
    x = op.var("x", (), fill=cd.constant(0.999), dtype="float64")
    last, _ = op.scan(lambda c, _: (c * x, None), np.ones(()), length=1000)
    assert op.grad(last, x).item() == pytest.approx(1000 * 0.999**999, rel=1e-12)


# --- refusals

X = op.var("X", (3, 2))
_REFUSED: tuple[tuple[Callable[[], Any], type[CalderaError], str], ...] = (
    (
        lambda: op.scan(lambda c, x: (c, x), 0.0),
        ShapeError,
        "a common number of steps.*length=None",
    ),
    (lambda: op.scan(lambda c, x: (c, x), 0.0, X, length=2), ShapeError, "X.*and length=2"),
    (lambda: op.scan(lambda c, x: (c, None), 0.0, length=-1), ShapeError, "length=-1"),
    (
        lambda: op.scan(lambda c, x: (c, x), 0.0, (X, X[:2])),
        ShapeError,
        "sequences of equal length",
    ),
    (lambda: op.scan(lambda c, x: (c, x), 0.0, X[0, 0]), ShapeError, "with an axis of steps"),
    (lambda: op.scan(lambda c, x: c, 0.0, X), CalderaError, r"returns \(carry, y\), got Expr"),
    (lambda: op.scan(lambda c, x: ((c, c), x), 0.0, X), CalderaError, "a carry built like"),
    (lambda: op.scan(lambda c, x: (c + x, x), 0.0, X), DtypeError, r"its carry as \(\) float32"),
    (lambda: op.scan(lambda c, x: (c + 0.5, x), 0, X), DtypeError, "cast or reshape the carry"),
    (lambda: op.scan(lambda c, x: ((), None), (), X), CalderaError, "a carry or a y"),
    (
        lambda: op.scan(lambda c, x: (c + op.assign(X, X + 1.0), x), X, X[:, None, None]),
        CalderaError,
        "a body without assignments",
    ),
    (
        lambda: op.scan(lambda c, x: (c, op.assign(X, X * 2.0)), 0.0, X),
        CalderaError,
        "a body without assignments",
    ),
)


@pytest.mark.parametrize(("write", "error", "message"), _REFUSED)
def test_mistakes_are_refused_when_the_loop_is_written(
    write: Callable[[], Any], error: type[CalderaError], message: str
) -> None:
    with pytest.raises(error, match=f"op.scan.*{message}"):
        write()


def test_an_assignment_made_outside_may_be_read_in_a_loop() -> None:
    n = op.var("n", (), fill=cd.constant(1.0))
    new = op.assign(n, n + 1.0)
    total, _ = op.scan(lambda c, _: (c + new, None), 0.0, length=3)
    assert total.item() == 6.0
    assert n.numpy() == 2.0


def test_an_argument_of_a_body_has_no_value_outside() -> None:
    kept: list[Expr] = []
    op.scan(lambda c, x: (c, kept.append(x + 1.0)), 0.0, X)
    with pytest.raises(CalderaError, match=r"outside of a loop, got x .*an argument of a body"):
        kept[0].eval()


def test_a_fused_node_wants_the_inputs_of_its_body() -> None:
    x = op.var("x", (2,)).node
    body = Body([x], [mul(x, x)])
    with pytest.raises(ShapeError, match=r"op\.fused: expected inputs \(2,\) float32"):
        fused(op.var("y", (3,)).node, body=body)


# --- sides that are not taken


def _matrix(v: Any) -> Expr:
    return op.reshape(v, (2, 2))


_FAR: Any = {
    "gather": lambda v: v[op.cast(op.sum(v) * 1e6, "int64")] * op.sum(v),
    "take_along_axis": lambda v: op.sum(
        op.take_along_axis(v, op.unsqueeze(op.cast(op.sum(v) * 1e6, "int64"), 0), 0)
    ),
    "scatter": lambda v: op.sum(
        op.scatter(v, op.unsqueeze(op.cast(op.sum(v) * 1e6, "int64"), 0), v[:1] ** 2)
    ),
    "inverse": lambda v: op.sum(op.inverse(_matrix(v * 0.0))),
    "solve": lambda v: op.sum(op.solve(_matrix(v * 0.0), _matrix(v))),
    "cholesky": lambda v: op.sum(op.cholesky(-_matrix(v))),
    "slogdet": lambda v: op.slogdet(_matrix(v * 0.0))[1],
    "svd": lambda v: op.sum(op.svd(_matrix(v / 0.0 - v / 0.0))[1]),
    "eigh": lambda v: op.sum(op.eigh(_matrix(v / 0.0 - v / 0.0))[0]),
}
"""Functions that fail, or whose derivatives do, at positions and matrices that they compute."""


@pytest.mark.parametrize("name", _FAR)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_side_computes_is_no_error_where_it_is_not_taken(name: str) -> None:
    v, far = op.var("v", (4,), dtype="float64"), _FAR[name]
    v.assign(np.array([1.0, 2.0, 3.0, 4.0]))
    chosen = op.cond(op.sum(v) > 0.0, lambda u: op.sum(u**3), far, v)
    (first,) = op.grad(chosen, [v])
    (second,) = op.grad(op.sum(first * first), [v])
    x = v.numpy()
    np.testing.assert_allclose(first.numpy(), 3 * x**2)
    np.testing.assert_allclose(second.numpy(), 36 * x**3)
    looped = op.while_loop(lambda s: op.sum(s) < 0.0, lambda s: s + far(s), v, steps=2)
    (slope,) = op.grad(op.sum(looped), [v])
    np.testing.assert_allclose(slope.numpy(), np.ones(4))


def test_a_side_that_is_taken_computes_what_it_says() -> None:
    def inside(v: Any) -> Any:
        at = op.cast(op.sum(v) * 0.0 + 2.0, "int64")
        return v[at] * op.sum(op.inverse(_matrix(v)))

    def chosen(v: Any) -> Any:
        return op.cond(op.sum(v) > 0.0, inside, lambda u: op.sum(u), v)

    check_gradients(chosen, [np.array([1.0, 2.0, 3.0, 5.0])])


@pytest.mark.parametrize("name", ["eigh", "svd", "qr"])
def test_loops_with_ops_of_several_results_have_derivatives(name: str) -> None:
    def looped(v: Any) -> Any:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            found = getattr(op, name)(_matrix(carry) + np.diag([3.0, 1.0]))
            return carry * 0.5 + op.sum(found[0] ** 2) * op.sum(op.abs(found[1])), None

        return op.sum(op.scan(step, v, length=2)[0])

    check_gradients(looped, [np.array([1.0, 0.2, 0.2, 2.0])])
