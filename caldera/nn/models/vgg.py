"""VGG (Simonyan and Zisserman, 2015): configuration D, the one with 16 layers of weights."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.nn.basic import Dense, Dropout, Flatten, Input
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.pooling import AdaptiveAveragePool2D, MaxPool2D

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Filters of the convolutions of each stage, and how many there are."""


def vgg16(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, dropout: float = 0.5
) -> list[Layer]:
    """VGG-16: thirteen convolutions of 3 x 3, three dense layers; initial weights after He.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.vgg16(classes=1000))
    138357544
    """
    layers: list[Layer] = [Input(input_shape)]
    # In torchvision's numbering each convolution is followed by a ReLU, each stage by a pool.
    place = 0
    for filters, count in STAGES:
        for _ in range(count):
            name = f"features.{place}"
            conv = Conv2D(filters, 3, padding=1, activation="relu", fill="he_normal", name=name)
            layers.append(conv)
            place += 2
        layers.append(MaxPool2D(2))
        place += 1
    return [
        *layers,
        AdaptiveAveragePool2D(7),
        Flatten(),
        Dense(4096, "relu", fill="he_normal", name="classifier.0"),
        Dropout(dropout),
        Dense(4096, "relu", fill="he_normal", name="classifier.3"),
        Dropout(dropout),
        Dense(classes, name="classifier.6"),
    ]
