"""GoogLeNet (Szegedy and others, 2015): Inception v1 with its auxiliary heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caldera.compiler.lazy import Expr
from caldera.nn.basic import Dense, Dropout, Flatten, Input, Sequential, register
from caldera.nn.composite import Branches
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.models.auxiliary import normalised_conv, outputs, rescaled, run
from caldera.nn.normalisation import LocalResponseNorm
from caldera.nn.pooling import (
    AdaptiveAveragePool2D,
    AveragePool2D,
    GlobalAveragePool,
    MaxPool2D,
)

MODULES = {
    "inception3a": (64, 96, 128, 16, 32, 32),
    "inception3b": (128, 128, 192, 32, 96, 64),
    "inception4a": (192, 96, 208, 16, 48, 64),
    "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64),
    "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "inception5a": (256, 160, 320, 32, 128, 128),
    "inception5b": (384, 192, 384, 48, 128, 128),
}
"""Filters: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; after the pool. Table 1 of the paper."""


@register
@dataclass(eq=False)
class GoogLeNet(Layer):
    """GoogLeNet, as torchvision has it (`batch_norm`) or as in the paper.

    With batch normalisation the third branch has 3 x 3 kernels where the paper has 5 x 5: so it
    was when the public weights were made. `rescale_input` is for those weights: images normalised
    by ImageNet's statistics. With `auxiliary` heads the result is a dict: "main", and while
    training "aux1" and "aux2" (the paper weighs their losses by 0.3).

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.GoogLeNet(batch_norm=False), (3, 224, 224))
    13378280
    """

    classes: int = 1000
    auxiliary: bool = True
    batch_norm: bool = True
    rescale_input: bool = False

    def __post_init__(self) -> None:
        pool = [MaxPool2D(3, 2, partial_windows=True) for _ in range(3)]
        inner = [LocalResponseNorm() for _ in range(0 if self.batch_norm else 2)]
        modules = {name: self._inception(name) for name in MODULES}
        self.body: list[Layer] = [
            self._conv(64, 7, 2, 3, name="conv1"),
            pool[0],
            *inner[:1],
            self._conv(64, 1, name="conv2"),
            self._conv(192, 3, 1, 1, name="conv3"),
            *inner[1:],
            pool[1],
            *[modules[name] for name in MODULES if name.startswith("inception3")],
            pool[2],
            *[modules[name] for name in MODULES if name.startswith("inception4")],
            MaxPool2D(2 if self.batch_norm else 3, 2, partial_windows=True),
            *[modules[name] for name in MODULES if name.startswith("inception5")],
            GlobalAveragePool(),
            Dropout(0.2 if self.batch_norm else 0.4),
        ]
        self.fc = Dense(self.classes, name="fc")
        self._heads: dict[str, tuple[Layer, Layer]] = {}
        if self.auxiliary:
            self.aux1, self.aux2 = self._head("aux1"), self._head("aux2")
            self._heads = {
                "aux1": (modules["inception4a"], self.aux1),
                "aux2": (modules["inception4d"], self.aux2),
            }

    def _conv(
        self, filters: int, kernel: int, stride: int = 1, padding: int = 0, *, name: str
    ) -> Layer:
        if self.batch_norm:
            return normalised_conv(filters, kernel, stride, padding, name=name)
        return Conv2D(
            filters, kernel, stride, padding, activation="relu", fill="he_normal", name=name
        )

    def _inception(self, name: str) -> Layer:
        one, three_before, three, five_before, five, after_pool = MODULES[name]
        large = 3 if self.batch_norm else 5
        branches = [
            self._conv(one, 1, name="branch1"),
            Sequential(
                [self._conv(three_before, 1, name="0"), self._conv(three, 3, 1, 1, name="1")],
                name="branch2",
            ),
            Sequential(
                [
                    self._conv(five_before, 1, name="0"),
                    self._conv(five, large, 1, large // 2, name="1"),
                ],
                name="branch3",
            ),
            Sequential([MaxPool2D(3, 1, 1), self._conv(after_pool, 1, name="1")], name="branch4"),
        ]
        return Branches(branches, name=name)

    def _head(self, name: str) -> Layer:
        pool = AdaptiveAveragePool2D(4) if self.batch_norm else AveragePool2D(5, 3)
        layers = [
            pool,
            self._conv(128, 1, name="conv"),
            Flatten(),
            Dense(1024, "relu", fill="he_normal", name="fc1"),
            Dropout(0.7),
            Dense(self.classes, name="fc2"),
        ]
        return Sequential(layers, name=name)

    def forward(self, x: Expr) -> Any:
        if self.rescale_input:
            x = rescaled(x)
        features, auxiliary = run(self.body, x, self._heads)
        return outputs(self.fc(features), auxiliary, self.auxiliary)


def googlenet(
    input_shape: Sequence[int] = (3, 224, 224),
    classes: int = 1000,
    auxiliary: bool = True,
    batch_norm: bool = True,
    rescale_input: bool = False,
) -> list[Layer]:
    """GoogLeNet; see `nn.models.GoogLeNet` for what it gives. Initial weights after He.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.googlenet())
    13004888
    """
    return [Input(input_shape), GoogLeNet(classes, auxiliary, batch_norm, rescale_input)]
