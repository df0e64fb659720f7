"""Steps of small convolutional networks as one kernel: the same numbers as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.core.memory import Device
from caldera.kernels.cuda.runtime.driver import driver
from tests.card.emulated import EmulatedDriver

CLASSES, BATCH = 5, 6


def _few_channels() -> list[nn.Layer]:
    return [
        nn.Input((1, 12, 12)),
        nn.Conv2D(3, 5, padding=2, activation="tanh"),
        nn.AveragePool2D(2),
        nn.Conv2D(11, 3, activation="tanh"),
        nn.AveragePool2D(2),
        nn.Flatten(),
        nn.Dense(CLASSES),
    ]


def _odd_sizes() -> list[nn.Layer]:
    return [
        nn.Input((2, 9, 7)),
        nn.Conv2D(9, 3, padding=1, activation="relu"),
        nn.MaxPool2D(2),
        nn.Conv2D(4, (3, 2)),
        nn.Flatten(),
        nn.Dense(CLASSES),
    ]


def _mean_of_pixels() -> list[nn.Layer]:
    """Of which the gradient is one number for all pixels of a channel."""
    return [
        nn.Input((2, 9, 7)),
        nn.Conv2D(4, 3, padding=1, activation="selu"),
        nn.GlobalAveragePool(),
        nn.Dense(CLASSES),
    ]


@pytest.mark.parametrize("layers", [_few_channels, _odd_sizes, _mean_of_pixels])
def test_training_equals_the_cpu_and_is_one_launch_a_step(card: Device, layers: Any) -> None:
    draw = np.random.default_rng(0)
    shape = layers()[0].shape
    x = draw.standard_normal((3 * BATCH, *shape), np.float32)
    y = draw.integers(0, CLASSES, 3 * BATCH)

    def trained(device: Any) -> tuple[cd.NeuralNetwork, cd.History]:
        model = cd.NeuralNetwork(
            layers(),
            loss="cross_entropy",
            optimizer=optim.SGD(0.1, momentum=0.9),
            batch_size=BATCH,
            seed=3,
            device=device,
        )
        return model, model.fit((x, y), epochs=1, verbose=0)

    (here, expected), (there, found) = trained("cpu"), trained(card)
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    using = driver()
    if isinstance(using, EmulatedDriver):
        # Three steps; the first of them runs call by call.
        assert using.launches.count("steps") == 2


def test_the_first_of_equal_elements_and_a_nan_win(card: Device) -> None:
    values = np.zeros((2, 1, 4, 4), np.float32)
    values[0, 0, :2, :2] = [[1, 3], [3, 2]]
    values[1, 0, 2:, 2:] = [[np.nan, 7], [np.nan, 9]]

    def results(device: Any) -> list[np.ndarray]:
        x = op.var("x", values.shape, fill=values, device=device)
        pooled = op.max_pool2d(x, 2)
        plan = cd.compile([pooled, op.grad(op.sum(pooled * 2.0), x)])
        if device is card:
            plan.capture()
        return [np.array(result.numpy()) for result in plan.run()]

    for one, other in zip(results("cpu"), results(card), strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("shape", [(6, 1, 5, 7), (6, 3, 1, 1), (6, 3, 1, 7)])
def test_what_a_block_made_is_spread_over_its_image(card: Device, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    images, filters, factors = (
        draw.standard_normal(each, np.float32) for each in [(6, 2, 5, 7), (3, 2, 3, 3), shape]
    )

    def results(device: Any) -> np.ndarray:
        x, w, s = (
            op.var(name, each.shape, fill=each, device=device)
            for name, each in [("x", images), ("w", filters), ("s", factors)]
        )
        plan = cd.compile([op.tanh(op.conv2d(x, w, padding=1)) * op.tanh(s)])
        if device is card:
            plan.capture()
        return np.array(plan.run()[0].numpy())

    np.testing.assert_allclose(results(card), results("cpu"), rtol=1e-5, atol=1e-5)


def test_a_step_with_much_work_for_each_image_stays_many_kernels(card: Device) -> None:
    images = np.zeros((2, 16, 20, 20), np.float32)
    x = op.var("x", images.shape, fill=images, device=card)
    w = op.var("w", (32, 16, 5, 5), device=card)
    plan = cd.compile([op.sum(op.conv2d(op.conv2d(x, w, padding=2)[:, :16], w, padding=2))])
    plan.capture()
    plan.run()
    using = driver()
    if isinstance(using, EmulatedDriver):
        assert "steps" not in using.launches
