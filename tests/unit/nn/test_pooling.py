"""Pooling layers against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import nn
from caldera.errors import ConfigError, ShapeError


def _image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_pooling_by_kind_is_that_of_the_layers_of_their_own() -> None:
    x = _image(2, 3, 6, 6)
    blocks = x.reshape(2, 3, 3, 2, 3, 2)
    for pool in (nn.Pooling2D("max"), nn.MaxPool2D()):
        np.testing.assert_array_equal(pool(x).numpy(), blocks.max((3, 5)))
    for pool in (nn.Pooling2D("average"), nn.AveragePool2D()):
        np.testing.assert_allclose(pool(x).numpy(), blocks.mean((3, 5)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "size", "stride", "padding", "count"),
    [
        (7, 2, 2, 0, 4),  # the last window covers one element
        (6, 3, 2, 0, 3),
        (5, 3, 2, 1, 3),  # nothing sticks out
        (6, 3, 2, 1, 4),
        (5, 2, 3, 0, 2),
        (4, 2, 3, 1, 2),  # a third window would begin in the padding
    ],
)
def test_partial_windows_count_with_what_they_cover(
    length: int, size: int, stride: int, padding: int, count: int
) -> None:
    x = _image(1, 1, length, length)
    y = nn.MaxPool2D(size, stride, padding, partial_windows=True)(x).numpy()
    starts = [i * stride - padding for i in range(count)]
    expected = [
        [x[0, 0, max(i, 0) : i + size, max(j, 0) : j + size].max() for j in starts] for i in starts
    ]
    np.testing.assert_array_equal(y[0, 0], np.array(expected))


def test_adaptive_windows_overlap_where_the_sizes_do_not_divide() -> None:
    x = _image(1, 2, 7, 3)
    y = nn.AdaptiveAveragePool2D((3, 5))(x).numpy()
    for i in range(3):
        for j in range(5):
            rows = slice(i * 7 // 3, -(-(i + 1) * 7 // 3))
            columns = slice(j * 3 // 5, -(-(j + 1) * 3 // 5))
            np.testing.assert_allclose(
                y[:, :, i, j], x[:, :, rows, columns].mean((2, 3)), rtol=1e-5, atol=1e-6
            )


def test_adaptive_pooling_to_one_is_global_pooling() -> None:
    x = _image(2, 3, 5, 4)
    whole = nn.GlobalAveragePool()(x).numpy()
    np.testing.assert_allclose(nn.AdaptiveAveragePool2D(1)(x).numpy()[:, :, 0, 0], whole, rtol=1e-5)
    np.testing.assert_allclose(whole, x.mean((2, 3)), rtol=1e-5, atol=1e-6)


def test_adaptive_pooling_of_the_same_size_changes_nothing() -> None:
    x = _image(2, 3, 5, 4)
    np.testing.assert_array_equal(nn.AdaptiveAveragePool2D((5, 4))(x).numpy(), x)


def test_sequences_and_volumes_are_pooled_as_images_are() -> None:
    x = _image(2, 3, 12)
    np.testing.assert_array_equal(
        nn.MaxPool1D(3, 2, 1)(x).numpy(),
        nn.MaxPool2D((1, 3), (1, 2), (0, 1))(x[:, :, None])[:, :, 0].numpy(),
    )
    np.testing.assert_allclose(
        nn.AveragePool1D(4)(x).numpy(), x.reshape(2, 3, 3, 4).mean(3), rtol=1e-5, atol=1e-6
    )
    volume = _image(2, 3, 4, 6, 2)
    blocks = volume.reshape(2, 3, 2, 2, 3, 2, 1, 2)
    np.testing.assert_array_equal(nn.MaxPool3D()(volume).numpy(), blocks.max((3, 5, 7)))
    np.testing.assert_allclose(
        nn.AveragePool3D()(volume).numpy(), blocks.mean((3, 5, 7)), rtol=1e-5, atol=1e-6
    )
    for layer, wrong in ((nn.MaxPool1D(), volume), (nn.AveragePool3D(), x)):
        with pytest.raises(ShapeError, match=r"x of shape|\(N, C"):
            layer(wrong)


def test_images_are_made_larger() -> None:
    x = _image(2, 3, 4, 5)
    np.testing.assert_array_equal(
        nn.UpSampling2D()(x).numpy(), x.repeat(2, axis=2).repeat(2, axis=3)
    )
    smooth = nn.UpSampling2D(3, mode="bilinear")(x).numpy()
    assert smooth.shape == (2, 3, 12, 15)
    np.testing.assert_allclose(smooth[:, :, 1::3, 1::3], x, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match=r"mode= one of nearest, .*'cubic'"):
        nn.UpSampling2D(mode="cubic")
