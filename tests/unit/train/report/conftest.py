"""Runs that pages are written about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn


def small(shape: tuple[int, ...], outputs: int, **settings: object) -> cd.NeuralNetwork:
    layers = [nn.Input(shape), nn.Flatten(), nn.Dense(16, activation="relu"), nn.Dense(outputs)]
    return cd.NeuralNetwork(layers, batch_size=64, learning_rate=0.01, seed=7, **settings)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> cd.RunFolder:
    """A classifier of digits, trained for three epochs."""
    data = cd.data.digits()
    model = small(data.shape, 10, epochs=3)
    history = model.fit(data.train, validation=data.test, verbose=0)
    run = cd.RunFolder(tmp_path_factory.mktemp("digits"))
    run.write(model, history, data)
    return run


@pytest.fixture(scope="session")
def values_run(tmp_path_factory: pytest.TempPathFactory) -> cd.RunFolder:
    """A network that predicts values."""
    x = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
    data = cd.data.arrays(x, x[:, :1] * 2, classes=False)
    model = small((3,), 1, loss="mse", epochs=2)
    run = cd.RunFolder(tmp_path_factory.mktemp("values"))
    run.write(model, model.fit(data.train, verbose=0), data)
    return run


@pytest.fixture(scope="session")
def ended_run(tmp_path_factory: pytest.TempPathFactory) -> cd.RunFolder:
    """A run that somebody ended: nothing was measured."""
    data = cd.data.digits()
    model = small(data.shape, 10, epochs=100)
    history = model.fit(data.train, callbacks=[cd.TimeLimit(0)], verbose=0)
    run = cd.RunFolder(tmp_path_factory.mktemp("ended"))
    run.write(model, history, data, measured=False)
    return run


def written(run: cd.RunFolder, text: str) -> Path:
    path = run.path / "report.html"
    path.write_text(text, encoding="utf-8")
    return path
