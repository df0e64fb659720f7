"""Conventions, dtypes, infinities and refusals of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.base import sum_
from caldera.core.tensor.dtype import float32
from caldera.errors import ConfigError, ShapeError
from caldera.kernels.reference import evaluate

INF, NAN = math.inf, math.nan


def variable(array: Any, name: str = "x") -> Variable:
    return op.var(name, np.shape(array), fill=np.asarray(array, "float64"), dtype="float64")


def slope(y: Expr, x: Expr) -> np.ndarray:
    return op.grad(op.sum(y), x).numpy()


# --- ties


def test_equal_extremes_share_the_gradient_equally() -> None:
    x = variable([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    np.testing.assert_allclose(slope(op.max(x, axis=1), x), [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(slope(op.min(x, axis=1), x), [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(slope(op.max(x), x), [[0, 0.5, 0.5], [0, 0, 0]])


def test_the_first_of_equal_extremes_is_found() -> None:
    x = cd.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 1.0]])
    assert op.argmax(x, axis=1).tolist() == [1, 0]
    assert op.argmin(x, axis=1).tolist() == [0, 1]
    assert op.argmax(x).item() == 1
    assert op.argmax(x, axis=1).dtype.name == "int64"


def test_the_largest_size_is_shared_whatever_its_sign() -> None:
    x = variable([-2.0, 2.0, 1.0])
    np.testing.assert_array_equal(slope(op.norm(x, INF), x), [-0.5, 0.5, 0])


def test_the_length_of_zeros_is_flat() -> None:
    x = variable([[0.0, 0.0], [3.0, 4.0]])
    lengths = op.norm(x, axis=1)
    assert lengths.tolist() == [0.0, 5.0]
    first = op.grad(op.sum(lengths), x)
    np.testing.assert_allclose(first.numpy(), [[0, 0], [0.6, 0.8]])
    assert np.isfinite(op.grad(op.sum(first * first), x).numpy()).all()


def test_derivatives_of_a_product_are_right_beside_zeros() -> None:
    x = variable([0.0, 2.0, 5.0])
    np.testing.assert_array_equal(slope(op.prod(x), x), [10, 0, 0])
    zeros = variable([0.0, 0.0, 5.0])
    np.testing.assert_array_equal(slope(op.prod(zeros), zeros), [0, 0, 0])


# --- nothing to reduce


def test_empty_reductions_give_their_neutral_element() -> None:
    x = np.zeros((2, 0))
    assert op.sum(x, axis=1).tolist() == [0.0, 0.0]
    assert op.prod(x, axis=1).tolist() == [1.0, 1.0]
    assert op.logsumexp(x, axis=1).tolist() == [-INF, -INF]
    assert op.norm(x, axis=1).tolist() == [0.0, 0.0]
    assert op.any(x, axis=1).tolist() == [False, False]
    assert op.all(x, axis=1).tolist() == [True, True]
    assert np.isnan(op.mean(x, axis=1).numpy()).all()
    assert np.isnan(op.variance(x, axis=1).numpy()).all()
    assert op.max(x, axis=0).shape == (0,)


def test_there_is_no_largest_of_nothing() -> None:
    x = op.var("nobody", (2, 0))
    for function in (op.max, op.min, op.argmax, op.argmin):
        with pytest.raises(ShapeError, match=r"at least one element.*nobody"):
            function(x, axis=1)


def test_the_variance_of_too_few_is_nan() -> None:
    x = variable([[1.0], [2.0]])
    assert np.isnan(op.variance(x, axis=1, correction=1).numpy()).all()


# --- infinities and nan


def test_logsumexp_neither_overflows_nor_loses_infinities() -> None:
    x = variable([[1000.0, 1000.0], [-INF, -INF], [INF, 0.0], [NAN, 0.0], [-INF, 3.0]])
    expected = [1000 + math.log(2), -INF, INF, NAN, 3.0]
    np.testing.assert_allclose(op.logsumexp(x, axis=1).numpy(), expected)
    first_and_last = op.concat([x[:1], x[4:]])
    gradient = op.grad(op.sum(op.logsumexp(first_and_last, axis=1)), x)
    np.testing.assert_allclose(gradient.numpy()[[0, 4]], [[0.5, 0.5], [0, 1]])


def test_nan_is_the_largest_and_the_smallest() -> None:
    x = cd.tensor([1.0, NAN, 3.0])
    assert math.isnan(op.max(x).item())
    assert math.isnan(op.min(x).item())


# --- dtypes


def test_integers_are_added_in_int64_and_averaged_in_float32() -> None:
    x = cd.Tensor((4,), fill=100, dtype="int8")
    for function, expected in ((op.sum, 400), (op.prod, 10**8)):
        assert function(x).dtype.name == "int64"
        assert function(x).item() == expected
    assert op.cumsum(x, axis=0).tolist() == [100, 200, 300, 400]
    assert op.max(x).dtype.name == "int8"
    for function in (op.mean, op.variance, op.norm, op.logsumexp):
        assert function(x).dtype.name == "float32"
    assert op.mean(cd.tensor([True, True, False, False])).item() == 0.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_reduced_in_float32(dtype: str) -> None:
    many = cd.Tensor((100_000,), fill=cd.one(), dtype=dtype)
    assert op.mean(many).item() == 1.0
    assert op.variance(many).item() == 0.0
    large = cd.Tensor((2,), fill=np.array([300.0, 400.0]), dtype=dtype)
    assert op.norm(large).item() == 500.0
    for function in (op.sum, op.mean, op.variance, op.norm, op.logsumexp, op.max):
        assert function(large).dtype.name == dtype


def test_the_mean_of_equal_numbers_is_that_number() -> None:
    for count in (3, 49, 107):
        assert op.mean(np.full(count, 0.1)).item() == pytest.approx(0.1, rel=1e-15)
        assert op.mean(np.ones(count)).item() == 1.0


# --- refusals

X = op.var("X", (2, 3))
_REFUSED: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: op.sum(X, axis=2), "op.sum of X .*an axis from -2 to 1, got 2"),
    (lambda: op.mean(X, axis=(0, 0)), "op.mean of X .*each axis once"),
    (lambda: op.variance(X, axis=-3), "op.variance of X "),
    (lambda: op.logsumexp(X, axis=2), "op.logsumexp of X "),
    (lambda: op.argmax(X, axis=2), "op.argmax of X "),
    (lambda: op.cumsum(X, axis=2), "op.cumsum of X "),
)


@pytest.mark.parametrize(("write", "message"), _REFUSED)
def test_wrong_axes_name_the_op_and_the_variable(write: Callable[[], Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        write()


@pytest.mark.parametrize("order", [3, 0, -1, "fro"])
def test_norms_that_are_not_there_are_refused(order: Any) -> None:
    with pytest.raises(ConfigError, match=r"op\.norm of X .*order 1, 2 or infinity"):
        op.norm(X, order)


def test_long_sums_along_outer_axes_are_right_to_the_last_digits() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (200_000, 3)).astype("float32")
    (found,) = evaluate(sum_(parameter(0, Spec(x.shape, float32)), (0,)), (x,))
    np.testing.assert_allclose(found, x.sum(0, np.float64), rtol=1e-7)


def test_a_scalar_is_taken_for_the_one_element_of_a_vector() -> None:
    x = op.var("x", (), fill=3.0)
    along: list[Callable[..., Any]] = [
        op.sum,
        op.mean,
        op.max,
        op.min,
        op.prod,
        op.variance,
        op.logsumexp,
        op.norm,
        op.any,
        op.all,
        op.argmax,
        op.argmin,
        op.cumsum,
        op.cumprod,
        op.cummax,
        op.cummin,
        op.softmax,
        op.log_softmax,
        op.sort,
        op.argsort,
        op.median,
        op.std,
    ]
    for function in along:
        ones = function(cd.tensor([3.0]), axis=0)
        for axis in (0, -1):
            found = function(x, axis=axis)
            pairs = zip(found, ones, strict=True) if isinstance(found, tuple) else [(found, ones)]
            for each, one in pairs:
                assert each.shape == ()
                assert each.item() == one.tolist() or each.item() == one.tolist()[0]
        with pytest.raises(ShapeError, match="an axis from -1 to 0, got 1"):
            function(x, axis=1)
    assert op.grad(op.softmax(x, axis=0) + op.cumsum(x, axis=-1), x).item() == 1.0
    assert [each.item() for each in op.top_k(x, 1)] == [3.0, 0]
    assert op.swapaxes(x, 0, -1).item() == 3.0
