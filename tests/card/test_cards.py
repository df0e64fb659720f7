"""Cards of every kind and size: what is planned for them fits, and runs where they are played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.compiler.lazy import forget_plans
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Spec
from caldera.core.memory.gpus import card_count
from caldera.core.tensor.dtype import BY_NAME
from caldera.errors import DeviceError
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.cuda.convolution.small_channels.tilings import correlation_tilings
from caldera.kernels.cuda.convolution.small_channels.weight_gradient_tilings import (
    weight_gradient_tilings,
)
from caldera.kernels.cuda.normalisation import batchnorm_cooperative
from caldera.kernels.cuda.persistent import PersistentStep, persistent_step
from caldera.kernels.cuda.persistent.tasks import shared_floats
from caldera.kernels.cuda.product.problem import tiling
from caldera.kernels.cuda.runtime.device import CardProperties
from caldera.kernels.cuda.runtime.driver import driver, use
from caldera.kernels.table import STEP_FUSERS
from tests.card.emulated import CARDS, EmulatedDriver, UndrivenDriver, compiler, emulated_card

pytestmark = pytest.mark.skipif(card_count() > 0, reason="a real card is what it is")


def _name(card: CardProperties) -> str:
    return f"{card.architecture}-{card.multiprocessors}"


@pytest.fixture(params=CARDS, ids=_name)
def planned(request: pytest.FixtureRequest) -> Iterator[CardProperties]:
    """A card for which is planned, and on which nothing runs."""
    use(UndrivenDriver(request.param))
    yield request.param
    forget_plans()
    use(None)


def test_products_with_few_results_give_most_multiprocessors_work(planned: CardProperties) -> None:
    for rows, columns, length in ((100, 528, 784), (784, 528, 100), (10, 10, 4096)):
        cut = tiling(rows, columns, length, 1, 4)
        assert cut.blocks >= planned.multiprocessors * 3 // 8
        assert cut.splits * cut.span >= length
    assert tiling(8192, 8192, 8192, 1, 4).tile.side == 128
    assert tiling(8192, 8192, 8192, 1, 4).splits == 1


CONVOLUTIONS = [
    Correlation(32, (32, 32), (32, 32), (3, 3), (1, 1), (1, 1), (-1, -1), 1, 16, 16),
    Correlation(64, (14, 14), (10, 10), (5, 5), (1, 1), (1, 1), (0, 0), 1, 6, 16),
    Correlation(16, (64, 64), (32, 32), (7, 7), (2, 2), (1, 1), (-3, -3), 1, 3, 64),
]


@pytest.mark.parametrize("itemsize", [2, 4])
def test_convolutions_of_few_channels_fit(planned: CardProperties, itemsize: int) -> None:
    for work in CONVOLUTIONS:
        found = [*correlation_tilings(work, False, itemsize, planned)]
        found += weight_gradient_tilings(work, itemsize, planned)
        assert found
        for each in found:
            threads = 32 * each.warps if hasattr(each, "warps") else each.threads
            assert each.shared <= planned.shared_bytes
            assert 1 <= each.resident * threads <= planned.threads


def test_blocks_that_meet_are_on_the_card_at_once(planned: CardProperties) -> None:
    for channels, side in ((16, 32), (64, 8), (128, 7)):
        image = Spec((32, channels, side, side), BY_NAME["bfloat16"], NHWC)
        shares = batchnorm_cooperative._shares(image)
        split = shares.split(8)
        if split is not None:
            assert split.chunks * shares.groups <= planned.multiprocessors


def _perceptron(device: Any, precision: str | None = None) -> cd.NeuralNetwork:
    layers = [nn.Input((40,)), nn.Dense(48, activation="tanh"), nn.Dense(5)]
    return cd.NeuralNetwork(
        layers,
        loss="cross_entropy",
        optimizer=optim.SGD(0.05),
        batch_size=10,
        seed=1,
        device=device,
        precision=precision,
    )


def _lenet(device: Any) -> cd.NeuralNetwork:
    layers = [
        nn.Input((1, 28, 28)),
        nn.Conv2D(6, 5, padding=2, activation="tanh"),
        nn.AveragePool2D(2),
        nn.Conv2D(16, 5, activation="tanh"),
        nn.AveragePool2D(2),
        nn.Flatten(),
        nn.Dense(120, activation="tanh"),
        nn.Dense(84, activation="tanh"),
        nn.Dense(10),
    ]
    return cd.NeuralNetwork(
        layers,
        loss="cross_entropy",
        optimizer=optim.Adam(1e-3),
        batch_size=128,
        seed=1,
        device=device,
    )


def _data(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.standard_normal(shape, np.float32), draw.integers(0, 5, shape[0])


POINTS, IMAGES = (30, 40), (384, 1, 28, 28)
"""Shapes of three batches."""


@pytest.mark.parametrize(("make", "shape"), [(_perceptron, POINTS), (_lenet, IMAGES)])
def test_steps_as_one_kernel_fit(
    planned: CardProperties, monkeypatch: pytest.MonkeyPatch, make: Any, shape: tuple[int, ...]
) -> None:
    found: list[PersistentStep] = []

    class Enough(Exception):
        pass

    def joined(*given: Any) -> None:
        step = persistent_step(*given)
        assert step is not None
        found.append(step)
        raise Enough

    monkeypatch.setitem(STEP_FUSERS, "cuda", joined)
    model = make(emulated_card())
    with pytest.raises(Enough):
        model.fit(_data(*shape), epochs=1, verbose=0)
    (step,) = found
    # What does not fit is left to kernels of their own.
    fits = step.program.shared_floats <= shared_floats()
    assert step.is_small == fits or planned.multiprocessors < 40
    assert fits or (make is _lenet and planned.shared_bytes < 100 << 10)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler is here")
@pytest.mark.parametrize("played", [CARDS[0], CARDS[3], CARDS[6]], ids=_name)
def test_a_network_learns_the_same_on_each(played: CardProperties) -> None:
    # Blocks of many threads are slow to play.
    use(EmulatedDriver(replace(played, multiprocessors=min(played.multiprocessors, 24))))
    try:
        here, there = _perceptron("cpu"), _perceptron(emulated_card())
        for model in (here, there):
            model.fit(_data(*POINTS), epochs=1, verbose=0)
        using = driver()
        assert isinstance(using, EmulatedDriver)
        assert "steps" in using.launches
    finally:
        forget_plans()
        use(None)
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=2e-5, atol=2e-6)


def test_a_card_without_a_precision_says_so(planned: CardProperties) -> None:
    points, _ = _data(*POINTS)
    for precision in ("float16", "bfloat16", "tf32"):
        model = _perceptron(emulated_card(), precision)
        if planned.capability >= (8, 0) or precision == "float16":
            model.predict(points)
            continue
        with pytest.raises(DeviceError, match=r"capability is 7\.5, got .*ask for float16"):
            model.predict(points)


def test_what_a_card_can_do_is_told() -> None:
    told = {card.architecture: card.rows() for card in CARDS}
    assert told["sm_75"]["tensor cores multiply"] == "float16"
    assert "only float16" in str(told["sm_75"]["kernels"])
    assert told["sm_86"]["tensor cores multiply"] == "float16, bfloat16, tf32"
    assert told["sm_90"]["tensor cores multiply"] == "float16, bfloat16, tf32, float8"
    assert told["sm_120"]["shared memory of a block"] == "99.0 KiB"


def test_properties_are_what_the_driver_says() -> None:
    attributes = {
        "MultiProcessorCount": 170,
        "MaxSharedMemoryPerBlockOptin": 99 << 10,
        "MaxThreadsPerMultiProcessor": 1536,
    }
    assert CardProperties.of("120", attributes, 0) == CARDS[6]
