"""Merging, arranging, noise and pools of any rank, against NumPy, and PyTorch where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError, ShapeError


def made(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def trained(layer: nn.Layer, x: np.ndarray) -> np.ndarray:
    with nn.trace(training=True, random=op.random_state()):
        return layer(x).numpy()


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (nn.Subtract(), np.subtract),
        (nn.Multiply(), np.multiply),
        (nn.Average(), lambda a, b: (a + b) / 2),
        (nn.Maximum(), np.maximum),
        (nn.Minimum(), np.minimum),
        (nn.Dot(1), lambda a, b: (a * b).sum(1)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_inputs_are_merged_as_in_numpy(layer: nn.Layer, function: Any) -> None:
    a, b = made(2, 3, 4), made(2, 3, 4, seed=1)
    np.testing.assert_allclose(layer(a, b).numpy(), function(a, b), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"inputs of the same shape, \(2, 3, 4\), got \(3, 4\)"):
        layer(a, b[0])


def test_gates_are_stretched_and_samples_are_not() -> None:
    x, gate = made(2, 3, 4, 4), made(2, 3, 1, 1, seed=1)
    np.testing.assert_allclose(nn.Multiply()(x, gate).numpy(), x * gate, rtol=1e-6)
    with pytest.raises(ShapeError, match="inputs of the same shape"):
        nn.Multiply()(x, gate[:1])


def test_three_inputs_are_merged() -> None:
    a, b, c = (made(2, 3, seed=seed) for seed in range(3))
    np.testing.assert_allclose(nn.Average()(a, b, c).numpy(), (a + b + c) / 3, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(nn.Maximum()(a, b, c).numpy(), np.maximum(np.maximum(a, b), c))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_borders_are_those_of_numpy_and_cropping_takes_them_off(mode: str, rank: int) -> None:
    x = made(2, 3, *(5, 4, 6)[:rank])
    widths = [(2, 1), 1, (0, 3)][:rank]
    pairs = [(0, 0), (0, 0), *((w, w) if isinstance(w, int) else w for w in widths)]
    how = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    value = {"constant_values": 2.5} if mode == "constant" else {}
    y = nn.Padding(widths, mode, 2.5)(x).numpy()
    np.testing.assert_array_equal(y, np.pad(x, pairs, how, **value))
    np.testing.assert_array_equal(nn.Cropping(widths)(y).numpy(), x)


def test_axes_are_permuted_and_vectors_repeated() -> None:
    x = made(2, 3, 4)
    np.testing.assert_array_equal(nn.Permute((2, 1))(x).numpy(), x.transpose(0, 2, 1))
    np.testing.assert_array_equal(
        nn.RepeatVector(3)(x[:, 0]).numpy(), np.repeat(x[:, :1], 3, axis=1)
    )
    shuffled = x.reshape(2, 3, 2, 2).swapaxes(2, 3).reshape(2, 3, 4).transpose(0, 2, 1)
    np.testing.assert_array_equal(nn.ChannelShuffle(2)(x.transpose(0, 2, 1)).numpy(), shuffled)


def test_a_layer_is_applied_to_every_step() -> None:
    x, inner = made(2, 5, 3, 4), nn.LayerNorm((-2, -1))
    y = nn.TimeDistributed(inner)(x).numpy()
    for step in range(5):
        np.testing.assert_allclose(y[:, step], inner(x[:, step]).numpy(), rtol=1e-5, atol=1e-6)


def test_noise_of_steps_does_not_depend_on_how_a_batch_is_split() -> None:
    layer, state, x = nn.TimeDistributed(nn.Dropout(0.5)), op.random_state(), np.ones((4, 3, 8))
    found = []
    for first, last in ((0, 4), (0, 1), (1, 4)):
        with nn.trace(training=True, random=state, first=first):
            found.append(layer(x[first:last]).numpy())
    np.testing.assert_array_equal(np.concatenate(found[1:]), found[0])


@pytest.mark.parametrize("shape", [(7,), (7, 4), (5, 3, 6)])
def test_adaptive_windows_of_any_rank(shape: tuple[int, ...]) -> None:
    x, sizes = made(2, 3, *shape), (3, 4, 2)[: len(shape)]
    average, largest = (
        nn.AdaptiveAveragePool(sizes)(x).numpy(),
        nn.AdaptiveMaxPool(sizes)(x).numpy(),
    )
    for place in np.ndindex(*sizes):
        window = tuple(
            slice(i * length // size, -(-(i + 1) * length // size))
            for i, length, size in zip(place, shape, sizes, strict=True)
        )
        part, axes = x[:, :, *window], tuple(range(2, x.ndim))
        np.testing.assert_allclose(average[:, :, *place], part.mean(axes), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(largest[:, :, *place], part.max(axes))


def test_adaptive_windows_that_divide_a_sequence() -> None:
    x = made(2, 3, 6)
    blocks = x.reshape(2, 3, 2, 3)
    np.testing.assert_allclose(
        nn.AdaptiveAveragePool(2)(x).numpy(), blocks.mean(3), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(nn.AdaptiveMaxPool((2,))(x).numpy(), blocks.max(3))


def test_global_pools() -> None:
    x = made(2, 3, 4, 6)
    np.testing.assert_array_equal(nn.GlobalMaxPool()(x).numpy(), x.max((2, 3)))


def test_up_sampling_of_any_rank() -> None:
    x = made(2, 3, 4)
    np.testing.assert_array_equal(nn.UpSampling(3)(x).numpy(), np.repeat(x, 3, axis=2))
    places = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)
    wanted = np.stack([np.interp(places, np.arange(4), row) for row in x.reshape(6, 4)])
    np.testing.assert_allclose(
        nn.UpSampling(2, "linear")(x).numpy().reshape(6, 8), wanted, rtol=1e-5, atol=1e-6
    )
    volume = np.repeat(np.repeat(np.repeat(made(1, 2, 2, 3, 2), 2, 2), 2, 3), 2, 4)
    np.testing.assert_array_equal(nn.UpSampling()(volume[:, :, ::2, ::2, ::2]).numpy(), volume)
    with pytest.raises(ConfigError, match="mode= one of nearest, linear, the first"):
        nn.UpSampling(2, "bicubic")(x)


def test_noise_has_its_moments_and_evaluation_has_none() -> None:
    x = np.ones((64, 50, 20), np.float32)
    for layer, mean, deviation in [
        (nn.GaussianNoise(0.5), 1.0, 0.5),
        (nn.GaussianDropout(0.2), 1.0, 0.5),
        (nn.SpatialDropout(0.25), 1.0, (1 / 3) ** 0.5),
    ]:
        y = trained(layer, x)
        assert abs(y.mean() - mean) < 0.05
        assert abs(y.std() - deviation) < 0.05
        np.testing.assert_array_equal(layer(x).numpy(), x)


def test_spatial_dropout_drops_whole_channels() -> None:
    y = trained(nn.SpatialDropout(0.5), np.ones((8, 6, 5, 4), np.float32))
    channels = y.reshape(8, 6, -1)
    assert set(np.unique(channels)) == {0.0, 2.0}
    assert (channels == channels[:, :, :1]).all()


def test_alpha_dropout_keeps_the_moments() -> None:
    y = trained(nn.AlphaDropout(0.3), made(200, 500))
    assert abs(y.mean()) < 0.02
    assert abs(y.std() - 1) < 0.02


def test_a_lambda_trains_and_is_not_saved(tmp_path: Path) -> None:
    layers = [nn.Input((2,)), nn.Lambda(lambda x: x * 2.0), nn.Dense(1)]
    model = cd.NeuralNetwork(layers, loss="mse", seed=0)
    model.fit(made(8, 2), made(8, 1), epochs=1, verbose=0)
    np.testing.assert_allclose(model.predict(made(3, 2)).shape, (3, 1))
    with pytest.raises(ConfigError, match=r"a file holds no code: .*@nn\.register"):
        model.save(tmp_path / "model.caldera")


def test_new_layers_are_saved_and_summed_up(tmp_path: Path) -> None:
    layers = [
        nn.Input((4, 6, 6)),
        nn.Padding(1, "reflect"),
        nn.Conv2D(8, 3),
        nn.UnitNorm(axis=1),
        nn.SpatialDropout(0.2),
        nn.PixelShuffle(2),
        nn.Cropping([1, 2]),
        nn.UpSampling((1, 2), "linear"),
        nn.AdaptiveMaxPool(3),
        nn.Permute((2, 3, 1)),
        nn.TimeDistributed(nn.Flatten()),
        nn.GaussianNoise(0.1),
        nn.Flatten(),
        nn.Dense(2),
    ]
    model = cd.NeuralNetwork(layers, loss="mse", seed=0)
    model.fit(made(8, 4, 6, 6), made(8, 2), epochs=1, verbose=0)
    model.save(tmp_path / "model.caldera")
    again = cd.load(tmp_path / "model.caldera")
    np.testing.assert_array_equal(again.predict(made(3, 4, 6, 6)), model.predict(made(3, 4, 6, 6)))
    assert "PixelShuffle" in str(model.summary())


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: nn.Permute((0, 1)), r"the axes \[1, 2\] once"),
        (lambda: nn.Padding(-1), "widths= an integer >= 0"),
        (lambda: nn.Padding([(1, 2, 3)]), "or a list with an integer or a pair for each axis"),
        (lambda: nn.Padding(1, "mirror"), "mode= one of constant, reflect, replicate, circular"),
        (lambda: nn.GaussianDropout(1.0), "GaussianDropout: expected 0 <= rate < 1"),
        (lambda: nn.Lambda("relu"), "a function"),
        (lambda: nn.TimeDistributed(3), "a layer"),
        (lambda: nn.Cropping(3)(made(1, 1, 5)), "samples larger than the widths"),
        (lambda: nn.Cropping([1, 1])(made(1, 1, 5)), "2 or more axes behind the channels"),
        (lambda: nn.Permute((2, 1))(made(2, 3)), "samples of 2 axes"),
        (lambda: nn.AdaptiveMaxPool((2, 2))(made(1, 1, 5)), "2 axes behind the channels"),
        (lambda: nn.ChannelShuffle(2)(made(1, 3)), "channels that 2 groups divide"),
    ],
)
def test_mistakes_say_what_was_expected(write: Any, message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        write()
