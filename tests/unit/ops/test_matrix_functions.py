"""Triangular systems, least squares and exponentials of matrices, large and small and singular."""

from __future__ import annotations

import math

import numpy as np
import pytest

from caldera import op
from caldera.errors import ShapeError
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers


def close(found: object, right: object, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_systems(lower: bool, transpose: bool, unit: bool) -> None:
    a, b = numbers(2, 3, 3) + 3 * np.eye(3), numbers(3, 2, seed=1)
    half = np.tril(a) if lower else np.triu(a)
    if unit:
        half = half - half * np.eye(3) + np.eye(3)
    if transpose:
        half = half.swapaxes(-1, -2)
    close(op.triangular_solve(a, b, lower, transpose, unit), np.linalg.solve(half, b))
    vector = op.triangular_solve(a[0], b[:, 0], lower, transpose, unit)
    close(vector, np.linalg.solve(half[0], b[:, 0]))


def test_graded_triangular_systems_lose_no_digits() -> None:
    """Elimination with pivots would mix rows of very different size."""
    a = np.array([[1e-12, 0.0, 0.0], [1.0, 1e-6, 0.0], [1e6, 1.0, 1.0]])
    x = np.array([1.0, 2.0, 3.0])
    b = [1e-12, 1.0 + 2e-6, 1e6 + 5.0]
    np.testing.assert_allclose(op.triangular_solve(a, b).numpy()[0], x[0], rtol=1e-15)
    check_gradients(
        lambda a, b: op.triangular_solve(a, b), [np.tril(numbers(2, 2)) + 3, numbers(2)]
    )


def test_least_squares_of_matrices_without_full_rank() -> None:
    a = numbers(5, 2) @ numbers(2, 3, seed=1)
    b = numbers(5, 2, seed=2)
    close(op.lstsq(a, b), np.linalg.lstsq(a, b, rcond=None)[0])
    close(op.lstsq(a, b[:, 0]), np.linalg.lstsq(a, b[:, 0], rcond=None)[0])
    close(op.pinv(np.zeros((2, 3))), np.zeros((3, 2)))
    assert op.pinv(np.zeros((0, 3))).shape == (3, 0)
    check_gradients(op.lstsq, [numbers(4, 2), numbers(4, seed=1)])


def test_a_threshold_for_singular_values() -> None:
    a = np.diag([4.0, 2.0, 1e-3])
    close(op.pinv(a, rtol=1e-2), np.diag([0.25, 0.5, 0.0]))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
def test_exponentials_of_large_and_small_matrices(dtype: str, tolerance: float) -> None:
    angles = np.array([0.0, 1e-9, 0.5, 3.0, 40.0, 700.0])
    turns = np.zeros((6, 2, 2))
    turns[:, 0, 1], turns[:, 1, 0] = -angles, angles
    angles = angles.astype(dtype).astype(float)
    right = np.array([[[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]] for t in angles])
    close(op.expm(turns.astype(dtype)), right, tolerance)


def test_exponentials_at_the_ends() -> None:
    x = op.var("x", (3, 1, 1), fill=np.array([-800.0, 0.0, 20.0]).reshape(3, 1, 1), dtype="float64")
    y = op.expm(x)
    right = np.exp([-800.0, 0.0, 20.0]).reshape(3, 1, 1)
    close(y, right, 1e-11)
    # What is squared less often than its neighbours does not get their infinities.
    close(op.grad(op.sum(y), x), right, 1e-11)
    assert np.isnan(op.expm(np.full((2, 2), math.nan)).numpy()).all()
    assert op.expm(np.zeros((0, 0))).shape == (0, 0)
    with pytest.raises(ShapeError, match=r"op\.expm: expected square matrices"):
        op.expm(np.zeros((2, 3)))
