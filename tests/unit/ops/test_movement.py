"""Dtypes, edge cases and refusals of ops that move elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caldera as cd
from caldera import op
from caldera.errors import DtypeError, ShapeError

DTYPES = ("bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_moves_unchanged(dtype: str) -> None:
    x = cd.Tensor((2, 3), fill=np.array([[0, 1, 0], [1, 1, 0]]), dtype=dtype)
    right = x.numpy()
    moved: list[tuple[Any, np.ndarray]] = [
        (op.reshape(x, (3, 2)), right.reshape(3, 2)),
        (op.transpose(x), right.T),
        (op.slice(x, (0, 1)), right[0:, 1:]),
        (op.pad(x, 1, 1), np.pad(right, 1, constant_values=1)),
        (op.flip(x, 1), right[:, ::-1]),
        (op.concat([x, x], 1), np.concatenate([right, right], 1)),
        (op.stack([x, x]), np.stack([right, right])),
        (op.split(x, 3, 1)[2], right[:, 2:]),
        (op.tile(x, 2), np.tile(right, 2)),
        (op.repeat(x, 2, 0), np.repeat(right, 2, 0)),
        (op.broadcast(x, (2, 2, 3)), np.broadcast_to(right, (2, 2, 3))),
    ]
    for result, expected in moved:
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy(), expected)


bounds = st.none() | st.integers(-7, 7)


@given(st.tuples(bounds, bounds), st.tuples(bounds, bounds), st.integers(-4, 4).filter(bool))
def test_slice_means_what_indexing_means(start: Any, stop: Any, step: int) -> None:
    x = np.arange(30.0).reshape(5, 6)
    expected = x[start[0] : stop[0] : step, start[1] : stop[1]]
    result = op.slice(x, start, stop, (step,))
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)


def test_slice_of_one_number_takes_axis_zero() -> None:
    x = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(op.slice(x, 1, 4, 2).numpy(), x[1:4:2])
    np.testing.assert_array_equal(op.slice(x).numpy(), x)


def test_parts_meet_in_the_dtype_they_share() -> None:
    joined = op.concat([cd.tensor([1, 2]), cd.tensor([0.5])])
    assert joined.dtype.name == "float32"
    assert joined.tolist() == [1.0, 2.0, 0.5]
    assert op.stack([cd.tensor([1], dtype="int8"), cd.tensor([True])]).dtype.name == "int8"


def test_what_changes_nothing_is_the_same_expression() -> None:
    x = op.var("x", (2, 3))
    unchanged = [
        op.reshape(x, (2, -1)),
        op.transpose(x, (0, 1)),
        op.squeeze(x),
        op.broadcast(x, (2, 3)),
        op.concat([x]),
        op.split(x, 1)[0],
        op.slice(x),
        op.pad(x, 0),
        op.flip(x, ()),
    ]
    assert all(each.node is x.node for each in unchanged)


def test_pad_takes_a_number_a_pair_or_a_pair_for_each_axis() -> None:
    x = np.ones((1, 2))
    for widths in (1, (1, 2), ((0, 1), (2, 0))):
        np.testing.assert_array_equal(op.pad(x, widths).numpy(), np.pad(x, widths))
    assert op.pad(x, 1, float("-inf")).numpy()[0, 0] == -np.inf


W = op.var("W", (6, 5))
_REFUSED: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: op.reshape(W, (7, 5)), "op.reshape of W .*the 30 elements.*got .7, 5."),
    (lambda: op.reshape(W, (-1, -1)), "op.reshape of W .*at most one -1"),
    (lambda: op.reshape(W, (-1, 4)), "op.reshape of W .*the 30 elements"),
    (lambda: op.flatten(W, 2), "op.flatten of W .*an axis from -2 to 1, got 2"),
    (lambda: op.transpose(W, (0, 0)), "op.transpose of W .*each of the 2 axes once"),
    (lambda: op.squeeze(W, 1), "op.squeeze of W .*axis 1 of size 1, got 5"),
    (lambda: op.unsqueeze(W, 3), "op.unsqueeze of W .*from -3 to 2, got 3"),
    (lambda: op.unsqueeze(W, (0, 0)), "op.unsqueeze of W .*each axis once"),
    (lambda: op.broadcast(W, (6, 4)), "op.broadcast_to: .*broadcasts to .6, 4., got W "),
    (lambda: op.broadcast(W, (5,)), "op.broadcast_to: .*got W "),
    (lambda: op.concat([W, op.var("V", (6, 4, 1))]), "op.concat: .*differ only along axis 0.*V"),
    (lambda: op.concat([W, op.var("V", (5, 5))], axis=1), "op.concat: .*only along axis 1.*W.*V"),
    (lambda: op.concat([W, W], axis=2), "op.concat of W .*from -2 to 1, got 2"),
    (lambda: op.concat([]), "op.concat: expected at least one part"),
    (lambda: op.stack([W, op.var("V", (5, 6))]), "op.stack of W .*V.*parts of the same shape"),
    (lambda: op.split(W, 4), "op.split of W .*axis 0 of 6 can give, got 4"),
    (lambda: op.split(W, (3, 2)), "op.split: expected sizes that add up to 6"),
    (lambda: op.split(W, (7, -1)), "op.split of W .*sizes >= 0"),
    (lambda: op.split(W, 0), "op.split of W "),
    (lambda: op.slice(W, (0, 0, 0)), "op.slice of W .*at most 2 axes, got 3"),
    (lambda: op.slice(W, 0, 1, 0), "op.slice of W .*steps other than 0"),
    (lambda: op.pad(W, -1), "op.pad of W .*sizes >= 0"),
    (lambda: op.pad(W, ((1, 1),)), "op.pad of W .*a pair for each of 2 axes"),
    (lambda: op.flip(W, 2), "op.flip of W "),
    (lambda: op.tile(W, -1), "op.tile of W .*sizes >= 0"),
    (lambda: op.repeat(W, -1, 0), "op.repeat of W .*sizes >= 0"),
    (lambda: op.repeat(W, 2, 5), "op.repeat of W .*got 5"),
)


@pytest.mark.parametrize(("write", "message"), _REFUSED)
def test_mistakes_name_the_op_the_variable_and_what_was_expected(
    write: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        write()


def test_pad_refuses_a_value_the_dtype_cannot_hold() -> None:
    with pytest.raises(DtypeError, match=r"op\.pad .*a value that int64 can hold, got 0\.5"):
        op.pad(cd.tensor([1, 2]), 1, 0.5)
    with pytest.raises(DtypeError, match="bool can hold, got 2"):
        op.pad(cd.tensor([True]), 1, 2)
