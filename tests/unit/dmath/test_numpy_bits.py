"""NumPy's operations on bits and products of whole numbers, of distributed arrays."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import dmath as dm

WIDE = ("int8", "uint8", "int32", "uint64")
BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)


@pytest.mark.parametrize("dtype", ["bool", *WIDE])
def test_bits_are_those_of_numpy(dtype: str) -> None:
    draw = np.random.default_rng(0)
    most = 2 if dtype == "bool" else 100
    a, b = draw.integers(0, most, (5, 7)).astype(dtype), draw.integers(0, 2, (5, 7)).astype(dtype)
    with dm.connect(threads=3):
        x, y = dm.array(a, dm.Columns()), dm.array(b, dm.Rows())
        for function in BITS[: 3 if dtype == "bool" else 5]:
            found, wanted = function(x, y).numpy(), function(a, b)
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted), function
        assert np.array_equal(np.invert(x).numpy(), np.invert(a))


@pytest.mark.parametrize("dtype", WIDE)
def test_products_of_whole_numbers_wrap_as_numpy(dtype: str) -> None:
    a = np.random.default_rng(0).integers(0, 127, (6, 9)).astype(dtype)
    with dm.connect(threads=3):
        x = dm.array(a, dm.Columns())
        for function in (np.matmul, np.dot):
            found, wanted = function(x, x.T).numpy(), function(a, a.T)
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted)


def test_chains_of_products_wrap_in_the_order_of_numpy() -> None:
    draw = np.random.default_rng(0)
    shapes = (2, 3), (3, 4), (4, 2)
    a, b, c = (draw.integers(-20000, 20000, shape) for shape in shapes)
    given = [a.astype("int16"), b.astype("int16"), c]
    wanted = np.linalg.multi_dot(given)
    with dm.connect(threads=3):
        found = np.linalg.multi_dot([dm.array(given[0], dm.Columns()), *given[1:]])
        assert np.array_equal(found.numpy(), wanted)
