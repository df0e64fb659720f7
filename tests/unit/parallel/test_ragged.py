"""Sequences of different lengths on several ranks: what one process learns, and nobody waits."""

from __future__ import annotations

import numpy as np

import caldera as cd
from caldera import data, nn, parallel
from tests.unit.parallel.ranks import alone, assert_close, strategies_of, trained


def network() -> cd.Model:
    layers = [nn.Input((None, 2)), nn.MeanPooling(), nn.Dense(3, activation="tanh"), nn.Dense(2)]
    return cd.NeuralNetwork(layers, dtype="float64", batch_size=6, epochs=2, learning_rate=0.05)


def test_ranks_learn_what_one_process_learns() -> None:
    """Six sequences, which do not divide by four."""
    generator = np.random.default_rng(0)
    x = [generator.normal(size=(n, 2)).astype("float32") for n in generator.integers(1, 12, 26)]
    y = np.array([int(each.sum() > 0) for each in x])
    ragged: tuple = data.RaggedData(x, y, buckets=3)  # type: ignore[type-arg,assignment]
    make = strategies_of(parallel.DataParallel)()
    found = trained(4, network, make, ragged, validation=ragged)
    assert_close(found, alone(network, ragged, validation=ragged), tolerance=1e-6)
