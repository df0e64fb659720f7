"""Exported files for any number of samples: what depends on it is computed in the file.

And that a file which computes anything else than the model is never handed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError
from caldera.onnx.writing.rules.registry import RULES, ExportRule
from tests.unit.onnx.files import by_onnxruntime, declared, made, written
from tests.unit.onnx.test_export import Written, agree, numbers

export_module = import_module("caldera.onnx.writing.export")
STEPS, FEATURES, UNITS = 4, 3, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(kind: str, layers: int, directions: int, batch_first: bool) -> Any:
    """A recurrent network as PyTorch writes it: its first states are zeros of the batch's size."""
    samples_axis = 0 if batch_first else 1
    arrays = {
        "axis": np.array(samples_axis),
        "zero": np.array([0]),
        "flat": np.array([0, 0, -1]),
        "states": np.array([layers * directions]),
        "units": np.array([UNITS]),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["count"]),
        helper.make_node("Unsqueeze", ["count", "zero"], ["samples"]),
        helper.make_node("Concat", ["states", "samples", "units"], ["sizes"], axis=0),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
    ]
    value = "x"
    if batch_first:
        nodes.append(helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]))
        value = "turned"
    generator, wide = np.random.default_rng(0), FEATURES
    for layer in range(layers):
        rows, name = GATES[kind] * UNITS, f"layer{layer}"
        shapes = {"w": (rows, wide), "r": (rows, UNITS), "b": (2 * rows,)}
        for short, shape in shapes.items():
            array = generator.uniform(-1, 1, (directions, *shape)).astype(np.float32)
            arrays[f"{name}/{short}"] = array
        arrays |= {
            f"{name}/from": np.array([layer * directions]),
            f"{name}/to": np.array([(layer + 1) * directions]),
        }
        bounds = ["zeros", f"{name}/from", f"{name}/to", "zero"]
        nodes.append(helper.make_node("Slice", bounds, [f"{name}/first"]))
        first = [f"{name}/first"] * (2 if kind == "LSTM" else 1)
        given = [value, *[f"{name}/{short}" for short in shapes], "", *first]
        how = {"direction": "bidirectional"} if directions == 2 else {}
        how |= {"linear_before_reset": 1} if kind == "GRU" else {}
        nodes += [
            helper.make_node(kind, given, [f"{name}/y"], hidden_size=UNITS, **how),
            helper.make_node("Transpose", [f"{name}/y"], [f"{name}/t"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"{name}/t", "flat"], [f"{name}/out"]),
        ]
        value, wide = f"{name}/out", directions * UNITS
    perm = [1, 0, 2] if batch_first else [0, 1, 2]
    nodes.append(helper.make_node("Transpose", [value], ["y"], perm=perm))
    sizes: list[Any] = ["n", STEPS] if batch_first else [STEPS, "n"]
    return made(nodes, [declared("x", [*sizes, FEATURES])], [declared("y", None)], arrays)


VARIANTS = [
    (kind, *sizes, batch_first)
    for (kind, batch_first), sizes in zip(
        itertools.product(GATES, (True, False)),
        itertools.cycle([(1, 1), (2, 2), (1, 2), (2, 1)]),
        strict=False,
    )
]


def test_recurrent_networks_of_others_go_through_for_any_number_of_samples(tmp_path: Path) -> None:
    for variant in VARIANTS:
        path = written(recurrent(*variant), tmp_path, "theirs.onnx")
        model = cd.onnx.load(path, loss="mean_squared")
        batch_first = variant[-1]
        model.build_for(numbers(*((2, STEPS) if batch_first else (STEPS, 2)), FEATURES))
        again = cd.onnx.export(model, tmp_path / "ours.onnx")
        for count in (5, 1):
            x = numbers(*((count, STEPS) if batch_first else (STEPS, count)), FEATURES)
            (expected,), (found,) = by_onnxruntime(path, x), by_onnxruntime(again, x)
            assert found.shape == expected.shape, variant
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=str(variant))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "at a number": lambda x: op.gather(x, 1, axis=1) * 2.0,
    "zeros of the batch's shape": lambda x: op.concat([x, np.zeros(x.shape, np.float32)], 1),
    "a row for each sample": lambda x: x + np.tile(np.float32([[1, 2, 3]]), (len(x), 1)),
    "positions": lambda x: x + op.cast(3 * np.arange(len(x))[:, None] - 1, "float32"),
    "the number itself": lambda x: op.cast(np.array([5, len(x), 2 * len(x) + 1]), "float32") + x,
    "a share": lambda x: x / len(x) + op.sum(x) * (1 / len(x)) + x * float(len(x)),
    "a tensor made on the way": lambda x: x * cd.tensor(np.full(x.shape, 2, np.float32)),
    "from the middle of the joined axes": lambda x: op.reshape(x, (-1,))[len(x) : 2 * len(x)],
    "a loop as long as the batch": lambda x: op.scan(
        lambda total, row: (total + row, total), x[0] * 0.0, x
    )[1],
}


