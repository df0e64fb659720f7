"""Acoustic models, each as the list of its layers, over features (frames, bins).

`classes` are given at every frame; with `pooled=True`, once for the whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera import nn
from caldera.audio.layers import ConformerBlock, Splice, StatisticsPooling, TimeDelay
from caldera.base.arguments import guard as _guard
from caldera.errors import ConfigError

__all__ = ["blstm", "conformer", "frame_dnn", "tdnn"]

Layers = list[nn.Layer]
MOST_LAYERS = 1000


def _depth(layers: int) -> int:
    if not 0 <= layers <= MOST_LAYERS:
        raise ConfigError.build(
            "audio.models", expected=f"a depth from 0 to {MOST_LAYERS}", got=repr(layers)
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
    """Dense layers over each frame and its neighbours: what hybrid systems began with.

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
    """A time-delay network: layers whose frames come from ever further apart.

    >>> from caldera import audio, nn
    >>> nn.count_parameters(audio.models.tdnn((98, 40), classes=10))
    515594
    """
    hidden: Layers = []
    for each in offsets:
        hidden += [TimeDelay(units, tuple(each)), nn.ReLU(), nn.LayerNorm()]
    return [nn.Input(tuple(input_shape)), *hidden, *_head(classes, pooled)]


def blstm(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: int = 128,
    depth: int = 2,
    pooled: bool = False,
) -> Layers:
    """LSTMs in both directions. A second input, lengths or a mask, says which frames are real, as
    sequences of different lengths (`data.RaggedData`) have it.

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
    """A small Conformer, with learned positions.

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
