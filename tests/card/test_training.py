"""`fit` on a card: what it learns is what it learns on the CPU, up to rounding."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from caldera import data, nn, optim
from caldera.base.config import settings
from caldera.core.memory import Device
from caldera.core.memory.interface import recorded
from caldera.train import run as training_run
from caldera.train.callbacks import Callback
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run


def points(count: int = 44) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, (x[:, 0] > x[:, 1]).astype("int64") + (x[:, 2] > 1)


def perceptron(device: Any, **settings: Any) -> NeuralNetwork:
    layers = [nn.Input((4,)), nn.Dense(8), nn.ReLU(), nn.Dropout(0.3), nn.Dense(3)]
    given: dict[str, Any] = {"optimizer": optim.Adam(1e-2), "batch_size": 8, "seed": 3}
    return NeuralNetwork(layers, device=device, **{**given, **settings})


def compare(make: Any, card: Device, given: Any, **options: Any) -> None:
    models = [make("cpu"), make(card)]
    histories = [model.fit(given, **{"epochs": 3, "verbose": 0, **options}) for model in models]
    for name in histories[0]:
        if name != "seconds":
            np.testing.assert_allclose(
                histories[1][name], histories[0][name], rtol=2e-4, atol=1e-5, err_msg=name
            )
    for here, there in zip(models[0].parameters(), models[1].parameters(), strict=True):
        np.testing.assert_allclose(there.numpy(), here.numpy(), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("fraction", [1.0, 0.0])
def test_a_perceptron_learns_the_same(card: Device, fraction: float) -> None:
    with settings.override(resident_fraction=fraction, memory_limit=1 << 34):
        compare(perceptron, card, points(), validation=points(20))


def test_copies_of_weights_change_no_bit(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> list[np.ndarray]:
        model = perceptron(card, precision="bfloat16", optimizer=optim.SGD(0.1))
        model.fit(points(20), epochs=2, verbose=0)
        return [each.numpy() for each in model.parameters()]

    found = trained()
    monkeypatch.setattr(import_module("caldera.compiler.lazy.compile"), "copy_on", lambda *_: None)
    for one, other in zip(found, trained(), strict=True):
        np.testing.assert_array_equal(one, other)


CHANGES = [data.Crop(6, padding=1), data.Mirror(), data.Cutout(2), data.Normalise(0.5, 0.25)]


@pytest.mark.parametrize(("fraction", "stages"), [(1.0, CHANGES), (0.0, CHANGES[1::2])])
def test_images_are_changed_as_on_the_host(
    card: Device, fraction: float, stages: list[data.Stage]
) -> None:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (20, 2, 6, 6)).astype("uint8")
    given = data.Pipeline((x, generator.integers(0, 3, 20)), stages)

    def network(device: Any) -> NeuralNetwork:
        layers = [nn.Input((2, 6, 6)), nn.Flatten(), nn.Dense(3)]
        return NeuralNetwork(layers, batch_size=8, seed=5, device=device)

    with settings.override(resident_fraction=fraction, memory_limit=1 << 34):
        compare(network, card, given)


class Counted(Callback):
    """What the card did between the second step of an epoch and its last but one."""

    def __init__(self, card: Device) -> None:
        self.card = card
        self.counts: list[int] = []

    def batch_ends(self, run: Run) -> None:
        counters = self.card.counters
        if run.epoch != 2:
            return
        if run.batch == 1:
            self.card.stream.synchronize()
            counters.reset()
        if run.batches is not None and run.batch == run.batches - 1:
            waits = counters.waits
            self.card.stream.synchronize()
            self.counts = [counters.h2d, counters.d2h, counters.d2d, waits]


def test_a_step_needs_no_copy_and_no_wait(
    card: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_run, "RUN_AHEAD_S", 600.0)
    counted = Counted(card)
    perceptron(card).fit(points(), epochs=3, callbacks=[counted], verbose=0)
    assert counted.counts == [0, 0, 0, 0]


def test_batches_that_are_fed_travel_on_the_stream_of_copies(card: Device) -> None:
    with settings.override(resident_fraction=0.0, memory_limit=1 << 34):
        model = perceptron(card)
        model.fit(points(), epochs=1, verbose=0)
        with recorded(card) as trace:
            model.fit(points(), epochs=2, verbose=0)
    spans = trace.spans()
    assert sum(span.what == "run" for span in spans) == 12
    assert sum(span.what == "h2d" and span.stream == "copies" for span in spans) == 24
