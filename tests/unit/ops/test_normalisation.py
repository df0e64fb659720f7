"""Normalisation: statistics, accuracy, half precision, misuse."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import op
from caldera.errors import ConfigError, ShapeError

ONE, ZERO = np.ones(3, np.float32), np.zeros(3, np.float32)


def test_training_and_inference_agree_on_the_same_statistics() -> None:
    x = np.random.default_rng(0).normal(2, 3, (8, 3, 2)).astype("float32")
    scale, shift = np.array([1, 2, 3], "float32"), np.array([-1, 0, 1], "float32")
    y, mean, variance = op.batch_norm(x, scale, shift)
    np.testing.assert_allclose(mean.numpy(), x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance.numpy(), x.var((0, 2)), rtol=1e-5)
    again = op.batch_norm(x, scale, shift, mean, variance)
    np.testing.assert_allclose(y.numpy(), again.numpy(), atol=1e-5)


def test_the_variance_of_large_numbers_does_not_cancel() -> None:
    x = np.array([[10000.0], [10001.0], [10002.0]], np.float32)
    y, _, variance = op.batch_norm(x, ONE[:1], ZERO[:1])
    assert variance.item() == pytest.approx(2 / 3, rel=1e-6)
    assert y.numpy()[:, 0] == pytest.approx([-1.2247, 0, 1.2247], abs=1e-3)


def test_a_constant_channel_gives_its_shift_and_finite_gradients() -> None:
    x = op.var("x", (4, 3), fill=np.full((4, 3), 7.0))
    y, _, _ = op.batch_norm(x, ONE, ONE * 2)
    assert y.numpy().tolist() == [[2.0] * 3] * 4
    assert np.isfinite(op.grad(op.sum(y * y * y), x).numpy()).all()


def test_gradients_of_the_statistics_reach_the_input() -> None:
    x = op.var("x", (4, 1), fill=np.array([[1.0], [2.0], [3.0], [6.0]]), dtype="float64")
    _, mean, variance = op.batch_norm(x, np.ones(1), np.zeros(1))
    assert op.grad(mean[0], x).numpy().ravel().tolist() == [0.25] * 4
    assert op.grad(variance[0], x).numpy().ravel().tolist() == [-1.0, -0.5, 0.0, 1.5]


def test_what_does_not_depend_on_y_has_no_gradient_for_the_scale() -> None:
    scale = op.var("scale", (3,), fill=ONE)
    _, mean, _ = op.batch_norm(np.ones((2, 3), np.float32), scale, ZERO)
    assert op.grad(op.sum(mean), scale, unused="zero").tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_normalised_in_float32(dtype: str) -> None:
    # Squares of 300 and sums of 4000 such numbers are no float16.
    data = np.random.default_rng(0).normal(300, 40, (2000, 3))
    x = op.var("x", (2000, 3), fill=data, dtype=dtype)
    exact = x.numpy().astype("float64")
    scale = op.var("scale", (3,), fill=ONE)
    y, mean, variance = op.batch_norm(x, scale, ZERO)
    assert [each.dtype.name for each in (y, mean, variance)] == [dtype, "float32", "float32"]
    np.testing.assert_allclose(mean.numpy(), exact.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance.numpy(), exact.var(0), rtol=1e-4)
    unit = (exact - exact.mean(0)) / exact.std(0)
    np.testing.assert_allclose(y.numpy().astype(float), unit, atol=2e-2)
    for_x, for_scale = op.grad(op.sum(y * y), [x, scale])
    assert for_x.dtype == x.dtype
    assert for_scale.dtype == scale.dtype
    np.testing.assert_allclose(for_scale.numpy(), [4000.0] * 3, rtol=1e-2)


def test_parameters_of_half_precision_stay_half() -> None:
    scale = op.var("scale", (3,), fill=ONE, dtype="float16")
    x = op.var("x", (2, 3), fill=np.arange(6.0).reshape(2, 3), dtype="float16")
    y = op.layer_norm(x, scale, scale)
    assert y.dtype.name == op.grad(op.sum(y), scale).dtype.name == "float16"


def test_other_dtypes_are_promoted_as_everywhere() -> None:
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert op.layer_norm(x, ONE, ZERO).dtype.name == "float32"
    assert op.layer_norm(x.astype("float32"), np.ones(3), ZERO).dtype.name == "float64"
    assert op.layer_norm(x.astype("float16"), np.ones(3), ZERO).dtype.name == "float64"
    assert op.batch_norm(x.astype("float64"), [1, 1, 1], [0, 0, 0])[0].dtype.name == "float64"


def test_nan_stays_in_its_channel_or_sample() -> None:
    x = np.random.default_rng(0).normal(size=(3, 3)).astype("float32")
    x[1, 2] = np.nan
    by_channel = np.isnan(op.batch_norm(x, ONE, ZERO)[0].numpy())
    assert by_channel.all(0).tolist() == by_channel.any(0).tolist() == [False, False, True]
    by_sample = np.isnan(op.layer_norm(x, ONE, ZERO).numpy())
    assert by_sample.all(1).tolist() == by_sample.any(1).tolist() == [False, True, False]


def test_one_group_is_layer_norm_over_channels_and_single_channels_are_instance_norm() -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 3))
    scale, shift = np.ones(4), np.zeros(4)
    whole = op.layer_norm(x, np.ones((4, 3)), np.zeros((4, 3)), axis=(1, 2))
    np.testing.assert_allclose(op.group_norm(x, 1, scale, shift).numpy(), whole.numpy())
    single = op.layer_norm(x, np.ones(3), np.zeros(3), axis=2)
    np.testing.assert_allclose(op.group_norm(x, 4, scale, shift).numpy(), single.numpy())


def test_local_response_norm_of_halves_does_not_overflow() -> None:
    x = op.var("x", (1, 3), fill=np.array([[300.0, 300.0, 300.0]]), dtype="float16")
    y = op.local_response_norm(x, size=3, alpha=1.0, beta=0.5)
    assert y.dtype.name == "float16"
    expected = 300 / np.sqrt(1 + 300**2 * np.array([2, 3, 2]) / 3)
    np.testing.assert_allclose(y.numpy()[0].astype(float), expected, rtol=2e-3)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda x: op.batch_norm(x, ONE, ZERO[:2]),
            ShapeError,
            r"op\.batch_norm: expected scale and shift \(along axis 1\) of shape \(3,\), got X",
        ),
        (lambda x: op.batch_norm(x, ONE, ZERO, ONE), ConfigError, "mean and variance, or neither"),
        (
            lambda x: op.batch_norm(x, ONE, ZERO, ONE, ONE[:2]),
            ShapeError,
            r"op\.batch_norm_inference: expected mean and variance",
        ),
        (lambda x: op.batch_norm(x, ONE, ZERO, axis=2), ShapeError, r"op\.batch_norm: .*axis"),
        (lambda x: op.batch_norm(x, ONE, ZERO, eps=-1.0), ConfigError, "eps= 0 or more, got -1.0"),
        (lambda x: op.batch_norm(x, ONE, ZERO, eps="0"), ConfigError, "eps= a number"),
        (
            lambda x: op.layer_norm(x, ONE[:2], ZERO[:2]),
            ShapeError,
            r"op\.layer_norm: .*of shape \(3,\), got X \(2, 3\)",
        ),
        (lambda x: op.layer_norm(x, ONE, ZERO, axis=(1, 1)), ShapeError, "each axis once"),
        (lambda x: op.group_norm(x, 2, ONE, ZERO), ShapeError, "that 2 groups divide"),
        (lambda x: op.group_norm(x, 0, ONE, ZERO), ConfigError, "groups= an integer >= "),
        (lambda x: op.group_norm(x[0], 1, ONE, ZERO), ShapeError, r"x of shape \(N, C"),
        (lambda x: op.local_response_norm(x, size=1.5), ConfigError, "size= an integer"),
        (lambda x: op.local_response_norm(x[0]), ShapeError, r"op\.local_response_norm: .*N, C"),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        write(op.var("X", (2, 3)))
