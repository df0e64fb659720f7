"""Classifying sequences of words, padded with 0 to one length: by an LSTM, or by their mean."""

from __future__ import annotations

from caldera.base.arguments import within
from caldera.nn.attention import Embedding
from caldera.nn.basic import Dense, Dropout, Input
from caldera.nn.layer import Layer
from caldera.nn.pooling import MeanPooling
from caldera.nn.recurrent import LSTM


def lstm_classifier(
    vocabulary: int,
    length: int,
    classes: int,
    width: int = 64,
    units: int = 128,
    depth: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
) -> list[Layer]:
    """Words to vectors of `width`, `depth` LSTM layers of `units`, a dense layer on the last state.

    Word 0 is padding and has no influence.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.lstm_classifier(vocabulary=1000, length=50, classes=2))
    163586
    """
    within("lstm_classifier", "depth", depth, 1, 10_000)
    layers: list[Layer] = [
        Input((length,), dtype="int64"),
        Embedding(vocabulary, width, mask_zero=True),
    ]
    for _ in range(depth - 1):
        layers.append(
            LSTM(units, return_sequences=True, bidirectional=bidirectional, return_mask=True)
        )
    layers.append(LSTM(units, bidirectional=bidirectional))
    if dropout:
        layers.append(Dropout(dropout))
    return [*layers, Dense(classes)]


def text_classifier(
    vocabulary: int, length: int, classes: int, width: int = 64, dropout: float = 0.3
) -> list[Layer]:
    """The mean of the words' vectors of `width`, and a dense layer: quick, and hard to beat on
    short texts. Word 0 is padding and has no influence.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.text_classifier(vocabulary=1000, length=50, classes=2))
    64130
    """
    return [
        Input((length,), dtype="int64"),
        Embedding(vocabulary, width, mask_zero=True),
        MeanPooling(),
        Dropout(dropout),
        Dense(classes),
    ]
