"""Inception v3 (Szegedy and others, 2016), with torchvision's names and auxiliary head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caldera.compiler.lazy import Expr
from caldera.nn.basic import Dense, Dropout, Input, Sequential, register
from caldera.nn.composite import Branches
from caldera.nn.layer import Layer
from caldera.nn.models.auxiliary import normalised_conv, outputs, rescaled, run
from caldera.nn.pooling import AveragePool2D, GlobalAveragePool, MaxPool2D

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
    """The modules of 35 x 35: kernels of 5 x 5 and twice 3 x 3."""
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
    """From 35 x 35 to 17 x 17."""
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
    """The modules of 17 x 17: kernels of 7 x 7 as a row and a column."""
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
    """From 17 x 17 to 8 x 8."""
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
    """The modules of 8 x 8: branches that branch again."""

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
    """Inception v3; see `nn.models.Inception3` for what it gives. Initial weights after He.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.inception3())
    27161264
    """
    return [Input(input_shape), Inception3(classes, auxiliary, rescale_input)]
