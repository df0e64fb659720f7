"""Ranks make their parts of the batches of a pipeline, which are those of one process."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.parallel import DataParallel, Sharded
from tests.unit.parallel.ranks import alone, assert_close, trained

STAGES = [data.Crop(6, padding=1), data.Mirror(), data.OneHot(3), data.Mixup(), data.Cutout(2)]


def network(device: str) -> cd.NeuralNetwork:
    return cd.NeuralNetwork(
        [nn.Input((1, 6, 6)), nn.Flatten(), nn.Dense(3)],
        loss=nn.losses.CrossEntropy(probabilities=True),
        batch_size=7,
        device=device,
        seed=2,
    )


@pytest.fixture
def shards(tmp_path: Path) -> data.Shards:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (25, 1, 6, 6)).astype("uint8")
    return data.write_shards(tmp_path / "shards", (images, np.arange(25) % 3), shard_bytes=200)


@pytest.mark.parametrize(
    ("strategy", "device"),
    [
        (DataParallel, "cpu"),
        (DataParallel, "loopback:{}"),
        (partial(DataParallel, shards=4), "cpu"),
        (partial(Sharded, 2), "loopback:{}"),
    ],
)
def test_it_equals_one_process(strategy: Any, device: str, shards: data.Shards) -> None:
    pipeline = data.Pipeline(shards, STAGES)
    # Each rank has a device of its own.
    ranks = count()
    found = trained(
        3,
        lambda: network(device.format(next(ranks))),
        lambda comm: strategy(communicator=comm),
        pipeline,
        epochs=2,
    )
    assert found.same_on_all_ranks()
    expected = alone(partial(network, "cpu"), pipeline, epochs=2)
    assert_close(found, expected)
