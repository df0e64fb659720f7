"""Conventions of pooling: ties, nan, padding, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.compiler.lazy import Expr, compile, lift
from caldera.core.graph.ops import product
from caldera.errors import DtypeError, ShapeError
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers

_HOW: dict[str, Any] = {
    "size": (2, 2),
    "stride": (2, 2),
    "padding": ((0, 0), (0, 0)),
    "dilation": (1, 1),
}


def _pool(x: np.ndarray, **how: Any) -> tuple[np.ndarray, np.ndarray]:
    values, index = product.max_pool2d.outputs(lift(x), **{**_HOW, **how})
    first, second = compile([Expr(values), Expr(index)]).run()
    return first.numpy(), second.numpy()


def _gradient(x: np.ndarray, **how: Any) -> np.ndarray:
    variable = op.var("x", x.shape, fill=x, dtype="float64")
    return op.grad(op.sum(op.max_pool2d(variable, **how)), variable).numpy()


def test_of_equal_elements_the_first_wins_and_takes_the_gradient() -> None:
    x = np.array([[[[1.0, 7.0], [7.0, 7.0]]]])
    values, index = _pool(x)
    assert values.item() == 7.0
    assert index.dtype == np.int8
    assert index.item() == 1
    assert _gradient(x, size=2).tolist() == [[[[0.0, 1.0], [0.0, 0.0]]]]


def test_nan_wins() -> None:
    values, index = _pool(np.array([[[[np.inf, 1.0], [np.nan, np.nan]]]]))
    assert np.isnan(values.item())
    assert index.item() == 2


def test_padding_never_wins_not_even_over_minus_infinity() -> None:
    x = np.full((1, 1, 1, 1), -np.inf)
    values, index = _pool(x, padding=((1, 0), (1, 0)))
    assert values.item() == -np.inf
    assert index.item() == 3
    assert _gradient(x, size=2, padding=((1, 0), (1, 0))).item() == 1.0


def test_a_window_of_padding_alone_has_no_winner() -> None:
    # With a dilation of 2 the window meets the columns -1 and 1 of an image that has only 0.
    how: dict[str, Any] = {"size": (1, 2), "dilation": (1, 2), "padding": ((0, 0), (1, 1))}
    x = np.array([[[[5.0]]]])
    values, index = _pool(x, stride=(1, 1), **how)
    assert values.item() == -np.inf
    assert index.item() == -1
    assert _gradient(x, stride=1, **how).item() == 0.0


def test_gradients_of_overlapping_windows_add_up() -> None:
    x = np.array([[[[0.0, 3.0, 1.0]]]])
    assert _gradient(x, size=(1, 2), stride=1).tolist() == [[[[0.0, 2.0, 0.0]]]]


def test_gather_reads_the_winners_and_scatter_writes_them() -> None:
    x = np.array([[[[1.0, 2.0], [8.0, 4.0]]]])
    values, index = product.max_pool2d.outputs(lift(x), **_HOW)
    gathered = product.pool_gather(lift(x * 10.0), index, **_HOW)
    scattered = product.pool_scatter(values, index, shape=(1, 1, 2, 2), **_HOW)
    assert Expr(gathered).tolist() == [[[[80.0]]]]
    assert Expr(scattered).tolist() == [[[[0.0, 0.0], [8.0, 0.0]]]]


def test_second_derivatives_go_through_the_winners() -> None:
    x = np.random.default_rng(5).permutation(24).reshape(1, 2, 3, 4) * 0.1
    check_gradients(lambda x: op.max_pool2d(x, 2, stride=1, padding=1) ** 3, [x], order=2)
    check_gradients(lambda x: op.avg_pool2d(x, 2, stride=1, padding=1) ** 3, [x], order=2)


def test_stride_is_the_size_unless_given() -> None:
    assert op.max_pool2d(numbers(1, 1, 7, 6), (3, 2)).shape == (1, 1, 2, 3)
    assert op.avg_pool2d(numbers(1, 1, 7, 6), (3, 2), stride=1).shape == (1, 1, 5, 5)


def test_same_padding_keeps_the_size() -> None:
    assert op.max_pool2d(numbers(1, 1, 5, 6), 3, stride=1, padding="same").shape == (1, 1, 5, 6)


def test_counting_padding_is_the_default() -> None:
    x = np.full((1, 1, 2, 2), 4.0)
    assert op.avg_pool2d(x, 2, padding=1).tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
    kept = op.avg_pool2d(x, 2, padding=1, count_padding=False)
    assert kept.tolist() == [[[[4.0, 4.0], [4.0, 4.0]]]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtype_is_kept(dtype: str) -> None:
    x = op.cast(np.arange(16.0).reshape(1, 1, 4, 4), dtype)
    largest, mean, everywhere = op.max_pool2d(x, 2), op.avg_pool2d(x, 2), op.global_average_pool(x)
    assert {each.dtype.name for each in (largest, mean, everywhere)} == {dtype}
    assert largest.tolist() == [[[[5.0, 7.0], [13.0, 15.0]]]]
    assert mean.tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert everywhere.tolist() == [[7.5]]


def test_integers_become_floats() -> None:
    assert op.max_pool2d(np.arange(4).reshape(1, 1, 2, 2), 2).dtype == "float32"


def test_the_graph_op_refuses_integers() -> None:
    with pytest.raises(DtypeError, match=r"op\.max_pool2d.*floating-point"):
        product.max_pool2d(lift(np.zeros((1, 1, 2, 2), "int64")), **_HOW)


def test_sequences_can_be_averaged() -> None:
    assert op.global_average_pool(np.array([[[1.0, 3.0]]])).tolist() == [[2.0]]


@pytest.mark.parametrize("pool", [op.max_pool2d, op.avg_pool2d])
@pytest.mark.parametrize(
    ("shape", "how", "words"),
    [
        ((4, 4), {"size": 2}, ["(N, C, H, W)", "picture (4, 4) float32"]),
        ((1, 1, 2, 4), {"size": 3}, ["at least 3 x 3", "picture (1, 1, 2, 4)", "smaller window"]),
        ((1, 1, 4, 4), {"size": 2, "padding": 2}, ["narrower than the window of 2 x 2"]),
        ((1, 1, 4, 4), {"size": 0}, ["size=", ">= 1", "got 0"]),
        ((1, 1, 4, 4), {"size": 2, "stride": (1, 0)}, ["stride=", "(1, 0)"]),
        ((1, 1, 0, 4), {"size": 1}, ["at least 1 x 1"]),
    ],
)
def test_bad_use_fails_when_written_and_says_how(
    pool: Any, shape: tuple[int, ...], how: dict[str, Any], words: list[str]
) -> None:
    picture = op.var("picture", shape)
    with pytest.raises(ShapeError) as caught:
        pool(picture, **how)
    for word in [f"op.{pool.__name__}", *words]:
        assert word in str(caught.value)


def test_global_average_pool_wants_images() -> None:
    with pytest.raises(ShapeError, match=r"op\.global_average_pool.*\(2, 3\)"):
        op.global_average_pool(np.ones((2, 3)))
