"""Small models and data that the tests of training share."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import nn, optim
from caldera.train.neural_network import NeuralNetwork


def points(count: int = 50, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points in a plane and on which side of a line they are."""
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype("float32")
    return x, (x[:, 0] > x[:, 1]).astype("int64")


def classifier(**settings: Any) -> NeuralNetwork:
    """Everything that has state: dropout, batch norm, Adam and a schedule."""
    given: dict[str, Any] = {
        "optimizer": optim.Adam(optim.Cosine(1e-2, steps=40, warm_up=5)),
        "batch_size": 8,
        "seed": 3,
    }
    layers = [
        nn.Input((2,)),
        nn.Dense(6),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Dense(2),
    ]
    return NeuralNetwork(layers, **{**given, **settings})


def values(model: NeuralNetwork) -> dict[str, np.ndarray]:
    """All parameters and states of a model."""
    return {each.name: each.numpy() for each in (*model.parameters(), *model.states())}


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether all arrays are equal to the last bit."""
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )
