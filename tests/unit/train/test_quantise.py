"""Networks with weights of 8 bits: accuracy, files, exchange, and refused calls."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError
from caldera.train.quantise import few_bits_of


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


@pytest.fixture(scope="module")
def images() -> cd.NeuralNetwork:
    digits = cd.data.digits()
    block = [nn.Conv2D(12, 3, padding="same", bias=False), nn.BatchNorm(), nn.ReLU()]
    layers = [
        nn.Input(digits.shape),
        nn.Conv2D(12, 3, padding="same"),
        nn.ReLU(),
        nn.Residual([*block, nn.Conv2D(12, 3, padding="same"), nn.BatchNorm()], activation="relu"),
        nn.Conv2D(17, 3, stride=2, padding=1, activation="relu"),
        # The normalisation does not see what the convolution gives alone.
        nn.Residual([nn.BatchNorm(), nn.Conv2D(17, (1, 3), padding="same", groups=17)]),
        nn.GlobalAveragePool(),
        nn.Dense(10),
    ]
    model = cd.NeuralNetwork(layers, seed=1, learning_rate=1e-2)
    model.fit(digits.train, epochs=3, verbose=0)
    return model


@pytest.mark.parametrize("calibrated", [False, True])
def test_convolutions(images: cd.NeuralNetwork, tmp_path: Path, calibrated: bool) -> None:
    digits = cd.data.digits()
    samples, x = digits.train.x[:100] if calibrated else None, digits.test.x
    small = images.quantise(samples=samples, data=digits.test)
    found = small.quantisation
    assert found is not None
    names = ("3-Residual/0-Conv2D", "3-Residual/3-Conv2D", "4-Conv2D")
    assert found.layers == names
    assert abs(found.change["accuracy"]) <= 0.01
    kinds = [type(each).__name__ for each in small.walk()]
    assert [kinds.count(name) for name in ("Int8Conv2D", "Conv2D", "BatchNorm")] == [3, 2, 1]
    exact, wanted = images.predict(x), small.predict(x)
    assert 0 < np.abs(wanted - exact).max() < 0.05 * np.abs(exact).max()
    again = cd.load(small.save(tmp_path / "small.caldera"))
    assert np.array_equal(again.predict(x), wanted)
    onnxruntime = pytest.importorskip("onnxruntime")
    path = cd.onnx.export(small, tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
    for each in (theirs, cd.onnx.load(path).predict(x)):
        # A number halfway between two steps may be rounded to either.
        np.testing.assert_allclose(each, wanted, atol=0.02 * np.abs(wanted).max())


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
        ([nn.Input((4,)), nn.Dense(2)], {"kind": "int4"}, "int4-weights, ternary, got 'int4'"),
        ([nn.Dense(2)], {}, "expected a model with a known input shape"),
        ([nn.Input((9,)), nn.Dense(2)], {"kind": "int4-weights"}, "at least 32 inputs, got none"),
        ([nn.Input((4,)), nn.Dense(2)], {"kind": "int8-weights", "ends": True}, "for 'int8' only"),
        (
            [nn.Input((40,)), nn.Dense(2)],
            {"kind": "int4-weights", "group": 48},
            "group= 32, 64 or 128, got 48",
        ),
    ],
)
def test_refused(layers: list[Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cd.NeuralNetwork(layers).quantise(**how)


def test_wrong_settings_of_the_layer() -> None:
    for step in (0.0, -1.0, float("inf")):
        with pytest.raises(ConfigError, match="step= above 0"):
            nn.Int8Dense(3, step=step)
        with pytest.raises(ConfigError, match="Int8Conv2D: expected step= above 0"):
            nn.Int8Conv2D(3, 3, step=step)
    with pytest.raises(ConfigError, match="expected groups=1, got 3"):
        nn.Int8Conv2D(3, 3, groups=3)


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
def test_packed_weights_compute_the_same(name: str, tmp_path: Path) -> None:
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


def test_ternary_files_are_a_fourteenth_of_float32(tmp_path: Path) -> None:
    ways = {nn.Dense: 1.0, nn.TernaryDense: 1 / 16, nn.BinaryDense: 1 / 24}
    sizes = {}
    for dense in ways:
        layers = [nn.Input((784,)), dense(512, activation="relu"), dense(10)]
        model = cd.NeuralNetwork(layers, seed=0)
        model = model if dense is nn.Dense else model.quantise("ternary")
        sizes[dense] = model.save(tmp_path / "small.caldera").stat().st_size
    assert all(sizes[dense] <= share * sizes[nn.Dense] for dense, share in ways.items())


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 7, 243, 1000])
def test_digits_of_bytes(levels: int, count: int) -> None:
    digits = np.random.default_rng(levels * count).integers(0, levels, count)
    layer = nn.PackedDense(1, bias=False, levels=levels)
    layer(np.zeros((1, count), "float32"))
    padded = np.zeros(layer.codes.size * nn.quantised.PER_BYTE[levels], int)
    padded[:count] = digits
    rows = padded.reshape(layer.codes.size, -1)
    layer.codes.assign([sum(int(d) * levels**i for i, d in enumerate(row)) for row in rows])
    layer.scale.assign([2.5])
    right = 2.5 * (2 * digits - 1 if levels == 2 else digits - 1)
    assert np.array_equal(layer.used_weight().numpy()[:, 0], right)


def test_files_of_two_bits(tmp_path: Path) -> None:
    layers = [nn.Reshape((2, 5, 6)), nn.quantised.TwoBitConv2D(4, 3), nn.Flatten()]
    old = cd.NeuralNetwork([nn.Input((60,)), *layers, nn.quantised.TwoBitDense(3)])
    for each in old.walk():
        if isinstance(each, nn.PackedDense | nn.PackedConv2D):
            each.codes.assign(np.random.default_rng(0).integers(0, 256, each.codes.shape))
            each.scale.assign(np.ones(each.scale.shape))
            assert set(np.unique(each.used_weight().numpy())) == {-1, 0, 1, 2}
    x = np.random.default_rng(1).normal(size=(4, 60)).astype("float32")
    again = cd.load(old.save(tmp_path / "old.caldera"))
    assert np.array_equal(again.predict(x), old.predict(x))


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


def _float_network(name: str) -> cd.NeuralNetwork:
    shared = nn.Dense(33, activation="relu")
    layers = {
        "dense": [
            nn.Input((33,)),
            shared,
            nn.LayerNorm(),
            shared,
            nn.TernaryDense(40),
            nn.Dense(5),
        ],
        "gpt": nn.models.gpt(50, context=16, width=48, depth=1, heads=3),
        "attention": [nn.Input((7, 36)), nn.MultiHeadAttention(3, key_heads=1), nn.LSTM(34)],
    }[name]
    return cd.NeuralNetwork(layers, loss="mean_squared", seed=2)


@pytest.mark.parametrize("kind", ["int8-weights", "int4-weights"])
@pytest.mark.parametrize("name", ["dense", "gpt", "attention"])
def test_weights_of_a_few_bits(name: str, kind: str, tmp_path: Path) -> None:
    model, draw = _float_network(name), np.random.default_rng(0)
    (shape, dtype), *_ = model.signature.inputs
    sizes = (20, *shape)
    drawn = draw.integers(0, 50, sizes) if dtype == "int64" else draw.normal(size=sizes)
    x = drawn.astype(dtype)
    small = model.quantise(kind, group=32)
    found = small.predict(x)
    # The network with the decoded weights computes the same in floating point.
    decoded = _float_network(name)
    for new, old in zip(decoded.walk(), small.walk(), strict=True):
        weights = {**old.variables(), **few_bits_of(old)}
        for key, variable in new.variables().items():
            variable.assign(weights[key].numpy())
    np.testing.assert_allclose(found, decoded.predict(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(small.predict(x[:1]), decoded.predict(x[:1]), rtol=1e-4, atol=1e-5)
    assert 0 < np.abs(found - model.predict(x)).max() < 0.3 * np.abs(found).max()
    assert small.quantisation is not None
    before, after = small.quantisation.nbytes
    assert after < before
    again = cd.load(small.save(tmp_path / "small.caldera"))
    for each in (again, pickle.loads(pickle.dumps(small)), copy.deepcopy(small)):
        assert np.array_equal(each.predict(x), found)
    with pytest.raises(ConfigError, match="inference, got training"):
        small.fit(x, found, verbose=0)
    with pytest.raises(ConfigError, match="weights in floating point"):
        small.quantise(kind)
    if name == "gpt":
        writer = small.layers[-1]
        text = writer.generate([[1, 2], [3, 4]], count=9, temperature=0.0)
        assert np.array_equal(again.layers[-1].generate([[1, 2], [3, 4]], 9, temperature=0.0), text)
        scores = small.predict(np.pad(text, ((0, 0), (0, 5))))
        assert np.array_equal(scores[:, 1:10].argmax(2), text[:, 2:])


def test_accuracy_of_weights_of_a_few_bits(trained: cd.NeuralNetwork) -> None:
    digits = cd.data.digits()
    for kind, most in (("int8-weights", 0.003), ("int4-weights", 0.03)):
        found = trained.quantise(kind, data=digits.test).quantisation
        assert found is not None
        assert abs(found.change["accuracy"]) <= most
        assert len(found.layers) == 3


def test_damaged_weight_formats() -> None:
    config = nn.to_config(nn.Dense(3))
    for wrong in ([4], [4, 50], [3, 64], ["4", 64], 4, [True, 64]):
        with pytest.raises(ConfigError, match=r"weight|group"):
            nn.from_config({**config, "weight_format": wrong})


def test_weights_of_a_few_bits_in_onnx(trained: cd.NeuralNetwork, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    small, x = trained.quantise("int4-weights"), cd.data.digits().test.x
    path = cd.onnx.export(small, tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    for each in (found, cd.onnx.load(path).predict(x)):
        np.testing.assert_allclose(each, small.predict(x), rtol=1e-4, atol=1e-5)
    plain = cd.onnx.export(trained, tmp_path / "plain.onnx")
    assert Path(path).stat().st_size < 0.6 * Path(plain).stat().st_size
