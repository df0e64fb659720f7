"""Attention: masks, empty rows, large scores, half precision, misuse."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import op
from caldera.compiler.lazy import Variable
from caldera.errors import ConfigError, DtypeError, ShapeError

attend = op.scaled_dot_product_attention


def _variables(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Variable]:
    generator = np.random.default_rng(0)
    return [
        op.var(f"V{i}", shape, fill=generator.normal(size=shape), dtype=dtype)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("mask", ["truth values", "added"])
def test_a_query_that_may_see_no_key_gets_0_and_no_gradient(mask: str) -> None:
    q, k, v = _variables((2, 3), (4, 3), (4, 5))
    allowed = np.array([[True, True, False, True], [False] * 4])
    given = allowed if mask == "truth values" else np.where(allowed, 0.0, -np.inf)
    y = attend(q, k, v, mask=given)
    assert y.numpy()[1].tolist() == [0.0] * 5
    slopes = [slope.numpy() for slope in op.grad(op.sum(y * y), [q, k, v])]
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert slopes[0][1].tolist() == [0.0] * 3
    assert slopes[1][2].tolist() == [0.0] * 3
    assert slopes[2][2].tolist() == [0.0] * 5
    assert np.abs(slopes[0][0]).min() > 0


def test_the_future_does_not_reach_the_past() -> None:
    q, k, v = _variables((2, 5, 3), (2, 5, 3), (2, 5, 3))
    y = attend(q, k, v, causal=True)
    slope = op.grad(op.sum(y[:, 2]), v).numpy()
    assert np.abs(slope[:, :3]).min() > 0
    assert np.abs(slope[:, 3:]).max() == 0


def test_a_step_with_a_cache_is_the_last_row_of_the_whole() -> None:
    q, k, v = _variables((5, 3), (5, 3), (5, 3))
    whole = attend(q, k, v, causal=True)
    np.testing.assert_allclose(
        attend(q[-1:], k, v, causal=True).numpy(), whole[-1:].numpy(), rtol=1e-6
    )


def test_a_mask_and_causality_together() -> None:
    q, k, v = _variables((3, 2), (3, 2), (3, 2))
    mask = np.array([False, True, True])
    both = attend(q, k, v, mask=mask, causal=True)
    joined = attend(q, k, v, mask=np.tri(3, dtype=bool) & mask)
    np.testing.assert_array_equal(both.numpy(), joined.numpy())


def test_heads_may_share_keys_and_values() -> None:
    q, k, v = _variables((2, 4, 3, 5), (2, 1, 6, 5), (2, 1, 6, 5))
    wide = [
        op.var(f"W{i}", (2, 4, 6, 5), fill=np.repeat(e.numpy(), 4, 1)) for i, e in enumerate((k, v))
    ]
    shared, apart = attend(q, k, v), attend(q, *wide)
    np.testing.assert_allclose(shared.numpy(), apart.numpy(), rtol=1e-5)
    got = op.grad(op.sum(shared * shared), [k, v])
    expected = op.grad(op.sum(apart * apart), wide)
    for one, several in zip(got, expected, strict=True):
        np.testing.assert_allclose(
            one.numpy(), several.numpy().sum(1, keepdims=True), rtol=1e-4, atol=1e-5
        )


def test_large_scores_do_not_overflow() -> None:
    q = op.var("q", (2, 1), fill=np.array([[1e10], [-1e10]]))
    k = np.array([[1e10], [-1e10]], np.float32)
    y = attend(q, k, np.array([[1.0], [2.0]], np.float32), scale=1.0)
    assert y.tolist() == [[1.0], [2.0]]
    assert op.grad(op.sum(y), q).tolist() == [[0.0], [0.0]]


def test_nan_stays_in_its_row() -> None:
    q = np.array([[np.nan], [1.0]], np.float32)
    y = attend(q, np.ones((2, 1), np.float32), np.ones((2, 1), np.float32))
    assert np.isnan(y.numpy()).ravel().tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype: str) -> None:
    halves = _variables((3, 4), (5, 4), (5, 2), dtype=dtype)
    wide = [op.var(e.name, e.shape, fill=e.numpy().astype("float32")) for e in halves]
    result, exact = attend(*halves, causal=True), attend(*wide, causal=True)
    assert result.dtype == halves[0].dtype
    rounded = exact.numpy().astype(result.dtype).astype(float)
    np.testing.assert_array_equal(result.numpy().astype(float), rounded)
    close = 2e-3 if dtype == "float16" else 2e-2
    for one, other in zip(
        op.grad(op.sum(result), halves), op.grad(op.sum(exact), wide), strict=True
    ):
        assert one.dtype == result.dtype
        np.testing.assert_allclose(one.numpy().astype(float), other.numpy(), atol=close)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda q, k: attend(q, k, q),
            ShapeError,
            r"op\.scaled_dot_product_attention: .*with D and S the same, got V0",
        ),
        (lambda q, k: attend(q, k[:, :2], k), ShapeError, "with D and S the same"),
        (lambda q, k: attend(q[0], k, k), ShapeError, r"q \(\.\.\., T, D\)"),
        (lambda q, k: attend(q, k, k, mask=np.ones((3, 3), bool)), ShapeError, "broadcast"),
        (
            lambda q, k: attend(q, k, k, mask=np.ones((2, 2, 5), bool)),
            ShapeError,
            r"a mask that broadcasts to \(2, 5\)",
        ),
        (
            lambda q, k: attend(q, k, k, mask=np.ones((2, 5), np.int64)),
            DtypeError,
            "a mask of booleans",
        ),
        (lambda q, k: attend(q, k, k, scale=q), ConfigError, "scale= a number"),
        (
            lambda q, k: attend(np.ones((2, 2, 3), "float32"), np.ones((3, 5, 3), "float32"), k),
            ShapeError,
            "broadcast together",
        ),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        write(*_variables((2, 3), (5, 3)))
