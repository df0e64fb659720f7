"""Conventions, dtypes, infinities and refusals of element-wise ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor.dtype import INTEGERS, canonical
from caldera.errors import ConfigError, DtypeError, ShapeError

INF, NAN = math.inf, math.nan


def variable(*values: float, name: str = "x", dtype: str = "float64") -> Variable:
    return op.var(name, (len(values),), fill=np.array(values), dtype=dtype)


def slope(y: Expr, x: Expr) -> np.ndarray:
    return op.grad(op.sum(y), x).numpy()


def same(result: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


# --- derivatives where they are not unique


def test_a_list_decides_the_kind_of_numbers_as_one_number_does() -> None:
    whole = cd.tensor([1, 2])
    assert (whole * [1.5, 2.5]).tolist() == [1.5, 5.0]
    assert op.where([True, False], [1.5, 2.5], [3, 4]).tolist() == [1.5, 4.0]
    assert op.add(whole, [True, False]).tolist() == [2, 2]
    assert (cd.tensor([1.0]) * [2]).dtype == np.float32


def test_abs_and_sign_have_no_slope_at_zero() -> None:
    x = variable(-2.0, 0.0, -0.0, 3.0)
    same(slope(op.abs(x), x), [-1, 0, 0, 1])
    same(slope(op.sign(x), x), [0, 0, 0, 0])


def test_a_tie_is_shared_half_and_half() -> None:
    a, b = variable(1.0, 2.0, 3.0), variable(2.0, 2.0, 2.0, name="b")
    for function, larger in ((op.maximum, 1.0), (op.minimum, 0.0)):
        same(slope(function(a, b), a), [1 - larger, 0.5, larger])
        same(slope(function(a, b), b), [larger, 0.5, 1 - larger])


def test_maximum_of_one_value_with_itself_has_slope_one() -> None:
    x = variable(1.0, -1.0)
    same(slope(op.maximum(x, x), x), [1, 1])


def test_beside_a_nan_neither_operand_has_a_slope() -> None:
    a, b = variable(NAN, 1.0), variable(1.0, NAN, name="b")
    for function in (op.maximum, op.minimum):
        same(function(a, b), [NAN, NAN])
        same(slope(function(a, b), a), [0, 0])
        same(slope(function(a, b), b), [0, 0])


def test_clip_has_slope_one_inside_a_half_on_the_bounds_and_none_outside() -> None:
    x = variable(-1.0, 0.0, 0.5, 1.0, 2.0)
    same(slope(op.clip(x, 0, 1), x), [0, 0.5, 1, 0.5, 0])


def test_bounds_that_cross_give_the_upper_one() -> None:
    same(op.clip(variable(-1.0, 5.0), 3.0, 2.0), [2, 2])


def test_steps_have_slope_zero_everywhere() -> None:
    x = variable(-1.0, 0.0, 0.5, 1.0)
    for function in (op.floor, op.ceil, op.round):
        same(slope(function(x), x), [0, 0, 0, 0])
    same(slope(x // 2.0, x), [0, 0, 0, 0])


def test_mod_follows_the_divisor_and_keeps_its_slope_at_the_jumps() -> None:
    a, b = variable(-4.0, -3.0, 3.0, 4.0), variable(2.0, -2.0, -2.0, 2.0, name="b")
    same(a % b, [0, -1, -1, 0])
    same(slope(a % b, a), [1, 1, 1, 1])
    same(slope(a % b, b), [2, -1, 2, -2])


@given(st.integers(-50, 50), st.integers(-9, 9).filter(bool))
def test_floor_division_and_mod_are_those_of_python(a: int, b: int) -> None:
    x = np.array([a])
    assert op.floor_div(x, b).tolist() == [a // b]
    assert op.mod(x, b).tolist() == [a % b]
    assert op.mod(x.astype("float64"), b).tolist() == [float(a) % b]


# --- powers


def derivatives(y: Expr, x: Expr, count: int) -> list[list[float]]:
    found = []
    for _ in range(count):
        y = op.grad(op.sum(y), x, unused="zero")
        found.append(y.tolist())
    return found


def test_all_derivatives_of_a_power_at_zero_are_finite() -> None:
    x = variable(0.0)
    assert derivatives(x**3, x, 5) == [[0.0], [0.0], [6.0], [0.0], [0.0]]
    assert derivatives(x**2, x, 3) == [[0.0], [2.0], [0.0]]
    assert derivatives(x**1, x, 2) == [[1.0], [0.0]]


def test_a_power_of_zero_is_one_and_flat() -> None:
    x = variable(0.0, 2.0)
    same(x**0, [1, 1])
    same(slope(x**0 + x, x), [1, 1])


def test_the_same_holds_where_exponents_are_data() -> None:
    x = variable(0.0, 0.0, 0.0, 0.0)
    exponents = variable(0.0, 1.0, 2.0, 3.0, name="exponents")
    assert derivatives(x**exponents, x, 3) == [[0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 6]]
    same(slope(x**exponents, exponents), [0, 0, 0, 0])


def test_the_mixed_derivative_of_a_power_is_right_at_exponent_zero() -> None:
    a, b = variable(2.0), variable(0.0, name="b")
    mixed = op.grad(op.sum(op.grad(op.sum(a**b), a)), b)
    np.testing.assert_allclose(mixed.numpy(), [0.5])


def test_roots_are_steep_at_zero_and_logarithms_end_there() -> None:
    x = variable(0.0)
    same(slope(x**0.5, x), [INF])
    same(slope(op.sqrt(x), x), [INF])
    same(op.log(variable(0.0, -1.0)), [-INF, NAN])
    same(op.sqrt(variable(-1.0)), [NAN])


def test_negative_bases_have_whole_powers() -> None:
    x = variable(-2.0)
    same(x**3, [-8])
    same(slope(x**3, x), [12])
    same(x**0.5, [NAN])


def test_an_integer_to_a_negative_power_is_refused_when_written() -> None:
    for write in (lambda x: x**-1, lambda x: op.pow(x, -1)):
        with pytest.raises(ConfigError, match=r"op\.pow: expected an exponent of 0 or more"):
            write(cd.tensor([2]))
    assert (cd.tensor([2]) ** -1.0).tolist() == [0.5]


# --- infinities and nan are values


def test_products_with_zero_keep_nan_and_infinity() -> None:
    same(variable(INF, NAN, 1.0) * 0.0, [NAN, NAN, 0])
    same(variable(INF, 1.0, 0.0) / 0.0, [INF, INF, NAN])


def test_nan_equals_nothing() -> None:
    x = variable(NAN, 1.0)
    same(op.equal(x, x), [False, True])
    same(op.not_equal(x, x), [True, False])
    same(x <= x, [False, True])


def test_where_does_not_let_a_nan_through_from_the_other_side() -> None:
    x = variable(-1.0, 4.0)
    chosen = op.where(x > 0.0, x, 0.0)
    same(op.where(x > 0.0, op.sqrt(x), 0.0), [0, 2])
    same(slope(chosen, x), [0, 1])


def test_saturated_functions_stay_finite_with_their_slopes() -> None:
    x = variable(-1e4, -INF, INF, 1e4)
    same(op.sigmoid(x), [0, 0, 1, 1])
    same(op.tanh(x), [-1, -1, 1, 1])
    same(op.erf(x), [-1, -1, 1, 1])
    for function in (op.sigmoid, op.tanh, op.erf):
        same(slope(function(x), x), [0, 0, 0, 0])
        same(function(variable(NAN)), [NAN])


@given(st.floats(-6.5, 6.5))
def test_erf_is_exact_in_float64(x: float) -> None:
    assert op.erf(np.array([x])).item() == pytest.approx(math.erf(x), rel=4e-16, abs=1e-300)


def test_functions_for_small_numbers_are_exact_there() -> None:
    tiny = variable(1e-18)
    same(op.log1p(tiny), [1e-18])
    same(op.expm1(tiny), [1e-18])


def test_round_goes_to_the_even_neighbour() -> None:
    same(op.round(variable(0.5, 1.5, 2.5, -0.5)), [0, 2, 2, -0.0])


# --- dtypes


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("int64", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("uint8", "int8", "int16"),
        ("bool", "int32", "int32"),
        ("float32", "float64", "float64"),
    ],
)
def test_operands_meet_in_the_dtype_they_share(first: str, second: str, shared: str) -> None:
    a, b = cd.Tensor((2,), fill=1, dtype=first), cd.Tensor((2,), fill=1, dtype=second)
    for function in (op.add, op.maximum, op.mul):
        assert function(a, b).dtype.name == shared
        assert function(b, a).dtype.name == shared


def test_python_numbers_take_the_dtype_of_the_other_operand() -> None:
    half, integers = cd.Tensor((2,), dtype="float16"), cd.Tensor((2,), dtype="int8")
    assert (half * 2.5).dtype.name == "float16"
    assert (integers + 2).dtype.name == "int8"
    assert (integers + 2.5).dtype.name == "float32"
    assert op.where(half > 0, half, 0).dtype.name == "float16"
    assert op.clip(half, 0, 1.0).dtype.name == "float16"


def test_functions_of_integers_are_float32_and_rounding_leaves_them_alone() -> None:
    integers = cd.tensor([4, 9])
    assert op.sqrt(integers).dtype.name == "float32"
    assert op.sqrt(integers).tolist() == [2.0, 3.0]
    assert (integers / 2).dtype.name == "float32"
    large = cd.tensor([2**62 + 1])
    for function in (op.floor, op.ceil, op.round):
        assert function(large).tolist() == [2**62 + 1]
    assert op.abs(cd.tensor([-3])).tolist() == [3]
    assert op.square(cd.tensor([-3])).dtype.name == "int64"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_computed_in_float32_and_rounded_once(dtype: str) -> None:
    x = cd.Tensor((5,), fill=np.array([0.1, 0.7, 1.3, 2.9, 5.1]), dtype=dtype)
    wide = x.numpy().astype("float32")
    for name in ("exp", "log", "tanh", "rsqrt", "sigmoid", "erf"):
        function = getattr(op, name)
        result = function(x)
        assert result.dtype.name == dtype
        same(result, function(wide).numpy().astype(x.dtype))


def test_cast_truncates_and_tells_truth() -> None:
    assert op.cast(cd.tensor([1.9, -1.9]), "int8").tolist() == [1, -1]
    assert op.cast(cd.tensor([NAN, 0.0, 1e-30]), "bool").tolist() == [True, False, True]
    assert op.cast(cd.tensor([True, False]), "float16").tolist() == [1.0, 0.0]
    with pytest.raises(DtypeError, match="float128"):
        op.cast(cd.tensor([1.0]), "float128")


@pytest.mark.parametrize("dtype", sorted(dtype.name for dtype in INTEGERS))
def test_bits_are_those_of_numpy(dtype: str) -> None:
    limits = np.iinfo(dtype)
    edges = {limits.min, limits.min // 2, 0, 1, 2, limits.bits - 1, limits.bits, limits.max}
    values = np.array(sorted(edges | ({-1, -limits.bits} if limits.min else set())), dtype)
    a, b = op.input("a", (values.size, 1), dtype), op.input("b", (values.size,), dtype)
    pairs = [(a & b, np.bitwise_and), (a | b, np.bitwise_or), (a ^ b, np.bitwise_xor)]
    pairs += [(a << b, np.left_shift), (a >> b, np.right_shift)]
    # Each alone, and in a loop with others.
    plan = cd.compile([ours for ours, _ in pairs] + [~ours + a * b for ours, _ in pairs])
    results = plan.run({"a": values[:, None], "b": values})
    for alone, fused, (_, numpys) in zip(results[:5], results[5:], pairs, strict=True):
        right = numpys(values[:, None], values)
        assert alone.dtype == right.dtype
        assert np.array_equal(alone.numpy(), right)
        assert np.array_equal(fused.numpy(), ~right + values[:, None] * values)


def test_bits_have_operators_on_both_sides() -> None:
    x, truths = np.array([1, 6], np.uint8), np.array([True, False])
    t, both = cd.tensor(x), cd.tensor(truths)
    found = [3 & t, 3 | t, 3 ^ t, 1 << t, 100 >> t, x & t, ~t, t << x]
    numpys = [3 & x, 3 | x, 3 ^ x, 1 << x, 100 >> x, x & x, ~x, x << x]
    for ours, right in zip(found, numpys, strict=True):
        assert (ours.dtype, ours.tolist()) == (right.dtype, right.tolist())
    assert [(True & both).tolist(), (True ^ both).tolist()] == [[True, False], [False, True]]
    assert op.bitwise_invert(both).tolist() == (~truths).tolist() == [False, True]
    assert op.bitwise_or(both, False).dtype == op.bitwise_xor(both, both).dtype == bool


def test_signs_are_those_of_numpy() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, NAN, -NAN]).astype(canonical(dtype))
        assert op.signbit(x).tolist() == np.signbit(x).tolist()
        found = op.copysign(x[:, None], x).numpy()
        assert found.tobytes() == np.copysign(x[:, None], x).tobytes()
    assert op.signbit(np.array([-3, 0, 3])).tolist() == [True, False, False]
    assert op.positive(cd.tensor([-2])).tolist() == [-2]
    with pytest.raises(DtypeError, match=r"op\.copysign: expected real numbers"):
        op.copysign(1j, 2.0)


# --- refusals, when the expression is written


def test_shapes_that_do_not_broadcast_name_op_and_variables() -> None:
    a, b = op.var("weights", (2, 3)), op.var("inputs", (4,))
    with pytest.raises(ShapeError) as caught:
        op.add(a, b)
    message = str(caught.value)
    for part in ("op.add", "broadcast", "weights (2, 3) float32", "inputs (4,) float32"):
        assert part in message
    with pytest.raises(ShapeError, match=r"op\.where"):
        op.where(a > 0, a, b)


def test_logic_wants_truth_values_and_arithmetic_does_not() -> None:
    x, truths = op.var("x", (2,)), cd.tensor([True, False])
    for function in (op.logical_and, op.logical_or, op.logical_xor):
        with pytest.raises(DtypeError, match=f"op.{function.__name__}: expected booleans"):
            function(x, x)
    with pytest.raises(DtypeError, match=r"op\.logical_not"):
        op.logical_not(x)
    for bits in (op.bitwise_and, op.bitwise_left_shift):
        with pytest.raises(DtypeError, match=f"op.{bits.__name__}: expected integers"):
            bits(x, x)
    with pytest.raises(DtypeError, match=r"op\.where: expected a condition of booleans"):
        op.where(x, x, x)
    with pytest.raises(DtypeError, match=r"op\.add: expected numbers"):
        op.add(truths, truths)
    with pytest.raises(DtypeError, match=r"op\.neg: expected numbers"):
        op.neg(truths)


def test_clip_wants_a_bound() -> None:
    with pytest.raises(ConfigError, match=r"op\.clip: expected low, high or both"):
        op.clip(cd.tensor([1.0]))
