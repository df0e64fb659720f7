"""Conventions and refusals of reading and adding at computed positions, and sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera import op
from caldera.errors import DataError, DtypeError, GradientError, ShapeError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


# --- positions


@pytest.mark.parametrize("bad", [3, -4])
def test_an_index_out_of_range_is_named_when_it_is_read(bad: int) -> None:
    with pytest.raises(DataError, match=rf"op\.gather: expected indices from -3 to 2, got {bad} "):
        op.gather(X, [0, bad], axis=1).eval()
    with pytest.raises(DataError, match=r"op\.scatter_add"):
        op.scatter_add(X, [0, bad], np.zeros((2, 2), np.float32), axis=1).eval()
    with pytest.raises(DataError, match=r"op\.take_along_axis"):
        op.take_along_axis(X, [[bad], [0]], axis=1).eval()
    with pytest.raises(DataError, match=r"op\.put_along_axis_add"):
        op.put_along_axis_add(X, [[bad], [0]], 1.0, axis=1).eval()


def test_nothing_can_be_read_from_an_empty_axis() -> None:
    with pytest.raises(DataError, match="expected no indices, got 0 into an axis of length 0"):
        op.gather(np.zeros((0, 2)), [0]).eval()


def test_an_unsigned_index_is_compared_as_a_number() -> None:
    x = np.arange(300.0)
    assert op.gather(x, np.array([255, 0], np.uint8)).tolist() == [255.0, 0.0]


def test_indices_that_are_inputs_may_change_between_runs() -> None:
    indices = op.input("indices", (2,), dtype="int64")
    plan = cd.compile(op.gather(X, indices, axis=1))
    for wanted in ([0, 1], [2, 2]):
        assert plan.run({"indices": wanted})[0].tolist() == X[:, wanted].tolist()


def test_gather_keeps_every_dtype() -> None:
    for dtype in ("bool", "uint8", "int8", "int64", "float16", "bfloat16", "float64"):
        x = op.var("x", (3,), fill=np.array([0, 1, 1]), dtype=dtype)
        picked = op.gather(x, [1, 0])
        assert picked.dtype == x.dtype
        assert picked.numpy().astype(float).tolist() == [1.0, 0.0]


def test_updates_of_half_precision_are_added_in_float32() -> None:
    # One by one in float16, 2048 + 1 would stay 2048.
    start = np.array([2048.0], np.float16)
    total = op.scatter_add(start, np.zeros(4, np.int64), np.ones(4, np.float16))
    assert total.dtype == np.float16
    assert total.tolist() == [2052.0]


def test_x_and_updates_share_a_dtype() -> None:
    added = op.scatter_add(np.zeros(2, np.int64), [0], np.array([0.5], np.float32))
    assert added.dtype == np.float32
    assert added.tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda w: op.gather(w, [0.0]), DtypeError, "op.gather: expected integers as indices"),
        (lambda w: op.gather(w, [True]), DtypeError, "integers as indices"),
        (lambda w: op.gather(w, [0], axis=2), ShapeError, "an axis from -2 to 1, got 2"),
        (lambda w: op.scatter_add(w, [0], np.zeros((3, 3))), ShapeError, r"\(1, 3\)"),
        (lambda w: op.take_along_axis(w, [0], 0), ShapeError, "indices with 2 axes, like x"),
        (lambda w: op.take_along_axis(w, [[0]] * 3, 1), ShapeError, "broadcast"),
        (lambda w: op.put_along_axis_add(w[:1], [[0], [0]], 1.0, 1), ShapeError, r"from \(1, 3\)"),
        (lambda w: op.one_hot(w, 3), DtypeError, "op.one_hot: expected integers"),
        (lambda w: op.one_hot([1], -1), ShapeError, "op.one_hot classes"),
        (lambda w: op.one_hot([1], 2.5), ShapeError, "got 2.5"),
        (lambda w: op.top_k(w, 4), ShapeError, "k from 0 to 3, the length of axis 1, got k = 4"),
        (lambda w: op.top_k(w, -1), ShapeError, "op.top_k k"),
        (lambda w: op.sort(w, axis=5), ShapeError, "op.sort: expected an axis"),
        (lambda w: op.argsort(w, axis=-3), ShapeError, "op.argsort: expected an axis"),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    w = op.var("W", (2, 3), fill=X)
    with pytest.raises(error, match=message):
        write(w)


def test_errors_name_the_variable() -> None:
    w = op.var("W", (2, 3), fill=X)
    with pytest.raises(DtypeError, match="W"):
        op.gather(w, w)
    with pytest.raises(DtypeError, match="booleans"):
        op.scatter_add(np.array([True, False]), [0], np.array([True]))


# --- order


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.sampled_from([-1.0, -0.0, 0.0, 2.0, np.inf, -np.inf, np.nan]), max_size=9),
    descending=st.booleans(),
)
def test_sorting_is_stable_and_puts_nan_last(values: list[float], descending: bool) -> None:
    x = np.array(values, np.float64)

    def place(i: int) -> tuple[bool, float]:
        return bool(np.isnan(x[i])), 0.0 if np.isnan(x[i]) else -x[i] if descending else x[i]

    # Python's sorted is stable.
    order = sorted(range(len(values)), key=place)
    assert op.argsort(x, descending=descending).tolist() == order
    np.testing.assert_array_equal(op.sort(x, descending=descending).numpy(), x[order])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float16", "bfloat16", "float32"])
def test_every_number_can_be_sorted_both_ways(dtype: str) -> None:
    # The smallest integer has no negative: its order must still come out right.
    lowest = np.iinfo(dtype).min if "int" in dtype else -4
    x = op.var("x", (5,), fill=np.array([3, lowest, 7, 3, 0]), dtype=dtype)
    upwards, downwards = op.argsort(x), op.argsort(x, descending=True)
    assert upwards.tolist() == ([1, 4, 0, 3, 2])
    assert downwards.tolist() == ([2, 0, 3, 1, 4] if dtype == "uint8" else [2, 0, 3, 4, 1])
    assert op.sort(x, descending=True).dtype == x.dtype


def test_truth_values_can_be_sorted() -> None:
    assert op.sort(np.array([True, False, True])).tolist() == [False, True, True]
    assert op.argsort(np.array([False, True, True]), descending=True).tolist() == [1, 2, 0]


def test_of_equal_elements_the_first_gets_the_gradient() -> None:
    x = op.var("x", (4,), fill=np.array([5.0, 1.0, 5.0, 5.0]))
    values, indices = op.top_k(x, 2)
    assert indices.tolist() == [0, 2]
    assert op.grad(op.sum(values), x).tolist() == [1.0, 0.0, 1.0, 0.0]


def test_top_k_takes_nan_last() -> None:
    values, indices = op.top_k(np.array([np.nan, 1.0, 2.0]), 2)
    assert values.tolist() == [2.0, 1.0]
    assert indices.tolist() == [2, 1]


def test_positions_have_no_derivative() -> None:
    x = op.var("x", (3,), fill=np.array([3.0, 1.0, 2.0]))
    with pytest.raises(GradientError, match="differentiable path"):
        op.grad(op.sum(op.argsort(x) * 1.0), x)


def test_the_cost_of_sorting_and_adding() -> None:
    ordered = op.sort(np.zeros((2, 8))).node.inputs[0]
    assert ordered.op.count_flops(ordered) == 2 * 8 * 3
    added = op.scatter_add(np.zeros((5, 4)), [0, 1, 1], 1.0).node
    assert added.op.count_flops(added) == 3 * 4


def test_a_scalar_is_read_and_written_as_the_one_element_of_a_vector() -> None:
    x = op.var("x", (), fill=3.0)
    assert op.take_along_axis(x, 0, 0).tolist() == 3.0
    assert op.take_along_axis(x, [0, -1], 0).tolist() == [3.0, 3.0]
    assert op.gather(x, [[0, 0]], -1).tolist() == [[3.0, 3.0]]
    assert op.scatter_add(x, [0, 0], [1.0, 2.0]).tolist() == 6.0
    assert op.scatter(x, [0], [5.0]).tolist() == 5.0
    assert op.put_along_axis(x, 0, 7.0, 0).tolist() == 7.0
    assert op.put_along_axis_add(x, 0, 1.0, 0).tolist() == 4.0
    assert op.grad(op.scatter_add(x, [0], [1.0]) * op.take_along_axis(x, 0, 0), x).item() == 7.0
