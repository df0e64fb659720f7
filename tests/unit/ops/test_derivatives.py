"""`op.custom_gradient`, `op.associative_scan` and `op.grid_sample`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError, GradientError, ShapeError
from caldera.testing import check_gradients

CHANCE = np.random.default_rng(0)

# --- gradients by hand


def equilibrium(x: Any, weight: Any) -> cd.Expr:
    """The z with z = tanh(z @ weight + x), with the gradient of an implicit function."""

    def step(z: Any, x: Any, weight: Any) -> Any:
        return op.tanh(z @ weight + x)

    def solve(x: Any, weight: Any) -> Any:
        return op.scan(lambda z, _: (step(z, x, weight), None), x * 0.0, length=60)[0]

    def backward(gradient: Any, z: Any, x: Any, weight: Any) -> Any:
        inner = step(z, x, weight)

        def again(u: Any, _: Any) -> Any:
            return gradient + op.grad(inner, z, seed=u), None

        u, _ = op.scan(again, gradient, length=60)
        return op.grad(inner, [x, weight], seed=u)

    return op.custom_gradient(solve, backward, x, weight)


def test_a_deep_equilibrium_has_the_gradient_of_its_unrolled_loop() -> None:
    x, weight = CHANCE.normal(size=(3, 4)), 0.2 * CHANCE.normal(size=(4, 4))
    assert check_gradients(equilibrium, [x, weight], tolerance=1e-6) < 1e-6


def test_a_layer_with_a_gradient_of_its_own_is_trained() -> None:
    @dataclass(eq=False)
    class Equilibrium(nn.Layer):
        def build(self, x: Any) -> None:
            shape = (x.shape[1], x.shape[1])
            self.weight = self.parameter("weight", shape, cd.normal(0.0, 0.1))

        def forward(self, x: Any) -> Any:
            return equilibrium(x, self.weight)

    class Net(cd.Model):
        def __init__(self) -> None:
            super().__init__(loss="mse", optimizer="adam", learning_rate=0.02, epochs=40)
            self.first, self.middle, self.last = nn.Dense(8), Equilibrium(), nn.Dense(1)

        def forward(self, x: Any) -> Any:
            return self.last(self.middle(self.first(x)))

    x = np.linspace(-2, 2, 64, dtype="float32")[:, None]
    model = Net()
    history = model.fit(x, np.sin(2 * x), verbose=0)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert np.abs(model.middle.weight.numpy()).max() > 0.2


def test_no_gradient_is_that_of_none() -> None:
    x, y = op.var("x", (2,), fill=[1.0, 2.0]), op.var("y", (2,), fill=[3.0, 4.0])
    made = op.custom_gradient(lambda x, y: x * y, lambda g, z, x, y: (None, 10.0 * g), x, y)
    dx, dy = op.grad(op.sum(made), [x, y])
    assert (dx.tolist(), dy.tolist()) == ([0.0, 0.0], [10.0, 10.0])
    # Inside of a loop, each step has it.
    last, _ = op.scan(
        lambda c, _: (op.custom_gradient(op.exp, lambda g, y, x: 2.0 * g, c), None), x, length=3
    )
    assert op.grad(op.sum(last), x).tolist() == [8.0, 8.0]


@pytest.mark.parametrize(
    ("function", "backward", "error", "message"),
    [
        (lambda x: x * W, lambda g, y, x: g, GradientError, "reads variables as inputs"),
        (lambda x: x * GIVEN, lambda g, y, x: g, GradientError, "as inputs, got given"),
        (lambda x: x, lambda g, y, x: (g, g), GradientError, "for each of the 1 inputs"),
        (lambda x: x, lambda g, y, x: op.sum(g), ShapeError, "a gradient like its input"),
    ],
)
def test_what_gradients_have_to_be(
    function: Any, backward: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        op.custom_gradient(function, backward, op.var("x", (2,)))


W = op.var("w", (2,), fill=cd.constant(2.0))
GIVEN = op.input("given", (2,))


def test_variables_behind_stop_gradient_may_be_read() -> None:
    x = op.var("x", (2,), fill=[1.0, 2.0])
    y = op.custom_gradient(lambda x: x * op.stop_gradient(W), lambda g, y, x: g * W, x)
    assert op.grad(op.sum(y), x).tolist() == [2.0, 2.0]


# --- scans


def _after(first: Any, second: Any) -> Any:
    return first[0] * second[0], first[1] * second[0] + second[1]


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_associative_scan_gives_what_a_loop_gives(length: int, reverse: bool) -> None:
    a, b = CHANCE.normal(size=(2, length, 3)), CHANCE.normal(size=(2, length, 3))
    found = op.associative_scan(_after, (a, b), axis=1, reverse=reverse)
    state, states = np.zeros((2, 3)), np.zeros_like(a)
    for t in reversed(range(length)) if reverse else range(length):
        state = states[:, t] = a[:, t] * state + b[:, t]
    np.testing.assert_allclose(found[1].numpy(), states, rtol=1e-10, atol=1e-12)
    products = np.flip(np.cumprod(np.flip(a, 1), 1), 1) if reverse else np.cumprod(a, 1)
    np.testing.assert_allclose(found[0].numpy(), products, rtol=1e-10)


def test_an_associative_scan_has_derivatives() -> None:
    a, b = CHANCE.normal(size=(6, 2)), CHANCE.normal(size=(6, 2))
    check_gradients(lambda a, b: op.associative_scan(_after, (a, b))[1], [a, b], order=2)
    # Matrices: the function need not be commutative.
    m = CHANCE.normal(size=(5, 3, 3)) / 2
    found = op.associative_scan(lambda x, y: y @ x, m).numpy()
    np.testing.assert_allclose(found[-1], m[4] @ m[3] @ m[2] @ m[1] @ m[0], rtol=1e-10)


def test_what_a_scan_refuses() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(ShapeError, match="values of equal length along axis 0"):
        op.associative_scan(_after, (x, np.zeros((4, 2))))
    with pytest.raises(ShapeError, match="a function whose result is like"):
        op.associative_scan(lambda a, b: op.sum(a), x)
    with pytest.raises(ShapeError, match="axis"):
        op.associative_scan(lambda a, b: a + b, x, axis=2)


# --- images at places


def _sampled(image: np.ndarray, grid: np.ndarray, mode: str, padding: str, corners: bool) -> Any:
    """The same by loops over all places."""
    count, channels, height, width = image.shape
    found = np.zeros((count, channels, *grid.shape[1:3]))

    def inside(place: float, length: int) -> float:
        place = (place + 1) / 2 * (length - 1) if corners else ((place + 1) * length - 1) / 2
        if padding == "reflection":
            low, high = (0, length - 1) if corners else (-0.5, length - 0.5)
            while not low <= place <= high:
                place = 2 * (low if place < low else high) - place
        return place if padding == "zeros" else min(max(place, 0), length - 1)

    for n, p, q in itertools.product(*map(range, grid.shape[:3])):
        x, y = inside(grid[n, p, q, 0], width), inside(grid[n, p, q, 1], height)
        if mode == "nearest":
            taken = [(round(y), round(x), 1.0)]
        else:
            top, left = int(np.floor(y)), int(np.floor(x))
            taken = [
                (row, column, (1 - abs(y - row)) * (1 - abs(x - column)))
                for row in (top, top + 1)
                for column in (left, left + 1)
            ]
        for row, column, weight in taken:
            if 0 <= row < height and 0 <= column < width:
                found[n, :, p, q] += weight * image[n, :, row, column]
    return found


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_images_are_read_at_places(mode: str, padding: str, corners: bool) -> None:
    chance = np.random.default_rng(3)
    x, grid = chance.normal(size=(2, 3, 5, 4)), chance.uniform(-2.5, 2.5, (2, 6, 3, 2))
    found = op.grid_sample(x, grid, mode, padding, corners).numpy()
    np.testing.assert_allclose(found, _sampled(x, grid, mode, padding, corners), atol=1e-12)
    if mode == "bilinear":
        small, few = x[:1, :2], np.array([[[[-1.43, -0.77], [0.11, 0.62], [1.18, 2.27]]]])
        check_gradients(lambda x, g: op.grid_sample(x, g, mode, padding, corners), [small, few])
    if find_spec("torch") is not None:
        torch = import_module("torch")
        given = torch.tensor(x), torch.tensor(grid), mode, padding, corners
        wanted = torch.nn.functional.grid_sample(*given)
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-12)


def test_places_have_a_shape_and_known_words() -> None:
    x, grid = np.zeros((2, 3, 5, 4)), np.zeros((2, 6, 3, 2))
    with pytest.raises(ShapeError, match=r"places \(N, P, Q, 2\)"):
        op.grid_sample(x, grid[..., :1])
    with pytest.raises(ShapeError, match=r"places \(N, P, Q, 2\)"):
        op.grid_sample(x, grid[:1])
    with pytest.raises(ConfigError, match="mode= one of bilinear, nearest, got 'cubic'"):
        op.grid_sample(x, grid, "cubic")
    far = op.grid_sample(np.ones((1, 1, 2, 2)), np.full((1, 1, 1, 2), 1e30))
    assert far.tolist() == [[[[0.0]]]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_numbers_of_pixels_are_not_rounded_to_half_precision(dtype: str, mode: str) -> None:
    width = 4096
    row = np.arange(width) % 7
    image = op.cast(row.astype("float32")[None, None, None], dtype)
    grid = np.zeros((1, 1, width, 2), "float32")
    grid[..., 0] = (2 * np.arange(width) + 1) / width - 1
    found = op.grid_sample(image, grid, mode)
    assert found.dtype == dtype
    np.testing.assert_array_equal(op.cast(found, "float32").numpy()[0, 0, 0], row)
