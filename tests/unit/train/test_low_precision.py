"""Weights rounded by chance after every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn


def _model() -> cd.NeuralNetwork:
    layers = [nn.Input((64,)), nn.Dense(32), nn.ReLU(), nn.Dense(10)]
    return cd.NeuralNetwork(layers, optimizer="adam", learning_rate=5e-3, batch_size=64)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    train = cd.data.digits().train
    images, labels = train.batch(range(640))
    return np.asarray(images, np.float32).reshape(640, 64), np.asarray(labels)


@pytest.mark.parametrize(("dtype", "kept"), [("bfloat16", 16), ("float8_e4m3fn", 20)])
def test_training_goes_on_with_few_bits_and_weights_have_no_more(dtype: str, kept: int) -> None:
    model = _model()
    history = model.fit(_digits(), epochs=8, callbacks=[cd.RoundWeights(dtype)], verbose=0)
    assert history["accuracy"][-1] > 0.85
    for parameter in model.parameters():
        assert not (parameter.numpy().view(np.uint32) & ((1 << kept) - 1)).any()


def test_a_resumed_run_rounds_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    def fit(model: cd.NeuralNetwork, epochs: int, folder: str, resume: bool = False) -> None:
        model.fit(
            _digits(),
            epochs=epochs,
            callbacks=[cd.RoundWeights(seed=3)],
            verbose=0,
            checkpoint=tmp_path / folder,
            resume=resume,
        )

    whole, first, second = _model(), _model(), _model()
    fit(whole, 3, "whole")
    fit(first, 2, "parts")
    fit(second, 3, "parts", resume=True)
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
