"""Acoustic models and their layers: filter banks, time-delay layers, Conformer blocks.

A model is returned as a list of layers over features (frames, bins). It predicts `classes` for
every frame; with `pooled=True`, once for the whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from caldera import nn, op
from caldera.audio.augment import spec_augment
from caldera.audio.features import fbank, normalise, splice
from caldera.audio.files import read
from caldera.base.arguments import guard as _guard
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.errors import DataError
from caldera.train.model import Model


@nn.register
@dataclass(eq=False)
class FilterBank(nn.Layer):
    """Samples (N, samples) from -1 to 1 as Kaldi's log mel features (N, frames, bins).

    They have mean 0 and variance 1 over the frames of each sample.

    With `augment`, SpecAugment hides bands and stretches of time while training.

    >>> from caldera import audio, op
    >>> audio.FilterBank(rate=16000, bins=40)(op.input("x", (5, 16000))).shape
    (5, 98, 40)
    """

    rate: int
    bins: int = 40
    frame_length: float = 0.025
    frame_shift: float = 0.010
    augment: bool = False

    def forward(self, x: Expr) -> Expr:
        lengths: dict[str, Any] = {
            "frame_length": self.frame_length,
            "frame_shift": self.frame_shift,
        }
        found = normalise(fbank(x * 32768.0, self.rate, self.bins, **lengths))
        if self.augment and nn.context().training:
            found = spec_augment(found, band_width=self.bins // 5, time_part=0.2)
        return found


def model_input(path: str | PathLike[str], model: Model) -> np.ndarray:
    """Return a sound file as a model takes it that begins with `FilterBank`: in its rate, cut or
    filled with zeros to its length, (1, samples).

    >>> import caldera as cd
    >>> from caldera import audio, nn
    >>> audio.write("tone.wav", [0.5] * 400, rate=8000)
    >>> layers = [nn.Input((1000,)), audio.FilterBank(rate=8000), nn.Flatten(), nn.Dense(2)]
    >>> audio.model_input("tone.wav", cd.NeuralNetwork(layers)).shape
    (1, 1000)
    """
    rates = [layer.rate for _, layer in model.children() if isinstance(layer, FilterBank)]
    (shape, dtype), *_ = model.signature.inputs
    if len(rates) != 1 or len(shape) != 1:
        raise DataError.build(
            f"predict {Path(fspath(path)).name}",
            expected="a model that takes samples of sound, with one audio.FilterBank",
            got=f"one that takes {shape}",
            hint="give features to others as an .npy file",
        )
    samples = read(path, rates[0]).samples[: shape[0]]
    return np.pad(samples, (0, shape[0] - len(samples)))[None].astype(dtype)


@nn.register
@dataclass(eq=False)
class Splice(nn.Layer):
    """Each frame of (N, frames, bins) with `left` frames before and `right` behind it.

    >>> from caldera import audio, op
    >>> audio.Splice(5, 5)(op.input("x", (2, 98, 40))).shape
    (2, 98, 440)
    """

    left: int
    right: int

    def forward(self, x: Expr) -> Expr:
        return splice(x, self.left, self.right)


@nn.register
@dataclass(eq=False)
class TimeDelay(nn.Layer):
    """A dense layer over frames at some offsets, the same at every frame: the layer of a TDNN.

    >>> from caldera import audio, op
    >>> audio.TimeDelay(64, offsets=(-3, 0, 3))(op.input("x", (2, 98, 40))).shape
    (2, 98, 64)
    """

    units: int
    offsets: Sequence[int] = (-1, 0, 1)

    def __post_init__(self) -> None:
        self.offsets = tuple(self.offsets)
        require(self.offsets, "TimeDelay", "some offsets")
        self.dense = nn.Dense(self.units)

    def forward(self, x: Expr) -> Expr:
        last = x.shape[1] - 1
        places = [np.clip(np.arange(last + 1) + offset, 0, last) for offset in self.offsets]
        return self.dense(op.concat([op.gather(x, each, axis=1) for each in places], axis=-1))


@nn.register
@dataclass(eq=False)
class StatisticsPooling(nn.Layer):
    """The mean and the deviation of (N, frames, width) over the frames: (N, 2 width).

    >>> from caldera import audio, op
    >>> audio.StatisticsPooling()(op.input("x", (2, 98, 40))).shape
    (2, 80)
    """

    eps: float = 1e-5

    def forward(self, x: Expr) -> Expr:
        mean = op.mean(x, axis=1)
        spread = op.mean(op.square(x), axis=1) - op.square(mean)
        return op.concat([mean, op.sqrt(op.maximum(spread, 0.0) + self.eps)], axis=-1)


@nn.register
@dataclass(eq=False)
class ConformerBlock(nn.Layer):
    """Conformer block (Gulati and others, 2020), for (N, frames, width).

    It consists of half a feed-forward layer, attention, a convolution over time, and a second half
    of a feed-forward layer.

    >>> from caldera import audio, op
    >>> audio.ConformerBlock(heads=4)(op.input("x", (2, 98, 64))).shape
    (2, 98, 64)
    """

    heads: int = 4
    kernel: int = 15
    ratio: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        require(
            self.kernel % 2 != 0,
            "ConformerBlock",
            "an odd kernel, with a frame in the middle",
            self.kernel,
        )
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(), nn.LayerNorm(), nn.LayerNorm()
        self.norm4, self.inner_norm, self.last_norm = nn.LayerNorm(), nn.LayerNorm(), nn.LayerNorm()
        self.drop1, self.drop2 = nn.Dropout(self.dropout), nn.Dropout(self.dropout)
        self.drop3, self.drop4 = nn.Dropout(self.dropout), nn.Dropout(self.dropout)
        self.attention = nn.MultiHeadAttention(self.heads)

    def build(self, x: Expr) -> None:
        width = x.shape[-1]
        self.first = nn.Sequential(
            [nn.Dense(self.ratio * width, activation="silu"), nn.Dense(width)]
        )
        self.second = nn.Sequential(
            [nn.Dense(self.ratio * width, activation="silu"), nn.Dense(width)]
        )
        self.pointwise = nn.Dense(2 * width)
        self.depthwise = nn.Conv1D(width, self.kernel, padding="same", groups=width)
        self.project = nn.Dense(width)

    def forward(self, x: Expr) -> Expr:
        x = x + 0.5 * self.drop1(self.first(self.norm1(x)))
        x = x + self.drop2(self.attention(self.norm2(x)))
        x = x + self.drop3(self._convolved(self.norm3(x)))
        x = x + 0.5 * self.drop4(self.second(self.norm4(x)))
        return self.last_norm(x)

    def _convolved(self, x: Expr) -> Expr:
        value, gate = op.split(self.pointwise(x), 2, axis=-1)
        y = op.swapaxes(value * op.sigmoid(gate), 1, 2)
        y = op.swapaxes(self.depthwise(y), 1, 2)
        return self.project(op.silu(self.inner_norm(y)))


__all__ = ["blstm", "conformer", "frame_dnn", "tdnn"]

Layers = list[nn.Layer]
MOST_LAYERS = 1000


def _depth(layers: int) -> int:
    require(
        0 <= layers <= MOST_LAYERS, "audio.models", f"a depth from 0 to {MOST_LAYERS}", repr(layers)
    )
    return layers


def _head(classes: int, pooled: bool) -> Layers:
    return [*([StatisticsPooling()] if pooled else []), nn.Dense(classes)]


def frame_dnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    left: int = 5,
    right: int = 5,
    units: int = 512,
    depth: int = 4,
    pooled: bool = False,
) -> Layers:
    """Return dense layers over each frame and its neighbours: what hybrid systems began with.

    >>> from caldera import audio, nn
    >>> nn.count_parameters(audio.models.frame_dnn((98, 40), classes=2000, units=1024, depth=6))
    7749584
    """
    hidden = [layer for _ in range(_depth(depth)) for layer in (nn.Dense(units), nn.ReLU())]
    return [nn.Input(tuple(input_shape)), Splice(left, right), *hidden, *_head(classes, pooled)]


def tdnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: int = 256,
    pooled: bool = False,
    offsets: Sequence[Sequence[int]] = ((-2, -1, 0, 1, 2), (-2, 0, 2), (-3, 0, 3), (0,)),
) -> Layers:
    """Return a time-delay network: layers with increasing distance between their input frames.

    >>> from caldera import audio, nn
    >>> nn.count_parameters(audio.models.tdnn((98, 40), classes=10))
    515594
    """
    hidden = [
        layer
        for each in offsets
        for layer in (TimeDelay(units, tuple(each)), nn.ReLU(), nn.LayerNorm())
    ]
    return [nn.Input(tuple(input_shape)), *hidden, *_head(classes, pooled)]


def blstm(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: int = 128,
    depth: int = 2,
    pooled: bool = False,
) -> Layers:
    """Return LSTMs in both directions.

    A second input, lengths or a mask, marks the valid frames, as for sequences of different lengths
    (`data.RaggedData`).

    >>> from caldera import audio, nn
    >>> nn.count_parameters(audio.models.blstm((98, 40), classes=10))
    571914
    """
    layers = [
        nn.LSTM(units, return_sequences=True, bidirectional=True, return_mask=level < depth - 1)
        for level in range(_depth(depth))
    ]
    return [nn.Input(tuple(input_shape)), *layers, *_head(classes, pooled)]


def conformer(
    input_shape: Sequence[int],
    classes: int,
    *,
    width: int = 144,
    heads: int = 4,
    depth: int = 4,
    kernel: int = 15,
    dropout: float = 0.1,
    pooled: bool = False,
) -> Layers:
    """Return a small Conformer, with learned positions.

    >>> from caldera import audio, nn
    >>> nn.count_parameters(audio.models.conformer((98, 40), classes=10, width=64, depth=2))
    203722
    """
    blocks = [ConformerBlock(heads, kernel, dropout=dropout) for _ in range(_depth(depth))]
    return [
        nn.Input(tuple(input_shape)),
        nn.Dense(width),
        nn.PositionalEmbedding(input_shape[0]),
        *blocks,
        *_head(classes, pooled),
    ]


_guard(globals(), where="audio.models.{}".format)
