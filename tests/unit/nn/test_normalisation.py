"""Normalisation layers: statistics of the batch, running ones, evaluation, freezing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, testing
from caldera.errors import ShapeError


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(2.0, 3.0, shape)


def _step(layer: nn.Layer, x: np.ndarray, uses: int = 1) -> np.ndarray:
    """One training step: the result of the last use, with the updates committed."""
    with nn.trace(training=True, dtype="float64") as traced:
        for _ in range(uses):
            y = layer(x)
    return cd.compile([y, *traced.updates]).run()[0].numpy()


def test_batch_norm_normalises_the_batch_and_keeps_running_averages() -> None:
    layer = nn.BatchNorm()
    x = _x(4, 3, 2, 2)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    y = _step(layer, x)
    shape = (1, 3, 1, 1)
    expected = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-10)
    # PyTorch's rule: a tenth of the new value, and the variance divided by n - 1.
    unbiased = x.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.mean.numpy(), 0.1 * mean, rtol=1e-10)
    np.testing.assert_allclose(layer.variance.numpy(), 0.9 + 0.1 * unbiased, rtol=1e-10)
    _step(layer, x)
    np.testing.assert_allclose(layer.mean.numpy(), 0.19 * mean, rtol=1e-10)


def test_batch_norm_evaluates_with_the_running_averages() -> None:
    layer = nn.BatchNorm(eps=0.5)
    x = _x(4, 3)
    with nn.trace(dtype="float64") as traced:
        y = layer(x)
    assert traced.updates == []
    layer.mean.assign([1.0, 2.0, 3.0])
    layer.variance.assign([4.0, 5.0, 6.0])
    layer.weight.assign([1.0, 2.0, 3.0])
    layer.bias.assign([0.1, 0.2, 0.3])
    unit = (x - [1.0, 2.0, 3.0]) / np.sqrt(np.array([4.0, 5.0, 6.0]) + 0.5)
    np.testing.assert_allclose(y.numpy(), unit * [1.0, 2.0, 3.0] + [0.1, 0.2, 0.3], rtol=1e-10)


def test_running_averages_are_no_parameters() -> None:
    layer = nn.BatchNorm()
    layer(op.input("x", (4, 3)))
    assert [p.name for p in layer.parameters()] == ["BatchNorm/weight", "BatchNorm/bias"]
    assert [s.shape for s in layer.states()] == [(3,), (3,)]


def test_a_batch_norm_used_twice_in_a_step_averages_twice() -> None:
    once, twice = nn.BatchNorm(), nn.BatchNorm()
    x = _x(4, 3)
    _step(once, x)
    _step(once, x)
    _step(twice, x, uses=2)
    np.testing.assert_allclose(twice.mean.numpy(), once.mean.numpy(), rtol=1e-10)
    np.testing.assert_allclose(twice.variance.numpy(), once.variance.numpy(), rtol=1e-10)


def test_frozen_batch_norm_trains_as_it_evaluates() -> None:
    layer = nn.BatchNorm()
    x = _x(4, 3)
    with nn.trace(dtype="float64"):
        evaluated = layer(x).numpy()
    layer.freeze()
    np.testing.assert_array_equal(_step(layer, x), evaluated)
    assert not layer.mean.numpy().any()


def test_a_batch_of_one_keeps_finite_averages() -> None:
    layer = nn.BatchNorm()
    _step(layer, _x(1, 3))
    assert np.isfinite(layer.variance.numpy()).all()


def test_layer_norm_over_several_axes() -> None:
    x = _x(4, 3, 5)
    with nn.trace(dtype="float64"):
        y = nn.LayerNorm(axis=(1, 2))(x).numpy()
    mean, variance = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 1e-5), rtol=1e-9)


def test_group_norm_normalises_groups_of_channels() -> None:
    x = _x(2, 4, 3)
    with nn.trace(dtype="float64"):
        y = nn.GroupNorm(2)(x).numpy()
    grouped = x.reshape(2, 2, 6)
    mean, variance = grouped.mean(2, keepdims=True), grouped.var(2, keepdims=True)
    expected = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-9)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5)])
def test_instance_norm_normalises_each_channel_of_each_sample(shape: tuple[int, ...]) -> None:
    x, axes = _x(*shape), tuple(range(2, len(shape)))
    expected = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    with nn.trace(dtype="float64"):
        plain, affine = nn.InstanceNorm(), nn.InstanceNorm(affine=True)
        for layer in (plain, affine):
            np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-9)
        affine.weight.assign([1.0, 2.0, 3.0])
        affine.bias.assign([0.5, 0.0, -1.0])
        column = (3, *(1,) * len(axes))
        expected = expected * affine.weight.numpy().reshape(column)
        expected += affine.bias.numpy().reshape(column)
        np.testing.assert_allclose(affine(x).numpy(), expected, rtol=1e-9)
    assert plain.parameters() == []
    with pytest.raises(ShapeError, match="at least one axis behind"):
        nn.InstanceNorm()(_x(2, 3))


@pytest.mark.parametrize("axis", [-1, (1, 2)])
def test_rms_norm_divides_by_the_root_mean_square(axis: int | tuple[int, ...]) -> None:
    x = _x(4, 3, 5)
    with nn.trace(dtype="float64"):
        layer = nn.RMSNorm(axis)
        layer(x)
        weight = 1.0 + np.arange(layer.weight.numpy().size).reshape(layer.weight.shape)
        layer.weight.assign(weight)
        found = layer(x).numpy()
    expected = x / np.sqrt((x**2).mean(axis, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_new_layers_train_and_come_back_from_a_file(tmp_path: Path) -> None:
    layers = [
        nn.Input((3, 6)),
        nn.InstanceNorm(affine=True),
        nn.PReLU(per_channel=True),
        nn.RMSNorm(),
        nn.PReLU(),
        nn.Flatten(),
        nn.Dense(2),
    ]
    model = cd.NeuralNetwork(layers, learning_rate=0.1, seed=1)
    before = [each.numpy() for each in model.parameters()]
    x = _x(8, 3, 6).astype("float32")
    model.fit((x, np.arange(8) % 2), epochs=1, verbose=0)
    assert all(
        (old != new.numpy()).any() for old, new in zip(before, model.parameters(), strict=True)
    )
    again = cd.load(model.save(tmp_path / "m.caldera"))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_local_response_norm_of_alexnets_paper() -> None:
    x = _x(1, 7, 2)
    with nn.trace(dtype="float64"):
        y = nn.LocalResponseNorm(5, 5e-4, 0.75, 2.0)(x).numpy()
    for channel in range(7):
        near = x[:, max(channel - 2, 0) : channel + 3]
        expected = x[:, channel] / (2.0 + 1e-4 * (near**2).sum(1)) ** 0.75
        np.testing.assert_allclose(y[:, channel], expected, rtol=1e-10)


def test_gradients() -> None:
    x = _x(3, 2, 2)
    layers = (
        nn.LayerNorm(),
        nn.GroupNorm(2),
        nn.LocalResponseNorm(3),
        nn.BatchNorm(),
        nn.RMSNorm(),
    )
    for layer in (*layers, nn.InstanceNorm(affine=True), nn.PReLU(per_channel=True)):
        with nn.trace(training=True, dtype="float64"):
            testing.check_gradients(layer, [x])
