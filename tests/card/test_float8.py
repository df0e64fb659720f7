"""Numbers of 8 bits on a card: rounding in any layout, and products of every size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.float8 import float8_factor, float8_matmul, to_float8
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME, float32, uint8
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.driver import driver
from tests.card.candidates import check
from tests.unit.kernels.checking import DTYPES

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
ONE = np.asarray(1, np.float32)


def _rounding(shape: tuple[int, int], dtype: str, form: str, transposed: tuple[bool, ...]) -> Node:
    x, factor = parameter(0, Spec(shape, BY_NAME[dtype])), parameter(1, Spec((), float32))
    return to_float8.node(x, factor, form=form, transposed=transposed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_rounding(card: Device, dtype: str, form: str) -> None:
    generator = np.random.default_rng(3)
    for shape, transposed in (
        ((72, 136), (False, True)),
        ((128, 64), (True,)),
        ((16, 200), (False,)),
        ((5, 7), (False, True)),
        ((0, 8), (False, True)),
    ):
        exponents = generator.uniform(-20, 14, shape)
        x = (generator.choice([-1, 1], shape) * 2.0**exponents).astype(BY_NAME[dtype])
        assert check(card, _rounding(shape, dtype, form, transposed), (x, ONE)) == {"float8"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors(card: Device, dtype: str) -> None:
    generator = np.random.default_rng(4)
    for shape, special in (
        ((128, 640), None),
        ((3, 5), None),
        ((64, 64), np.nan),
        ((64, 64), np.inf),
        ((9, 16), 0.0),
    ):
        x = parameter(0, Spec(shape, BY_NAME[dtype]))
        values = generator.uniform(-3, 2, shape)
        if special is not None:
            values = np.where(generator.random(shape) < 0.1, special, 0.0)
        node = float8_factor(x, form="e4m3")
        found = check(card, node, (values.astype(BY_NAME[dtype]),))
        assert found == {"float8"}


@pytest.mark.parametrize("form", FORMATS)
def test_every_number_and_what_lies_between_two(card: Device, form: str) -> None:
    """Halfway between two numbers rounding goes to the even one; beyond the last, to it."""
    bits = np.arange(256, dtype=np.uint8).view(FORMATS[form]).astype(np.float32)
    known = np.sort(bits[np.isfinite(bits)])
    between = (known[1:] + known[:-1]) / 2
    near = [np.nextafter(between, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.asarray([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-30], np.float32)
    values = np.concatenate([known, between, *near, special])
    values = np.concatenate([values, np.zeros(-len(values) % 8, np.float32)])
    x = np.broadcast_to(values, (8, len(values))).copy()
    check(card, _rounding(x.shape, "float32", form, (False, True)), (x, ONE), layouts=("dense",))


@pytest.mark.parametrize("forms", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")])
def test_products(card: Device, forms: tuple[str, str]) -> None:
    generator = np.random.default_rng(5)
    for (rows, columns, length), dtype in (
        ((32, 48, 64), "bfloat16"),
        ((16, 16, 512), "bfloat16"),
        ((33, 20, 9), "float32"),
        ((4, 0, 16), "bfloat16"),
        ((4, 3, 0), "float16"),
    ):
        fast = forms[0] == forms[1]
        specs = (Spec((rows, length), uint8), Spec((columns, length), uint8), Spec((), float32))
        given = [parameter(i, spec) for i, spec in enumerate(specs)]
        node = float8_matmul.node(*given, forms=forms, dtype=BY_NAME[dtype], fast=fast)
        values = [
            generator.uniform(-2, 2, spec.shape).astype(FORMATS[form]).view(np.uint8)
            for spec, form in zip(specs, forms, strict=False)
        ]
        found = check(card, node, (*values, np.asarray(0.5, np.float32)))
        assert "float32" in found
        if device.cublas_lt() is not None and driver().card.has_float8 and length >= 64:
            assert "cublas" in found
