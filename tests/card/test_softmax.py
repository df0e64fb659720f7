"""Softmax, its logarithm and cross entropy on a card, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.core.graph.ops import activation, epilogue, loss
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from tests.card.candidates import check, check_cases
from tests.card.variants import check_in_place, node_of, numbers
from tests.unit.kernels.checking import DTYPES

OPS = {
    "softmax",
    "softmax_grad",
    "log_softmax",
    "log_softmax_grad",
    "cross_entropy",
    "cross_entropy_grad",
    "cross_entropy_probabilities",
    "cross_entropy_probabilities_grad",
    "cross_entropy_with_gradient",
}
Given = list[tuple[Any, tuple[np.ndarray, ...]]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    assert check_cases(card, OPS, dtype) == OPS


def every_op(x: np.ndarray, axis: int) -> Given:
    """All of them on logits like these; labels are right, wrong and beyond."""
    samples = x.shape[:axis] + x.shape[axis + 1 :]
    generator = np.random.default_rng(len(samples))
    labels = generator.integers(0, x.shape[axis], samples)
    slope = numbers(*samples, dtype=x.dtype, seed=7)
    g = numbers(*x.shape, dtype=x.dtype, seed=8)
    shares = np.maximum(numbers(*x.shape, dtype=x.dtype, seed=9), x.dtype.type(0))
    wide = slope.astype("float64" if x.dtype == "float64" else "float32")
    return [
        (activation.softmax, (x,)),
        (activation.log_softmax, (x,)),
        (activation.softmax_grad, (g, shares)),
        (activation.log_softmax_grad, (g, x)),
        (loss.cross_entropy, (x, labels)),
        (loss.cross_entropy_grad, (slope, x, labels.astype("uint8"))),
        (loss.cross_entropy_probabilities, (x, shares)),
        (loss.cross_entropy_probabilities_grad, (slope, x, shares)),
        (epilogue.cross_entropy_with_gradient, (wide, x, labels)),
    ]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((6, 10), 1, "float32"),
        ((3, 100), 1, "bfloat16"),
        ((2, 1500), 1, "float32"),
        ((2, 1030), 1, "float64"),
        ((1, 70001), 1, "float32"),
        ((2, 5, 3, 9), 1, "float32"),
        ((2, 80, 3), 1, "float16"),
        ((100, 3), 0, "float32"),
        ((1, 40008), 1, "bfloat16"),
    ],
)
def test_many_lengths(card: Device, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    for op, arrays in every_op(numbers(*shape, dtype=BY_NAME[dtype]), axis):
        check(card, node_of(op, arrays, axis=axis), arrays, layouts=["dense"])


SPECIAL = [
    [np.nan, 1.0, 2.0],
    [np.inf, 1.0, 2.0],
    [np.inf, np.inf, -np.inf],
    [-np.inf, 0.0, -np.inf],
    [-np.inf, -np.inf, -np.inf],
    [np.nan, np.inf, 0.0],
    [200.0, -200.0, 0.0],
]


@pytest.mark.parametrize("length", [3, 40000], ids=["kept", "streamed"])
@pytest.mark.parametrize("strided", [False, True], ids=["side by side", "apart"])
def test_what_is_not_finite(card: Device, length: int, strided: bool) -> None:
    rows = np.full((len(SPECIAL), length), -np.inf, "float32")
    rows[:, :3] = SPECIAL
    rows = np.roll(rows, length // 2, axis=1)
    axis = 0 if strided else 1
    x = np.ascontiguousarray(rows.T) if strided else rows
    for op, arrays in every_op(x, axis):
        check(card, node_of(op, arrays, axis=axis), arrays, layouts=["dense"])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_a_label_that_is_no_class_gives_nan(card: Device, dtype: str) -> None:
    x = numbers(4, 5)
    labels = np.array([5, 0, 100, 4]).astype(dtype)
    if dtype != "uint8":
        labels[0] = -1
    for op, arrays in (
        (loss.cross_entropy, (x, labels)),
        (loss.cross_entropy_grad, (numbers(4), x, labels)),
        (epilogue.cross_entropy_with_gradient, (numbers(4), x, labels)),
    ):
        check(card, node_of(op, arrays, axis=1), arrays, layouts=["dense", "backwards"])


def test_results_may_be_written_over_inputs(card: Device) -> None:
    for shape, axis in (((4, 6), 1), ((1, 40000), 1), ((3, 40), 0)):
        count = sum(
            check_in_place(card, node_of(op, arrays, axis=axis), arrays)
            for op, arrays in every_op(numbers(*shape), axis)
        )
        # softmax and log_softmax, twice each gradient, those of the losses, and twice the last one
        assert count == 11


def test_no_samples(card: Device) -> None:
    for op, arrays in every_op(numbers(0, 4), 1):
        check(card, node_of(op, arrays, axis=1), arrays, layouts=["dense"])
    x = numbers(3, 0)
    for op, arrays in (
        (loss.cross_entropy_probabilities, (x, x)),
        (loss.cross_entropy_probabilities_grad, (numbers(3), x, x)),
    ):
        check(card, node_of(op, arrays, axis=1), arrays, layouts=["dense"])
