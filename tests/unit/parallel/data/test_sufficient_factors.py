"""Factors instead of gradients: the same sums, with fewer bytes where batches are small."""

from __future__ import annotations

from functools import partial

import pytest

import caldera as cd
from caldera import nn
from caldera.comm import Communicator, SingleProcess
from caldera.parallel import DataParallel
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    alone,
    assert_close,
    network,
    samples,
    trained,
)


def _wide(dtype: str, positions: bool = False) -> cd.NeuralNetwork:
    layers: list[nn.Layer] = [nn.Input((FEATURES,))]
    if positions:
        layers += [nn.Reshape((2, FEATURES // 2)), nn.Dense(40), nn.Flatten()]
    layers += [nn.Dense(60), nn.ReLU(), nn.Dense(50), nn.ReLU(), nn.Dense(CLASSES)]
    return network(dtype=dtype, layers=layers)


@pytest.mark.parametrize(
    ("dtype", "count", "ranks", "positions"),
    [("float32", 10, 2, False), ("float64", 50, 3, False), ("float64", 32, 4, True)],
)
def test_it_equals_one_process(dtype: str, count: int, ranks: int, positions: bool) -> None:
    """32 samples leave a last batch of 2, so that two of four ranks have none."""
    make = partial(_wide, dtype, positions)

    def strategy(comm: Communicator) -> DataParallel:
        return DataParallel(communicator=comm, factors=True)

    found = trained(ranks, make, strategy, samples(count, dtype))
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(count, dtype)))


def _bytes_sent(factors: bool) -> int:
    made = []

    def strategy(comm: Communicator) -> DataParallel:
        made.append(DataParallel(communicator=comm, factors=factors))
        return made[-1]

    trained(2, partial(_wide, "float32"), strategy, samples(50, "float32"))
    return made[0].plan_communicator.traffic.total.bytes_sent


def test_fewer_bytes_are_sent() -> None:
    assert _bytes_sent(factors=True) < 0.6 * _bytes_sent(factors=False)


def test_shards_are_summed_along_their_tree_and_not_by_factors() -> None:
    with pytest.raises(cd.ConfigError, match="whole gradients"):
        DataParallel(communicator=SingleProcess(), shards=4, factors=True)
