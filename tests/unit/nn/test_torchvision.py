"""Weights from files with torchvision's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import CheckpointError, ConfigError

models = nn.models


def _theirs(layers: list[nn.Layer]) -> dict[str, np.ndarray]:
    """The weights of layers as PyTorch would write them."""
    return {
        name: np.ascontiguousarray(variable.numpy().T) if transposed else variable.numpy()
        for name, variable, transposed in models.torchvision_names(layers)
    }


def _saved(path: Path, weights: dict[str, np.ndarray]) -> Path:
    file = path / "weights.safetensors"
    cd.io.save_safetensors(file, weights)
    return file


def _built(layers: list[nn.Layer], shape: tuple[int, ...]) -> list[nn.Layer]:
    nn.network(layers)(op.input("x", shape))
    return layers


def test_names_and_shapes_are_those_of_torchvision() -> None:
    layers = models.resnet50()
    with nn.trace(allocate=False):
        nn.network(layers)(op.input("x", (1, 3, 224, 224)))
    shapes = {
        name: variable.shape[::-1] if transposed else variable.shape
        for name, variable, transposed in models.torchvision_names(layers)
    }
    assert len(shapes) == 161 + 106
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.downsample.1.running_mean"] == (256,)
    assert shapes["layer3.5.conv3.weight"] == (1024, 256, 1, 1)
    assert shapes["fc.weight"] == (1000, 2048)


@pytest.mark.parametrize(
    ("layers", "shape", "some"),
    [
        (models.alexnet(), (1, 3, 224, 224), {"features.10.weight", "classifier.6.bias"}),
        (models.vgg16(), (1, 3, 224, 224), {"features.28.bias", "classifier.3.weight"}),
        (models.vgg19(), (1, 3, 224, 224), {"features.34.bias", "classifier.3.weight"}),
        (
            models.googlenet(),
            (1, 3, 224, 224),
            {"inception4d.branch3.1.bn.running_var", "aux2.fc1.weight", "conv3.conv.weight"},
        ),
        (
            models.inception3(),
            (1, 3, 299, 299),
            {"Mixed_7c.branch3x3dbl_3b.conv.weight", "AuxLogits.conv1.bn.bias", "fc.bias"},
        ),
    ],
)
def test_every_model_of_torchvision_has_its_names(
    layers: list[nn.Layer], shape: tuple[int, ...], some: set[str]
) -> None:
    with nn.trace(allocate=False):
        nn.network(layers)(op.input("x", shape))
    names = [entry.name for entry in models.torchvision_names(layers)]
    assert len(set(names)) == len(names)
    assert some <= set(names)


def test_loading_gives_the_network_the_weights_of_the_file(tmp_path: Path) -> None:
    source = _built(models.resnet20(), (1, 3, 32, 32))
    generator = np.random.default_rng(0)
    weights = {
        name: generator.uniform(0.5, 1.0, value.shape).astype(np.float32)
        for name, value in _theirs(source).items()
    }
    # PyTorch's files also count the batches.
    counters = {"bn1.num_batches_tracked": np.array(3)}
    path = _saved(tmp_path, weights | counters)
    target = models.resnet20()
    models.load_torchvision(target, path)
    found = _theirs(target)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)
    models.load_torchvision(source, path)
    x = np.random.default_rng(1).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.testing.assert_array_equal(nn.network(target)(x).numpy(), nn.network(source)(x).numpy())


def test_a_network_for_other_classes_keeps_its_last_layer(tmp_path: Path) -> None:
    path = _saved(tmp_path, _theirs(_built(models.resnet20(classes=10), (1, 3, 32, 32))))
    target = _built(models.resnet20(classes=5), (1, 3, 32, 32))
    last: Any = target[-1]
    before = last.weight.numpy()
    expected = r"got fc\.weight \(10, 64\) for \(5, 64\), fc\.bias \(10,\) for \(5,\); .*skip="
    with pytest.raises(CheckpointError, match=expected):
        models.load_torchvision(target, path)
    models.load_torchvision(target, path, skip=["fc."])
    np.testing.assert_array_equal(last.weight.numpy(), before)


def test_missing_and_unexpected_names_are_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    layers = _built([nn.Input((2,)), nn.Dense(3, name="fc")], (1, 2))
    before = _theirs(layers)
    path = _saved(tmp_path, {"fc.weight": np.ones((3, 2)), "head.bias": np.ones(3)})
    expected = r"weights\.safetensors.*missing fc\.bias; unexpected head\.bias"
    with pytest.raises(CheckpointError, match=expected):
        models.load_torchvision(layers, path)
    for name, value in _theirs(layers).items():
        np.testing.assert_array_equal(value, before[name])


def test_layers_without_an_input_must_have_been_called(tmp_path: Path) -> None:
    path = _saved(tmp_path, {"fc.weight": np.ones((3, 2)), "fc.bias": np.ones(3)})
    with pytest.raises(ConfigError, match=r"begin with nn\.Input"):
        models.load_torchvision([nn.Dense(3, name="fc")], path)


def test_recurrent_and_attention_weights_have_pytorchs_names() -> None:
    layers: list[nn.Layer] = [
        nn.LSTM(3, return_sequences=True, bidirectional=True, name="lstm"),
        nn.MultiHeadAttention(2, name="attention"),
    ]
    _built(layers, (1, 4, 5))
    shapes = {name: value.shape for name, value in _theirs(layers).items()}
    assert shapes == {
        "lstm.weight_ih_l0": (12, 5),
        "lstm.weight_hh_l0": (12, 3),
        "lstm.bias_ih_l0": (12,),
        "lstm.bias_hh_l0": (12,),
        "lstm.weight_ih_l0_reverse": (12, 5),
        "lstm.weight_hh_l0_reverse": (12, 3),
        "lstm.bias_ih_l0_reverse": (12,),
        "lstm.bias_hh_l0_reverse": (12,),
        "attention.in_proj_weight": (18, 6),
        "attention.in_proj_bias": (18,),
        "attention.out_proj.weight": (6, 6),
        "attention.out_proj.bias": (6,),
    }
