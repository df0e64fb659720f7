"""GoogLeNet and Inception v3, with torchvision's names and auxiliary heads.

GoogLeNet is Inception v1 (Szegedy and others, 2015); Inception v3 is Szegedy and others, 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr
from caldera.nn.activations import ReLU
from caldera.nn.basic import Dense, Flatten, Input, Sequential, register
from caldera.nn.composite import Branches
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.noise import Dropout
from caldera.nn.normalisation import BatchNorm, LocalResponseNorm
from caldera.nn.pooling import AdaptiveAveragePool2D, AveragePool2D, GlobalAveragePool, MaxPool2D
from caldera.nn.tracing import context

# Means and deviations of ImageNet's channels, and the values used to train Google's weights.
_MEANS, _DEVIATIONS = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_CENTRE, _SPREAD = 0.5, 0.5


def normalised_conv(
    filters: int,
    kernel: int | Sequence[int],
    stride: int = 1,
    padding: int | Sequence[int] = 0,
    *,
    name: str,
) -> Layer:
    """Return convolution, batch normalisation, ReLU."""
    conv = Conv2D(filters, kernel, stride, padding, bias=False, fill="he_normal", name="conv")
    return Sequential([conv, BatchNorm(eps=1e-3, name="bn"), ReLU()], name=name)


def rescaled(x: Expr) -> Expr:
    """Return images normalised by ImageNet's statistics, as they look normalised by 0.5 and 0.5."""
    scale = (_DEVIATIONS / _SPREAD).reshape(1, 3, 1, 1).astype(x.dtype)
    shift = ((_MEANS - _CENTRE) / _SPREAD).reshape(1, 3, 1, 1).astype(x.dtype)
    return x * scale + shift


def run(
    layers: Sequence[Layer], x: Expr, heads: dict[str, tuple[Layer, Layer]]
) -> tuple[Expr, dict[str, Expr]]:
    """Call layers in sequence, and each auxiliary head after the layer it follows.

    `heads` has a pair (layer it follows, head) for each name. The heads are used only while
    training, but always get their parameters.
    """
    found: dict[str, Expr] = {}
    for layer in layers:
        x = layer(x)
        for name, (follows, head) in heads.items():
            if layer is not follows:
                continue
            if context().training:
                found[name] = head(x)
            else:
                head.make_parameters(x)
    return x, found


def outputs(main: Expr, auxiliary: dict[str, Expr], has_heads: bool) -> Any:
    """Return the main output, or a dict of outputs by name if there are heads."""
    return {"main": main, **auxiliary} if has_heads else main


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

    With batch normalisation the third branch has 3 x 3 kernels where the paper has 5 x 5, as the
    public weights require. `rescale_input` is for those weights: images normalised
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
            Dense(1024, activation="relu", fill="he_normal", name="fc1"),
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
    """Return the layers of GoogLeNet, with initial weights after He.

    See `nn.models.GoogLeNet` for its outputs.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.googlenet())
    13004888
    """
    return [Input(input_shape), GoogLeNet(classes, auxiliary, batch_norm, rescale_input)]


_conv = normalised_conv
# Kernels that look along one axis, and the paddings that keep the size.
_WIDE7, _TALL7 = ((1, 7), (0, 3)), ((7, 1), (3, 0))
_WIDE3, _TALL3 = ((1, 3), (0, 1)), ((3, 1), (1, 0))


def _along(filters: int, shape: tuple[tuple[int, int], tuple[int, int]], name: str) -> Layer:
    kernel, padding = shape
    return _conv(filters, kernel, 1, padding, name=name)


def _pooled(filters: int) -> list[Layer]:
    return [AveragePool2D(3, 1, 1), _conv(filters, 1, name="branch_pool")]


def _module_a(pool_filters: int, name: str) -> Layer:
    """Return the modules of 35 x 35: kernels of 5 x 5 and twice 3 x 3."""
    return Branches(
        [
            _conv(64, 1, name="branch1x1"),
            [_conv(48, 1, name="branch5x5_1"), _conv(64, 5, 1, 2, name="branch5x5_2")],
            [
                _conv(64, 1, name="branch3x3dbl_1"),
                _conv(96, 3, 1, 1, name="branch3x3dbl_2"),
                _conv(96, 3, 1, 1, name="branch3x3dbl_3"),
            ],
            _pooled(pool_filters),
        ],
        name=name,
    )


def _module_b(name: str) -> Layer:
    """Return the module that reduces 35 x 35 to 17 x 17."""
    return Branches(
        [
            _conv(384, 3, 2, name="branch3x3"),
            [
                _conv(64, 1, name="branch3x3dbl_1"),
                _conv(96, 3, 1, 1, name="branch3x3dbl_2"),
                _conv(96, 3, 2, name="branch3x3dbl_3"),
            ],
            MaxPool2D(3, 2),
        ],
        name=name,
    )


