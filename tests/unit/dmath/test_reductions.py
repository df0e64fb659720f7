"""Reductions over axes that ranks share, of all dtypes, beside NumPy; and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera import op

LAYOUTS = (
    dm.Rows(),
    dm.Columns(),
    dm.Grid(1, 3),
    dm.Blocks(rows=2, columns=3),
    dm.BlockCyclic(1, grid=(3, 1)),
    dm.Rows(ranks=[2, 0]),
)
DTYPES = ("bool", "int8", "uint16", "int64", "uint64", "float32", "float64", "complex64")
REDUCTIONS = (np.sum, np.prod, np.max, np.min, np.mean, np.var, np.std, np.any, np.all)


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[dm.Session]:
    with dm.connect(threads=3) as made:
        yield made


def numbers(dtype: str, *shape: int) -> np.ndarray:
    random = np.random.default_rng(len(shape))
    values = random.normal(size=shape) + 1j * random.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        return values.astype(dtype)
    return (values.real if np.dtype(dtype).kind == "f" else np.abs(values.real * 3)).astype(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, "complex128"])
def test_reductions_over_shared_axes_are_those_of_numpy(dtype: str) -> None:
    whole = numbers(dtype, 5, 4)
    first = sum(map(ord, dtype))
    for number in range(2):
        spread = dm.array(whole, layout=LAYOUTS[(first + 3 * number) % len(LAYOUTS)])
        found, expected = [], []
        for reduction in REDUCTIONS:
            if np.dtype(dtype).kind == "c" and reduction in (np.max, np.min):
                continue
            for axis in (None, 0, 1):
                found.append(reduction(spread, axis=axis))
                expected.append(reduction(whole, axis=axis))
        for made, right in zip(dm.evaluate(found), expected, strict=True):
            assert made.shape == right.shape
            tolerance = 1e-4 if dtype == "complex64" else 1e-6
            np.testing.assert_allclose(made.numpy(), right, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("shape", [(7, 3), (70, 60)])
def test_products_of_complex_numbers_are_reduced_whole(shape: tuple[int, int]) -> None:
    whole = numbers("complex128", *shape)
    whole /= np.abs(whole)
    for layout in LAYOUTS:
        found = np.prod(dm.array(whole, layout=layout), axis=0).numpy()
        np.testing.assert_allclose(found, np.prod(whole, axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_of_products_over_a_shared_axis(dtype: str) -> None:
    whole = numbers(dtype, 7, 6)

    def slope(x: Any) -> Any:
        return op.grad(op.sum(op.square(op.abs(op.prod(x, axis=0) + 1))), x)

    expected = slope(op.var("x", whole.shape, fill=whole, dtype=dtype)).numpy()
    for layout in (dm.Rows(), dm.Columns(), dm.Blocks(rows=2, columns=3)):
        # A cut that leaves all of one rank's part is no leaf on the other ranks.
        found = slope(dm.array(whole, layout=layout)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
