"""Convolution layers against loops in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera import nn, op, testing
from caldera.errors import ShapeError


def _image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def _made(layer: Any, x: np.ndarray) -> np.ndarray:
    with nn.trace(dtype="float64"):
        return layer(x).numpy()


def _convolved(x: np.ndarray, w: np.ndarray, stride: int, padding: int, groups: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    n, c, height, width = x.shape
    k, _, h, v = w.shape
    rows, columns = (height - h) // stride + 1, (width - v) // stride + 1
    y = np.zeros((n, k, rows, columns))
    for o in range(k):
        group = o // (k // groups)
        used = slice(group * (c // groups), (group + 1) * (c // groups))
        for i in range(rows):
            for j in range(columns):
                part = x[:, used, i * stride : i * stride + h, j * stride : j * stride + v]
                y[:, o, i, j] = (part * w[o]).sum((1, 2, 3))
    return y


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2)])
def test_conv2d(stride: int, padding: int, groups: int) -> None:
    layer = nn.Conv2D(4, 3, stride, padding, groups=groups, activation="relu")
    x = _image(2, 2, 5, 6)
    y = _made(layer, x)
    layer.offset.assign([0.1, -0.2, 0.3, -0.4])  # type: ignore[union-attr]
    with nn.trace(dtype="float64"):
        y = layer(x).numpy()
    expected = _convolved(x, layer.weight.numpy(), stride, padding, groups)
    expected += np.array([0.1, -0.2, 0.3, -0.4]).reshape(1, 4, 1, 1)
    np.testing.assert_allclose(y, np.maximum(expected, 0), atol=1e-12)


def test_same_padding_keeps_the_size_and_bias_can_be_left_out() -> None:
    layer = nn.Conv2D(3, (3, 5), padding="same", bias=False)
    assert _made(layer, _image(1, 2, 4, 7)).shape == (1, 3, 4, 7)
    assert [p.name for p in layer.parameters()] == ["Conv2D/weight"]
    assert _made(nn.Conv2D(3, 3, padding="valid"), _image(1, 2, 4, 7)).shape == (1, 3, 2, 5)


def test_conv1d_is_conv2d_with_one_row() -> None:
    layer = nn.Conv1D(3, 3, stride=2, padding=1)
    x = _image(2, 4, 9)
    y = _made(layer, x)
    w = layer.weight.numpy()[:, :, None]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))[:, :, None]
    wide = _convolved(padded, w, 1, 0, 1)[:, :, 0, ::2]
    np.testing.assert_allclose(y, wide, atol=1e-12)


def test_depthwise_convolves_each_channel_by_itself() -> None:
    layer = nn.DepthwiseConv2D(3, multiplier=2, padding=1)
    x = _image(2, 3, 4, 4)
    y = _made(layer, x)
    expected = _convolved(x, layer.weight.numpy(), 1, 1, groups=3)
    np.testing.assert_allclose(y, expected, atol=1e-12)
    x[:, 1] += 1.0
    with nn.trace(dtype="float64"):
        changed = layer(x).numpy() != y
    assert changed.any((0, 2, 3)).tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution_is_the_adjoint_of_the_convolution(groups: int) -> None:
    layer = nn.ConvTranspose2D(
        4, 3, stride=2, padding=1, output_padding=1, groups=groups, bias=False
    )
    small = _image(2, 6, 3, 3)
    large = _made(layer, small)
    assert large.shape == (2, 4, 6, 6)
    other = np.random.default_rng(1).normal(size=large.shape)
    back = op.conv2d(other, layer.weight.numpy(), stride=2, padding=1, groups=groups).numpy()
    np.testing.assert_allclose((large * other).sum(), (small * back).sum(), rtol=1e-10)


def test_initial_weights_follow_the_stated_rules() -> None:
    x = op.input("x", (1, 64, 8, 8))
    glorot, he = nn.Conv2D(64, 3), nn.Conv2D(64, 3, fill="he_normal")
    glorot(x)
    he(x)
    fan = 64 * 9
    limit = np.sqrt(6 / (2 * fan))
    assert 0.99 * limit < np.abs(glorot.weight.numpy()).max() <= limit
    assert he.weight.numpy().std() == pytest.approx(np.sqrt(2 / fan), rel=0.02)
    assert not glorot.offset.numpy().any()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2D(2, 2, activation="tanh"),
        nn.ConvTranspose2D(2, 2, stride=2),
        nn.DepthwiseConv2D(2),
        nn.AdaptiveAveragePool2D(2),
        nn.AveragePool2D(2, stride=1, padding=1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_gradients(layer: nn.Layer) -> None:
    with nn.trace(dtype="float64"):
        testing.check_gradients(layer, [_image(2, 2, 3, 3)])


def test_volumes_are_convolved_window_by_window() -> None:
    x = np.random.default_rng(3).normal(size=(2, 4, 5, 6, 7))
    with nn.trace(dtype="float64"):
        layer = nn.Conv3D(6, (2, 3, 1), stride=(2, 1, 3), padding=1, groups=2)
        y = layer(x).numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (1, 1)))
    weight = layer.weight.numpy()
    assert weight.shape == (6, 2, 2, 3, 1)
    for k, d, h, w in ((0, 0, 0, 0), (2, 1, 4, 2), (3, 2, 5, 1), (5, 0, 3, 2)):
        taken = slice(0, 2) if k < 3 else slice(2, 4)
        window = padded[:, taken, 2 * d : 2 * d + 2, h : h + 3, 3 * w : 3 * w + 1]
        np.testing.assert_allclose(y[:, k, d, h, w], (window * weight[k]).sum((1, 2, 3, 4)))
    with pytest.raises(ShapeError, match=r"Conv3D: expected volumes \(N, C, D, H, W\), got shape"):
        nn.Conv3D(2, 3)(x[0])
