"""Training on pipelines: the same bits with any number of workers, and nothing left behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import data, nn
from caldera.errors import DataError
from caldera.train.callbacks import Callback
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run
from tests.unit.train.apart import APART
from tests.unit.train.small import same_bits, values


class StopAt(Callback):
    """Ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_ends(self, run: Run) -> None:
        if run.step == self.step:
            run.stop("enough for now")


def network(**settings: Any) -> NeuralNetwork:
    layers = [nn.Input((3, 8, 8)), nn.Conv2D(4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(4)]
    loss = nn.losses.CrossEntropy(probabilities=True)
    return NeuralNetwork(layers, loss=loss, batch_size=8, seed=5, **settings)


def slowly(x: np.ndarray, draw: data.Draw) -> np.ndarray:
    time.sleep(0.001)
    return x


STAGES: list[Any] = [
    slowly,
    data.Crop(8, padding=2),
    data.Mirror(),
    data.OneHot(4),
    data.Mixup(),
    data.Cutout(2),
]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (50, 3, 8, 8)).astype("uint8")
    data.write_shards(tmp_path / "shards", (x, generator.integers(0, 4, 50)), shard_bytes=2000)
    return tmp_path / "shards"


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "caldera-data"]


@pytest.mark.parametrize("device", ["cpu", APART])
def test_workers_change_nothing(shards: Path, device: str) -> None:
    models = []
    for setting in ({"workers": 0}, {"workers": 3}, {}):
        model = network(device=device)
        pipeline = data.Pipeline(shards, STAGES, **setting)  # type: ignore[arg-type]
        model.fit(pipeline, epochs=3, validation=data.Pipeline(shards, data.OneHot(4)), verbose=0)
        models.append(values(model))
        assert not threads()
    assert same_bits(models[0], models[1])
    assert same_bits(models[0], models[2])


@pytest.mark.parametrize("step", [3, 7, 11])
def test_a_run_that_was_stopped_goes_on_to_the_bit(shards: Path, tmp_path: Path, step: int) -> None:
    whole = network()
    whole.fit(data.Pipeline(shards, STAGES, workers=2), epochs=3, verbose=0)
    first, second = network(), network()
    run = {"epochs": 3, "verbose": 0, "checkpoint": tmp_path / "run"}
    stop = [StopAt(step)]
    first.fit(data.Pipeline(shards, STAGES, workers=4), callbacks=stop, **run)  # type: ignore[arg-type]
    assert not threads()
    second.fit(data.Pipeline(shards, STAGES, workers=1), resume=True, **run)  # type: ignore[arg-type]
    assert same_bits(values(second), values(whole))


def test_an_error_of_a_worker_ends_training_and_names_the_sample(shards: Path) -> None:
    (shards / "00003.x.npy").write_bytes(b"torn")
    model = network()
    with pytest.raises(DataError, match=r"reading sample \d+ of 00003\.x\.npy"):
        model.fit(data.Pipeline(shards, STAGES, workers=2), epochs=1, verbose=0)
    assert not threads()


def test_class_weights_need_class_numbers(shards: Path) -> None:
    with pytest.raises(DataError, match="class numbers as targets for class_weights"):
        network().fit(data.Pipeline(shards, STAGES), class_weights=[1, 2, 1, 1], verbose=0)
