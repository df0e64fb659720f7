"""Layers of PyTorch without a counterpart in Keras: norms, pairs, columns, random slopes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, testing
from caldera.errors import CalderaError
from caldera.nn.noise import LOWEST

Found = list[np.ndarray]


def made(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def trained(layer: nn.Layer, x: np.ndarray) -> np.ndarray:
    with nn.trace(training=True, random=op.random_state()):
        return layer(x).numpy()


def norms(x: np.ndarray, norm: float, height: int, width: int, stride: int) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), (2, 3))
    powers = np.abs(windows[:, :, ::stride, ::stride]) ** norm
    return powers.sum((-2, -1)) ** (1 / norm)


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0])
def test_a_pool_of_norms(norm: float) -> None:
    x = made(2, 3, 5, 6)
    layer = nn.LPPool(norm, (2, 3), 2)
    with nn.trace(dtype="float64"):
        np.testing.assert_allclose(layer(x).numpy(), norms(x, norm, 2, 3, 2))
        testing.check_gradients(layer, [np.abs(x) + 0.5])
        zeros = op.var("zeros", (1, 1, 4), fill=np.zeros((1, 1, 4)), dtype="float64")
        assert not op.grad(op.sum(nn.LPPool(norm)(zeros)), zeros).numpy().any()


def test_a_bilinear_layer_multiplies_each_pair() -> None:
    a, b, weight = made(4, 2, 3), made(4, 2, 5, seed=1), made(6, 3, 5, seed=2)
    layer = nn.Bilinear(6, fill=weight)
    with nn.trace(dtype="float64"):
        layer(a, b)
        assert layer.offset is not None
        layer.offset.assign(np.arange(6.0))
        expected = np.einsum("nti,kij,ntj->ntk", a, weight, b) + np.arange(6.0)
        np.testing.assert_allclose(layer(a, b).numpy(), expected)
        testing.check_gradients(layer, [a, b])
    assert [each.shape for each in layer.parameters()] == [(6, 3, 5), (6,)]


def test_folding_is_the_transpose_of_unfolding() -> None:
    settings: dict[str, Any] = {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    image = made(2, 3, 6, 7)
    with nn.trace(dtype="float64"):
        columns = nn.Unfold((3, 2), **settings)(image).numpy()
        given = made(*columns.shape, seed=1)
        back = nn.Fold((6, 7), (3, 2), **settings)
        np.testing.assert_allclose((columns * given).sum(), (image * back(given).numpy()).sum())
        testing.check_gradients(back, [given])
        even = image[:, :, :, :6]
        adjacent = nn.Fold((6, 6), 2, 2)(nn.Unfold(2, 2)(even))
        np.testing.assert_array_equal(adjacent.numpy(), even)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_celu_has_a_continuous_slope(alpha: float) -> None:
    x = np.array([-3.0, -0.5, 1e-9, 2.0, 800.0])
    with nn.trace(dtype="float64"):
        given = op.var("x", x.shape, fill=x, dtype="float64")
        y = nn.CELU(alpha)(given)
        below = alpha * np.expm1(np.minimum(x, 0) / alpha)
        np.testing.assert_allclose(y.numpy(), np.where(x > 0, x, below))
        slopes = op.grad(op.sum(y), given).numpy()
    np.testing.assert_allclose(slopes, np.exp(np.minimum(x, 0) / alpha))


def test_random_slopes_are_drawn_in_training_only() -> None:
    x = np.linspace(-1.0, 1.0, 6001, dtype=np.float32)[:6000].reshape(3, 2000)
    layer = nn.RReLU(0.2, 0.6)
    np.testing.assert_allclose(layer(x).numpy(), np.where(x < 0, 0.4 * x, x), rtol=1e-6)
    y = trained(layer, x)
    np.testing.assert_array_equal(y[x >= 0], x[x >= 0])
    slopes = y[x < -0.01] / x[x < -0.01]
    assert 0.2 <= slopes.min() < 0.22
    assert 0.58 < slopes.max() <= 0.6 + 1e-6
    assert abs(slopes.mean() - 0.4) < 0.01


def test_alpha_dropout_of_channels_keeps_their_moments() -> None:
    x = made(300, 100, 2, 3).astype(np.float32)
    layer = nn.FeatureAlphaDropout(0.3)
    np.testing.assert_array_equal(layer(x).numpy(), x)
    y = trained(layer, x)
    assert abs(y.mean()) < 0.02
    assert abs(y.std() - 1) < 0.02
    keep = 0.7
    scale = (keep + LOWEST**2 * keep * 0.3) ** -0.5
    dropped = np.isclose(y, scale * LOWEST * keep, rtol=1e-6).all((2, 3))
    assert abs(dropped.mean() - 0.3) < 0.02
    np.testing.assert_allclose(
        y[~dropped], scale * (x[~dropped] - 0.3 * LOWEST), rtol=1e-4, atol=1e-4
    )


def test_they_are_trained_saved_and_loaded(tmp_path: Path) -> None:
    layers = [
        nn.Input((2, 6, 6)),
        nn.Conv2D(3, 3, padding="same"),
        nn.CELU(0.5),
        nn.FeatureAlphaDropout(0.2),
        nn.LPPool(3, 2),
        nn.Unfold(2),
        nn.Fold((3, 3), 2),
        nn.RReLU(),
        nn.Flatten(),
        nn.Dense(2),
    ]
    model = cd.NeuralNetwork(layers, loss="mse", seed=0)
    x = made(8, 2, 6, 6).astype(np.float32)
    model.fit(x, made(8, 2), epochs=2, verbose=0)
    model.save(tmp_path / "model.caldera")
    again = cd.load(tmp_path / "model.caldera")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.CELU(0.0), "CELU: expected alpha > 0, got 0.0"),
        (lambda: nn.RReLU(0.5, 0.25), "RReLU: expected slopes with low <= high"),
        (lambda: nn.RReLU(0.5, float("nan")), "RReLU: expected slopes with low <= high"),
        (lambda: nn.LPPool(0.5), "LPPool: expected norm >= 1"),
        (lambda: nn.LPPool(2, 2)(made(2, 3)), "LPPool: expected sequences"),
        (lambda: nn.Bilinear(0), "Bilinear: expected units= an integer >= 1"),
        (lambda: nn.Bilinear(2)(made(2, 3)), "expected two inputs with vectors"),
        (lambda: nn.Bilinear(2)(made(2, 3), made(3, 3)), r"got \(2, 3\) and \(3, 3\)"),
        (lambda: nn.Fold((4, 4), 2)(made(2, 4, 3)), r"expected columns of shape \(2, 4, 9\)"),
        (lambda: nn.Fold((4, 4), 2)(made(2, 5, 9)), r"expected columns of shape \(2, 4, 9\)"),
        (lambda: nn.Fold((4, 4), 2)(made(2, 4)), "expected columns"),
        (lambda: nn.Fold((4, 4), 0)(made(2, 4, 9)), "size= one or two integers >= 1"),
        (lambda: nn.FeatureAlphaDropout(1.0), "expected 0 <= rate < 1"),
    ],
)
def test_wrong_settings_and_inputs_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(CalderaError, match=message):
        call()


def _values_and_slopes(layer: Callable[..., Any], inputs: Found, weights: np.ndarray) -> Found:
    with nn.trace(dtype="float64"):
        given = [
            op.var(f"x{n}", each.shape, fill=each, dtype="float64") for n, each in enumerate(inputs)
        ]
        y = layer(*given)
        slopes = op.grad(op.sum(y * weights), given)
        return [y.numpy(), *(each.numpy() for each in slopes)]


@pytest.mark.parametrize("seed", range(3))
def test_values_and_slopes_are_those_of_pytorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(seed)
    alpha, low = draw.uniform(0.2, 2.0, 2)
    sizes, strides, gaps = (draw.integers(1, 4, 2).tolist() for _ in range(3))
    image = made(2, 3, 9, 10, seed=seed)
    columns = nn.Unfold(sizes, strides, 1, gaps)(image).shape
    weight = made(4, 3, 5, seed=seed)
    bilinear = torch.nn.Bilinear(3, 5, 4, bias=False).double()
    bilinear.weight.data = torch.tensor(weight)
    cases = [
        (nn.CELU(alpha), torch.nn.CELU(alpha), [image]),
        (nn.RReLU(low, low + 0.5), torch.nn.RReLU(low, low + 0.5).eval(), [image]),
        (nn.LPPool(2, sizes, strides), torch.nn.LPPool2d(2, sizes, strides), [image]),
        (nn.LPPool(4, 3), torch.nn.LPPool3d(4, 3), [image[None]]),
        (nn.LPPool(2.5, 2), torch.nn.LPPool1d(2.5, 2), [np.abs(image[0]) + 0.1]),
        (nn.Bilinear(4, False, weight), bilinear, [made(2, 7, 3), made(2, 7, 5)]),
        (
            nn.Fold((9, 10), sizes, strides, 1, gaps),
            torch.nn.Fold((9, 10), sizes, gaps, 1, strides),
            [made(*columns, seed=seed)],
        ),
    ]
    for ours, theirs, inputs in cases:
        given = [torch.tensor(each, requires_grad=True) for each in inputs]
        y = theirs(*given)
        weights = made(*y.shape, seed=seed + 1)
        (y * torch.tensor(weights)).sum().backward()
        expected = [y.detach().numpy(), *(each.grad.numpy() for each in given)]
        found = _values_and_slopes(ours, inputs, weights)
        for one, other in zip(found, expected, strict=True):
            # PyTorch rounds alpha of a CELU to float32.
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=str(ours))
