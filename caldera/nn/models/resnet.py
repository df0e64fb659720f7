"""Residual networks (He and others, 2016): those for ImageNet, and the small ones for CIFAR.

Convolutions begin with He's normal numbers, as in the paper; the last dense layer with Glorot's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.nn.activations import ReLU
from caldera.nn.basic import Dense, Input, Sequential, check_counts, register
from caldera.nn.composite import Residual
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.normalisation import BatchNorm
from caldera.nn.pooling import GlobalAveragePool, MaxPool2D


@register
@dataclass(eq=False)
class PaddedShortcut(Layer):
    """A shortcut without parameters: every `stride`-th pixel, and zeros as further channels.

    >>> from caldera import nn, op
    >>> nn.models.PaddedShortcut(32, stride=2)(op.input("x", (5, 16, 8, 8))).shape
    (5, 32, 4, 4)
    """

    channels: int
    stride: int = 1

    def __post_init__(self) -> None:
        check_counts("PaddedShortcut", channels=self.channels, stride=self.stride)

    def forward(self, x: Expr) -> Expr:
        if x.ndim != 4 or x.shape[1] > self.channels:
            raise self.refuse(
                f"images (N, C, H, W) of at most {self.channels} channels", f"{x.shape}"
            )
        kept = x[:, :, :: self.stride, :: self.stride]
        missing = self.channels - x.shape[1]
        before = missing // 2
        return op.pad(kept, ((0, 0), (before, missing - before), (0, 0), (0, 0)))


def _conv(filters: int, kernel: int, stride: int, name: str) -> Layer:
    return Conv2D(filters, kernel, stride, kernel // 2, bias=False, fill="he_normal", name=name)


def _projection(filters: int, stride: int) -> Layer:
    return Sequential([_conv(filters, 1, stride, name="0"), BatchNorm(name="1")], name="downsample")


def _basic(filters: int, stride: int, shortcut: Layer | None, name: str) -> Layer:
    """Two convolutions of 3 x 3."""
    layers = [
        _conv(filters, 3, stride, name="conv1"),
        BatchNorm(name="bn1"),
        ReLU(),
        _conv(filters, 3, 1, name="conv2"),
        BatchNorm(name="bn2"),
    ]
    return Residual(layers, shortcut, "relu", name=name)


def _bottleneck(filters: int, stride: int, shortcut: Layer | None, name: str) -> Layer:
    """1 x 1 to fewer channels, 3 x 3, 1 x 1 back to four times as many."""
    layers = [
        _conv(filters, 1, 1, name="conv1"),
        BatchNorm(name="bn1"),
        ReLU(),
        _conv(filters, 3, stride, name="conv2"),
        BatchNorm(name="bn2"),
        ReLU(),
        _conv(4 * filters, 1, 1, name="conv3"),
        BatchNorm(name="bn3"),
    ]
    return Residual(layers, shortcut, "relu", name=name)


Block = Callable[[int, int, Layer | None, str], Layer]


def _imagenet(
    block: Block, widening: int, counts: Sequence[int], input_shape: Sequence[int], classes: int
) -> list[Layer]:
    layers: list[Layer] = [
        Input(input_shape),
        _conv(64, 7, 2, name="conv1"),
        BatchNorm(name="bn1"),
        ReLU(),
        MaxPool2D(3, 2, 1),
    ]
    channels = 64
    for stage, count in enumerate(counts):
        filters = 64 * 2**stage
        for index in range(count):
            stride = 2 if stage and index == 0 else 1
            fits = stride == 1 and channels == widening * filters
            shortcut = None if fits else _projection(widening * filters, stride)
            layers.append(block(filters, stride, shortcut, f"layer{stage + 1}.{index}"))
            channels = widening * filters
    return [*layers, GlobalAveragePool(), Dense(classes, name="fc")]


def resnet18(input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000) -> list[Layer]:
    """ResNet-18.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet18())
    11689512
    """
    return _imagenet(_basic, 1, (2, 2, 2, 2), input_shape, classes)


def resnet34(input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000) -> list[Layer]:
    """ResNet-34.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet34())
    21797672
    """
    return _imagenet(_basic, 1, (3, 4, 6, 3), input_shape, classes)


def resnet50(input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000) -> list[Layer]:
    """ResNet-50, with the stride in the 3 x 3 convolution, as in torchvision ("v1.5").

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet50())
    25557032
    """
    return _imagenet(_bottleneck, 4, (3, 4, 6, 3), input_shape, classes)


def _cifar(count: int, input_shape: Sequence[int], classes: int) -> list[Layer]:
    layers: list[Layer] = [
        Input(input_shape),
        _conv(16, 3, 1, name="conv1"),
        BatchNorm(name="bn1"),
        ReLU(),
    ]
    for stage, filters in enumerate((16, 32, 64)):
        for index in range(count):
            narrows = stage > 0 and index == 0
            shortcut = PaddedShortcut(filters, stride=2) if narrows else None
            stride = 2 if narrows else 1
            layers.append(_basic(filters, stride, shortcut, f"layer{stage + 1}.{index}"))
    return [*layers, GlobalAveragePool(), Dense(classes, name="fc")]


def resnet20(input_shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> list[Layer]:
    """ResNet-20 for CIFAR, with the paper's shortcuts without parameters (option A).

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet20())
    269722
    """
    return _cifar(3, input_shape, classes)


def resnet56(input_shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> list[Layer]:
    """ResNet-56 for CIFAR, with the paper's shortcuts without parameters (option A).

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet56())
    853018
    """
    return _cifar(9, input_shape, classes)
