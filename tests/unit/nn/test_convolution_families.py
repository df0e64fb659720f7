"""Transposes, depthwise and separable convolutions of any rank, with "same" padding and strides."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from caldera import nn, op
from caldera.errors import ConfigError, ShapeError

CONVOLUTIONS = (op.conv1d, op.conv2d, op.conv3d)
TRANSPOSES = (op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d)


def made(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def spread(x: np.ndarray, w: np.ndarray, stride: tuple[int, ...], gap: tuple[int, ...]) -> Any:
    """The transpose of a convolution without padding, one element of a kernel at a time."""
    sizes = [
        (n - 1) * s + g * (k - 1) + 1
        for n, s, g, k in zip(x.shape[2:], stride, gap, w.shape[2:], strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[1], *sizes))
    for place in np.ndindex(*w.shape[2:]):
        part = np.einsum("nc...,ck->nk...", x, w[:, :, *place])
        where = (
            slice(p * g, p * g + (n - 1) * s + 1, s)
            for p, g, n, s in zip(place, gap, x.shape[2:], stride, strict=True)
        )
        y[:, :, *where] += part
    return y


@pytest.mark.parametrize("seed", range(6))
def test_transposes_of_volumes_are_sums_of_kernels(seed: int) -> None:
    random = np.random.default_rng(seed)
    stride, gap = (tuple(map(int, random.integers(1, 4, 3))) for _ in range(2))
    x, w = made(2, 2, *random.integers(1, 5, 3)), made(2, 3, *random.integers(1, 4, 3), seed=1)
    whole = spread(x, w, stride, gap)
    sides = [tuple(map(int, random.integers(0, 2, 2))) for _ in range(3)]
    cut = tuple(slice(a, n - b) for n, (a, b) in zip(whole.shape[2:], sides, strict=True))
    wanted = whole[:, :, *cut]
    if 0 in wanted.shape:
        with pytest.raises(ShapeError):
            op.conv_transpose3d(x, w, stride, sides, dilation=gap)
        return
    y = op.conv_transpose3d(x, w, stride, sides, dilation=gap).numpy()
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (2, 3, 1), (4, 2, 1), (2, 2, 2)]
)
def test_same_transposes_are_the_transposes_of_same_convolutions(
    rank: int, kernel: int, stride: int, dilation: int
) -> None:
    x = made(1, 2, *(3, 4, 2)[:rank])
    w = made(2, 2, *(kernel,) * rank, seed=1)
    transpose, convolve = TRANSPOSES[rank - 1], CONVOLUTIONS[rank - 1]
    y = transpose(x, w, stride, "same", dilation=dilation).numpy()
    assert y.shape == (1, 2, *(stride * n for n in x.shape[2:]))
    # <conv(z), x> = <z, transpose(x)> for every z.
    z = made(*y.shape, seed=2)
    products = op.sum(convolve(z, w, stride, "same", dilation) * x).item(), float((z * y).sum())
    np.testing.assert_allclose(*products, rtol=1e-3, atol=1e-3)


def test_groups_of_transposed_volumes_are_transposes_of_their_own() -> None:
    x, w = made(2, 4, 3, 2, 3), made(4, 2, 2, 3, 2, seed=1)
    y = op.conv_transpose3d(x, w, 2, groups=2).numpy()
    halves = [spread(x[:, i : i + 2], w[i : i + 2], (2,) * 3, (1,) * 3) for i in (0, 2)]
    np.testing.assert_allclose(y, np.concatenate(halves, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2])
def test_separable_convolutions_are_two(rank: int) -> None:
    kinds: Any = [
        (nn.SeparableConv1D, nn.DepthwiseConv1D),
        (nn.SeparableConv2D, nn.DepthwiseConv2D),
    ]
    separable, depthwise = kinds[rank - 1]
    x = made(2, 3, *(6, 5)[:rank])
    layer = separable(4, 3, stride=2, padding="same", multiplier=2, activation="relu")
    y = layer(x).numpy()
    first = depthwise(3, 2, stride=2, padding="same", bias=False)
    first(x)
    first.weight.assign(layer.weight.numpy())
    mixed = np.einsum("nc...,kc->nk...", first(x).numpy(), layer.mixing.numpy().reshape(4, 6))
    np.testing.assert_allclose(y, np.maximum(mixed, 0), rtol=1e-4, atol=1e-5)


def test_each_channel_of_sequences_has_kernels_of_its_own() -> None:
    x, layer = made(2, 3, 7), nn.DepthwiseConv1D(3, 2)
    y, w = layer(x).numpy(), layer.weight.numpy().reshape(3, 2, 3)
    for channel, k in itertools.product(range(3), range(2)):
        wanted = [np.correlate(row, w[channel, k], "valid") for row in x[:, channel]]
        np.testing.assert_allclose(y[:, 2 * channel + k], wanted, rtol=1e-4, atol=1e-5)


def test_layers_that_enlarge_sequences_and_volumes() -> None:
    assert nn.ConvTranspose1D(4, 3, 2, "same")(made(2, 3, 5)).shape == (2, 4, 10)
    assert nn.ConvTranspose3D(4, 3, 2, 1, 1)(made(2, 3, 2, 3, 4)).shape == (2, 4, 4, 6, 8)


def test_same_leaves_no_size_to_choose() -> None:
    with pytest.raises(ConfigError, match=r"no output_padding with padding='same', got 1; "):
        nn.ConvTranspose2D(2, 3, 2, "same", 1)(made(1, 1, 4, 4))
    with pytest.raises(ShapeError, match="an output of at least one layer, got"):
        op.conv_transpose3d(made(1, 1, 1, 3, 3), made(1, 1, 1, 1, 1), padding=((1, 1), 0, 0))
