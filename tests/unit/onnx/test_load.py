"""What `load` makes of files: models that predict, train further, and refuse what is not right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError, DataError, DtypeError
from caldera.onnx import translate
from tests.unit.onnx.files import by_onnxruntime, declared, made, written


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_a_loaded_model_trains_further(tmp_path: Path) -> None:
    layers = [nn.Input((6,)), nn.Dense(16), nn.BatchNorm(), nn.ReLU(), nn.Dense(2)]
    path = cd.onnx.export(cd.NeuralNetwork(layers), tmp_path / "small.onnx")
    x = numbers(256, 6)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    model = cd.onnx.load(path, optimizer="adam", learning_rate=0.02, batch_size=64)
    before = model.evaluate((x, y))["accuracy"]
    statistics = [state.numpy() for state in model.states()]
    history = model.fit((x, y), epochs=8, verbose=0)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert model.evaluate((x, y))["accuracy"] > max(before, 0.9)
    # Batch normalisation goes on with its running statistics.
    for old, state in zip(statistics, model.states(), strict=True):
        assert np.abs(state.numpy() - old).max() > 0.01
    # What was learned goes to a file again.
    again = cd.onnx.export(model, tmp_path / "trained.onnx")
    np.testing.assert_allclose(by_onnxruntime(again, x)[0], model.predict(x), rtol=1e-4, atol=1e-5)


def test_training_on_is_training_in_caldera(tmp_path: Path) -> None:
    x, y = numbers(64, 5), np.arange(64) % 3
    first = cd.NeuralNetwork(
        [nn.Input((5,)), nn.Dense(8, activation="tanh"), nn.Dense(3)],
        optimizer="sgd",
        learning_rate=0.1,
    )
    second = cd.onnx.load(
        cd.onnx.export(first, tmp_path / "m.onnx"), optimizer="sgd", learning_rate=0.1
    )
    for model in (first, second):
        model.fit((x, y), epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(first.predict(x), second.predict(x), rtol=1e-4, atol=1e-6)


def test_a_model_for_one_number_of_samples_predicts_any(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    arrays = {"flat": np.array([2, 6]), "w": numbers(6, 3)}
    model = made(nodes, [declared("x", [2, 2, 3])], [declared("y", [2, 3])], arrays)
    loaded = cd.onnx.load(written(model, tmp_path))
    for count in (1, 2, 5):
        x = numbers(count, 2, 3)
        np.testing.assert_allclose(loaded.predict(x), x.reshape(-1, 6) @ arrays["w"], rtol=1e-5)
    assert [p.name for p in loaded.parameters()] == ["w"]


def test_arrays_that_decide_about_shapes_are_not_trained(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["large"], mode="nearest"),
        helper.make_node("Conv", ["large", "w"], ["y"]),
    ]
    arrays = {"scales": np.array([1, 1, 2, 2], np.float32), "w": numbers(2, 1, 1, 1)}
    model = made(nodes, [declared("x", ["n", 1, 2, 2])], [declared("y", None)], arrays)
    loaded = cd.onnx.load(written(model, tmp_path), loss="mean_squared")
    assert [p.name for p in loaded.parameters()] == ["w"]
    assert loaded.predict(numbers(3, 1, 2, 2)).shape == (3, 2, 4, 4)


def test_unknown_sizes_come_with_the_first_data(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    inputs = [declared("a", ["n", "m"]), declared("b", ["n", "m"])]
    loaded = cd.onnx.load(written(made(nodes, inputs, [declared("y", None)]), tmp_path))
    a, b = numbers(4, 3), numbers(4, 3)
    np.testing.assert_allclose(loaded.predict(a, b), a + b, rtol=1e-6)


def test_several_outputs_come_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Split", ["x"], ["left", "right"], axis=1, num_outputs=2)]
    outputs = [declared("left", None), declared("right", None)]
    loaded = cd.onnx.load(written(made(nodes, [declared("x", ["n", 4])], outputs), tmp_path))
    x = numbers(3, 4)
    assert set(loaded(x)) == {"left", "right"}
    np.testing.assert_array_equal(loaded.predict(x), x[:, :2])


def test_shapes_that_follow_from_what_is_fed_are_for_the_backend(tmp_path: Path) -> None:
    model = made(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [declared("x", ["n", 3])],
        [declared("y", None, TensorProto.INT64)],
    )
    with pytest.raises(ConfigError, match=r"caldera\.onnx\.Backend"):
        cd.onnx.load(written(model, tmp_path))
    (found,) = cd.onnx.Backend.run_model(model, [np.array([[0, 1, 0]], np.float32)])
    assert found.tolist() == [[0], [1]]


def test_functions_of_the_model_itself(tmp_path: Path) -> None:
    scaled = helper.make_node("Mul", ["x", "factor"], ["y"])
    factor = helper.make_node("Constant", [], ["factor"])
    reference = factor.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "value_float", "by", 1
    function = helper.make_function(
        "own", "Scaled", ["x"], ["y"], [factor, scaled], [helper.make_opsetid("", 18)], ["by"]
    )
    nodes = [helper.make_node("Scaled", ["x"], ["y"], domain="own", by=2.5)]
    model = made(nodes, [declared("x", ["n", 2])], [declared("y", None)], functions=[function])
    x = numbers(3, 2)
    loaded = cd.onnx.load(written(model, tmp_path))
    np.testing.assert_allclose(loaded.predict(x), 2.5 * x, rtol=1e-6)


def test_a_branch_that_is_decided_by_what_is_fed(tmp_path: Path) -> None:
    total = helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0)
    test = helper.make_node("Greater", ["total", "zero"], ["is_large"])
    branches = {
        name: helper.make_graph(
            [helper.make_node(kind, ["x"], [name])], name, [], [declared(name, None)]
        )
        for name, kind in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }
    choose = helper.make_node("If", ["is_large"], ["y"], **branches)
    arrays = {"zero": np.array(0, np.float32)}
    model = made([total, test, choose], [declared("x", [1, 2])], [declared("y", None)], arrays)
    loaded = cd.onnx.load(written(model, tmp_path))
    assert loaded.predict(np.array([[1, 2]], np.float32)).tolist() == [[-1, -2]]
    assert loaded.predict(np.array([[0, -9]], np.float32))[0, 0] == 1


def test_a_branch_may_name_what_is_outside_of_it(tmp_path: Path) -> None:
    inside = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["z"])], "inside", [], [declared("z", None)]
    )
    choose = helper.make_node("If", ["yes"], ["y"], then_branch=inside, else_branch=inside)
    arrays = {"yes": np.array(True), "w": numbers(3)}
    model = made([choose], [declared("x", ["n", 3])], [declared("y", None)], arrays)
    loaded = cd.onnx.load(written(model, tmp_path))
    x = numbers(4, 3)
    np.testing.assert_allclose(loaded.predict(x), x * arrays["w"], rtol=1e-6)
    assert [p.name for p in loaded.parameters()] == ["w"]


# --- what is not right


def external(folder: Path, location: str, length: int = 12, offset: int = 0) -> Path:
    """A model whose array lies in another file."""
    tensor = TensorProto(name="w", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    model = made(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [declared("x", ["n", 3])],
        [declared("y", None)],
    )
    model.graph.initializer.append(tensor)
    return written(model, folder)


def test_arrays_may_lie_in_a_file_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 4 + np.arange(3, dtype=np.float32).tobytes())
    loaded = cd.onnx.load(external(tmp_path, "w.bin", offset=4))
    assert loaded.predict(np.zeros((1, 3), np.float32)).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("location", ["../w.bin", "link.bin", "none.bin", ".", "{absolute}"])
def test_files_elsewhere_are_not_read(location: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    outside = tmp_path / "w.bin"
    outside.write_bytes(b"\0" * 12)
    (home / "link.bin").symlink_to(outside)
    with pytest.raises(DataError, match=r"onnx model\.onnx"):
        cd.onnx.load(external(home, location.format(absolute=outside)))


@pytest.mark.parametrize(("length", "offset"), [(12, 4), (8, 0), (-1, 0), (12, -4), (1 << 60, 0)])
def test_bytes_that_are_not_there_are_not_read(length: int, offset: int, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 12)
    with pytest.raises(DataError, match=r"onnx model\.onnx"):
        cd.onnx.load(external(tmp_path, "w.bin", length, offset))


def test_a_file_is_not_read_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 12)
    path = external(tmp_path, "w.bin")
    model = cd.onnx.reading.parser.message(path.read_bytes(), "test")
    for i in range(3):
        model.graph.initializer.append(model.graph.initializer[0])
        model.graph.initializer[-1].name = f"w{i}"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(DataError, match="overlap"):
        cd.onnx.load(path)


def with_array(**fields: Any) -> Any:
    model = made(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [declared("x", ["n", 3])],
        [declared("y", None)],
    )
    model.graph.initializer.append(TensorProto(name="w", **fields))
    return model


@pytest.mark.parametrize(
    "fields",
    [
        {"data_type": 1, "dims": [1 << 40], "raw_data": b"\0" * 8},
        {"data_type": 1, "dims": [3], "float_data": [1.0]},
        {"data_type": 1, "dims": [-3], "raw_data": b""},
        {"data_type": 8, "dims": [3], "string_data": [b"a"]},
        {"data_type": 22, "dims": [3], "raw_data": b"\0"},
    ],
    ids=["huge", "too few", "negative", "texts", "4 bits"],
)
def test_sizes_have_to_fit_the_bytes(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'w': expected"):
        cd.onnx.load(written(with_array(**fields), tmp_path))


def test_an_unknown_element_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(DtypeError, match="got 99"):
        cd.onnx.load(written(with_array(data_type=99, dims=[0]), tmp_path))


def test_a_small_file_makes_no_large_arrays(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    arrays = {"size": np.array([1 << 40])}
    model = made(nodes, [declared("x", ["n", 3])], [declared("y", None)], arrays)
    with pytest.raises(DataError, match="file_limit"):
        cd.onnx.load(written(model, tmp_path))


HUGE = 10**12
BOMBS: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    # What the call is given after x, or in its place; and its attributes.
    "Expand": (["x", "shape"], {"shape": np.array([1, HUGE])}, {}),
    "Tile": (["x", "times"], {"times": np.array([1, HUGE])}, {}),
    "Pad": (["x", "pads"], {"pads": np.array([0, 0, 0, HUGE])}, {}),
    "Pad edge": (["x", "pads"], {"pads": np.array([0, 0, 0, HUGE])}, {"mode": "edge"}),
    "OneHot": (
        ["i", "depth", "v"],
        {"i": np.array([0]), "depth": np.array(HUGE), "v": np.ones(2, "float32")},
        {},
    ),
    "Range": (["a", "b", "c"], {"a": np.array(0), "b": np.array(HUGE), "c": np.array(1)}, {}),
    "HannWindow": (["n"], {"n": np.array(HUGE)}, {}),
    "ConstantOfShape": (["s"], {"s": np.array([HUGE])}, {}),
    "MelWeightMatrix": (
        ["n", "n", "r", "l", "u"],
        {
            "n": np.array(HUGE),
            "r": np.array(8000),
            "l": np.array(0.0, "float32"),
            "u": np.array(4000.0, "float32"),
        },
        {},
    ),
    "AffineGrid": (
        ["t", "s"],
        {"t": np.ones((1, 2, 3), "float32"), "s": np.array([1, 1, HUGE, 4])},
        {},
    ),
    "Resize": (
        ["image", "", "", "s"],
        {"image": np.ones((1, 1, 2, 2), "float32"), "s": np.array([1, 1, HUGE, 2])},
        {"mode": "nearest"},
    ),
    "Resize linear": (
        ["image", "", "", "s"],
        {"image": np.ones((1, 1, 2, 2), "float32"), "s": np.array([1, 1, HUGE, 2])},
        {"mode": "linear"},
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("is_fed", [True, False])
def test_no_call_asks_for_what_the_file_does_not_have(
    bomb: str, is_fed: bool, tmp_path: Path
) -> None:
    inputs, arrays, attributes = BOMBS[bomb]
    if "x" in inputs and not is_fed:
        inputs = ["w", *inputs[1:]]
        arrays = {**arrays, "w": np.ones((1, 1), "float32")}
    nodes = [
        helper.make_node(bomb.split()[0], inputs, ["large"], **attributes),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "number"], ["y"]),
    ]
    model = made(nodes, [declared("x", ["n", 1])], [declared("y", None)], arrays, opset=20)
    with pytest.raises(DataError, match="file_limit"):
        cd.onnx.load(written(model, tmp_path))


def test_functions_cannot_multiply_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "MOST_CALLS", 1000)
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own",
            f"F{n}",
            ["a"],
            ["c"],
            [helper.make_node(f"F{n - 1}", [a], [b], domain="own") for a, b in ("ab", "bc")]
            if n
            else [helper.make_node("Neg", ["a"], ["c"])],
            versions,
        )
        for n in range(40)
    ]
    nodes = [helper.make_node("F39", ["x"], ["y"], domain="own")]
    model = made(nodes, [declared("x", ["n", 3])], [declared("y", None)], functions=functions)
    with pytest.raises(DataError, match="at most 1000 calls"):
        cd.onnx.load(written(model, tmp_path))


def test_what_a_model_may_ask_for_grows_with_what_it_is_given(tmp_path: Path) -> None:
    nodes = [helper.make_node("Tile", ["x", "times"], ["y"])]
    arrays = {"times": np.array([1, 50])}
    model = made(nodes, [declared("x", ["n", 3])], [declared("y", None)], arrays)
    with cd.settings.override(file_limit=1):
        found = cd.onnx.load(written(model, tmp_path)).predict(np.ones((100, 3), "float32"))
    assert found.shape == (100, 150)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08" + b"\xff" * 64])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(DataError, match="a model of ONNX"):
        cd.onnx.load(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    path = cd.onnx.export(model, tmp_path / "whole.onnx")
    for length in range(1, path.stat().st_size, 41):
        cut = tmp_path / "cut.onnx"
        cut.write_bytes(path.read_bytes()[:length])
        with pytest.raises((DataError, ConfigError)):
            cd.onnx.load(cut)


def test_operators_and_attributes_that_are_not_known_are_named(tmp_path: Path) -> None:
    ends = [declared("x", ["n", 3])], [declared("y", None)]
    unknown = made([helper.make_node("Frobnicate", ["x"], ["y"], name="odd")], *ends)
    with pytest.raises(ConfigError, match=r"Frobnicate 'odd'.*ai\.onnx Frobnicate"):
        cd.onnx.load(written(unknown, tmp_path))
    strange = made([helper.make_node("Relu", ["x"], ["y"], colour="red")], *ends)
    with pytest.raises(ConfigError, match="got colour"):
        cd.onnx.load(written(strange, tmp_path))
    wanting = made([helper.make_node("Conv", ["x"], ["y"])], *ends)
    with pytest.raises(DataError, match="missing a required argument: 'w'"):
        cd.onnx.load(written(wanting, tmp_path))
    dangling = made([helper.make_node("Relu", ["nothing"], ["y"])], *ends)
    with pytest.raises(DataError, match="'nothing'"):
        cd.onnx.load(written(dangling, tmp_path))


def test_sparse_arrays_are_filled_up(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    places = numpy_helper.from_array(np.array([[0, 1], [2, 2]]), "places")
    sparse = helper.make_sparse_tensor(values, places, [3, 3])
    model = made(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [declared("x", ["n", 3])],
        [declared("y", None)],
    )
    model.graph.sparse_initializer.append(sparse)
    loaded = cd.onnx.load(written(model, tmp_path))
    assert loaded.predict(np.ones((1, 3), np.float32)).tolist() == [[0, 2, 3]]


def test_layers_can_follow_a_loaded_model(tmp_path: Path) -> None:
    base = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, activation="relu")])
    loaded = cd.onnx.load(cd.onnx.export(base, tmp_path / "base.onnx"))
    loaded.freeze()

    class Tuned(cd.Model):
        def __init__(self) -> None:
            super().__init__()
            self.base = loaded
            self.head = nn.Dense(2)

        def forward(self, x: Any) -> Any:
            return self.head(self.base(x))

    tuned, x = Tuned(), numbers(32, 4)
    before = loaded.predict(x)
    tuned.fit((x, np.arange(32) % 2), epochs=2, verbose=0)
    np.testing.assert_array_equal(loaded.predict(x), before)
    assert len(tuned.trainable()) == 2


def test_expressions_of_a_loaded_model_have_derivatives(tmp_path: Path) -> None:
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(1)])
    loaded = cd.onnx.load(cd.onnx.export(model, tmp_path / "m.onnx"))
    x = op.var("x", (1, 3), fill=cd.constant(1.0))
    slope = op.grad(op.sum(loaded(x)), x)
    np.testing.assert_allclose(slope.numpy()[0], model.parameters()[0].numpy()[:, 0], rtol=1e-6)