def _module_c(inner: int, name: str) -> Layer:
    """Return the modules of 17 x 17: kernels of 7 x 7 as a row and a column."""
    return Branches(
        [
            _conv(192, 1, name="branch1x1"),
            [
                _conv(inner, 1, name="branch7x7_1"),
                _along(inner, _WIDE7, "branch7x7_2"),
                _along(192, _TALL7, "branch7x7_3"),
            ],
            [
                _conv(inner, 1, name="branch7x7dbl_1"),
                _along(inner, _TALL7, "branch7x7dbl_2"),
                _along(inner, _WIDE7, "branch7x7dbl_3"),
                _along(inner, _TALL7, "branch7x7dbl_4"),
                _along(192, _WIDE7, "branch7x7dbl_5"),
            ],
            _pooled(192),
        ],
        name=name,
    )


def _module_d(name: str) -> Layer:
    """Return the module that reduces 17 x 17 to 8 x 8."""
    return Branches(
        [
            [_conv(192, 1, name="branch3x3_1"), _conv(320, 3, 2, name="branch3x3_2")],
            [
                _conv(192, 1, name="branch7x7x3_1"),
                _along(192, _WIDE7, "branch7x7x3_2"),
                _along(192, _TALL7, "branch7x7x3_3"),
                _conv(192, 3, 2, name="branch7x7x3_4"),
            ],
            MaxPool2D(3, 2),
        ],
        name=name,
    )


def _module_e(name: str) -> Layer:
    """Return the modules of 8 x 8: branches that branch again."""

    def split(prefix: str) -> Layer:
        return Branches([_along(384, _WIDE3, f"{prefix}a"), _along(384, _TALL3, f"{prefix}b")])

    return Branches(
        [
            _conv(320, 1, name="branch1x1"),
            [_conv(384, 1, name="branch3x3_1"), split("branch3x3_2")],
            [
                _conv(448, 1, name="branch3x3dbl_1"),
                _conv(384, 3, 1, 1, name="branch3x3dbl_2"),
                split("branch3x3dbl_3"),
            ],
            _pooled(192),
        ],
        name=name,
    )


@register
@dataclass(eq=False)
class Inception3(Layer):
    """Inception v3 with batch normalisation everywhere.

    With the `auxiliary` head, which needs images of 299 x 299, the result is a dict: "main", and
    while training "aux" (the paper weighs its loss by 0.4, torchvision's recipe too). For
    `rescale_input` see `nn.models.GoogLeNet`.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.Inception3(auxiliary=False), (3, 299, 299))
    23834568
    """

    classes: int = 1000
    auxiliary: bool = True
    rescale_input: bool = False

    def __post_init__(self) -> None:
        before_head = _module_c(192, "Mixed_6e")
        self.body: list[Layer] = [
            _conv(32, 3, 2, name="Conv2d_1a_3x3"),
            _conv(32, 3, name="Conv2d_2a_3x3"),
            _conv(64, 3, 1, 1, name="Conv2d_2b_3x3"),
            MaxPool2D(3, 2),
            _conv(80, 1, name="Conv2d_3b_1x1"),
            _conv(192, 3, name="Conv2d_4a_3x3"),
            MaxPool2D(3, 2),
            _module_a(32, "Mixed_5b"),
            _module_a(64, "Mixed_5c"),
            _module_a(64, "Mixed_5d"),
            _module_b("Mixed_6a"),
            _module_c(128, "Mixed_6b"),
            _module_c(160, "Mixed_6c"),
            _module_c(160, "Mixed_6d"),
            before_head,
            _module_d("Mixed_7a"),
            _module_e("Mixed_7b"),
            _module_e("Mixed_7c"),
            GlobalAveragePool(),
            Dropout(0.5),
        ]
        self.fc = Dense(self.classes, name="fc")
        self._heads: dict[str, tuple[Layer, Layer]] = {}
        if self.auxiliary:
            self.head = Sequential(
                [
                    AveragePool2D(5, 3),
                    _conv(128, 1, name="conv0"),
                    _conv(768, 5, name="conv1"),
                    GlobalAveragePool(),
                    Dense(self.classes, name="fc"),
                ],
                name="AuxLogits",
            )
            self._heads = {"aux": (before_head, self.head)}

    def forward(self, x: Expr) -> Any:
        if self.rescale_input:
            x = rescaled(x)
        features, auxiliary = run(self.body, x, self._heads)
        return outputs(self.fc(features), auxiliary, self.auxiliary)


def inception3(
    input_shape: Sequence[int] = (3, 299, 299),
    classes: int = 1000,
    auxiliary: bool = True,
    rescale_input: bool = False,
) -> list[Layer]:
    """Return the layers of Inception v3; see `nn.models.Inception3`. Initial weights after He.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.inception3())
    27161264
    """
    return [Input(input_shape), Inception3(classes, auxiliary, rescale_input)]
