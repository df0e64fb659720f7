"""Elastic averaging: a centre that ranks are drawn to."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError
from caldera.parallel import ElasticAveraging
from tests.unit.parallel.averaging.test_local_sgd import bytes_sent
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    Trained,
    Watch,
    assert_same,
    network,
    samples,
    strategies_of,
    trained,
    values,
)

elastic = strategies_of(ElasticAveraging)


def small(**more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(4), nn.BatchNorm(), nn.Dense(CLASSES)]
    return network("momentum", layers=layers, **more)


def own_samples(rank: int, ranks: int, size: int, count: int) -> tuple[np.ndarray, ...]:
    """What a rank reads of batches in order that all ranks divide."""
    each = size // ranks
    order = np.arange(count).reshape(-1, ranks, each)[:, rank].ravel()
    x, y = samples(count)
    return x[order], y[order]


def test_without_coupling_runs_are_independent_to_the_bit() -> None:
    """After every step and at the end: parameters, running statistics, momentum."""
    found = trained(
        3, partial(small, batch_size=12), elastic(coupling=0, every=2), samples(48), shuffle=False
    )
    for rank in range(3):
        model, watch = small(batch_size=4), Watch()
        data = own_samples(rank, 3, 12, 48)
        model.fit(data, shuffle=False, verbose=0, callbacks=[watch])
        assert found.steps[rank] == watch.seen
        assert_same(values(found.models[rank]), values(model))
    assert found.steps[0] != found.steps[1]


def flat(found: Trained, step: int) -> np.ndarray:
    """The parameters of all ranks after a step, a row for each."""
    return np.stack([np.frombuffer(steps[step]) for steps in found.steps])


def start() -> np.ndarray:
    return np.concatenate([p.numpy().ravel() for p in small().parameters()])


@pytest.mark.parametrize("coupling", [0.3, 1.0])
def test_one_exchange_is_that_of_the_paper(coupling: float) -> None:
    data = samples(20)
    free = trained(2, small, elastic(coupling=0, every=2), data)
    found = trained(2, small, elastic(coupling=coupling, every=2), data)
    assert found.steps[0][0] == free.steps[0][0]
    x, c, rate = flat(free, 1), start(), coupling / 2
    np.testing.assert_allclose(flat(found, 1), x - rate * (x - c), rtol=1e-12, atol=1e-15)
    # The result is the centre, on every rank; and nothing was lost.
    centre = c + rate * (x - c).sum(axis=0)
    for model in found.models:
        result = np.concatenate([p.numpy().ravel() for p in model.parameters()])
        np.testing.assert_allclose(result, centre, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        flat(found, 1).sum(axis=0) + centre, x.sum(axis=0) + c, rtol=1e-12, atol=1e-14
    )
    assert (
        found.models[0].states()[0].numpy().tolist() == found.models[1].states()[0].numpy().tolist()
    )


def test_the_band_holds_ranks_together() -> None:
    """They are nearer to each other than without it."""
    data = samples(60)
    apart = [
        flat(trained(3, small, elastic(coupling=coupling, every=1), data), -1).std(axis=0).mean()
        for coupling in (0.0, 0.9)
    ]
    assert apart[1] < 0.7 * apart[0]


def test_bytes_are_those_of_the_formula() -> None:
    """2 (n-1)/n S in a ring for each exchange, and nothing without coupling."""
    for sent, size in bytes_sent(2, elastic(coupling=0.5, every=2, algorithm="ring")):
        assert sent == 3 * size
    assert [sent for sent, _ in bytes_sent(2, elastic(coupling=0))] == [0, 0]


@pytest.mark.parametrize("coupling", [-0.1, 1.5, float("nan")])
def test_couplings_that_make_no_sense_are_refused(coupling: float) -> None:
    with pytest.raises(ConfigError, match="0 <= coupling <= 1"):
        ElasticAveraging(coupling)
