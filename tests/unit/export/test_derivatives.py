"""Adjoint and tangent of exported networks: <dy, J dx> = <J^T dy, dx>, and finite differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.cli.program import main
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from tests.unit.export.loaded import Loaded, needs

pytestmark = needs("cc", "ar")
RNG = np.random.default_rng(0)


def _values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def test_adjoint_and_tangent_of_an_exported_network(tmp_path: Path) -> None:
    shape = (2, 6, 6)
    layers = [nn.Conv2D(3, 3), nn.BatchNorm(), nn.Sigmoid(), nn.AveragePool2D(2)]
    layers += [nn.Reshape((4, 3)), nn.LSTM(4)]
    model = cd.NeuralNetwork([nn.Input(shape), *layers], loss="mean_squared")
    folder = cd.export.c(model, tmp_path, name="wing", batch=(4,), vjp=True, jvp=True)
    with Loaded(folder, "wing") as loaded:
        for rows in (4, 11):
            x, dx = _values(rows, *shape), _values(rows, *shape)
            dy = _values(*model.predict(x).shape)
            adjoint, tangent = np.empty_like(dx), np.empty_like(dy)
            assert loaded.call("vjp", rows, x, dy, adjoint) == 0
            assert loaded.call("jvp", rows, x, dx, tangent) == 0
            both = np.vdot(dy, tangent), np.vdot(adjoint, dx)
            scale = np.linalg.norm(dy) * np.linalg.norm(tangent)
            assert abs(both[0] - both[1]) <= 1e-5 * scale
            step = 1e-2
            ends = [loaded.predict(x + s * dx, outputs=dy.shape[1:]) for s in (step, -step)]
            difference = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(tangent, difference, rtol=0, atol=3e-3 * abs(tangent).max())


class _TwoInputs(cd.Model):
    """Numbers and categories; only the numbers have derivatives."""

    def __init__(self) -> None:
        super().__init__(loss="mean_squared")
        self.table, self.last = nn.Embedding(5, 3), nn.Dense(2)

    def forward(self, code: Expr, x: Expr) -> Expr:
        return self.last(op.tanh(x) * self.table(code))


def test_only_inputs_of_floats_have_derivatives(tmp_path: Path) -> None:
    model = _TwoInputs()
    code, x, dx = RNG.integers(0, 5, 6), _values(6, 3), _values(6, 3)
    model.predict(code, x)
    folder = cd.export.c(model, tmp_path, name="wing", batch=(4,), vjp=True, jvp=True)
    text = (folder / "wing.h").read_text()
    assert (
        "wing_vjp(wing_model *model, int64_t rows, const int64_t *x0, const float *x1, const"
        in text
    )
    w = model.parameters()[1].numpy()
    jacobian = (model.parameters()[0].numpy()[code] / np.cosh(x) ** 2)[:, :, None] * w
    dy, adjoint, tangent = _values(6, 2), np.empty((6, 3), "float32"), np.empty((6, 2), "float32")
    with Loaded(folder, "wing") as loaded:
        assert loaded.call("vjp", 6, code, x, dy, adjoint) == 0
        assert loaded.call("jvp", 6, code, x, dx, tangent) == 0
    np.testing.assert_allclose(adjoint, np.einsum("nij,nj->ni", jacobian, dy), atol=1e-5)
    np.testing.assert_allclose(tangent, np.einsum("nij,ni->nj", jacobian, dx), atol=1e-5)


def test_a_network_of_integers_has_no_derivatives(tmp_path: Path) -> None:
    layers = [nn.Input((5,), dtype="int64"), nn.Embedding(11, 6), nn.LSTM(7)]
    path = cd.NeuralNetwork(layers, loss="mean_squared").save(tmp_path / "wing.caldera")
    with pytest.raises(ConfigError, match="vjp: expected a network with inputs and an output"):
        cd.export.c(cd.load(path), tmp_path / "out", vjp=True)
    assert main(["export", str(path), "--c", str(tmp_path / "out"), "--jvp"]) == 2
