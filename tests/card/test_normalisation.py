"""Normalisation on a card: over batches, layers, groups and neighbouring channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.core.graph.node import Node
from caldera.core.graph.ops import epilogue, normalisation
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.candidates import check, check_cases, run_kernel
from tests.card.emulated import EmulatedDriver
from tests.card.variants import (
    channels_last,
    check_both_orders,
    check_in_place,
    node_of,
    numbers,
)
from tests.unit.kernels.checking import DTYPES, LAYOUTS

BATCH = {
    "batch_norm",
    "batch_norm_relu",
    "batch_norm_inference",
    "batch_norm_inference_relu",
    "batch_norm_grad",
    "batch_norm_relu_grad",
}
OTHERS = {
    "layer_norm",
    "layer_norm_rounded",
    "layer_norm_residual",
    "layer_norm_grad",
    "layer_norm_grad_residual",
    "group_norm",
    "group_norm_grad",
    "local_response_norm",
    "local_response_norm_grad",
}
EPS = 1e-3
RESPONSE = {"alpha": 0.8, "beta": 0.75, "k": 1.5}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ops", [BATCH, OTHERS], ids=["batch", "others"])
def test_the_cases_of_every_op(card: Device, ops: set[str], dtype: str) -> None:
    found = check_cases(card, ops, dtype)
    # Of gradients no case has statistics in float32 beside images in half precision.
    assert found == ops or dtype in ("float16", "bfloat16")


def vectors(count: int, dtype: Any, several: int) -> list[np.ndarray]:
    return [numbers(count, dtype=dtype, seed=i, low=0.2) for i in range(several)]


def batch_nodes(
    shape: tuple[int, ...], dtype: str, parameters: str
) -> list[tuple[Node, tuple[np.ndarray, ...]]]:
    """Every op of the family on images of this shape."""
    wide = "float64" if dtype == "float64" else "float32"
    x, g, more = (numbers(*shape, dtype=BY_NAME[dtype], seed=i) for i in (1, 2, 3))
    scale, shift = vectors(shape[1], BY_NAME[parameters], 2)
    mean, variance = vectors(shape[1], wide, 2)
    attrs: Any = {"axis": 1, "eps": EPS}
    given: list[tuple[Any, tuple[np.ndarray, ...]]] = [
        (normalisation.batch_norm, (x, scale, shift)),
        (epilogue.batch_norm_relu, (x, scale, shift - shift.dtype.type(0.5), more)),
        (normalisation.batch_norm_grad, (g, x, scale, mean, variance)),
        (epilogue.batch_norm_relu_grad, (g, x, scale, shift, mean, variance)),
        (epilogue.batch_norm_inference_relu, (x, scale, shift, scale, shift)),
    ]
    return [(node_of(op, arrays, **attrs), arrays) for op, arrays in given]


@pytest.mark.parametrize(
    ("shape", "dtype", "parameters"),
    [
        ((2, 8, 3, 5), "float32", "float32"),
        ((2, 8, 4, 6), "bfloat16", "float32"),
        ((3, 5, 4, 4), "float16", "float16"),
        ((2, 6, 3, 4), "float64", "float64"),
        ((5, 300), "float32", "float32"),
    ],
)
def test_batches_in_both_orders(
    card: Device,
    shape: tuple[int, ...],
    dtype: str,
    parameters: str,
) -> None:
    for node, inputs in batch_nodes(shape, dtype, parameters):
        check_both_orders(card, node, inputs, mixed=shape == (2, 8, 3, 5))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 40, 10, 9), "float32"),
        ((2, 1, 70, 61), "float32"),
        ((2, 2, 64, 65), "float32"),
        ((5, 16, 16, 20), "bfloat16"),
    ],
)
def test_batches_in_several_chunks(card: Device, shape: tuple[int, ...], dtype: str) -> None:
    for node, inputs in batch_nodes(shape, dtype, "float32")[:4]:
        check_both_orders(card, node, inputs)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 8, 12, 30), "float32"),
        ((5, 16, 16, 20), "bfloat16"),
        ((7, 24, 9, 11), "bfloat16"),
        ((6, 16, 16, 24), "bfloat16"),
    ],
)
def test_small_batches_with_their_channels_last_take_one_launch(
    card: Device, shape: tuple[int, ...], dtype: str
) -> None:
    using = driver()
    for node, inputs in batch_nodes(shape, dtype, "float32")[:4]:
        arranged = channels_last(node)
        assert TABLE.candidates(arranged, "cuda")[0].name == "at once"
        check(card, arranged, inputs, ["at once"], layouts=["channels last"])
        if isinstance(using, EmulatedDriver):
            # Checked twice, in case a launch leaves something behind.
            names = {"batch_norm", "batch_gradients"} & set(using.launches)
            assert len(names) == 1
            assert len(using.launches) == 2
            using.launches.clear()


@pytest.mark.parametrize(
    ("shape", "groups", "dtype"),
    [
        ((2, 8, 3, 5), 4, "float32"),
        ((2, 12, 20, 20), 2, "float32"),
        ((3, 70, 2, 2), 1, "float32"),
        ((2, 16, 3, 4), 2, "bfloat16"),
        ((2, 6, 3, 3), 3, "float16"),
        ((2, 4, 3, 2), 2, "float64"),
    ],
)
def test_groups_in_both_orders(
    card: Device,
    shape: tuple[int, ...],
    groups: int,
    dtype: str,
) -> None:
    wide = "float64" if dtype == "float64" else "float32"
    x, g = (numbers(*shape, dtype=BY_NAME[dtype], seed=i) for i in (0, 1))
    scale, shift = vectors(shape[1], wide, 2)
    mean, variance = (numbers(shape[0], groups, dtype=wide, seed=i, low=0.2) for i in (5, 6))
    attrs: Any = {"groups": groups, "eps": EPS}
    given: list[tuple[Any, tuple[np.ndarray, ...]]] = [
        (normalisation.group_norm, (x, scale, shift)),
        (normalisation.group_norm_grad, (g, x, scale, mean, variance)),
    ]
    for op, arrays in given:
        check_both_orders(card, node_of(op, arrays, **attrs), arrays)


@pytest.mark.parametrize(
    ("rows", "length", "dtype"),
    [
        (3, 8, "float32"),
        (5, 130, "float32"),
        (2, 1000, "float32"),
        (1700, 12, "float32"),
        (3, 2052, "bfloat16"),
        (2, 260, "float64"),
        (2, 33000, "float32"),
        (3, 520, "float16"),
    ],
)
def test_layers_of_many_lengths(card: Device, rows: int, length: int, dtype: str) -> None:
    wide = "float64" if dtype == "float64" else "float32"
    x, g = (numbers(rows, length, dtype=BY_NAME[dtype], seed=i) for i in (0, 1))
    scale, shift = vectors(length, wide, 2)
    mean, variance = vectors(rows, wide, 2)
    attrs: Any = {"axis": (1,), "eps": EPS}
    forward = node_of(normalisation.layer_norm, (x, scale, shift), **attrs)
    check(card, forward, (x, scale, shift), layouts=["dense"])
    given = (g, x, scale, mean, variance)
    backward = node_of(normalisation.layer_norm_grad, given, **attrs)
    check(card, backward, given, layouts=["dense"])
    if dtype == "float32":
        rounded = {**attrs, "dtype": BY_NAME["bfloat16"]}
        node = node_of(epilogue.layer_norm_rounded, (x, scale, shift), **rounded)
        check(card, node, (x, scale, shift), layouts=["dense"])


@pytest.mark.parametrize(
    ("shape", "dtype", "more", "rounded", "layout"),
    [
        ((2, 3, 256), "float32", "bfloat16", "bfloat16", "dense"),
        ((1700, 12), "float32", "float32", "float16", "dense"),
        ((3, 1000), "float32", "float16", None, "dense"),
        ((3, 33000), "float32", "bfloat16", "bfloat16", "dense"),
        ((3, 2052), "bfloat16", "bfloat16", "float16", "dense"),
        ((2, 5, 40), "float64", "float64", None, "dense"),
        ((4, 30), "float32", "bfloat16", "bfloat16", "with gaps"),
        ((0, 30), "float32", "bfloat16", "bfloat16", "dense"),
        ((3, 0), "float32", "bfloat16", "bfloat16", "dense"),
    ],
)
def test_residual_blocks(
    card: Device, shape: tuple[int, ...], dtype: str, more: str, rounded: str | None, layout: str
) -> None:
    wide = "float64" if dtype == "float64" else "float32"
    x = numbers(*shape, dtype=BY_NAME[dtype])
    g, other = (numbers(*shape, dtype=BY_NAME[more], seed=i) for i in (1, 2))
    scale, shift = vectors(shape[-1], wide, 2)
    statistics = [numbers(*shape[:-1], dtype=wide, seed=i, low=0.2) for i in (3, 4)]
    attrs: Any = {"axis": (len(shape) - 1,), "eps": EPS}
    given = (x, other, scale, shift)
    narrow = BY_NAME[rounded or dtype]
    node = node_of(epilogue.layer_norm_residual, given, **attrs, dtype=narrow)
    check(card, node, given, layouts=[layout])
    around = () if rounded is None and dtype == "float32" else (other,)
    given = (g, x, scale, *statistics, *around)
    for summed in (False, True):
        ending = {"dtype": rounded and narrow, "summed": summed}
        node = node_of(epilogue.layer_norm_grad_residual, given, **attrs, **ending)
        check(card, node, given, layouts=[layout])


def test_gradients_in_half_precision_beside_x_of_float32(card: Device) -> None:
    shape = (3, 8, 5, 4)
    x, g = numbers(*shape), numbers(*shape, dtype=BY_NAME["bfloat16"], seed=1)

    def backward(op: Any, own: int, *samples: int, **attrs: Any) -> None:
        statistics = [numbers(*samples, seed=i, low=0.2) for i in (2, 3)]
        given = (g, x, *vectors(own, "float32", 1), *statistics)
        check(card, node_of(op, given, **attrs, eps=EPS), given, layouts=["dense"])

    backward(normalisation.layer_norm_grad, 4, 3, 8, 5, axis=(3,))
    backward(normalisation.batch_norm_grad, 8, 8, axis=1)
    backward(normalisation.group_norm_grad, 8, 3, 4, groups=4)


@pytest.mark.parametrize("window", [1, 4, 5, 30])
def test_neighbouring_channels_in_both_orders(card: Device, window: int) -> None:
    x, g = numbers(2, 20, 5, 7), numbers(2, 20, 5, 7, seed=1)
    for beta in (0.75, 0.6) if window == 4 else (0.75,):
        attrs: Any = {**RESPONSE, "beta": beta, "window": window}
        for op, arrays in (
            (normalisation.local_response_norm, (x,)),
            (normalisation.local_response_norm_grad, (g, x)),
        ):
            check_both_orders(card, node_of(op, arrays, **attrs), arrays)


# --- what is special


def test_results_may_be_written_over_inputs(card: Device) -> None:
    for node, inputs in batch_nodes((2, 4, 3, 3), "float32", "float32"):
        assert check_in_place(card, node, inputs) >= 1
        assert check_in_place(card, channels_last(node), inputs) >= 1
    for node, inputs in batch_nodes((2, 8, 9, 30), "float32", "float32"):
        assert check_in_place(card, channels_last(node), inputs) >= 1
    x, g = numbers(6, 8), numbers(6, 8, seed=1)
    scale, shift, mean, variance = vectors(8, "float32", 4)
    attrs: Any = {"axis": (1,), "eps": EPS}
    node = node_of(normalisation.layer_norm, (x, scale, shift), **attrs)
    assert check_in_place(card, node, (x, scale, shift)) == 1
    given = (g, x, scale, mean[:6], variance[:6])
    assert check_in_place(card, node_of(normalisation.layer_norm_grad, given, **attrs), given) == 4
    half = {"dtype": BY_NAME["bfloat16"]}
    more, narrow = (numbers(6, 8, dtype=BY_NAME["bfloat16"], seed=i) for i in (2, 3))
    added = (x, more, scale, shift)
    node = node_of(epilogue.layer_norm_residual, added, **attrs, **half)
    assert check_in_place(card, node, added) == 2
    around = (narrow, x, scale, mean[:6], variance[:6], g)
    node = node_of(epilogue.layer_norm_grad_residual, around, **attrs, **half, summed=True)
    assert check_in_place(card, node, around) == 6
    statistics = [numbers(6, 2, seed=i, low=0.2) for i in (3, 4)]
    grouped = (g, x, scale, *statistics)
    node = node_of(normalisation.group_norm_grad, grouped, groups=2, eps=EPS)
    assert check_in_place(card, node, grouped) == 4


AVERAGES: list[tuple[Any, dict[str, Any]]] = [
    (normalisation.batch_norm, {"axis": 1}),
    (normalisation.group_norm, {"groups": 2}),
    (normalisation.layer_norm, {"axis": (1,)}),
]


@pytest.mark.parametrize(("op", "attrs"), AVERAGES, ids=["batch", "group", "layer"])
def test_a_large_mean_costs_no_accuracy(card: Device, op: Any, attrs: Any) -> None:
    given = (numbers(4, 4, 5, 6) + np.float32(3000.0), *vectors(4, "float32", 2))
    wide = tuple(array.astype("float64") for array in given)
    right = evaluate(node_of(op, wide, eps=EPS, **attrs), wide)
    node = node_of(op, given, eps=EPS, **attrs)
    for kernel in TABLE.candidates(node, "cuda"):
        y, _, variance = run_kernel(card, kernel, node, given)
        np.testing.assert_allclose(y, right[0], atol=1e-2)
        np.testing.assert_allclose(variance, right[2], rtol=1e-4)


def test_a_large_mean_costs_a_small_batch_no_accuracy(card: Device) -> None:
    given = (numbers(4, 8, 20, 30) + np.float32(3000.0), *vectors(8, "float32", 2))
    wide = tuple(array.astype("float64") for array in given)
    attrs: Any = {"axis": 1, "eps": EPS}
    right = evaluate(node_of(normalisation.batch_norm, wide, **attrs), wide)
    node = channels_last(node_of(normalisation.batch_norm, given, **attrs))
    kernel = TABLE.candidates(node, "cuda")[0]
    arranged = (LAYOUTS["channels last"](given[0]), *given[1:])
    y, _, variance = run_kernel(card, kernel, node, arranged)
    assert kernel.name == "at once"
    np.testing.assert_allclose(y, right[0], atol=1e-2)
    np.testing.assert_allclose(variance, right[2], rtol=3e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_where_it_is(card: Device, value: float) -> None:
    x = numbers(3, 4, 3, 5)
    x[0, 1, 0, 0] = x[1, 2, 1, 1] = value
    given = (x, *vectors(4, "float32", 2))
    for op, attrs in AVERAGES:
        check_both_orders(card, node_of(op, given, eps=EPS, **attrs), given)


def test_batches_of_nothing(card: Device) -> None:
    for shape in ((0, 3, 2, 2), (2, 3, 0, 2), (2, 0, 2, 2)):
        for node, inputs in batch_nodes(shape, "float32", "float32"):
            check_both_orders(card, node, inputs)
    x = numbers(0, 4, 2, 2)
    statistics = [numbers(0, 2), numbers(0, 2)]
    for op, given in (
        (normalisation.group_norm, (x, *vectors(4, "float32", 2))),
        (normalisation.group_norm_grad, (x, x, *vectors(4, "float32", 1), *statistics)),
    ):
        check_both_orders(card, node_of(op, given, groups=2, eps=EPS), given)
    x = numbers(3, 0)
    given = (x, x, numbers(0), *vectors(3, "float32", 2))
    check(card, node_of(normalisation.layer_norm_grad, given, axis=(1,), eps=EPS), given)
