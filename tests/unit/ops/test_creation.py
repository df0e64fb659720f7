"""Values that follow from a shape alone, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.errors import ConfigError, ShapeError
from caldera.kernels.reference import interpret

SAME: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda np, dtype: np.zeros((2, 3), dtype=dtype), "float32"),
    (lambda np, dtype: np.ones(4, dtype=dtype), "bool"),
    (lambda np, dtype: np.full((2, 0), 7, dtype=dtype), "int32"),
    (lambda np, dtype: np.full((2, 2), 0.1, dtype=dtype), "float64"),
    (lambda np, dtype: np.arange(5, dtype=dtype), "int64"),
    (lambda np, dtype: np.arange(3, -4, -2, dtype=dtype), "int32"),
    (lambda np, dtype: np.arange(4, 2, dtype=dtype), "int64"),
    (lambda np, dtype: np.arange(0.1, 1.0, 0.15, dtype=dtype), "float32"),
    (lambda np, dtype: np.arange(2**40, 2**40 + 3, dtype=dtype), "int64"),
    (lambda np, dtype: np.linspace(-1, 3, 9, dtype=dtype), "float32"),
    (lambda np, dtype: np.linspace(0.1, 0.7, 7, dtype=dtype), "float64"),
    (lambda np, dtype: np.linspace(5, -5, 4, endpoint=False, dtype=dtype), "float32"),
    (lambda np, dtype: np.linspace(2, 3, 1, dtype=dtype), "float32"),
    (lambda np, dtype: np.linspace(2, 3, 0, dtype=dtype), "float32"),
    (lambda np, dtype: np.eye(3, dtype=dtype), "float32"),
    (lambda np, dtype: np.eye(2, 4, 1, dtype=dtype), "int64"),
    (lambda np, dtype: np.eye(4, 2, -1, dtype=dtype), "bool"),
]


def test_they_are_as_in_numpy() -> None:
    for function, dtype in SAME:
        expected, found = function(np, dtype), function(op, dtype)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        (value,) = interpret([found.node], {})
        np.testing.assert_allclose(value, expected, rtol=1e-6 if dtype == "float32" else 1e-15)


def test_both_ends_are_exact() -> None:
    (line,) = interpret([op.linspace(0.1, 0.7, 1001, dtype="float64").node], {})
    assert line[0] == 0.1
    assert line[-1] == 0.7


def test_dtypes_that_are_not_given() -> None:
    assert op.arange(3).dtype.name == "int64"
    assert op.arange(3.0).dtype.name == "float32"
    assert op.zeros(()).dtype.name == op.eye(2).dtype.name == "float32"


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda: op.arange(0, 1, 0), ConfigError, "a step other than 0"),
        (lambda: op.arange(0, float("inf")), ConfigError, "finite bounds"),
        (lambda: op.full((2,), 0.5, "int32"), ConfigError, "a number that int32 can hold, got 0.5"),
        (lambda: op.full((2,), "x"), ConfigError, "value= a number"),
        (lambda: op.zeros((-1,)), ShapeError, r"op\.zeros"),
        (lambda: op.meshgrid(op.zeros((2, 2))), ShapeError, "vectors"),
        (lambda: op.meshgrid([1.0], indexing="yx"), ConfigError, "'xy' or 'ij'"),
        (lambda: op.roll(op.zeros((2, 2)), (1, 2), (0, 1, 0)), ShapeError, "a shift for each"),
        (
            lambda: op.moveaxis(op.zeros((2, 2)), (0, 0), (0, 1)),
            ShapeError,
            "a permutation of the axes",
        ),
        (
            lambda: op.moveaxis(op.zeros((2, 2)), (0, 1), (1, 1)),
            ShapeError,
            "a permutation of the axes",
        ),
        (lambda: op.swapaxes(op.zeros((2, 2)), 0, 2), ShapeError, "an axis from -2 to 1"),
    ],
)
def test_what_cannot_be_is_refused(
    function: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function()


def test_lists_of_unequal_lengths_have_no_shape_for_a_variable() -> None:
    with pytest.raises(ShapeError, match=r"variable w.*nested lists of equal lengths"):
        op.var("w", fill=[[1.0], [1.0, 2.0]])
    assert op.var("w", fill=[[1.0, 2.0]]).shape == (1, 2)
