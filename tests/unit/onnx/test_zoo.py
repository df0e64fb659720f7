"""Networks of the zoo: to a file, the same to 1e-5 in onnxruntime, and back.

The largest ones, at their published sizes, are checked by `benchmarks/training/onnx_zoo.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from tests.unit.onnx.files import by_onnxruntime

models = nn.models
ZOO: dict[str, Callable[[], list[nn.Layer]]] = {
    "mlp": lambda: models.mlp((20,), hidden=(16, 16)),
    "lenet5": models.lenet5,
    "lenet5 of the paper": lambda: models.lenet5(activation="tanh", pooling="average"),
    "resnet20": models.resnet20,
    "resnet18": lambda: models.resnet18((3, 32, 32), 10),
    "googlenet": lambda: models.googlenet((3, 64, 64), 10),
    "googlenet of the paper": lambda: models.googlenet((3, 64, 64), 10, False, batch_norm=False),
    "gpt": lambda: models.gpt(40, context=12, width=16, depth=2, heads=2),
    "lstm": lambda: models.lstm_classifier(40, 7, 3, units=8, depth=2, bidirectional=True),
}


def randomised(model: cd.Model) -> np.random.Generator:
    """Give everything that begins with one number other ones, so that nothing cancels."""
    generator = np.random.default_rng(0)
    for each in (*model.parameters(), *model.states()):
        if np.ptp(each.numpy()) == 0:
            each.assign(each.numpy() + generator.uniform(-0.3, 0.3, each.shape))
    return generator


def samples(model: cd.Model, generator: np.random.Generator, count: int = 3) -> np.ndarray:
    ((shape, dtype),) = model.signature.inputs
    if dtype == "int64":
        return generator.integers(0, 40, (count, *shape))
    return generator.normal(size=(count, *shape)).astype(np.float32)


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ZOO)
def test_a_network_goes_to_onnx_and_back(name: str, tmp_path: Path) -> None:
    heads = {"loss": {"main": "cross_entropy"}} if name == "googlenet" else {}
    model = cd.NeuralNetwork(ZOO[name](), **heads)
    x = samples(model, randomised(model))
    expected = model.predict(x)
    path = cd.onnx.export(model, tmp_path / "network.onnx")
    assert close(by_onnxruntime(path, x)[0], expected)
    # The number of samples is open.
    assert close(by_onnxruntime(path, x[:1])[0], expected[:1])
    again = cd.onnx.load(path)
    assert close(again.predict(x), expected)
    assert {p.name for p in again.parameters()} <= {p.name for p in model.parameters()}
    # The heads of GoogLeNet serve training only, and are not in the file.
    if name != "googlenet":
        assert {p.name for p in again.parameters()} == {p.name for p in model.parameters()}
        assert {s.name for s in again.states()} == {s.name for s in model.states()}
