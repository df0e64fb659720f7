"""Writing and finding at positions, sets, counts and random choices, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.errors import CalderaError, ConfigError, DataError, DtypeError, ShapeError
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers

GENERATOR = np.random.default_rng(0)


def same(found: object, right: object) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(right))


# --- writing


def test_of_equal_indices_the_last_is_written() -> None:
    x, updates, places = numbers(5, 3), numbers(4, 3, seed=1), np.array([4, -5, 4, 2])
    right = x.copy()
    right[places] = updates
    same(op.scatter(x, places, updates), right)
    right = x.T.copy()
    right[:, places] = 7
    same(op.scatter(x.T, places, 7, axis=1), right)
    same(op.scatter(x, np.zeros((0,), np.int64), np.zeros((0, 3))), x)
    same(op.scatter([1, 2, 3], [[0], [0]], [[8], [9]]), [9, 2, 3])
    truths = np.array([True, False])
    same(op.scatter(truths, [1, 0], [True, False]), [False, True])
    same(op.put_along_axis(truths, [1], True, 0), [True, True])


def test_elements_are_written_along_an_axis() -> None:
    x, places = numbers(4, 3), GENERATOR.integers(-4, 4, (6, 3))
    updates = numbers(6, 3, seed=1)
    right = x.copy()
    for i, j in np.ndindex(6, 3):
        right[places[i, j], j] = updates[i, j]
    same(op.put_along_axis(x, places, updates, 0), right)


def test_what_is_overwritten_has_no_derivative() -> None:
    places = np.array([[2, 0, 2]])
    check_gradients(lambda x, u: op.put_along_axis(x, places, u, 1), [numbers(1, 4), numbers(1, 3)])
    check_gradients(lambda x, u: op.scatter(x, places, u) ** 2, [numbers(4), numbers(1, 3)])


def test_nan_that_is_overwritten_or_loses_leaves_no_trace() -> None:
    x = np.array([math.nan, 1.0])
    same(op.scatter(x, [0, 0], [math.inf, 5.0]), [5.0, 1.0])


# --- what may come out longer or shorter


@pytest.mark.parametrize("size", [0, 3, 12, 30])
def test_places_of_what_is_not_zero(size: int) -> None:
    x = GENERATOR.integers(0, 3, (2, 3, 2)) * 1.5
    right = np.argwhere(x)
    places, count = op.nonzero(x, size)
    assert count.item() == len(right)
    found = places.numpy()
    same(found[: len(right)], right[:size])
    assert (found[len(right) :] == -1).all()


@pytest.mark.parametrize("size", [0, 2, 4, 40])
def test_different_elements(size: int) -> None:
    x = GENERATOR.integers(-2, 2, (3, 5))
    values, inverse, counts, count = (each.numpy() for each in op.unique(x, size, fill=77))
    right, places, often = np.unique(x, return_inverse=True, return_counts=True)
    assert count == len(right)
    kept = min(size, len(right))
    same(values, [*right[:size], *[77] * (size - kept)])
    same(counts, [*often[:size], *[0] * (size - kept)])
    same(inverse, places.reshape(x.shape))


def test_counts() -> None:
    x = GENERATOR.integers(0, 4, (2, 6))
    same(op.bincount(x, 5), np.bincount(x.ravel(), minlength=5))
    weights = numbers(2, 6)
    np.testing.assert_allclose(
        op.bincount(x, 5, weights), np.bincount(x.ravel(), weights.ravel(), 5)
    )
    with pytest.raises(DataError, match="from -3 to 2"):
        op.bincount(x, 3).eval()
    with pytest.raises(DtypeError, match=r"op\.bincount: expected integers as indices"):
        op.bincount(weights, 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_places_in_an_order(side: Any) -> None:
    values = np.array([-1.0, 0.0, 3.0, 3.5, 9.0, math.nan, math.inf, -math.inf])
    for length in (1, 2, 5, 8):
        line = np.sort(GENERATOR.integers(0, 9, length).astype(float))
        line[-1] = math.nan if length == 5 else line[-1]
        same(op.searchsorted(line, values, side), np.searchsorted(line, values, side))
    lines = np.sort(GENERATOR.integers(0, 9, (2, 6)), 1)
    right = [np.searchsorted(line, [3, 8], side) for line in lines]
    same(op.searchsorted(lines, [[3, 8], [3, 8]], side), right)
    same(op.searchsorted(np.zeros(0), values, side), np.zeros(8))


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda: op.searchsorted([1.0], 1.0, "middle"), ConfigError, "'left' or 'right'"),
        (
            lambda: op.searchsorted(np.zeros((2, 3)), np.zeros((3, 1))),
            ShapeError,
            "same axes before",
        ),
        (lambda: op.nonzero([1.0], -1), ConfigError, "size= an integer >= 0"),
        (lambda: op.scatter([1.0], [0.5], 2.0), DtypeError, "integers as indices"),
        (lambda: op.put_along_axis([1.0], [[0]], 2.0, 0), ShapeError, "axes, like x"),
        (
            lambda: op.multinomial(np.ones(2), 3, replacement=False),
            ShapeError,
            "at least 3 indices",
        ),
    ],
)
def test_bad_use_fails_when_written(write: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        write()


# --- random choices


def test_orders_are_random_and_complete() -> None:
    cd.seed(1)
    order = op.permutation(200)
    found = order.numpy()
    same(np.sort(found), np.arange(200))
    assert np.abs(np.corrcoef(found, np.arange(200))[0, 1]) < 0.2
    same(order, found)
    x = numbers(3, 4)
    mixed = op.permutation(x, axis=1, state=[1, 2], stream=0).numpy()
    same(np.sort(mixed, 1), np.sort(x, 1))
    assert op.permutation(0).shape == (0,)


def test_indices_are_drawn_with_their_probabilities() -> None:
    cd.seed(1)
    chances = np.array([[1.0, 2.0, 0.0, 7.0], [0.0, 0.0, 1.0, 3.0]])
    drawn = op.multinomial(chances, 4000).numpy()
    often = np.stack([np.bincount(row, minlength=4) for row in drawn]) / 4000
    np.testing.assert_allclose(often, chances / chances.sum(1, keepdims=True), atol=0.03)
    assert (often[chances == 0] == 0).all()


def test_without_replacement_nothing_is_drawn_twice() -> None:
    cd.seed(1)
    chances = np.tile([[1.0, 0.0, 3.0, 6.0]], (2000, 1))
    drawn = op.multinomial(chances, 3, replacement=False).numpy()
    same(np.sort(drawn, 1), np.tile([[0, 2, 3]], (2000, 1)))
    often = np.bincount(drawn[:, 0], minlength=4) / 2000
    np.testing.assert_allclose(often, [0.1, 0.0, 0.3, 0.6], atol=0.04)


# --- loops with an end, and choices


def test_a_loop_ends_when_its_condition_says() -> None:
    x = op.var("x", (), fill=np.array(3.0), dtype="float64")
    last = op.while_loop(lambda value: value < 100.0, lambda value: value * 2.0, x, steps=10)
    assert (last.item(), op.grad(last, x).item()) == (192.0, 64.0)
    count, total = op.while_loop(
        lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, carry[1] * x), (0, x), steps=5
    )
    assert (count.item(), total.item(), op.grad(total, x).item()) == (3, 81.0, 108.0)
    never = op.while_loop(lambda value: value > 100.0, lambda value: value * 0.0, x, steps=2)
    assert never.item() == 3.0


def test_a_choice_has_the_derivative_of_its_side() -> None:
    x = op.var("x", (2,), fill=np.array([1.0, 4.0]), dtype="float64")
    for limit, value, slope in ((3.0, [1.0, 16.0], [2.0, 8.0]), (9.0, [-1.0, -4.0], [-1.0, -1.0])):
        y, _ = op.cond(op.sum(x) > limit, lambda a: (a * a, 1), lambda a: (-a, 0), x)
        same(y, value)
        same(op.grad(op.sum(y), x), slope)


@pytest.mark.parametrize("device", ["cpu", "loopback"])
@pytest.mark.parametrize(
    "choice",
    [
        lambda v: op.cond(v > 0.0, op.sqrt, lambda x: x * x, v),
        lambda v: op.cond(v < 0.0, lambda: v * v, lambda: op.log(v) * 1e300),
        # What a side writes may stand elsewhere already.
        lambda v: op.cond(op.sqrt(v) > 2.0, lambda: op.sqrt(v), lambda: v * v),
        lambda v: op.cond(
            v < 0.0,
            lambda: op.cond(v > 0.0, lambda: op.log(v), lambda: v * v),
            lambda: op.cond(v > 0.0, lambda: v, lambda: op.sqrt(v)),
        ),
        lambda v: op.scan(
            lambda c, t: (op.cond(c > t, lambda: op.sqrt(c - t), lambda: c * c), None), v, [0.0]
        )[0],
        lambda v: op.while_loop(lambda c: c < 0.0, lambda c: op.sqrt(-c) ** 4, v, steps=5),
        lambda v: op.while_loop(
            lambda s: s[0] < 2,
            lambda s: (s[0] + 1, s[1] * op.sqrt(op.cast(2 - s[0], "float64") * -v)),
            (0, -v / math.sqrt(2)),
            steps=5,
        )[1],
    ],
)
def test_what_is_not_taken_has_no_derivative(choice: Any, device: str) -> None:
    v = op.var("v", (), fill=np.array(-4.0), dtype="float64", device=device)
    y = choice(v)
    slope = op.grad(y, v)
    found = [each.eval().item() for each in (y, slope, op.grad(slope, v))]
    np.testing.assert_allclose(found, [16.0, -8.0, 2.0], rtol=1e-12)


def test_what_is_not_taken_need_not_be_computable() -> None:
    x = op.var("x", (3,), fill=np.array([1.0, 2.0, 3.0]))
    found = op.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * op.gather(x, s[0])), (0, 1.0), steps=6
    )
    assert [each.item() for each in found] == [3, 6.0]
    assert op.grad(found[1], x).tolist() == [6.0, 3.0, 2.0]
    place = op.var("place", (), fill=np.array(7), dtype="int64")
    y = op.cond(place < 3, lambda: op.gather(x, place), lambda: op.sum(x))
    assert y.item() == 6.0


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda x: op.cond(x > 0.0, op.exp, op.log, x), r"op\.cond: expected a boolean scalar"),
        (lambda x: op.cond(True, lambda: x, lambda: x[0]), "results of the same shape"),
        (lambda x: op.cond(True, lambda: x, lambda: (x,)), "built alike on both sides"),
        (lambda x: op.while_loop(lambda c: True, lambda c: c[:1], x, 2), "returns its carry"),
        (lambda x: op.while_loop(lambda c: c > 0.0, lambda c: c, x, 2), "a boolean scalar"),
        (lambda x: op.while_loop(lambda c: True, lambda c: (c, c), x, 2), "built like the first"),
    ],
)
def test_loops_and_choices_say_what_they_want(write: Any, message: str) -> None:
    with pytest.raises(CalderaError, match=message):
        write(op.var("x", (2,)))
