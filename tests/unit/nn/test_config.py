"""Layers as plain data: every layer comes back as it was; anything else is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import audio, nn, op
from caldera.errors import ConfigError

EXAMPLES: list[nn.Layer] = [
    nn.Input((2, 3), dtype="int64"),
    nn.Output((3,)),
    nn.Dense(3, activation="relu", bias=False, fill=cd.he_normal(), name="head"),
    nn.Activation("tanh"),
    nn.Flatten(),
    nn.Reshape((3, -1)),
    nn.Dropout(0.3),
    nn.Sequential([nn.Dense(3), nn.ReLU()]),
    nn.ReLU(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.LeakyReLU(0.2),
    nn.PReLU(0.1, per_channel=True),
    nn.ELU(0.3),
    nn.SELU(),
    nn.GELU(approximate=True),
    nn.SiLU(),
    nn.Softplus(),
    nn.HardSigmoid(),
    nn.HardSwish(),
    nn.Mish(),
    nn.Softsign(),
    nn.RBF(2.0),
    nn.Softmax(axis=0),
    nn.LogSoftmax(axis=1),
    nn.Conv2D(4, (3, 5), 2, "same", groups=2, fill="he_uniform"),
    nn.Conv3D(4, (1, 3, 3), 2, padding=1),
    nn.Conv1D(4, 3, padding=(1, 0)),
    nn.ConvTranspose2D(4, 3, stride=2, padding=((1, 0), (0, 1))),
    nn.ConvTranspose1D(4, 3, padding="same"),
    nn.ConvTranspose3D(4, (1, 2, 3), output_padding=0),
    nn.DepthwiseConv2D(3, multiplier=2),
    nn.DepthwiseConv1D(3, multiplier=2),
    nn.SeparableConv1D(4, 3, multiplier=2),
    nn.SeparableConv2D(4, (3, 2), activation="relu"),
    nn.ConvLSTM1D(4, 3, padding="same"),
    nn.ConvLSTM2D(4, (3, 2), return_sequences=True),
    nn.ConvLSTM3D(4, 3, go_backwards=True),
    nn.Pooling2D("average", 3, 2),
    nn.MaxPool2D(3, partial_windows=True),
    nn.AveragePool2D((2, 3), count_padding=False),
    nn.RNNCell(3, activation="relu"),
    nn.LSTMCell(3),
    nn.GRUCell(3),
    nn.MaxPool1D(3, 1, 1),
    nn.MaxPool3D((1, 2, 2), partial_windows=True),
    nn.AveragePool1D(3),
    nn.AveragePool3D(2, count_padding=False),
    nn.UpSampling2D((2, 1.5), mode="bilinear"),
    nn.GlobalAveragePool(),
    nn.AdaptiveAveragePool2D((2, 3)),
    nn.AdaptiveAveragePool((2, 3)),
    nn.AdaptiveMaxPool(2),
    nn.GlobalMaxPool(),
    nn.MeanPooling(),
    nn.UpSampling((2, 1.5, 1), mode="linear"),
    nn.Identity(),
    nn.Permute((2, 1)),
    nn.RepeatVector(3),
    nn.TimeDistributed(nn.Dense(3)),
    nn.Padding([1, (0, 2)], mode="reflect"),
    nn.Cropping([(0, 2)]),
    nn.PixelShuffle(2),
    nn.PixelUnshuffle(3),
    nn.ChannelShuffle(2),
    nn.Unfold((2, 3), padding=1),
    nn.Fold((5, 6), (2, 3), padding=1),
    nn.LPPool(3.0, (2, 3), 1),
    nn.Bilinear(3, bias=False, fill="he_normal"),
    nn.CELU(0.3),
    nn.RReLU(0.1, 0.2),
    nn.FeatureAlphaDropout(0.2),
    nn.GaussianNoise(0.2),
    nn.GaussianDropout(0.2),
    nn.SpatialDropout(0.2),
    nn.AlphaDropout(0.2),
    nn.Rescale([1.0, 2.0], 0.5),
    nn.BatchNorm(momentum=0.2),
    nn.LayerNorm(axis=(1, 2)),
    nn.GroupNorm(2),
    nn.InstanceNorm(affine=True),
    nn.RMSNorm(axis=(1, 2)),
    nn.LocalResponseNorm(3, 5e-4, 0.5, 2.0),
    nn.RNN(3, activation="relu"),
    nn.LSTM(3, return_sequences=True, bidirectional=True),
    nn.Bidirectional(nn.GRU(3)),
    nn.GRU(3, go_backwards=True),
    nn.Embedding(10, 3, mask_zero=True, fill=cd.normal(0.0, 0.1)),
    nn.ColumnEmbedding([(0, 2)], width=2),
    nn.NumberEmbedding([[0.0, 1.0]], width=2, columns=[1], members=3),
    nn.Blend([nn.Dense(3), [nn.Dense(4), nn.Dense(3)]], [0.5, 0.5], classes=True),
    nn.EnsembleDense(3, 4, groups=2, activation="relu", scales=cd.normal(0.0, 1.0)),
    nn.PositionalEmbedding(8, fill=cd.uniform(-1.0, 1.0)),
    nn.MultiHeadAttention(2, causal=True, fill=cd.orthogonal(2.0)),
    nn.TransformerBlock(2, dropout=0.1, fill=cd.constant(0.5)),
    nn.Residual([nn.Dense(3)], nn.Dense(3, fill="identity"), activation="relu"),
    nn.TransformerDecoderBlock(2, dropout=0.1),
    nn.SpectralNorm(nn.Dense(3), iterations=2),
    nn.Branches([nn.Dense(3), [nn.Dense(3), nn.ReLU()]], axis=-1),
    nn.Cell([[0], [0, 1]], [nn.Dense(3), nn.ReLU(), [nn.Dense(3)]], axis=-1),
    nn.Concat(axis=2),
    nn.Add(),
    nn.Subtract(),
    nn.Multiply(),
    nn.Average(),
    nn.Maximum(),
    nn.Minimum(),
    nn.Dot(axis=1, normalise=True),
    nn.UnitNorm(axis=1),
    nn.models.PaddedShortcut(8, 2),
    nn.models.GoogLeNet(10, auxiliary=False),
    nn.models.Inception3(10, rescale_input=True),
    nn.models.GPT(10, context=4, width=6, depth=1, heads=2),
    audio.FilterBank(8000, bins=23, augment=True),
    audio.Splice(2, 1),
    audio.TimeDelay(4, (-2, 0, 2)),
    audio.StatisticsPooling(),
    audio.ConformerBlock(2, kernel=7),
    nn.Int8Dense(3, activation="relu", step=0.5, name="small"),
    nn.Int8Conv2D(3, (2, 3), padding="same", step=0.5),
    nn.TernaryDense(3, activation="relu", bias=False),
    nn.BinaryDense(3, name="head"),
    nn.TernaryConv2D(3, (2, 3), padding="same"),
    nn.BinaryConv2D(4, 3, stride=2, groups=2),
    nn.PackedDense(3, activation="relu", levels=2),
    nn.PackedConv2D(4, 3, dilation=2),
    nn.quantised.TwoBitDense(3),
    nn.quantised.TwoBitConv2D(4, 3),
    nn.Blend([nn.Dense(3), nn.EnsembleDense(3, 4)], [0.25, 0.75], classes=True),
    nn.Interval(nn.Dense(1), nn.EnsembleDense(2, 4), [-0.5, 1.0]),
]


def test_every_registered_layer_of_the_package_has_an_example() -> None:
    # The examples in docstrings register layers as well, which no module has.
    ours = {
        name
        for name in nn.layers
        if nn.layers[name].__module__.startswith("caldera.")
        and hasattr(sys.modules[nn.layers[name].__module__], name)
    }
    assert ours == {type(layer).__name__ for layer in EXAMPLES}


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: type(layer).__name__)
def test_every_layer_comes_back_from_json_as_it_was(layer: nn.Layer) -> None:
    config = nn.to_config(layer)
    again = nn.from_config(json.loads(json.dumps(config)))
    assert type(again) is type(layer)
    assert again is not layer
    assert nn.to_config(again) == config


def test_what_comes_back_computes_the_same() -> None:
    net = nn.Sequential(
        [nn.Residual([nn.Dense(3, activation="tanh")]), nn.LayerNorm(), nn.Dense(2)]
    )
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    y = net(x).numpy()
    again = nn.from_config(nn.to_config(net))
    again(x)
    for new, old in zip(again.parameters(), net.parameters(), strict=True):
        assert new.name == old.name
        new.assign(old.numpy())
    np.testing.assert_array_equal(again(x).numpy(), y)


def test_fillers_come_back_with_their_numbers() -> None:
    config = nn.to_config(nn.Dense(3, fill=cd.uniform(-0.5, 0.25)))
    assert config["fill"] == {"filler": "uniform", "low": -0.5, "high": 0.25}
    assert nn.from_config(config).fill == cd.uniform(-0.5, 0.25)  # type: ignore[attr-defined]
    assert nn.to_config(nn.Dense(3, fill=cd.glorot_normal()))["fill"] == {"filler": "glorot_normal"}


def test_shared_layers_stay_shared() -> None:
    shared = nn.Dense(3)
    net = nn.Sequential([shared, nn.Sequential([nn.ReLU(), shared]), nn.Dense(3), shared])
    again = nn.from_config(json.loads(json.dumps(nn.to_config(net))))
    again(op.input("x", (1, 3)))
    assert len(again.parameters()) == 4
    assert again.layers[0] is again.layers[1].layers[1] is again.layers[3]  # type: ignore[attr-defined]


def test_frozen_layers_stay_frozen() -> None:
    net = nn.Sequential([nn.Dense(3), nn.Dense(2)])
    net.layers[0].freeze()
    again = nn.from_config(nn.to_config(net))
    assert [layer.frozen for layer in again.walk()] == [False, True, False]


def test_a_layer_that_is_not_registered_cannot_be_written() -> None:
    @dataclass(eq=False)
    class Own(nn.Layer):
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(ConfigError, match=r"expected a registered layer, got Own; .*@nn\.register"):
        nn.to_config(nn.Sequential([Own()]))


def test_a_fill_of_numbers_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match=r"Dense fill=: expected .* got ndarray"):
        nn.to_config(nn.Dense(2, fill=np.ones((2, 2))))
    with pytest.raises(ConfigError, match=r"a registered filler.* got FromArray"):
        nn.to_config(nn.Dense(2, fill=cd.from_array(np.ones((2, 2)))))


def _nested(depth: int) -> dict[str, Any]:
    config: dict[str, Any] = {"layer": "ReLU"}
    for _ in range(depth):
        config = {"layer": "Sequential", "layers": [config]}
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layer": "Dens", "units": 3}, "layer: expected a registered name, got 'Dens'.*'Dense'"),
        ({"layer": "os.system"}, "layer: expected a registered name, got 'os.system'"),
        ({"layer": "Dense", "unit": 3}, "Dense: expected its own settings, got 'unit'.*'units'"),
        ({"layer": "Dense", "_built": True, "units": 3}, "its own settings, got '_built'"),
        ({"layer": "Dense"}, "Dense: expected units=, got none"),
        ({"layer": "Dense", "units": "many"}, "units= an integer"),
        ({"layer": "Dense", "units": 3, "fill": {"filler": "he"}}, "filler: expected a registered"),
        ({"layer": "Dense", "units": 3, "fill": {"filler": "zero", "x": 1}}, "its own arguments"),
        ({"layer": "Dropout", "rate": "half"}, "Dropout: expected rate= a number"),
        ({"layer": "Sequential", "layers": ["relu"]}, "expected layers, got 'relu'"),
        (
            {"layer": "Sequential", "layers": [{"layer": "shared", "shared": 1}]},
            "of a preceding layer",
        ),
        ({"layer": 3}, r"expected \{\"layer\": name"),
        ([], r"expected \{\"layer\": name"),
        (_nested(100), "at most 64 layers deep"),
    ],
)
def test_what_a_file_cannot_say_is_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nn.from_config(config)
