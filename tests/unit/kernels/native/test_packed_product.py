"""Packed products: every way to cut them, at random sizes, beside NumPy in float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.epilogue import matmul_accumulate, matmul_epilogue
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import BY_NAME, bfloat16, float32, float64
from caldera.kernels.native.product import amx, packing, problem
from caldera.kernels.native.product.packing import RegisterTile, blocking_of
from caldera.kernels.table import TABLE
from tests.unit.kernels.checking import check_kernel
from tests.unit.kernels.native.tile_registers import with_tile_registers

NAMES = ("packed", "packed together", "packed, sums cut", "packed, sums cut in 4", "amx")
"""Those that are put to the test."""


def _cut_small(monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> None:
    """Caches that hold next to nothing, so that small products take all loops."""
    monkeypatch.setattr(packing, "DEEPEST", draw.choice([1, 5, 16, 40]))
    monkeypatch.setattr(packing, "CACHED_ELEMENTS", draw.choice([1, 100, 1000]))
    monkeypatch.setattr(packing, "WIDEST", draw.choice([1, 2]) * draw.choice([48, 96]))
    monkeypatch.setattr(packing, "WORTH_PACKING", draw.choice([0, 100]))
    monkeypatch.setattr(amx, "_CACHED_ELEMENTS", draw.choice([1, 64 * 64]))
    monkeypatch.setattr(amx, "_PIECE", draw.choice([1, 20, 32, 1000]))
    monkeypatch.setattr(problem, "WORTH_SPLITTING", draw.choice([2, 20_000]))


def _extent(draw: random.Random) -> tuple[int, int, int]:
    rows, columns, length = (draw.choice([1, 3, 8, 9, 33, 70, 130]) for _ in range(3))
    return rows + 3, columns, length


def _numbers(draw: random.Random, *shape: int) -> np.ndarray:
    return np.random.default_rng(draw.randrange(1 << 30)).uniform(-1, 1, shape)


@pytest.mark.parametrize("seed", range(5))
def test_random_products(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        _cut_small(monkeypatch, draw)
        rows, columns, length = _extent(draw)
        ta, tb = draw.random() < 0.5, draw.random() < 0.5
        batch = draw.choice([(), (), (3,)])
        dtype = draw.choice([float32, float64, bfloat16])
        left = _numbers(draw, *batch, *((length, rows) if ta else (rows, length))).astype(dtype)
        right = _numbers(draw, *batch, *((columns, length) if tb else (length, columns)))
        inputs = [left, right.astype(dtype)]
        node: Any = _node(draw, inputs, ta=ta, tb=tb)
        threads = draw.choice([1, 2, 3, 8, 16])
        with cd.settings.override(threads=threads), with_tile_registers():
            kernels = [each for each in TABLE.candidates(node, "cpu") if each.name in NAMES]
            assert ("amx" in [each.name for each in kernels]) == (dtype == bfloat16)
            for kernel in kernels:
                check_kernel(kernel, node, tuple(inputs))


def _node(draw: random.Random, inputs: list[np.ndarray], *, ta: bool, tb: bool) -> Any:
    """A product of the first two inputs, perhaps with a bias (put with them) and an activation."""
    if draw.random() < 0.5:
        return matmul(*_parameters(inputs), ta=ta, tb=tb)
    columns = inputs[1].shape[-2 if tb else -1]
    inputs.append(_numbers(draw, columns).astype(inputs[0].dtype))
    activation = draw.choice(["relu", None])
    return matmul_epilogue(*_parameters(inputs), ta=ta, tb=tb, activation=activation, attributes=())


def _parameters(inputs: list[np.ndarray]) -> list[Any]:
    return [
        parameter(i, Spec(each.shape, BY_NAME[each.dtype.name])) for i, each in enumerate(inputs)
    ]


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("alpha", [0.0, -0.25])
def test_what_is_multiplied_by_0_is_not_looked_at(
    alpha: float, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cut_small(monkeypatch, random.Random(1))
    monkeypatch.setattr(problem, "WORTH_SPLITTING", 2)
    draw = random.Random(2)
    start, left, right = _numbers(draw, 20, 60), _numbers(draw, 20, 30), _numbers(draw, 30, 60)
    if alpha == 0.0:
        left[3, 4] = np.nan
    if beta == 0.0:
        start[5, 6] = np.inf
    inputs = (start, left, right, np.array(alpha), np.array(beta))
    node = matmul_accumulate(*_parameters(list(inputs)), ta=False, tb=False)
    with cd.settings.override(threads=8):
        kernels = [each for each in TABLE.candidates(node, "cpu") if each.name in NAMES]
        assert [each.name for each in kernels] == ["packed", "packed together"]
        for kernel in kernels:
            check_kernel(kernel, node, inputs)


@pytest.mark.parametrize("parts", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_rectangles_of_threads_are_about_equal(count: int, parts: int) -> None:
    tile = RegisterTile(8, 3, 16)
    for rows, columns in [(100, 528), (784, 528), (10, 10), (1, 4000), (4000, 1), (2048, 2048)]:
        cut = blocking_of(count, rows, columns, 300, parts, tile)
        tasks = count * -(-rows // cut.height) * -(-columns // cut.width)
        busiest = -(-tasks // parts) * min(cut.height, rows) * min(cut.width, columns)
        # A thread has at most a tile more than its share, in both directions.
        fair = count * (rows + 8 * parts) * (columns + 48 * parts) / parts
        assert busiest <= max(fair, 8 * 48)