def test_what_follows_from_the_number_of_samples_is_computed(tmp_path: Path) -> None:
    for name, function in FUNCTIONS.items():
        try:
            agree(Written(function), tmp_path, numbers(4, 3))
        except (AssertionError, ConfigError) as problem:
            pytest.fail(f"{name}: {problem}")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: np.eye(len(x), dtype=np.float32) @ x, "plain functions of the number"),
        (lambda x: x * (len(x) ** 2.5), "plain functions of the number"),
        (lambda x: op.pad(x, ((0, 0), (len(x), 0))), "attributes that are the same"),
        (lambda x: op.cumsum(x, len(x) % 2 if len(x) > 13 else 0), "attributes that are the same"),
    ],
)
def test_what_cannot_be_left_open_is_refused(
    function: Callable[[Any], Any], expected: str, tmp_path: Path
) -> None:
    model = Written(function)
    model.build_for(numbers(4, 3))
    with pytest.raises(ConfigError, match=f"{expected}.*batch_size="):
        cd.onnx.export(model, tmp_path / "m.onnx")
    x = numbers(4, 3)
    path = cd.onnx.export(model, tmp_path / "fixed.onnx", batch_size=4)
    np.testing.assert_allclose(by_onnxruntime(path, x)[0], model.predict(x), rtol=1e-5, atol=1e-6)


def test_states_between_batches_are_refused(tmp_path: Path) -> None:
    layers = [nn.Input((5, 3)), nn.LSTM(4, stateful=2), nn.Dense(2)]
    model = cd.NeuralNetwork(layers, batch_size=2)
    for batch_size in (None, 2):
        with pytest.raises(
            ConfigError, match="no states between batches, got 1-LSTM with stateful="
        ):
            cd.onnx.export(model, tmp_path / "m.onnx", batch_size=batch_size)


@pytest.mark.parametrize("has_onnxruntime", [True, False])
def test_a_file_that_computes_something_else_is_never_written(
    has_onnxruntime: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_onnxruntime:
        monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2, activation="tanh")])
    cd.onnx.export(model, tmp_path / "right.onnx")
    wrong: dict[str, Callable[..., Any]] = {
        "model's own output 'output' for 1 samples, got other numbers": (
            lambda write, pair: write.add("Sigmoid", write.name(pair.inputs[0]))
        ),
        r"\(1, 2\) float32 as output 'output' for 1 samples, got \(2,\)": (
            lambda write, pair: write.add("Squeeze", write.name(pair.inputs[0]))
        ),
        "that runs for 2 samples|own check": (
            lambda write, pair: write.add(
                "Reshape",
                write.add("Tanh", write.name(pair.inputs[0])),
                write.integers([1, 2]),
            )
        ),
    }
    for message, rule in wrong.items():
        monkeypatch.setitem(RULES, "tanh", ExportRule(rule, frozenset()))
        with pytest.raises(ConfigError, match=message):
            cd.onnx.export(model, tmp_path / "wrong.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["right.onnx"]


def test_much_work_is_compiled_for_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> None:
        raise AssertionError("reference functions would take minutes")

    monkeypatch.setattr(export_module, "_MUCH", 10)
    monkeypatch.setattr(export_module, "interpret", refused)
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2, activation="tanh")])
    path, x = cd.onnx.export(model, tmp_path / "m.onnx", batch_size=4), numbers(4, 3)
    np.testing.assert_allclose(by_onnxruntime(path, x)[0], model.predict(x), rtol=1e-5)


def test_indices_that_are_fed_for_the_check_fit_the_table(tmp_path: Path) -> None:
    layers = [nn.Input((4,), dtype="int64"), nn.Embedding(2, 3)]
    model = cd.NeuralNetwork(layers, loss="mean_squared")
    x = np.array([[0, 1, 1, 0]])
    path = cd.onnx.export(model, tmp_path / "m.onnx")
    np.testing.assert_allclose(by_onnxruntime(path, x)[0], model.predict(x))


def test_a_fixed_file_stays_fixed(tmp_path: Path) -> None:
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)])
    fixed = cd.onnx.export(model, tmp_path / "fixed.onnx", batch_size=4)
    loaded, x = cd.onnx.load(fixed), numbers(4, 3)
    again = cd.onnx.export(loaded, tmp_path / "again.onnx")
    np.testing.assert_allclose(by_onnxruntime(again, x)[0], model.predict(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match=r"that the model takes, got 5 for inputs of \(4, 3\)"):
        cd.onnx.export(loaded, tmp_path / "other.onnx", batch_size=5)
