"""Trigonometric and special functions at the ends of their range, and what is made of comparisons.

All functions of a dtype are one plan: they become one loop, compiled once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, DtypeError

INF, NAN, PI = math.inf, math.nan, math.pi
# Where, the value there, and the derivative.
ENDS: dict[str, list[tuple[float, float, float]]] = {
    "tan": [(0, 0, 1), (-0.0, -0.0, 1), (INF, NAN, NAN), (NAN, NAN, NAN)],
    "asin": [(1, PI / 2, INF), (-1, -PI / 2, INF), (2, NAN, NAN), (-0.0, -0.0, 1)],
    "acos": [(1, 0, -INF), (-1, PI, -INF), (2, NAN, NAN), (0, PI / 2, -1)],
    "atan": [(INF, PI / 2, 0), (-INF, -PI / 2, 0), (-0.0, -0.0, 1), (1e30, PI / 2, 1e-60)],
    "sinh": [(INF, INF, INF), (-INF, -INF, INF), (-0.0, -0.0, 1), (-800, -INF, INF)],
    "cosh": [(INF, INF, INF), (-INF, INF, -INF), (0, 1, 0), (-800, INF, -INF)],
    "asinh": [(INF, INF, 0), (-INF, -INF, 0), (-0.0, -0.0, 1), (3e38, math.asinh(3e38), 1 / 3e38)],
    "acosh": [(1, 0, INF), (0, NAN, NAN), (INF, INF, 0), (-3, NAN, NAN)],
    "atanh": [(1, INF, INF), (-1, -INF, INF), (2, NAN, -1 / 3), (-0.0, -0.0, 1)],
    "log2": [
        (8, 3, 1 / (8 * math.log(2))),
        (0, -INF, INF),
        (-1, NAN, -1 / math.log(2)),
        (INF, INF, 0),
    ],
    "log10": [(1e3, 3, 1 / (1e3 * math.log(10))), (0, -INF, INF), (INF, INF, 0), (NAN, NAN, NAN)],
    "exp2": [(3, 8, 8 * math.log(2)), (-INF, 0, 0), (INF, INF, INF), (2000, INF, INF)],
    "erfc": [(INF, 0, 0), (-INF, 2, 0), (0, 1, -2 / math.sqrt(PI)), (NAN, NAN, NAN)],
    "erfinv": [(1, INF, INF), (-1, -INF, INF), (2, NAN, NAN), (-0.0, -0.0, math.sqrt(PI) / 2)],
    "lgamma": [(0, INF, -INF), (-2, INF, NAN), (INF, INF, INF), (1, 0, -0.5772156649015329)],
    "digamma": [(0, -INF, INF), (-2, NAN, NAN), (INF, INF, 0), (-0.0, INF, INF)],
    "trunc": [(-0.5, -0.0, 0), (2.7, 2, 0), (-INF, -INF, 0), (NAN, NAN, 0)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_derivatives_at_the_ends(dtype: str) -> None:
    variables = [
        op.var(name, (4,), fill=np.array([x for x, _, _ in ends]), dtype=dtype)
        for name, ends in ENDS.items()
    ]
    values = [getattr(op, name)(x) for name, x in zip(ENDS, variables, strict=True)]
    total = sum((op.sum(value) for value in values), start=op.sum(values[0]) * 0.0)
    slopes = op.grad(total, variables, unused="zero")
    results = iter(cd.compile([*values, *slopes]).run())
    tolerance = 1e-6 if dtype == "float32" else 1e-14
    for which in (1, 2):
        for name, ends in ENDS.items():
            found = next(results).numpy()
            right = np.array([each[which] for each in ends])
            if name == "erfinv" and which == 2:
                # exp(x^2) has no end of its own.
                found, right = found[3:], right[3:]
            if name == "asin" and which == 1:
                assert np.signbit(found[3])
            with np.errstate(over="ignore"):
                right = right.astype(dtype)
            np.testing.assert_allclose(found, right, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("function", "numpy_function"),
    [(op.atan2, np.arctan2), (op.hypot, np.hypot), (op.logaddexp, np.logaddexp)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pairs_of_special_numbers(
    function: Callable[..., Expr], numpy_function: Callable[..., np.ndarray], dtype: str
) -> None:
    special = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -2.5, 3e38, -3e38, 1e-38], dtype)
    a, b = (each.ravel() for each in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        right = numpy_function(a, b)
    found = function(a, b).numpy()
    np.testing.assert_allclose(found, right, rtol=5 * np.finfo(dtype).eps)
    whole = ~np.isnan(right)
    np.testing.assert_array_equal(np.signbit(found[whole]), np.signbit(right[whole]))


def test_derivatives_of_pairs_where_they_are_not_unique() -> None:
    a = op.var("a", (3,), fill=np.array([0.0, 3e200, INF]), dtype="float64")
    b = op.var("b", (3,), fill=np.array([0.0, 4e200, INF]), dtype="float64")
    slopes = [op.grad(op.sum(f(a, b)), [a, b]) for f in (op.hypot, op.atan2, op.logaddexp)]
    found = [[each.numpy() for each in pair] for pair in slopes]
    np.testing.assert_allclose([each[:2] for each in found[0]], [[0, 0.6], [0, 0.8]])
    np.testing.assert_allclose([each[:2] for each in found[1]], [[0, 1.6e-201], [0, -1.2e-201]])
    np.testing.assert_allclose(found[2], [[0.5, 0, 0.5], [0.5, 1, 0.5]])


def test_polygamma_functions_are_derivatives() -> None:
    x = op.var("x", (2,), fill=np.array([1.0, 0.5]), dtype="float64")
    trigamma = op.grad(op.sum(op.digamma(x)), x)
    np.testing.assert_allclose(trigamma.numpy(), [PI**2 / 6, PI**2 / 2], rtol=1e-13)
    tetragamma = op.grad(op.sum(trigamma), x)
    np.testing.assert_allclose(
        tetragamma.numpy(), np.array([-2, -14]) * 1.2020569031595943, rtol=1e-12
    )


def test_prelu_learns_from_what_is_below_zero() -> None:
    x = op.var("x", (4,), fill=np.array([-2.0, 0.0, 3.0, INF]))
    slope = op.var("slope", (1,), fill=np.array([0.25]))
    y = op.prelu(x, slope)
    assert y.tolist() == [-0.5, 0.0, 3.0, INF]
    by_x, by_slope = op.grad(op.sum(y), [x, slope])
    assert by_x.tolist() == [0.25, 0.25, 1.0, 1.0]
    assert by_slope.tolist() == [-2.0]


# --- made of comparisons


def test_numbers_in_place_of_nan_and_infinity() -> None:
    x = op.var("x", (4,), fill=np.array([1.5, NAN, INF, -INF]))
    np.testing.assert_array_equal(op.nan_to_num(x).numpy(), np.nan_to_num(x.numpy()))
    y = op.nan_to_num(x, nan=7, posinf=8.0, neginf=9.0)
    assert y.tolist() == [1.5, 7.0, 8.0, 9.0]
    assert op.grad(op.sum(y), x).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert op.nan_to_num(op.cast(x, "float16")).tolist() == [1.5, 0.0, 65504.0, -65504.0]
    assert op.nan_to_num([3]).dtype.name == "int64"
    with pytest.raises(ConfigError, match=r"op\.nan_to_num: expected nan= a number, got 'zero'"):
        op.nan_to_num(x, nan="zero")  # type: ignore[arg-type]


@pytest.mark.parametrize("equal_nan", [False, True])
def test_close_numbers_are_those_of_numpy(equal_nan: bool) -> None:
    special = np.array([0.0, 1.0, 1.0 + 1e-6, 1.1, INF, -INF, NAN, 1e-9])
    a, b = (each.ravel() for each in np.meshgrid(special, special))
    found = op.isclose(a, b, equal_nan=equal_nan).numpy()
    np.testing.assert_array_equal(found, np.isclose(a, b, equal_nan=equal_nan))
    assert op.isclose([100], [101], rtol=0.02).tolist() == [True]


def test_infinities_are_found_and_integers_are_whole() -> None:
    assert op.isinf(np.array([1.0, INF, -INF, NAN])).tolist() == [False, True, True, False]
    assert op.isinf([3]).tolist() == [False]
    assert op.trunc([2**62 + 1]).tolist() == [2**62 + 1]
    for function in (op.tan, op.lgamma, op.erfinv, op.mish):
        assert function([1]).dtype.name == "float32"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_computed_in_float32_and_rounded_once(dtype: str) -> None:
    x = cd.Tensor((4,), fill=np.array([0.1, 0.3, 0.7, 0.9]), dtype=dtype)
    wide = x.numpy().astype("float32")
    names = ("tan", "asin", "log2", "erfc", "erfinv", "lgamma", "digamma")
    results = cd.compile([getattr(op, name)(given) for given in (x, wide) for name in names]).run()
    for result, exact in zip(results, results[len(names) :], strict=False):
        assert result.dtype.name == dtype
        rounded = exact.numpy().astype(x.dtype)
        np.testing.assert_array_equal(result.numpy().astype(float), rounded.astype(float))


def test_truth_values_have_no_tangent() -> None:
    node = op.cast(cd.tensor([1.0]), "int32").node
    with pytest.raises(DtypeError, match=r"op\.tan: expected a floating-point dtype"):
        op.tan(cd.tensor([1.0])).node.op(node)
