"""`python -m tools.golden_models FOLDER`: the model files that a test loads on every machine.

Weights are fractions that floating-point numbers hold exactly, so every machine writes the same
bytes. Files are added when the format changes; those that are there are never written again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import nn
from caldera.io import save_safetensors
from caldera.train.saving.model_file import KEY, WITHOUT_DIGEST, model_bytes, read_content


def golden_model() -> cd.NeuralNetwork:
    """A small network with exact weights: its n-th tensor counts in steps of 1/64 from n/8 - 1."""
    model = cd.NeuralNetwork(
        [
            nn.Input((1, 4, 4)),
            nn.Conv2D(2, 3),
            nn.BatchNorm(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dense(3, activation="tanh"),
        ],
        optimizer="sgd",
        learning_rate=0.125,
        batch_size=2,
        seed=3,
        name="golden",
    )
    for number, variable in enumerate([*model.parameters(), *model.states()]):
        variable.assign(golden_values(number, variable.shape))
    return model


def golden_values(number: int, shape: tuple[int, ...]) -> np.ndarray:
    """The values of the n-th tensor; the last one, a variance, is made positive."""
    count = int(np.prod(shape))
    values = (np.arange(count) / 64 + number / 8 - 1).astype("<f4").reshape(shape)
    return np.abs(values) + np.float32(0.5) if number == 7 else values


def main(folder: Path) -> None:
    """Write those files that are not there."""
    model = golden_model()
    newest = folder / "caldera-2.caldera"
    if not newest.exists():
        newest.write_bytes(model_bytes(model))
    oldest = folder / "caldera-1.caldera"
    if not oldest.exists():
        text = json.dumps({**read_content(newest), "format": WITHOUT_DIGEST})
        tensors = {each.name: each.numpy() for each in (*model.parameters(), *model.states())}
        save_safetensors(oldest, tensors, {KEY: text})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
