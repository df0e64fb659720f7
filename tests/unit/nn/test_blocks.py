"""Convolutional LSTMs, blocks of decoders and spectral norms, against NumPy and PyTorch."""

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


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


LAYERS: list[Any] = [nn.ConvLSTM1D, nn.ConvLSTM2D, nn.ConvLSTM3D]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_convolutional_lstm_of_single_elements_is_an_lstm(rank: int, backwards: bool) -> None:
    x = made(2, 5, 3, *(2,) * rank)
    layer = LAYERS[rank - 1](4, 1, return_sequences=True, go_backwards=backwards)
    y = layer(x).numpy()
    plain = nn.LSTM(4, return_sequences=True, go_backwards=backwards)
    rows = np.moveaxis(x.reshape(2, 5, 3, -1), 3, 1).reshape(-1, 5, 3)
    plain(rows)
    for name, value in (
        ("input_weight", layer.weight.numpy().reshape(16, 3).T),
        ("state_weight", layer.state_weight.numpy().reshape(16, 4).T),
        ("input_bias", layer.offset.numpy()),
    ):
        plain.variables()[name].assign(value)
    wanted = np.moveaxis(plain(rows).numpy().reshape(2, -1, 5, 4), 1, 3).reshape(y.shape)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_a_convolutional_lstm_step_by_step() -> None:
    x = made(2, 3, 2, 6, 5)
    layer = nn.ConvLSTM2D(3, 3, stride=2, padding=1, activation="softsign")
    y = layer(x).numpy()
    output = cell = np.zeros((2, 3, 3, 3), np.float32)
    for step in range(3):
        product = op.conv2d(x[:, step], layer.weight, 2, 1).numpy()
        product = product + layer.offset.numpy()[:, None, None]
        product = product + op.conv2d(output, layer.state_weight, padding=1).numpy()
        i, f, g, o = np.split(product, 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * g / (1 + np.abs(g))
        output = (sigmoid(o) * cell / (1 + np.abs(cell))).astype(np.float32)
    np.testing.assert_allclose(y, output, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="with 2 axes behind the channels"):
        nn.ConvLSTM2D(3, 3)(x[0])


def test_a_block_of_a_decoder_is_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    width, heads = 12, 3
    theirs = torch.nn.TransformerDecoderLayer(
        width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    ).eval()
    block = nn.TransformerDecoderBlock(heads)
    x, memory = made(2, 5, width), made(2, 4, width, seed=1)
    mask = np.array([[True] * 4, [True, True, False, False]])
    block(x, memory)
    given = {name: value.detach().numpy() for name, value in theirs.state_dict().items()}
    names = {"attention": "self_attn", "cross": "multihead_attn"}
    for ours, other in names.items():
        inner = getattr(block, ours)
        inner.weight.assign(given[f"{other}.in_proj_weight"].T)
        inner.offset.assign(given[f"{other}.in_proj_bias"])
        inner.output_weight.assign(given[f"{other}.out_proj.weight"].T)
        inner.output_offset.assign(given[f"{other}.out_proj.bias"])
    for ours, other in (("hidden", "linear1"), ("output", "linear2")):
        getattr(block, ours).weight.assign(given[f"{other}.weight"].T)
        getattr(block, ours).offset.assign(given[f"{other}.bias"])
    wanted = theirs(
        torch.tensor(x),
        torch.tensor(memory),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        memory_key_padding_mask=torch.tensor(~mask),
    )
    found = block(x, memory, None, mask).numpy()
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_decoder_sees_all_of_the_memory_and_nothing_of_the_future() -> None:
    block = nn.TransformerDecoderBlock(2)
    x, memory = made(1, 4, 6), made(1, 3, 6, seed=1)
    before = block(x, memory).numpy()
    later, other = x.copy(), memory.copy()
    later[:, 2:] += 1.0
    other[:, 2] += 1.0
    changed = np.abs(block(later, memory).numpy() - before).max((0, 2)) > 1e-6
    assert changed.tolist() == [False, False, True, True]
    assert (np.abs(block(x, other).numpy() - before).max((0, 2)) > 1e-6).all()
    masked = block(x, other, None, [[True, True, False]]).numpy()
    np.testing.assert_allclose(masked, block(x, memory[:, :2]).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="a sequence and a memory"):
        block(x)


INNER: list[tuple[nn.Layer, tuple[int, ...], int]] = [
    (nn.Dense(5), (4,), 0),
    (nn.Conv2D(5, 3), (4, 6, 6), 0),
    (nn.ConvTranspose1D(5, 3), (4, 6), 1),
]


@pytest.mark.parametrize(("inner", "shape", "axis"), INNER, ids=["dense", "conv", "transpose"])
def test_the_largest_singular_value_becomes_one(
    inner: Any, shape: tuple[int, ...], axis: int, tmp_path: Path
) -> None:
    x = made(8, *shape)
    layers = [nn.Input(shape), nn.SpectralNorm(inner), nn.Flatten(), nn.Dense(1)]
    model = cd.NeuralNetwork(layers, loss="mse", learning_rate=1e-4, seed=0)
    model.fit(x, made(8, 1), epochs=30, batch_size=8, verbose=0)
    weight = np.moveaxis(inner.weight.numpy(), axis, 0)
    largest = np.linalg.svd(weight.reshape(weight.shape[0], -1), compute_uv=False)[0]
    plain = layers[1](np.zeros_like(x)).numpy()
    found = layers[1](x).numpy() - plain
    np.testing.assert_allclose(
        found, (inner(x).numpy() - inner(np.zeros_like(x)).numpy()) / largest, rtol=0.02, atol=1e-3
    )
    model.save(tmp_path / "model.caldera")
    again = cd.load(tmp_path / "model.caldera")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert "SpectralNorm" in str(model.summary())


def test_the_power_method_is_that_of_the_paper() -> None:
    layer, x = nn.SpectralNorm(nn.Dense(3, bias=False), iterations=2), made(5, 4)
    layer(x)
    weight, left = layer.inner.weight.numpy(), layer.direction.numpy()
    for _ in range(2):
        right = left @ weight / np.linalg.norm(left @ weight)
        left = weight @ right / np.linalg.norm(weight @ right)
    wanted = x @ weight / (left @ weight @ right)
    np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: nn.SpectralNorm(3), "a layer"),
        (lambda: nn.SpectralNorm(nn.Dense(2), 0), "iterations= an integer >= 1"),
        (lambda: nn.SpectralNorm(nn.LSTM(2))(made(1, 2, 3)), "one weight, such as nn.Dense"),
        (lambda: nn.SpectralNorm(nn.EnsembleDense(2))(made(1, 3)), "one weight.*EnsembleDense"),
        (lambda: nn.SpectralNorm(nn.SeparableConv1D(2, 1))(made(1, 3, 4)), "one weight"),
        (lambda: nn.SpectralNorm(nn.MultiHeadAttention(1))(made(1, 2, 3)), "one weight"),
    ],
)
def test_mistakes_say_what_was_expected(write: Any, message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        write()
