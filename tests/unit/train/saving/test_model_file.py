"""Model files: everything comes back, and nothing else can be made with one."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from caldera import nn, optim
from caldera.errors import CalderaError, CheckpointError, ConfigError, DataError
from caldera.io import load_safetensors, load_safetensors_metadata, save_safetensors
from caldera.nn.losses import CrossEntropy
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork, load_model
from caldera.train.saving.checkpoint import digest
from caldera.train.saving.model_file import (
    DIGEST,
    KEY,
    load_weights,
    model_bytes,
    read_content,
    read_tensors,
    save_model,
)
from tests.unit.train.small import classifier, points, same_bits, values


def test_a_saved_network_predicts_the_same_and_trains_on(tmp_path: Path) -> None:
    model = classifier()
    x, y = points()
    model.fit((x, y), epochs=2, verbose=0)
    again = load_model(save_model(model, tmp_path / "model.caldera"))
    assert same_bits(values(again), values(model))
    assert again.predict(x).tobytes() == model.predict(x).tobytes()
    assert again.evaluate((x, y)) == model.evaluate((x, y))
    assert len(again.fit((x, y), epochs=1, verbose=0)["loss"]) == 1


def test_the_settings_come_back(tmp_path: Path) -> None:
    model = classifier(
        loss=CrossEntropy(label_smoothing=0.1),
        optimizer=optim.SGD(
            optim.Cosine(0.1, steps=9),
            momentum=0.9,
            clip=optim.ClipNorm(1.0),
            groups=[optim.Group("bias", weight_decay=0.0)],
        ),
        metrics=["accuracy", "f1"],
        batch_size=7,
        epochs=4,
        seed=11,
    )
    again = load_model(save_model(model, tmp_path / "model.caldera"))
    assert again.optimizer.config() == model.optimizer.config()
    assert again.objective.losses == model.objective.losses
    assert [each.config() for each in again.metrics] == [each.config() for each in model.metrics]
    assert (again.batch_size, again.epochs, again.seed) == (7, 4, 11)


def test_shared_and_frozen_layers_stay_so(tmp_path: Path) -> None:
    shared = nn.Dense(3)
    model = NeuralNetwork([nn.Input((3,)), shared, nn.ReLU(), shared, nn.Dense(2)])
    shared.freeze()
    again = load_model(save_model(model, tmp_path / "model.caldera"))
    assert len(again.parameters()) == 4
    assert [each.name for each in again.trainable()] == [each.name for each in model.trainable()]


def test_a_network_that_learned_its_shape_from_data_comes_back(tmp_path: Path) -> None:
    model = NeuralNetwork([nn.Embedding(5, 3), nn.Flatten(), nn.Dense(2)])
    x = np.arange(12).reshape(3, 4) % 5
    expected = model.predict(x)
    again = load_model(save_model(model, tmp_path / "model.caldera"))
    assert again.predict(x).tobytes() == expected.tobytes()


def test_other_programs_can_read_the_weights(tmp_path: Path) -> None:
    model = classifier()
    found = safetensors.numpy.load_file(save_model(model, tmp_path / "model.caldera"))
    assert same_bits(found, values(model))


def test_what_is_in_the_file_is_plain(tmp_path: Path) -> None:
    path = save_model(classifier(), tmp_path / "model.caldera")
    content = json.loads(load_safetensors_metadata(path)[KEY])
    assert content["format"] == "caldera-2"
    assert content["kind"] == "NeuralNetwork"
    assert content["layers"][1]["layer"] == "Dense"
    assert "caldera." not in json.dumps(content)


def test_saving_replaces_a_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.caldera"
    save_model(classifier(), path)
    before = path.read_bytes()
    other = classifier(seed=4)

    def fail(*arguments: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk is full"):
            save_model(other, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["model.caldera"]
    save_model(other, path)
    assert path.read_bytes() != before


def test_a_model_without_shapes_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="input shape"):
        save_model(NeuralNetwork([nn.Dense(2)]), tmp_path / "model.caldera")
    with pytest.raises(ConfigError, match="folder"):
        save_model(classifier(), tmp_path / "no" / "model.caldera")


# --- models of one's own


class Net(Model):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Dense(width)
        self.last = nn.Dense(2)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x))


def test_a_model_of_ones_own_saves_and_loads_weights(tmp_path: Path) -> None:
    x, y = points()
    model = Net()
    model.fit((x, y), verbose=0)
    path = save_model(model, tmp_path / "net.caldera")
    again = Net()
    again.build_for(x)
    load_weights(again, path)
    assert same_bits(values_of(again), values_of(model))
    with pytest.raises(ConfigError, match=r"the weights of 'Net'.*load_weights"):
        load_model(path)


def values_of(model: Model) -> dict[str, np.ndarray]:
    return {each.name: each.numpy() for each in model.parameters()}


def test_weights_that_do_not_fit_are_named_and_nothing_changes(tmp_path: Path) -> None:
    x, _ = points()
    model = Net()
    model.build_for(x)
    path = save_model(model, tmp_path / "net.caldera")
    wider = Net(5)
    wider.build_for(x)
    before = values_of(wider)
    with pytest.raises(CheckpointError, match=r"first/weight of shape \(2, 4\) for \(2, 5\)"):
        load_weights(wider, path)
    assert same_bits(values_of(wider), before)
    tensors = dict(load_safetensors(path))
    tensors["extra"] = tensors.pop("last/bias")
    save_safetensors(tmp_path / "other.safetensors", tensors)
    with pytest.raises(CheckpointError, match="last/bias missing; extra unexpected"):
        load_weights(model, tmp_path / "other.safetensors")


def test_weights_of_another_program_are_loaded_by_name(tmp_path: Path) -> None:
    model = Net()
    model.build_for(points()[0])
    given = {name: array + 1 for name, array in values_of(model).items()}
    safetensors.numpy.save_file(given, tmp_path / "torch.safetensors")
    load_weights(model, tmp_path / "torch.safetensors")
    assert same_bits(values_of(model), given)


# --- files that mean no good


def rewritten(path: Path, change: Any) -> Path:
    """The file with its JSON changed."""
    content = json.loads(load_safetensors_metadata(path)[KEY])
    content = change(content) or content
    text = json.dumps(content)
    save_safetensors(path, load_safetensors(path), {KEY: text, DIGEST: digest(text)})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_model(classifier(), tmp_path / "model.caldera")


def huge(content: dict[str, Any]) -> None:
    content["layers"][1]["units"] = 1 << 40


def huge_and_consistent(content: dict[str, Any]) -> None:
    content["layers"] = [{"layer": "Dense", "units": 1 << 40}]
    content["tensors"] = {
        "0-Dense/weight": {"dtype": "float32", "shape": [2, 1 << 40], "digest": ""},
        "0-Dense/bias": {"dtype": "float32", "shape": [1 << 40], "digest": ""},
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["layers"].__setitem__(1, {"layer": "os.system"}),
        lambda c: c["layers"].__setitem__(1, {"layer": "Dense", "units": 6, "command": "rm"}),
        lambda c: c["layers"].__setitem__(1, {"layer": "Dense", "units": "six"}),
        lambda c: c.update(layers={}),
        lambda c: c.update(layers=[[]]),
        lambda c: c.update(format="caldera-9"),
        lambda c: c.update(kind="Pickle"),
        lambda c: c.update(extra=1),
        lambda c: c.update(inputs=[]),
        lambda c: c.update(inputs=[["x", 1]]),
        lambda c: c.update(inputs=[[[1 << 62, 1 << 62], "float32"]]),
        lambda c: c["settings"].update(optimizer={"kind": "optimizer"}),
        lambda c: c["settings"].update(loss=[]),
        lambda c: c["settings"].update(more=1),
        lambda c: c["settings"].update(batch_size=-1),
        lambda c: c["settings"].update(dtype="object"),
        lambda c: c.update(tensors={}),
        lambda c: c.update(settings=None),
        lambda c: [c],
        huge,
        huge_and_consistent,
    ],
)
def test_a_changed_file_is_refused_with_an_error_of_ours(path: Path, change: Any) -> None:
    with pytest.raises(CalderaError):
        load_model(rewritten(path, change))


@pytest.mark.parametrize("text", ["{", "null", "[" * 100_000, ""])
def test_json_that_is_none_is_refused(path: Path, text: str) -> None:
    save_safetensors(path, load_safetensors(path), {KEY: text})
    with pytest.raises(DataError):
        load_model(path)


def test_a_flipped_bit_is_noticed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(path)


def test_no_bit_of_the_header_can_be_flipped_unnoticed() -> None:
    layers = [nn.Input((1,)), nn.BatchNorm(eps=1e-5)]
    whole = bytearray(model_bytes(NeuralNetwork(layers, metrics=[], optimizer="sgd")))
    header = 8 + int.from_bytes(whole[:8], "little")
    load_model(io.BytesIO(whole))
    unnoticed = []
    for position in range(8 * header):
        byte, bit = position // 8, 1 << position % 8
        whole[byte] ^= bit
        file = io.BytesIO(whole)
        try:
            read_tensors(file, read_content(file))
            unnoticed.append((position, bytes(whole[byte - 20 : byte + 20])))
        except (DataError, CheckpointError):
            pass
        whole[byte] ^= bit
    assert unnoticed == []


def test_weights_of_a_file_whose_text_is_damaged_are_not_loaded(path: Path) -> None:
    content = path.read_bytes()
    for name in (KEY, DIGEST):
        path.write_bytes(content.replace(f'"{name}"'.encode(), f'"{name[:-1]}_"'.encode()))
        with pytest.raises(DataError, match="damaged"):
            load_weights(classifier(), path)
        with pytest.raises(DataError, match="damaged"):
            load_model(path)


def test_files_from_before_texts_had_a_digest_are_read(path: Path) -> None:
    content = {**read_content(path), "format": "caldera-1"}
    save_safetensors(path, load_safetensors(path), {KEY: json.dumps(content)})
    assert same_bits(values(load_model(path)), values(classifier()))
    content["format"] = "caldera-2"
    save_safetensors(path, load_safetensors(path), {KEY: json.dumps(content)})
    with pytest.raises(DataError, match="digest"):
        load_model(path)


def test_a_model_comes_from_an_open_file(path: Path) -> None:
    assert model_bytes(classifier()) == path.read_bytes()
    with path.open("rb") as file:
        file.seek(3)
        assert same_bits(values(load_model(file)), values(classifier()))
    with pytest.raises(DataError, match="open file"):
        load_model(io.BytesIO(b"no model"))


def test_a_truncated_file_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataError):
            load_model(path)


def test_a_file_that_is_no_model_says_what_to_do(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "plain.safetensors", {"a": np.zeros(2)})
    with pytest.raises(DataError, match="load_weights"):
        load_model(tmp_path / "plain.safetensors")
