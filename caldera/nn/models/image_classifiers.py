"""Image classifiers: MLP, LeNet-5, AlexNet, VGG-16 and VGG-19, residual networks.

AlexNet has torchvision's form: one tower, after Krizhevsky, 2014. VGG-16 and VGG-19 are the
configurations D and E of Simonyan and Zisserman, 2015. Residual networks (He and others, 2016) are
those for ImageNet and the small ones for CIFAR: their convolutions start with He's normal numbers,
as in the paper, and their last dense layer with Glorot's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.nn.activations import ReLU
from caldera.nn.basic import Dense, Flatten, Input, Sequential, check_counts, register
from caldera.nn.composite import Residual
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.noise import Dropout
from caldera.nn.normalisation import BatchNorm
from caldera.nn.pooling import AdaptiveAveragePool2D, GlobalAveragePool, MaxPool2D, Pooling2D


def mlp(
    input_shape: Sequence[int] = (784,),
    classes: int = 10,
    hidden: Sequence[int] = (528, 528, 528),
    activation: str = "relu",
    dropout: float = 0.0,
) -> list[Layer]:
    """Return dense layers of the sizes `hidden`, then one for the classes.

    Glorot's initial weights.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.mlp((784,), classes=10))
    978394
    """
    layers: list[Layer] = [Input(input_shape), Flatten()]
    for units in hidden:
        layers.append(Dense(units, activation=activation))
        if dropout:
            layers.append(Dropout(dropout))
    return [*layers, Dense(classes)]


def lenet5(
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    activation: str = "relu",
    pooling: str = "max",
) -> list[Layer]:
    """Build LeNet-5 (LeCun and others, 1998) in today's form: 2 convolutions, 3 dense layers.

    The paper has activation="tanh" and pooling="average", with a few weights more in the pooling
    and fewer in the second convolution. Images of 28 x 28 are padded to its 32 x 32.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.lenet5())
    61706
    """
    border = 2 if tuple(input_shape)[-1:] < (32,) else 0
    return [
        Input(input_shape),
        Conv2D(6, 5, padding=border, activation=activation),
        Pooling2D(pooling, 2),
        Conv2D(16, 5, activation=activation),
        Pooling2D(pooling, 2),
        Flatten(),
        Dense(120, activation=activation),
        Dense(84, activation=activation),
        Dense(classes),
    ]


def alexnet(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, dropout: float = 0.5
) -> list[Layer]:
    """Build AlexNet: five convolutions, three dense layers; He initialisation.

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
        Dense(4096, activation="relu", fill="he_normal", name="classifier.1"),
        Dropout(dropout),
        Dense(4096, activation="relu", fill="he_normal", name="classifier.4"),
        Dense(classes, name="classifier.6"),
    ]


def vgg16(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, dropout: float = 0.5
) -> list[Layer]:
    """Build VGG-16: thirteen convolutions of 3 x 3, three dense layers; He initialisation.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.vgg16(classes=1000))
    138357544
    """
    return _vgg((2, 2, 3, 3, 3), input_shape, classes, dropout)


def vgg19(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, dropout: float = 0.5
) -> list[Layer]:
    """Build VGG-19: sixteen convolutions of 3 x 3, three dense layers; He initialisation.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.vgg19(classes=1000))
    143667240
    """
    return _vgg((2, 2, 4, 4, 4), input_shape, classes, dropout)


def _vgg(
    counts: Sequence[int], input_shape: Sequence[int], classes: int, dropout: float
) -> list[Layer]:
    """VGG with this number of convolutions in each of its five stages."""
    layers: list[Layer] = [Input(input_shape)]
    # In torchvision's numbering each convolution is followed by a ReLU, each stage by a pool.
    place = 0
    for filters, count in zip((64, 128, 256, 512, 512), counts, strict=True):
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
        Dense(4096, activation="relu", fill="he_normal", name="classifier.0"),
        Dropout(dropout),
        Dense(4096, activation="relu", fill="he_normal", name="classifier.3"),
        Dropout(dropout),
        Dense(classes, name="classifier.6"),
    ]


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
        self.require(
            x.ndim == 4 and x.shape[1] <= self.channels,
            f"images (N, C, H, W) of at most {self.channels} channels",
            f"{x.shape}",
        )
        kept = x[:, :, :: self.stride, :: self.stride]
        missing = self.channels - x.shape[1]
        before = missing // 2
        return op.pad(kept, ((0, 0), (before, missing - before), (0, 0), (0, 0)))


def _conv(filters: int, kernel: int, stride: int, name: str) -> Layer:
    return Conv2D(filters, kernel, stride, kernel // 2, bias=False, fill="he_normal", name=name)


def _basic(filters: int, stride: int, shortcut: Layer | None, name: str) -> Layer:
    """Return a basic residual block: two convolutions of 3 x 3."""
    layers = [
        _conv(filters, 3, stride, name="conv1"),
        BatchNorm(name="bn1"),
        ReLU(),
        _conv(filters, 3, 1, name="conv2"),
        BatchNorm(name="bn2"),
    ]
    return Residual(layers, shortcut, activation="relu", name=name)


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
    return Residual(layers, shortcut, activation="relu", name=name)


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
            projection = [_conv(widening * filters, 1, stride, name="0"), BatchNorm(name="1")]
            shortcut = None if fits else Sequential(projection, name="downsample")
            layers.append(block(filters, stride, shortcut, f"layer{stage + 1}.{index}"))
            channels = widening * filters
    return [*layers, GlobalAveragePool(), Dense(classes, name="fc")]


def resnet18(input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000) -> list[Layer]:
    """Build ResNet-18.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet18())
    11689512
    """
    return _imagenet(_basic, 1, (2, 2, 2, 2), input_shape, classes)


def resnet34(input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000) -> list[Layer]:
    """Build ResNet-34.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet34())
    21797672
    """
    return _imagenet(_basic, 1, (3, 4, 6, 3), input_shape, classes)


def resnet50(input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000) -> list[Layer]:
    """Build ResNet-50, with the stride in the 3 x 3 convolution, as in torchvision ("v1.5").

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
    """Build ResNet-20 for CIFAR, with the paper's shortcuts without parameters (option A).

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet20())
    269722
    """
    return _cifar(3, input_shape, classes)


def resnet56(input_shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> list[Layer]:
    """Build ResNet-56 for CIFAR, with the paper's shortcuts without parameters (option A).

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.resnet56())
    853018
    """
    return _cifar(9, input_shape, classes)
