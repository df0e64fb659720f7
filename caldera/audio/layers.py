"""Layers for sound: features inside a network, frames with their neighbours, Conformer blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from caldera import nn, op
from caldera.audio.augment import spec_augment
from caldera.audio.features import fbank, normalise, splice
from caldera.audio.files import read
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, DataError
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
        found = fbank(
            x * 32768.0,
            self.rate,
            self.bins,
            frame_length=self.frame_length,
            frame_shift=self.frame_shift,
        )
        found = normalise(found)
        if self.augment and nn.context().training:
            found = spec_augment(found, band_width=self.bins // 5, time_part=0.2)
        return found


def model_input(path: str | PathLike[str], model: Model) -> np.ndarray:
    """A sound file as a model takes it that begins with `FilterBank`: in its rate, cut or filled
    with zeros to its length, (1, samples).

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
        if not self.offsets:
            raise ConfigError.build("TimeDelay", expected="some offsets", got="none")
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
    """Half a feed-forward layer, attention, a convolution over time, and the other half: what
    Conformers are made of (Gulati and others, 2020), for (N, frames, width).

    >>> from caldera import audio, op
    >>> audio.ConformerBlock(heads=4)(op.input("x", (2, 98, 64))).shape
    (2, 98, 64)
    """

    heads: int = 4
    kernel: int = 15
    ratio: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ConfigError.build(
                "ConformerBlock",
                expected="an odd kernel, with a frame in the middle",
                got=f"{self.kernel}",
            )
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(), nn.LayerNorm(), nn.LayerNorm()
        self.norm4, self.inner_norm, self.last_norm = nn.LayerNorm(), nn.LayerNorm(), nn.LayerNorm()
        self.drop1, self.drop2 = nn.Dropout(self.dropout), nn.Dropout(self.dropout)
        self.drop3, self.drop4 = nn.Dropout(self.dropout), nn.Dropout(self.dropout)
        self.attention = nn.MultiHeadAttention(self.heads)

    def build(self, x: Expr) -> None:
        width = x.shape[-1]
        self.first = nn.Sequential([nn.Dense(self.ratio * width, "silu"), nn.Dense(width)])
        self.second = nn.Sequential([nn.Dense(self.ratio * width, "silu"), nn.Dense(width)])
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
