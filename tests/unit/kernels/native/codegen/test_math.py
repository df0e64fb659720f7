"""Native functions against float64 and long double, over all exponents and at the ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from caldera.kernels.native.codegen import dtypes, elementary
from caldera.kernels.native.codegen import math as native
from caldera.kernels.native.codegen.emitter import (
    F32,
    Emitter,
    Pointer,
    natural_lanes,
)
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner

FUNCTIONS = {
    name: getattr(native, name)
    for name in (
        "exp",
        "log",
        "tanh",
        "sigmoid",
        "erf",
        "expm1",
        "log1p",
        "rsqrt",
        "sqrt",
        "floor",
        "ceil",
        "nearest",
    )
} | {"sin": elementary.sin, "cos": elementary.cos}
KINDS = ("float32", "float64")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


RIGHT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "nearest": np.rint,
    "sin": np.sin,
    "cos": np.cos,
}
LARGEST_ERROR = {
    "exp": 1.5,
    "log": 1.5,
    "tanh": 2.5,
    "sigmoid": 3.0,
    "erf": 2.0,
    "expm1": 3.0,
    "log1p": 1.5,
    "rsqrt": 1.5,
    "sqrt": 0.51,
    "floor": 0.0,
    "ceil": 0.0,
    "nearest": 0.0,
    "sin": 2.5,
    "cos": 2.5,
}


@native_kernel
def _apply(k: Emitter, x: Pointer, y: Pointer, count: Integer, name: str) -> None:
    for i, n in k.vectors(0, count, natural_lanes(x.type), 1):
        y.store(i, FUNCTIONS[name](k, x.load(i, n)))


def _run(name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    NativeRunner([_apply.call(x=x, y=y, count=x.size, name=name)])()
    return y


SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    -2.5,
    8388607.5,
    1e-45,
    -1e-45,
    1e-40,
    1e-310,
    -1e-310,
    5e-324,
    1e30,
    -1e30,
]


def arguments(dtype: str) -> np.ndarray:
    """Bit patterns spread evenly over all there are, and more where functions bend."""
    generator = np.random.default_rng(0)
    if dtype == "float32":
        everywhere = np.arange(0, 1 << 32, 42467, dtype=np.uint64).astype(np.uint32).view(dtype)
    else:
        everywhere = generator.integers(-(1 << 63), 1 << 63, 60000).view(dtype)
    parts = [
        everywhere,
        generator.uniform(-1, 1, 30000),
        generator.uniform(-12, 12, 30000),
        generator.uniform(-750, 750, 20000),
        1 + generator.normal(0, 0.1, 20000),
        generator.normal(0, 1e-3, 10000),
        generator.uniform(-1e6, 1e6, 10000),
        SPECIAL,
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([np.asarray(part).astype(dtype) for part in parts])


def ulp_errors(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """In units of the last place; infinite where nan, infinity or the sign of 0 is wrong."""
    with np.errstate(all="ignore"):
        rounded = right.astype(found.dtype)
        error = np.abs(found.astype(right.dtype) - right) / np.spacing(np.abs(rounded))
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        plain = np.isfinite(found) & np.isfinite(rounded)
        zero = (found == 0) & (rounded == 0) & (np.signbit(found) != np.signbit(rounded))
        return np.where(plain, np.where(zero, np.inf, error), np.where(same, 0.0, np.inf))


LONG = np.finfo(np.longdouble).nmant > 60


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", RIGHT)
def test_functions_are_right_over_the_whole_range(name: str, dtype: str) -> None:
    if dtype == "float64" and not LONG:
        pytest.skip("this machine has nothing wider than float64 to compare with")
    x = arguments(dtype)
    with np.errstate(all="ignore"):
        right = RIGHT[name](x.astype(np.float64 if dtype == "float32" else np.longdouble))
    errors = ulp_errors(_run(name, x), right)
    worst = int(errors.argmax())
    assert errors[worst] <= LARGEST_ERROR[name], f"{name}({x[worst]!r})"


def test_error_function() -> None:
    x = arguments("float32")
    right = np.array([math.erf(value) for value in x])
    assert ulp_errors(_run("erf", x), right).max() <= LARGEST_ERROR["erf"]
    wide = arguments("float64")
    # The C library is off by up to one unit itself.
    assert ulp_errors(_run("erf", wide), np.array([math.erf(value) for value in wide])).max() <= 4.0


@native_kernel
def _apply_to_wider(
    k: Emitter, x: Pointer, y: Pointer, count: Integer, name: str, lanes: int
) -> None:
    for i, n in k.vectors(0, count, *sorted({lanes, 1}, reverse=True)):
        y.store(i, FUNCTIONS[name](k, x.load(i, n)))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_vectors_of_any_width_give_the_same_bits(name: str, dtype: str) -> None:
    x = arguments(dtype)
    found = []
    for lanes in (1, *(count * natural_lanes(F32) for count in (4, 3, 1))):
        y = np.empty_like(x)
        NativeRunner([_apply_to_wider.call(x=x, y=y, count=x.size, name=name, lanes=lanes)])()
        found.append(y)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@native_kernel
def _raise(k: Emitter, a: Pointer, b: Pointer, y: Pointer, count: Integer) -> None:
    for i, n in k.vectors(0, count, natural_lanes(a.type), 1):
        y.store(i, elementary.power(k, a.load(i, n), b.load(i, n)))


@pytest.mark.parametrize("dtype", KINDS)
def test_powers(dtype: str) -> None:
    special = np.array([*SPECIAL, 2, 3, -3, 16777215, -16777215, 16777216, 65537], dtype)
    generator = np.random.default_rng(1)
    a, b = (each.ravel() for each in np.meshgrid(special, special))
    a = np.concatenate([a, np.exp(generator.uniform(-80, 80, 5000)).astype(dtype)])
    b = np.concatenate([b, generator.uniform(-3, 3, 5000).astype(dtype)])
    y = np.empty_like(a)
    NativeRunner([_raise.call(a=a, b=b, y=y, count=a.size)])()
    with np.errstate(all="ignore"):
        right = np.power(a.astype(np.longdouble), b.astype(np.longdouble))
    assert ulp_errors(y, right).max() <= 1.0


# --- halves

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
PATTERNS = np.arange(1 << 16, dtype=np.uint16)


@native_kernel
def _widen(
    k: Emitter, x: Pointer, y: Pointer, count: Integer, name: str, by_integers: bool
) -> None:
    for index, lanes in k.vectors(0, count, natural_lanes(F32), 1):
        bits = x.load(index, lanes)
        value = dtypes.widen_by_integers(k, bits) if by_integers else dtypes.widen(k, bits, name)
        y.store(index, value)


@native_kernel
def _narrow(
    k: Emitter, x: Pointer, y: Pointer, count: Integer, name: str, by_integers: bool
) -> None:
    for index, lanes in k.vectors(0, count, natural_lanes(F32), 1):
        value = x.load(index, lanes)
        bits = dtypes.narrow_by_integers(k, value) if by_integers else dtypes.narrow(k, value, name)
        y.store(index, bits)


WAYS = [("float16", False), ("float16", True), ("bfloat16", False)]


@pytest.mark.parametrize(("name", "by_integers"), WAYS)
def test_every_half_is_widened_exactly(name: str, by_integers: bool) -> None:
    found = np.empty(PATTERNS.size, np.float32)
    NativeRunner(
        [_widen.call(x=PATTERNS, y=found, count=PATTERNS.size, name=name, by_integers=by_integers)]
    )()
    with np.errstate(all="ignore"):
        right = PATTERNS.view(HALVES[name]).astype(np.float32)
    np.testing.assert_array_equal(found, right)
    finite = np.isfinite(right)
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(right[finite]))


@pytest.mark.parametrize(
    ("name", "by_integers", "dtype"),
    # By integers, float64 goes through float32.
    [(*way, "float32") for way in WAYS]
    + [("float16", False, "float64"), ("bfloat16", False, "float64")],
)
def test_narrowing_rounds_to_the_nearest_and_ties_to_even(
    name: str, by_integers: bool, dtype: str
) -> None:
    with np.errstate(all="ignore"):
        halves = np.sort(PATTERNS.view(HALVES[name]).astype(np.float64))
    halves = halves[np.isfinite(halves)]
    # What lies half-way is exact in float32; beside it are the numbers that must not be ties.
    middles = ((halves[1:] + halves[:-1]) / 2).astype(dtype)
    up, down = (np.nextafter(middles, np.asarray(end, dtype)) for end in (np.inf, -np.inf))
    x = np.concatenate(
        [middles, up, down, np.array([0, -0.0, np.inf, -np.inf, 1e38, 1e-45], dtype)]
    )
    found = np.empty(x.size, np.uint16)
    NativeRunner([_narrow.call(x=x, y=found, count=x.size, name=name, by_integers=by_integers)])()
    wide = found.view(HALVES[name]).astype(np.float64)
    exact = x.astype(np.float64)
    count = middles.size
    np.testing.assert_array_equal(found[:count] & 1, 0)
    np.testing.assert_array_equal(wide[count : 2 * count], halves[1:])
    np.testing.assert_array_equal(wide[2 * count : 3 * count], halves[:-1])
    np.testing.assert_array_equal(wide[-6:-2], exact[-6:-2])
    assert wide[-2] == (np.inf if name == "float16" else pytest.approx(1e38, rel=4e-3))
    assert wide[-1] == 0


@pytest.mark.parametrize("name", HALVES)
def test_a_nan_stays_one_when_narrowed(name: str) -> None:
    patterns = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    found = np.empty(patterns.size, np.uint16)
    numbers = patterns.view(np.float32)
    NativeRunner(
        [_narrow.call(x=numbers, y=found, count=numbers.size, name=name, by_integers=False)]
    )()
    with np.errstate(all="ignore"):
        assert np.isnan(found.view(HALVES[name]).astype(np.float32)).all()
