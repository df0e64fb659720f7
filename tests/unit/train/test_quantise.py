"""Networks with weights of 8 bits: accuracy, files, exchange, and refused calls."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError


@pytest.fixture(scope="module")
def trained() -> cd.NeuralNetwork:
    digits = cd.data.digits()
    layers = nn.models.mlp(digits.shape, hidden=(48, 40))
    model = cd.NeuralNetwork(layers, seed=1, learning_rate=5e-3)
    model.fit(digits.train, epochs=4, verbose=0)
    return model


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("calibrated", [False, True])
def test_accuracy_and_size(trained: cd.NeuralNetwork, ends: bool, calibrated: bool) -> None:
    digits = cd.data.digits()
    samples = digits.train.x[:100] if calibrated else None
    small = trained.quantise(samples=samples, ends=ends, data=digits.test)
    found = small.quantisation
    assert found is not None
    assert found.layers == (("2-Dense", "3-Dense", "4-Dense") if ends else ("3-Dense",))
    assert abs(found.change["accuracy"]) <= 0.01
    assert found.nbytes[1] < (0.4 if ends else 0.8) * found.nbytes[0]
    assert f"{found.change['accuracy']:+.4f}" in str(found)
    steps = [each.step for each in small.walk() if isinstance(each, nn.Int8Dense)]
    assert all((step is not None) == calibrated for step in steps)
    # The network that was quantised is as it was.
    assert not any(isinstance(each, nn.Int8Dense) for each in trained.walk())


def test_rounding_errors_have_the_size_of_a_step(trained: cd.NeuralNetwork) -> None:
    x = cd.data.digits().test.x
    exact, found = trained.predict(x), trained.quantise(ends=True).predict(x)
    assert 0 < np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_files_and_pickles(trained: cd.NeuralNetwork, tmp_path: Path) -> None:
    small, x = trained.quantise(ends=True), cd.data.digits().test.x
    again = cd.load(small.save(tmp_path / "small.caldera"))
    assert np.array_equal(again.predict(x), small.predict(x))
    assert np.array_equal(pickle.loads(pickle.dumps(small)).predict(x), small.predict(x))
    arrays = cd.io.load_safetensors(tmp_path / "small.caldera").values()
    assert "int8" in {array.dtype.name for array in arrays}
    large = trained.save(tmp_path / "large.caldera").stat().st_size
    assert (tmp_path / "small.caldera").stat().st_size < 0.5 * large


@pytest.mark.parametrize("calibrated", [False, True])
def test_onnx_computes_the_same(
    trained: cd.NeuralNetwork, tmp_path: Path, calibrated: bool
) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    digits = cd.data.digits()
    samples, x = digits.train.x[:100] if calibrated else None, digits.test.x
    small = trained.quantise(samples=samples, ends=True)
    path = cd.onnx.export(small, tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    wanted = small.predict(x)
    for each in (found, cd.onnx.load(path).predict(x)):
        # A number halfway between two steps may be rounded to either.
        assert np.isclose(each, wanted, atol=1e-5).mean() > 0.95
        np.testing.assert_allclose(each, wanted, atol=0.01 * np.abs(wanted).max())
    names = [each.op_type for each in onnx.load(path).graph.node]
    assert names.count("QuantizeLinear" if calibrated else "MatMulInteger") == 3
    assert names.count("DequantizeLinear") == (6 if calibrated else 0)
    plain = cd.onnx.export(trained, tmp_path / "plain.onnx")
    assert Path(path).stat().st_size < 0.5 * Path(plain).stat().st_size


def test_layers_inside_layers_and_shared_ones() -> None:
    shared = nn.Dense(8, activation="tanh")
    inner = nn.Sequential([nn.Dense(8, activation="relu", name="inner"), shared])
    layers = [nn.Input((5, 6)), nn.Dense(8), inner, shared, nn.LayerNorm(), nn.Dense(3)]
    model = cd.NeuralNetwork(layers, loss="mean_squared", seed=2)
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype("float32")
    small = model.quantise()
    assert small.quantisation is not None
    assert len(small.quantisation.layers) == 2
    found, exact = small.predict(x), model.predict(x)
    assert found.shape == exact.shape
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
    with pytest.raises(ConfigError, match="inference, got training"):
        small.fit(x, exact, verbose=0)


@pytest.mark.parametrize(
    ("layers", "how", "message"),
    [
        ([nn.Input((4,)), nn.Dense(2)], {}, "besides the first and the last"),
        ([nn.Input((4,)), nn.ReLU()], {"ends": True}, "got no weights"),
        ([nn.Input((4,)), nn.Dense(2)], {"kind": "int4"}, "'int8' or 'ternary', got 'int4'"),
        ([nn.Dense(2)], {}, "expected a model with a known input shape"),
    ],
)
def test_refused(layers: list[Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cd.NeuralNetwork(layers).quantise(**how)


def test_wrong_settings_of_the_layer() -> None:
    for step in (0.0, -1.0, float("inf")):
        with pytest.raises(ConfigError, match="step= above 0"):
            nn.Int8Dense(3, step=step)


FEW_LEVELS = {
    "ternary": [nn.TernaryDense(9, activation="relu"), nn.TernaryDense(3, bias=False)],
    "binary": [nn.BinaryDense(9, activation="relu"), nn.BinaryDense(3)],
    "images": [
        nn.Reshape((2, 5, 6)),
        nn.TernaryConv2D(4, 3, padding="same", stride=2),
        nn.BinaryConv2D(5, (2, 1), groups=1, bias=False),
        nn.Flatten(),
        nn.Dense(2),
    ],
}


@pytest.mark.parametrize("name", FEW_LEVELS)
def test_two_bits_compute_the_same(name: str, tmp_path: Path) -> None:
    fresh = nn.from_config(nn.to_config(nn.Sequential(FEW_LEVELS[name])))
    layers = [nn.Input((60,)), *fresh.layers]  # type: ignore[attr-defined]
    model = cd.NeuralNetwork(layers, loss="mean_squared", seed=3)
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 60)).astype("float32")
    y = random.normal(size=(64, model.predict(x).shape[1])).astype("float32")
    before = [each.numpy() for each in model.parameters()]
    losses = model.fit(x, y, epochs=8, verbose=0)["loss"]
    assert losses[-1] < losses[0]
    for each, old in zip(model.parameters(), before, strict=True):
        assert (each.numpy() != old).any()
    small = model.quantise("ternary")
    assert np.array_equal(small.predict(x), model.predict(x))
    again = cd.load(small.save(tmp_path / "small.caldera"))
    assert np.array_equal(again.predict(x), model.predict(x))
    assert small.quantisation is not None
    assert small.quantisation.nbytes[1] < small.quantisation.nbytes[0] / 2
    with pytest.raises(ConfigError, match="expected ternary or binary layers"):
        small.quantise("ternary")


@pytest.mark.parametrize("shape", [(7, 5), (1, 1), (30, 2)])
def test_weights_are_rounded_as_by_numpy(shape: tuple[int, int]) -> None:
    weight = np.random.default_rng(shape).normal(size=shape).astype("float32")
    for layer in (nn.TernaryDense(shape[1]), nn.BinaryDense(shape[1])):
        layer(np.zeros((2, shape[0]), "float32"))
        layer.weight.assign(weight)
        right = np.zeros(shape)
        for column in range(shape[1]):
            size = np.abs(weight[:, column])
            kept = size > 0.7 * size.mean() if layer.levels == 3 else np.full(len(size), True)
            right[kept, column] = np.sign(weight[kept, column]) * size[kept].mean()
        np.testing.assert_allclose(layer.used_weight().numpy(), right, rtol=1e-5)


def test_gradients_pass_through_the_rounding() -> None:
    layer, x = nn.TernaryDense(3, bias=False), np.random.default_rng(1).normal(size=(6, 4))
    with nn.trace(training=True, dtype="float64"):
        y = layer(cd.tensor(x))
    (gradient,) = cd.op.grad(cd.op.sum(y), [layer.weight])
    np.testing.assert_allclose(gradient.numpy(), np.repeat(x.sum(0)[:, None], 3, 1))
    np.testing.assert_allclose(y.numpy(), x @ layer.used_weight().numpy())
