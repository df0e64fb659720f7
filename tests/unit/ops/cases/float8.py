"""Cases for 8-bit floating-point numbers and their products, which a pass makes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from caldera.compiler.lazy import Expr, wrap
from caldera.core.graph.ops.base import constant
from caldera.core.graph.ops.float8 import float8_factor, float8_matmul, to_float8
from caldera.core.tensor.dtype import float32
from tests.unit.ops.case import Case, numbers

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LAYOUTS = ((False,), (True,), (False, True))


def _rounding(form: str, factor: float, transposed: tuple[bool, ...]) -> Case:
    def rounded(x: Expr) -> Any:
        node = constant(factor, float32)
        return wrap(to_float8.outputs(x.node, node, form=form, transposed=transposed))

    def expected(x: np.ndarray) -> Any:
        scaled = x.astype(np.float32) * np.float32(factor)
        most = float(ml_dtypes.finfo(FORMATS[form]).max)
        found = np.clip(scaled, -most, most).astype(FORMATS[form]).view(np.uint8)
        return tuple(found.T if each else found for each in transposed)

    x = numbers(6, 5) if form == "e5m2" else numbers(8, 16)
    return Case("to_float8", rounded, (x,), expected, differentiable=False, name=f"{form}-{factor}")


def _factor(form: str, size: float) -> Case:
    def factor(x: Expr) -> Any:
        return Expr(float8_factor(x.node, form=form))

    def expected(x: np.ndarray) -> Any:
        return np.float32(ml_dtypes.finfo(FORMATS[form]).max) / np.float32(np.abs(x).max())

    inputs = (numbers(5, 7, low=-size, high=size / 2),)
    return Case("float8_factor", factor, inputs, expected, differentiable=False, name=form)


def _product(first: str, second: str, *, fast: bool) -> Case:
    def product(a: Expr, b: Expr) -> Any:
        one, scale = constant(1.0, float32), constant(0.25, float32)
        (left,) = to_float8.outputs(a.node, one, form=first, transposed=(False,))
        (right,) = to_float8.outputs(b.node, one, form=second, transposed=(False,))
        forms, dtype = (first, second), a.node.dtype
        return Expr(float8_matmul(left, right, scale, forms=forms, dtype=dtype, fast=fast))

    def expected(a: np.ndarray, b: np.ndarray) -> Any:
        left, right = a.astype(FORMATS[first]), b.astype(FORMATS[second])
        return left.astype(a.dtype) @ right.astype(a.dtype).T / 4

    inputs = (numbers(3, 20), numbers(5, 20, seed=1))
    return Case("float8_matmul", product, inputs, expected, differentiable=False)


CASES = [
    *[
        _rounding(form, factor, transposed)
        for form, factor in (("e4m3", 100.0), ("e4m3", 0.003), ("e5m2", 3e-5), ("e5m2", 1e5))
        for transposed in LAYOUTS
    ],
    _factor("e4m3", 0.01),
    _factor("e5m2", 300.0),
    _product("e4m3", "e4m3", fast=True),
    _product("e5m2", "e4m3", fast=False),
    _product("e4m3", "e5m2", fast=False),
]
