"""Tensors, layers and models go through `copy.deepcopy`, `pickle` and `joblib`."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn, op, optim
from caldera.errors import CommError, ConfigError, DataError, ShapeError
from caldera.train.neural_network import from_pickle
from caldera.train.saving.model_file import model_bytes
from tests.unit.train.small import classifier, points, same_bits, values


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def dumped(thing: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(thing, file)
    file.seek(0)
    return joblib.load(file)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": pickled,
    "joblib": dumped,
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "bfloat16", "float32", "float64"])
def test_tensors(way: str, dtype: str) -> None:
    given = cd.tensor([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    for tensor in (given, given.T, given[:, 1], cd.Tensor((0, 3)), cd.Tensor(())):
        found = WAYS[way](tensor)
        assert (found.dtype, found.shape, found.kind) == (tensor.dtype, tensor.shape, tensor.kind)
        assert found.tolist() == tensor.tolist()
        assert found.memory is not tensor.memory


@ways
def test_tensors_on_a_device(way: str) -> None:
    given = cd.tensor([1.0, 2.0]).to("loopback:1", kind=cd.DEVICE)
    found = WAYS[way](given)
    assert (found.device, found.kind) == (given.device, cd.DEVICE)
    assert found.tolist() == [1.0, 2.0]


def test_what_a_pickle_of_a_tensor_says_is_checked() -> None:
    with pytest.raises(ShapeError, match="16 bytes"):
        cd.Tensor.from_bytes(b"12", "float32", (4,))
    # A card that is not here.
    assert cd.Tensor.from_bytes(b"\1", "int8", (1,), "CUDA_MANAGED", "cuda:7").tolist() == [1]


def test_a_network_goes_on_to_the_bit() -> None:
    model = classifier(optimizer="adam", batch_size=16)
    x, y = points()
    model.fit((x, y), epochs=1, verbose=0)
    copies = {name: way(model) for name, way in WAYS.items()}
    before = values(model)
    model.fit((x, y), epochs=1, verbose=0)
    for name, again in copies.items():
        assert type(again) is cd.NeuralNetwork
        assert same_bits(values(again), before), name
        again.fit((x, y), epochs=1, verbose=0)
        assert same_bits(values(again), values(model)), name
        assert again.optimizer.step.numpy() == model.optimizer.step.numpy()


def test_rules_accumulation_and_groups_are_kept() -> None:
    model = classifier(
        optimizer=optim.SGD(
            optim.ReduceOnPlateau(0.5, patience=0),
            momentum=0.9,
            accumulate=3,
            groups=[optim.Group("bias", weight_decay=0.0)],
        ),
        batch_size=optim.GrowingBatch(16, factor=2.0, every=1),
    )
    x, y = points()
    model.fit((x, y), epochs=2, verbose=0)
    for way in WAYS.values():
        again = way(model)
        kept, found = (
            [(each.name, each.numpy().tolist()) for each in which.optimizer.variables()]
            for which in (model, again)
        )
        assert found == kept
        assert again.optimizer.epoch_rule.state() == model.optimizer.epoch_rule.state()
        assert [each.state() for each in again.between_epochs] == [
            each.state() for each in model.between_epochs
        ]


@ways
def test_a_network_that_has_seen_nothing(way: str) -> None:
    x, _ = points()
    model = cd.NeuralNetwork([nn.Dense(3)], seed=4)
    again = WAYS[way](model)
    assert again.predict(x).tobytes() == model.predict(x).tobytes()


class Net(cd.Model):
    def __init__(self, function: Callable[[Any], Any] = op.tanh) -> None:
        super().__init__(optimizer="adam")
        self.first = nn.Dense(4)
        self.heads = [nn.Dense(2), nn.Sequential([self.first, nn.Dense(2)])]
        self.function = function

    def forward(self, x: Any) -> Any:
        x = self.function(self.first(x))
        return self.heads[0](x)


def test_a_model_of_ones_own() -> None:
    x, y = points()
    model = Net()
    model.fit((x, y), epochs=1, verbose=0)
    copies = [way(model) for way in WAYS.values()]
    model.fit((x, y), epochs=1, verbose=0)
    expected = model.predict(x)
    for again in copies:
        assert again.heads[1].layers[0] is again.first
        assert again.parameters()[0] is not model.parameters()[0]
        again.fit((x, y), epochs=1, verbose=0)
        assert again.predict(x).tobytes() == expected.tobytes()


@dataclass(eq=False)
class Unregistered(nn.Layer):
    def forward(self, x: Any) -> Any:
        return x


@ways
def test_layers(way: str) -> None:
    layer = nn.Sequential([nn.Dense(3), nn.BatchNorm(), nn.LSTM(2), Unregistered()])
    x = np.ones((2, 4, 3), "float32")
    expected = layer(cd.tensor(x)).numpy()
    layer.freeze()
    again = WAYS[way](layer)
    assert np.array_equal(again(cd.tensor(x)).numpy(), expected)
    assert [each.name for each in again.parameters()] == [each.name for each in layer.parameters()]
    assert again.trainable() == []
    assert WAYS[way](nn.Dense(3)).built is False


def test_what_cannot_be_pickled_is_said() -> None:
    with pytest.raises(ConfigError, match=r"pickling Net: .* function=.*<lambda>; define it"):
        pickle.dumps(Net(lambda x: x))
    assert copy.deepcopy(Net(lambda x: x)).function(3) == 3
    network = cd.NeuralNetwork([nn.Input((2,)), Unregistered()])
    with pytest.raises(ConfigError, match="register"):
        pickle.dumps(network)
    assert copy.deepcopy(network).network is not network.network
    with pytest.raises(ConfigError, match=r"eval\(\) it first"):
        pickle.dumps(op.var("w", (2,)) * 2.0)
    for way in (pickled, copy.deepcopy):
        with pytest.raises(CommError, match="belongs to this process"):
            way(comm.world())


def test_a_pickle_of_a_network_calls_nothing_but_our_loader() -> None:
    called: list[tuple[str, str]] = []

    class Watched(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            called.append((module, name))
            return super().find_class(module, name)

    Watched(io.BytesIO(pickle.dumps(classifier()))).load()
    assert called == [("caldera.train.neural_network", "from_pickle")]


def test_damaged_pickles_are_refused() -> None:
    model = classifier()
    good = model_bytes(model)
    with pytest.raises(DataError):
        from_pickle(good[:-1], b"", "cpu")
    with pytest.raises(DataError):
        from_pickle(good, b"nothing", "cpu")
    with pytest.raises(DataError, match="progress"):
        from_pickle(good, good, "cpu")


def test_an_imported_model(tmp_path: Path) -> None:
    x, _ = points()
    model = cd.onnx.load(cd.onnx.export(classifier(), tmp_path / "model.onnx"))
    for way in WAYS.values():
        assert way(model).predict(x).tobytes() == model.predict(x).tobytes()
