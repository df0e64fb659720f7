"""tensordot, kron, cross and cdist against NumPy, their derivatives, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.errors import ConfigError, ShapeError
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers

A, B = numbers(2, 3, 4), numbers(4, 3, 5, seed=1)


def close(found: object, right: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axes", [0, 1, ((1, 2), (1, 0)), (2, 0), ((-1,), (-3,)), ((), ())])
def test_tensordot(axes: Any) -> None:
    close(op.tensordot(A, B, axes), np.tensordot(A, B, axes))


def test_tensordot_of_vectors_and_of_axes_of_one_element() -> None:
    close(op.tensordot(A[0, 0], B, 1), np.tensordot(A[0, 0], B, 1))
    close(op.tensordot(A, B[:, 0, 0], ((2,), (0,))), np.tensordot(A, B[:, 0, 0], ((2,), (0,))))
    one, several = A[:, :1, :1], B[:2]
    whole = np.broadcast_to(one, (2, 2, 3))
    found = op.tensordot(one, several, ((1, 2), (0, 1)))
    close(found, np.tensordot(whole, several, ((1, 2), (0, 1))))
    check_gradients(lambda a, b: op.tensordot(a, b, ((1, 2), (0, 1))), [one, several])


def test_products_have_the_derivatives_of_sums_of_products() -> None:
    check_gradients(lambda a, b: op.tensordot(a, b, ((1, 2), (1, 0))), [A, B])
    check_gradients(op.kron, [numbers(2, 2), numbers(3, seed=2)])
    check_gradients(op.cross, [numbers(2, 3), numbers(3, seed=2)])
    check_gradients(op.cdist, [numbers(2, 3), numbers(4, 3, seed=2)])


def test_kron() -> None:
    for a, b in ((A, B), (A[0], B), (A, B[0, 0]), (np.array(2.0), B)):
        close(op.kron(a, b), np.kron(a, b))


def test_cross() -> None:
    close(op.cross(numbers(2, 3), numbers(3, seed=1)), np.cross(numbers(2, 3), numbers(3, seed=1)))
    close(op.cross(B, B[::-1], axis=1), np.cross(B, B[::-1], axis=1))


@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_distances(order: float) -> None:
    a, b = numbers(2, 3, 4), numbers(5, 4, seed=1)
    right = np.linalg.norm(a[:, :, None] - b, order, axis=-1)
    close(op.cdist(a, b, order), right)


def test_a_distance_of_zero_has_slope_zero() -> None:
    x = op.var("x", (2, 2), fill=np.array([[0.0, 0.0], [3.0, 4.0]]))
    slope = op.grad(op.sum(op.cdist(x, np.zeros((1, 2), "float32"))), x)
    np.testing.assert_allclose(slope.numpy(), [[0, 0], [0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda: op.tensordot(A, B, 4), ShapeError, "a number of axes from 0 to 3, got 4"),
        (lambda: op.tensordot(A, B, ((0, 1), (0,))), ShapeError, "equally many axes of a and b"),
        (lambda: op.tensordot(A, B, ((0,), (0,))), ShapeError, "different axes of equal sizes"),
        (lambda: op.cross(A, A), ShapeError, r"3 components along axis -1, got \(2, 3, 4\)"),
        (lambda: op.cdist(A, B), ShapeError, "rows of equal length"),
        (lambda: op.cdist(A, A, 3), ConfigError, "order 1, 2 or infinity"),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        write()
