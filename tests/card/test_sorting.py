"""Sorting on a card: stable, nan last, every dtype, rows of any length."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.ops.indexing import sort
from caldera.core.memory import Device
from caldera.core.tensor.dtype import ALL, BY_NAME, is_complex
from tests.card.candidates import check, nodes_of_cases, same_bits, stand_ins
from tests.unit.kernels.checking import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    checked = 0
    for node, inputs in nodes_of_cases({"sort"}, dtype):
        assert check(card, node, inputs, by=same_bits)
        checked += 1
    assert checked


def _many_equal(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    generator = np.random.default_rng(3)
    x = generator.integers(-9, 9, shape)
    if "float" in dtype:
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
        x = np.where(generator.random(shape) < 0.3, special[generator.integers(0, 5, shape)], x)
    elif "int" in dtype:
        # In the dtype itself: a float would lose the digits of its limits.
        ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        some = ends[generator.integers(0, 2, shape)]
        x = np.where(generator.random(shape) < 0.2, some, x.astype(dtype))
    return x.astype(BY_NAME[dtype])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [dtype.name for dtype in ALL if not is_complex(dtype)])
def test_every_dtype_both_ways(card: Device, dtype: str, descending: bool) -> None:
    x = _many_equal((3, 17, 5), dtype)
    for axis in range(3):
        node = sort.outputs(*stand_ins(x), axis=axis, descending=descending)[0].inputs[0]
        assert check(card, node, (x,), by=same_bits)


@pytest.mark.parametrize("length", [1, 2, 63, 257, 2047, 2048, 2049, 4096, 4099, 6200, 9000])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_rows_of_any_length(card: Device, length: int, dtype: str) -> None:
    x = _many_equal((2, length), dtype)
    node = sort.outputs(*stand_ins(x), axis=1, descending=length % 2 == 0)[0].inputs[0]
    assert check(card, node, (x,), by=same_bits, layouts=["dense", "columns first"])
