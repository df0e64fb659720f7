"""AlexNet, in the form of torchvision: one tower, after Krizhevsky, 2014."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.nn.basic import Dense, Dropout, Flatten, Input
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.pooling import AdaptiveAveragePool2D, MaxPool2D


def alexnet(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, dropout: float = 0.5
) -> list[Layer]:
    """AlexNet: five convolutions, three dense layers; initial weights after He.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.alexnet(classes=1000))
    61100840
    """

    def conv(filters: int, kernel: int, stride: int, padding: int, place: int) -> Layer:
        return Conv2D(
            filters,
            kernel,
            stride,
            padding,
            activation="relu",
            fill="he_normal",
            name=f"features.{place}",
        )

    return [
        Input(input_shape),
        conv(64, 11, 4, 2, place=0),
        MaxPool2D(3, 2),
        conv(192, 5, 1, 2, place=3),
        MaxPool2D(3, 2),
        conv(384, 3, 1, 1, place=6),
        conv(256, 3, 1, 1, place=8),
        conv(256, 3, 1, 1, place=10),
        MaxPool2D(3, 2),
        AdaptiveAveragePool2D(6),
        Flatten(),
        Dropout(dropout),
        Dense(4096, "relu", fill="he_normal", name="classifier.1"),
        Dropout(dropout),
        Dense(4096, "relu", fill="he_normal", name="classifier.4"),
        Dense(classes, name="classifier.6"),
    ]
