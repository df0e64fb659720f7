"""Pooling on a card, with its adjoints, in both orders of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.core.graph.ops import product
from caldera.core.graph.ops.epilogue import max_pool2d_epilogue
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.reference import evaluate
from tests.card.candidates import check_cases
from tests.card.variants import check_both_orders, node_of, numbers

OPS = {
    "max_pool2d",
    "max_pool2d_epilogue",
    "pool_gather",
    "pool_scatter",
    "avg_pool2d",
    "avg_pool2d_input",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    assert check_cases(card, OPS, dtype) == OPS


WINDOWS: list[dict[str, Any]] = [
    {"size": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)},
    {"size": (3, 3), "stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)},
    {"size": (2, 3), "stride": (1, 2), "padding": ((1, 0), (2, 1)), "dilation": (2, 3)},
    {"size": (1, 5), "stride": (3, 1), "padding": ((0, 0), (2, 4)), "dilation": (1, 1)},
    {"size": (3, 3), "stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)},
    {"size": (12, 12), "stride": (1, 1), "padding": ((6, 6), (5, 7)), "dilation": (1, 1)},
]
"""The last one has positions that 8 bits do not hold."""


@pytest.mark.parametrize(
    ("number", "channels", "dtype"),
    [
        *((number, 8, "bfloat16") for number in range(len(WINDOWS))),
        (1, 8, "float32"),
        (2, 3, "float16"),
        (3, 8, "float16"),
        (1, 4, "float64"),
        (0, 1, "float32"),
    ],
)
def test_both_orders(card: Device, number: int, channels: int, dtype: str) -> None:
    how = WINDOWS[number]
    x = numbers(2, channels, 9, 11, dtype=BY_NAME[dtype])
    node = node_of(product.max_pool2d, (x,), **how)
    check_both_orders(card, node, (x,))
    _check_ended(card, x, how, number)
    y, index = evaluate(node, (x,))
    g = numbers(*y.shape, dtype=x.dtype, seed=1)
    check_both_orders(card, node_of(product.pool_gather, (x, index), **how), (x, index))
    scatter = node_of(product.pool_scatter, (g, index), shape=x.shape, **how)
    check_both_orders(card, scatter, (g, index))
    if how["dilation"] != (1, 1):
        return
    window = {key: value for key, value in how.items() if key != "dilation"}
    # Padding that counts is another source only where there is some: windows take turns.
    given: Any = {**window, "count_padding": number % 2 == 1}
    check_both_orders(card, node_of(product.avg_pool2d, (x,), **given), (x,))
    given["count_padding"] = number % 2 == 0
    spread = node_of(product.avg_pool2d_input, (g,), shape=x.shape, **given)
    check_both_orders(card, spread, (g,))


def _check_ended(card: Device, x: np.ndarray, how: Any, number: int) -> None:
    """With a bias and a relu, or one of them: windows take turns, each is a source of its own."""
    bias = numbers(x.shape[1], 1, 1, dtype=x.dtype, seed=2)
    variants = (((x, bias), True), ((x, bias), False), ((x,), True))
    given, activated = variants[number % len(variants)]
    check_both_orders(card, node_of(max_pool2d_epilogue, given, activated=activated, **how), given)


def test_images_that_come_in_one_order_and_go_in_the_other(card: Device) -> None:
    x = numbers(2, 4, 5, 6)
    how = WINDOWS[1]
    node = node_of(product.max_pool2d, (x,), **how)
    check_both_orders(card, node, (x,), mixed=True)
    y, index = evaluate(node, (x,))
    given = (numbers(*y.shape), index)
    scatter = node_of(product.pool_scatter, given, shape=x.shape, **how)
    check_both_orders(card, scatter, given, mixed=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_ties_nans_and_windows_of_padding(card: Device, dtype: str) -> None:
    values = np.array([np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0], BY_NAME[dtype])
    x = np.random.default_rng(0).choice(values, (2, 4, 6, 6))
    x[1] = np.where(np.isnan(x[1]), values[1], x[1])
    usual = WINDOWS[:3] if dtype == "float32" else WINDOWS[1:2]
    wide = {**WINDOWS[0], "padding": ((1, 1), (1, 1)), "dilation": (6, 6)}
    for number, how in enumerate((*usual, wide)):
        check_both_orders(card, node_of(product.max_pool2d, (x,), **how), (x,))
        _check_ended(card, x, how, number)


def test_an_index_that_names_nothing(card: Device) -> None:
    how = WINDOWS[1]
    x = numbers(1, 4, 5, 5)
    index = np.random.default_rng(1).integers(-1, 12, (1, 4, 3, 3)).astype("int8")
    check_both_orders(card, node_of(product.pool_gather, (x, index), **how), (x, index))
    given = (numbers(1, 4, 3, 3), index)
    check_both_orders(card, node_of(product.pool_scatter, given, shape=x.shape, **how), given)
