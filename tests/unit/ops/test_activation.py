"""Activation functions and softmax at the ends of the range, at their kinks, and misused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, ShapeError

INF = np.inf
FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "relu": op.relu,
    "leaky_relu": op.leaky_relu,
    "elu": op.elu,
    "selu": op.selu,
    "gelu": op.gelu,
    "gelu tanh": lambda x: op.gelu(x, approximate=True),
    "silu": op.silu,
    "softplus": op.softplus,
    "hard_sigmoid": op.hard_sigmoid,
    "hard_swish": op.hard_swish,
    "mish": op.mish,
    "softsign": op.softsign,
    "rbf": op.rbf,
}
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805
# The limit on either side, and that of the derivative.
LIMITS = {
    "relu": ((0, INF), (0, 1)),
    "leaky_relu": ((-INF, INF), (0.01, 1)),
    "elu": ((-1, INF), (0, 1)),
    "selu": ((-_ALPHA * _SCALE, INF), (0, _SCALE)),
    "gelu": ((0, INF), (0, 1)),
    "gelu tanh": ((0, INF), (0, 1)),
    "silu": ((0, INF), (0, 1)),
    "softplus": ((0, INF), (0, 1)),
    "hard_sigmoid": ((0, 1), (0, 0)),
    "hard_swish": ((0, INF), (0, 1)),
    "mish": ((0, INF), (0, 1)),
    "softsign": ((-1, 1), (0, 0)),
    "rbf": ((0, 0), (0, 0)),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def _gradient(function: Callable[..., Expr], x: Expr) -> Expr:
    return op.grad(op.sum(function(x)), x)


@every_function
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_infinite_arguments_give_the_limit(name: str, dtype: str) -> None:
    x = op.var("x", (2,), fill=np.array([-INF, INF]), dtype=dtype)
    values, slopes = LIMITS[name]
    np.testing.assert_allclose(FUNCTIONS[name](x).numpy().astype(float), values, rtol=5e-3)
    np.testing.assert_allclose(
        _gradient(FUNCTIONS[name], x).numpy().astype(float), slopes, rtol=5e-3
    )


@every_function
@pytest.mark.parametrize("far", [1e4, 1e20, 3e38])
def test_far_out_derivatives_of_any_order_are_those_of_the_asymptote(name: str, far: float) -> None:
    x = op.var("x", (2,), fill=np.array([-far, far]))
    slope = _gradient(FUNCTIONS[name], x)
    np.testing.assert_allclose(slope.numpy(), LIMITS[name][1], rtol=1e-6, atol=2e-8)
    second = op.grad(op.sum(slope), x, unused="zero")
    np.testing.assert_allclose(second.numpy(), [0, 0], atol=1e-6)


@every_function
def test_values_between_are_finite_and_have_no_jump(name: str) -> None:
    x = np.linspace(-110, 110, 20001, dtype=np.float32)
    y = FUNCTIONS[name](x).numpy()
    assert np.isfinite(y).all()
    assert np.abs(np.diff(y)).max() < 0.02


@every_function
def test_nan_stays(name: str) -> None:
    assert np.isnan(FUNCTIONS[name](np.array([np.nan, 1.0], np.float32)).numpy()).tolist() == [
        True,
        False,
    ]


@every_function
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_once(name: str, dtype: str) -> None:
    x = op.var("x", (9,), fill=np.linspace(-4, 4, 9) + 0.3, dtype=dtype)
    wide = op.var("wide", (9,), fill=x.numpy().astype("float32"))
    for result, exact in [
        (FUNCTIONS[name](x), FUNCTIONS[name](wide)),
        (_gradient(FUNCTIONS[name], x), _gradient(FUNCTIONS[name], wide)),
    ]:
        assert result.dtype == x.dtype
        rounded = exact.numpy().astype(x.dtype)
        np.testing.assert_array_equal(result.numpy().astype(float), rounded.astype(float))


@every_function
def test_integers_are_computed_in_float32(name: str) -> None:
    result = FUNCTIONS[name](np.array([-2, 5]))
    assert result.dtype.name == ("int64" if name == "relu" else "float32")
    np.testing.assert_allclose(
        result.numpy(), FUNCTIONS[name](np.array([-2.0, 5.0])).numpy(), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "at", "slope"),
    [
        ("relu", 0.0, 0.0),
        ("leaky_relu", 0.0, 0.01),
        ("elu", 0.0, 1.0),
        ("selu", 0.0, _SCALE * _ALPHA),
        ("softplus", 0.0, 0.5),
        ("hard_sigmoid", -3.0, 0.0),
        ("hard_sigmoid", 3.0, 0.0),
        ("hard_swish", -3.0, 0.0),
        ("hard_swish", 3.0, 1.0),
    ],
)
def test_the_derivative_at_a_kink_is_the_written_one(name: str, at: float, slope: float) -> None:
    x = op.var("x", (), fill=np.array(at), dtype="float64")
    assert _gradient(FUNCTIONS[name], x).item() == pytest.approx(slope, abs=1e-12)


def test_elu_has_the_slope_of_its_negative_side_at_0() -> None:
    x = op.var("x", (), fill=np.array(0.0))
    assert _gradient(lambda x: op.elu(x, alpha=0.25), x).item() == 0.25


def test_elu_and_softplus_keep_small_values() -> None:
    tiny = np.array([-1e-10], np.float32)
    np.testing.assert_allclose(op.elu(tiny).numpy(), tiny, rtol=1e-6)
    np.testing.assert_allclose(
        op.softplus(np.array([-50.0], np.float32)).numpy(), np.exp(-50.0), rtol=1e-5
    )


# --- softmax


def test_softmax_of_infinite_logits() -> None:
    x = np.array([[INF, 0, -INF], [INF, INF, 0], [-INF, 0, 0], [-INF, -INF, -INF]], np.float32)
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5], [np.nan] * 3]
    np.testing.assert_array_equal(op.softmax(x).numpy(), np.array(expected, np.float32))
    logarithm = op.log_softmax(x).numpy()
    np.testing.assert_allclose(logarithm[0], [0, -INF, -INF])
    np.testing.assert_allclose(logarithm[2], [-INF, -np.log(2), -np.log(2)], rtol=1e-6)
    assert np.isnan(logarithm[3]).all()


def test_one_nan_spoils_its_own_row_alone() -> None:
    result = op.softmax(np.array([[0.0, np.nan], [0.0, 0.0]], np.float32)).numpy()
    assert np.isnan(result[0]).all()
    assert result[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("function", [op.softmax, op.log_softmax])
def test_large_logits_have_finite_derivatives(function: Callable[..., Expr]) -> None:
    x = op.var("x", (2, 3), fill=np.array([[1e4, -1e4, 0], [3e38, -3e38, 3e38]]))
    slope = op.grad(op.sum(function(x)[:, 0]), x)
    assert np.isfinite(slope.numpy()).all()
    assert np.isfinite(op.grad(op.sum(slope * slope), x).numpy()).all()


def test_softmax_of_many_halves_adds_up_to_1() -> None:
    x = op.var("x", (4096,), fill=np.linspace(0, 1, 4096), dtype="float16")
    total = op.softmax(x).numpy().astype("float64").sum()
    assert total == pytest.approx(1, abs=1e-3)


# --- misuse


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda x: op.softmax(x, axis=2),
            ShapeError,
            r"op\.softmax: expected an axis from -2 to 1",
        ),
        (
            lambda x: op.log_softmax(x[0, 0], axis=1),
            ShapeError,
            r"op\.log_softmax: expected an axis from -1 to 0",
        ),
        (lambda x: op.leaky_relu(x, slope=x), ConfigError, r"op\.leaky_relu: expected slope="),
        (
            lambda x: op.elu(x, alpha="1"),
            ConfigError,
            r"op\.elu: expected alpha= a number, got '1'",
        ),
        (lambda x: op.rbf(x, eps=True), ConfigError, r"op\.rbf: expected eps="),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        write(op.var("X", (2, 3)))
