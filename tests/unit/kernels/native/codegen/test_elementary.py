"""Native functions of angles and others against long double, over all exponents and at the ends.

One kernel has all of them: it is compiled once a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from caldera.kernels.native.codegen import elementary
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, RegisterValue, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner
from tests.unit.kernels.native.codegen.test_math import LONG, SPECIAL, arguments, ulp_errors


def _by_number(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    def one(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return math.inf

    return lambda x: np.array([one(float(value)) for value in x])


RIGHT: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "tan": (np.tan, 3.0),
    "asin": (np.arcsin, 1.0),
    "acos": (np.arccos, 1.0),
    "atan": (np.arctan, 1.0),
    "sinh": (np.sinh, 2.0),
    "cosh": (np.cosh, 2.0),
    "asinh": (np.arcsinh, 2.0),
    "acosh": (np.arccosh, 2.0),
    "atanh": (np.arctanh, 2.0),
    "log2": (np.log2, 1.0),
    "log10": (np.log10, 2.0),
    "exp2": (np.exp2, 1.0),
    # This one is compared with the C library itself.
    "erfc": (_by_number(math.erfc), 0.51),
}
"""What is right, and by how many units in the last place a result may be off."""
NAMES = (*RIGHT, "lgamma")


def _function(name: str) -> Callable[..., RegisterValue]:
    function: Callable[..., RegisterValue] = getattr(elementary, name)
    return function


@native_kernel
def _apply_all(k: Emitter, x: Pointer, y: Pointer, count: Integer) -> None:
    for index, lanes in k.vectors(0, count, natural_lanes(x.type), 1):
        for row, name in enumerate(NAMES):
            y.store(index + count * row, _function(name)(k, x.load(index, lanes)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_are_right_over_the_whole_range(dtype: str) -> None:
    if dtype == "float64" and not LONG:
        pytest.skip("this machine has nothing wider than float64 to compare with")
    # Every eighth is enough; the special ones stand at the end.
    x = np.concatenate([arguments(dtype)[::8], np.array(SPECIAL, dtype)])
    y = np.empty((len(NAMES), x.size), dtype)
    NativeRunner([_apply_all.call(x=x, y=y, count=x.size)])()
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if dtype == "float32" else np.longdouble)
    # Python's own is less exact than the C library's near its zeros.
    tolerance = 1e-6 if dtype == "float32" else 1e-13
    with np.errstate(all="ignore"):
        right = _by_number(math.lgamma)(wide).astype(dtype)
    np.testing.assert_allclose(y[-1], right, rtol=tolerance, atol=tolerance)
    for name, found in zip(RIGHT, y[:-1], strict=True):
        function, largest = RIGHT[name]
        with np.errstate(all="ignore"):
            errors = ulp_errors(found, function(wide))
        worst = int(errors.argmax())
        assert errors[worst] <= largest, f"{name}({x[worst]!r}) = {found[worst]!r}"


@native_kernel
def _angle(k: Emitter, a: Pointer, b: Pointer, y: Pointer, count: Integer) -> None:
    for i, n in k.vectors(0, count, natural_lanes(a.type), 1):
        y.store(i, elementary.atan2(k, a.load(i, n), b.load(i, n)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_of_points(dtype: str) -> None:
    special = np.array(SPECIAL, dtype)
    generator = np.random.default_rng(1)
    a, b = (each.ravel() for each in np.meshgrid(special, special))
    a, b = (np.concatenate([each, generator.normal(size=2000).astype(dtype)]) for each in (a, b))
    y = np.empty_like(a)
    NativeRunner([_angle.call(a=a, b=b, y=y, count=a.size)])()
    right = np.arctan2(a.astype(np.longdouble), b.astype(np.longdouble))
    assert ulp_errors(y, right).max() <= 1.0
