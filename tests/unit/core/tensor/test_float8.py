"""Tensors and files of 8-bit floats, which store numbers and do not compute."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import DtypeError

NAMES = ["float8_e4m3fn", "float8_e5m2"]


def _same(tensor: cd.Tensor, right: np.ndarray) -> bool:
    found = tensor.numpy()
    return found.dtype == right.dtype and found.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_conversions_are_those_of_ml_dtypes(name: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = (draw.normal(size=(4, 7)) * 10.0 ** draw.integers(-4, 6, (4, 7))).astype("float32")
    values[0, :3] = np.nan, np.inf, -0.0
    right = values.astype(getattr(ml_dtypes, name))
    tensor = cd.tensor(values).astype(name)
    assert _same(tensor, right)
    for wide in ("float16", "bfloat16", "float32", "float64"):
        expected = right.astype(wide)
        assert _same(tensor.astype(wide), expected)
        assert _same(cd.tensor(expected).astype(name), expected.astype(right.dtype))
    others = [copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), cd.tensor(right)]
    others += [tensor.to("loopback", kind=cd.DEVICE), cd.Tensor.from_numpy(right, copy=False)]
    assert all(_same(each, right) for each in others)
    assert _same(tensor[1:3, ::2].T, np.ascontiguousarray(right[1:3, ::2].T))


@pytest.mark.parametrize("name", NAMES)
def test_elements_and_fills(name: str) -> None:
    tensor = cd.Tensor((2, 3), dtype=name)
    tensor[0, 1], tensor[1] = 2.5, [1, 2, 3]
    assert tensor.astype("float32").tolist() == [[0.0, 2.5, 0.0], [1.0, 2.0, 3.0]]
    assert cd.tensor([1.5, 2], dtype=name).astype("float32").tolist() == [1.5, 2.0]
    cd.seed(1)
    drawn = cd.Tensor((50,), cd.uniform(-1, 1), name).astype("float32").numpy()
    assert -1 <= drawn.min() < -0.5 < 0.5 < drawn.max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_files(name: str, tmp_path: Path) -> None:
    path, tensor = tmp_path / "t.safetensors", cd.tensor([[1.5, -448.0]]).astype(name)
    cd.io.save_safetensors(path, {"a": tensor, "b": tensor.numpy(), "c": np.ones(3)})
    found = cd.io.load_safetensors(path)
    assert _same(found["a"], tensor.numpy())
    assert _same(found["b"], tensor.numpy())
    assert cd.io.map_safetensors(path)["a"].tobytes() == tensor.numpy().tobytes()
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)])
    weights = {each.name: each.tensor.astype(name) for each in model.parameters()}
    cd.io.save_safetensors(path, weights)
    model.load_weights(path)
    for each in model.parameters():
        np.testing.assert_array_equal(each.numpy(), weights[each.name].astype("float32").numpy())
    with pytest.raises(DtypeError, match="a dtype that npy files know, got float8"):
        cd.io.save_npy(tmp_path / "t.npy", tensor)


WRONG: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + x,
    "mul": lambda x: 2.0 * x,
    "mixed": lambda x: op.add(cd.tensor([1.0]), x),
    "relu": op.relu,
    "of an array": lambda x: op.relu(x.numpy()),
    "sum": op.sum,
    "cast": lambda x: op.cast(x, "float32"),
    "cast to": lambda x: op.cast(cd.tensor([1.0]), x.dtype),
    "variable": lambda x: op.var("x", (2,), dtype=x.dtype),
    "value of a variable": lambda x: op.var("x", (2,)).assign(x),
    "input": lambda x: op.input("x", (2,), dtype=x.dtype.name),
    "predict": lambda x: cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)]).predict(x.numpy()[None]),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", NAMES)
def test_arithmetic_is_refused(name: str, case: str) -> None:
    tensor = cd.tensor([1.0, 2.0]).astype(name)
    with pytest.raises(DtypeError, match=r"float8 only stores numbers: .* with astype"):
        WRONG[case](tensor)
    with pytest.raises(DtypeError, match=f"int32 can hold, got {name}"):
        cd.tensor(tensor.numpy(), dtype="int32")
