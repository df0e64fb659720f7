"""Deviations, medians, quantiles, and running products and extremes, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.errors import ConfigError, ShapeError
from caldera.op.reduction import METHODS
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers

INF, NAN = math.inf, math.nan
X = numbers(3, 5, 2)


def close(found: object, right: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-12, atol=1e-12)


def test_deviation_is_the_root_of_the_variance() -> None:
    close(op.std(X), X.std())
    close(op.std(X, (0, 2), keepdims=True, correction=1), X.std((0, 2), ddof=1, keepdims=True))
    check_gradients(lambda x: op.std(x, 1, correction=1), [X], order=2)


def test_deviation_of_equal_elements_has_slope_zero() -> None:
    x = op.var("x", (3,), fill=cd.constant(2.0))
    assert op.std(x).item() == 0.0
    assert op.grad(op.std(x), x).tolist() == [0.0, 0.0, 0.0]
    assert math.isnan(op.std(x[:1], correction=1).item())


@pytest.mark.parametrize("method", METHODS)
def test_quantiles_are_those_of_numpy(method: str) -> None:
    q = [0.0, 0.21, 0.5, 1.0]
    for axis in (1, (0, 2), None):
        right = np.quantile(X, q, axis, keepdims=axis == 1, method=method)  # type: ignore[call-overload]
        close(op.quantile(X, q, axis, keepdims=axis == 1, method=method), right)  # type: ignore[arg-type]


def test_medians_and_their_derivatives() -> None:
    close(op.median(X, 1), np.median(X, 1))
    close(op.median(X), np.median(X))
    check_gradients(lambda x: op.quantile(x, [0.3, 0.8], 1) * op.median(x), [X])


def test_a_nan_spoils_its_own_quantile_and_infinities_do_not() -> None:
    x = np.array([[1.0, NAN, 2.0], [INF, INF, 1.0], [-INF, 5.0, INF]])
    close(op.quantile(x, 0.5, 1), [NAN, INF, 5.0])
    close(op.quantile(x[1], 0.75), INF)


@pytest.mark.parametrize("q", [1.5, [], "half", [0.5, NAN]])
def test_quantiles_are_fractions(q: object) -> None:
    with pytest.raises(ConfigError, match=r"op\.quantile: expected q from 0 to 1, or several"):
        op.quantile(X, q)  # type: ignore[arg-type]


def test_what_has_no_quantile_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method= one of linear, .*, got 'cubic'"):
        op.quantile(X, 0.5, method="cubic")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"op\.median.*at least one element"):
        op.median(np.zeros((2, 0)), 1)


# --- running


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_running_products(length: int) -> None:
    x = numbers(2, length, low=0.5)
    close(op.cumprod(x, 1), np.cumprod(x, 1))
    close(op.cumprod(x, -1, reverse=True), np.cumprod(x[:, ::-1], 1)[:, ::-1])


def test_the_derivative_of_a_running_product_at_zeros() -> None:
    check_gradients(lambda x: op.cumprod(x, 0), [np.array([2.0, 0.0, 3.0, 0.0])], order=2)
    assert op.cumprod(np.array([2, 3], np.int8), 0).dtype.name == "int64"


@pytest.mark.parametrize(("function", "ufunc"), [(op.cummax, np.maximum), (op.cummin, np.minimum)])
def test_running_extremes(function, ufunc: np.ufunc) -> None:  # type: ignore[no-untyped-def]
    x = np.random.default_rng(0).integers(0, 4, (2, 11)).astype(float)
    x[1, 6] = NAN
    values, indices = function(x, 1)
    right = ufunc.accumulate(x, 1)
    close(values, right)
    first = [
        [
            next(j for j in range(i + 1) if row[j] == best or (row[j] != row[j] and best != best))
            for i, best in enumerate(bests)
        ]
        for row, bests in zip(x, right, strict=True)
    ]
    assert indices.tolist() == first
    check_gradients(lambda x: function(x, 0)[0], [numbers(6)])
    whole = function(np.array([3, 9, 1]), 0)[0]
    assert whole.dtype.name == "int64"
