"""Training steps of exported libraries, and weights that go back to Caldera."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.errors import ConfigError
from caldera.nn import Layer
from tests.unit.export.loaded import Loaded, needs

pytestmark = needs("cc", "ar")
RNG = np.random.default_rng(0)
ROWS = 8


def _path(path: Path) -> ctypes.c_char_p:
    return ctypes.c_char_p(str(path).encode())


def _dense() -> list[Layer]:
    return [nn.Input((6,)), nn.Dense(8, activation="tanh"), nn.Dense(2)]


def _all_kinds() -> list[Layer]:
    """Running statistics, random numbers, and an optimizer with products of matrices."""
    return [nn.Input((6,)), nn.Dense(5), nn.BatchNorm(), nn.ReLU(), nn.Dropout(0.3), nn.Dense(2)]


def _model(layers: Callable[[], list[Layer]], optimizer: str | optim.Optimizer) -> cd.Model:
    return cd.NeuralNetwork(layers(), loss="mean_squared", optimizer=optimizer, learning_rate=0.01)


def _trained(loaded: Loaded, x: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
    """Take steps on the batches of an epoch in order, again and again; return the losses."""
    losses, loss = [], np.zeros((), "float32")
    for step in range(steps):
        part = slice(step * ROWS % len(x), step * ROWS % len(x) + ROWS)
        code = loaded.call("step", ROWS, x[part], y[part], loss)
        assert code == 0, loaded.text("message")
        losses.append(float(loss))
    return np.array(losses)


CASES = {"dense": (_dense, "adam", 1000), "all kinds": (_all_kinds, "muon", 40)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[cd.Model, Path]:
    model = _model(_dense, "adam")
    folder = tmp_path_factory.mktemp("step")
    return model, cd.export.c(model, folder, name="wing", batch=(ROWS,), step=True)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_fit(exported: tuple[cd.Model, Path], tmp_path: Path, name: str) -> None:
    layers, optimizer, steps = CASES[name]
    model, folder = _model(layers, optimizer), exported[1]
    if name != "dense":
        folder = cd.export.c(model, tmp_path, name="wing", batch=(ROWS,), step=True)
    shape = model.layers[0].shape
    x = RNG.normal(size=(4 * ROWS, *shape)).astype("float32")
    y = RNG.normal(size=(4 * ROWS, 2)).astype("float32")
    with Loaded(folder, "wing") as loaded:
        losses = _trained(loaded, x, y, steps)
        with cd.settings.override(threads=1):
            history = model.fit(x, y, epochs=steps // 4, batch_size=ROWS, shuffle=False, verbose=0)
        np.testing.assert_allclose(
            losses.reshape(-1, 4).mean(axis=1), history["loss"], rtol=1e-5, atol=1e-6
        )
        other = _model(layers, optimizer)
        assert loaded.call("store", _path(tmp_path / "weights.safetensors")) == 0
        other.load_weights(tmp_path / "weights.safetensors")
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
        wanted = other.predict(x)
        np.testing.assert_allclose(loaded.predict(x, outputs=(2,)), wanted, rtol=0, atol=1e-6)


def test_weights_of_a_model_file_are_loaded(
    exported: tuple[cd.Model, Path], tmp_path: Path
) -> None:
    x = RNG.normal(size=(ROWS, 6)).astype("float32")
    other = _model(_dense, "adam")
    other.seed = 5
    other.fit(x, np.ones((ROWS, 2), "float32"), epochs=3, verbose=0)
    path = other.save(tmp_path / "other.caldera")
    with Loaded(exported[1], "wing") as loaded:
        assert loaded.call("load", _path(path)) == 0, loaded.text("message")
        found = loaded.predict(x, outputs=(2,))
        np.testing.assert_allclose(found, other.predict(x), rtol=0, atol=1e-6)
        assert loaded.call("store", _path(tmp_path / "again.safetensors")) == 0
    other.load_weights(tmp_path / "again.safetensors")
    np.testing.assert_allclose(found, other.predict(x), rtol=0, atol=1e-6)


def test_other_files_are_refused_and_change_nothing(
    exported: tuple[cd.Model, Path], tmp_path: Path
) -> None:
    wider = [nn.Input((6,)), nn.Dense(9, activation="tanh"), nn.Dense(2)]
    cd.NeuralNetwork(wider, loss="mean_squared").save(tmp_path / "wider.caldera")
    deeper = [*_dense(), nn.Dense(2)]
    cd.NeuralNetwork(deeper, loss="mean_squared").save(tmp_path / "deeper.caldera")
    whole = exported[0].save(tmp_path / "whole.caldera").read_bytes()
    (tmp_path / "short").write_bytes(whole[:-1])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "long").write_bytes(b"\xff" * 7 + b"\x7f" + whole[8:])
    x = np.ones((3, 6), "float32")
    with Loaded(exported[1], "wing") as loaded:
        before = loaded.predict(x, outputs=(2,))
        for name in ("wider.caldera", "deeper.caldera", "short", "empty", "long", "missing"):
            assert loaded.call("load", _path(tmp_path / name)) == 6, name
            assert name in loaded.text("message")
        assert loaded.call("store", _path(tmp_path / "no folder" / "file")) == 6
        np.testing.assert_array_equal(loaded.predict(x, outputs=(2,)), before)


def test_other_numbers_of_rows_and_bad_losses_are_refused(exported: tuple[cd.Model, Path]) -> None:
    x, y = np.ones((ROWS, 6), "float32"), np.ones((ROWS, 2), "float32")
    loss = np.zeros((), "float32")
    with Loaded(exported[1], "wing") as loaded:
        assert loaded.call("step", 5, x, y, loss) == 4
        assert loaded.text("message") == "step has no code for 5 rows; the next number is 8"
        assert loaded.call("step", 9, x, y, loss) == 4
        before = loaded.predict(x, outputs=(2,))
        assert loaded.call("step", ROWS, x * np.inf, y, loss) == 5
        assert "the loss is" in loaded.text("message")
        np.testing.assert_array_equal(loaded.predict(x, outputs=(2,)), before)
        assert loaded.call("step", ROWS, x, y, loss) == 0
        assert not np.array_equal(loaded.predict(x, outputs=(2,)), before)


def test_a_network_without_weights_has_no_steps(tmp_path: Path) -> None:
    model = cd.NeuralNetwork([nn.Input((6,)), nn.ReLU()], loss="mean_squared")
    with pytest.raises(ConfigError, match="export of step: expected a network with weights"):
        cd.export.c(model, tmp_path, name="wing", step=True)
