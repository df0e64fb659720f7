"""Cases for convolutions, against plain loops over every element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops import product
from tests.unit.ops.case import Case, numbers


def loops_conv2d(
    x: np.ndarray, w: np.ndarray, *, stride: Any, padding: Any, dilation: Any, groups: int
) -> np.ndarray:
    """The definition of a convolution, one product at a time."""
    image = np.pad(x, ((0, 0), (0, 0), *padding))
    result = np.zeros(_result_shape(image.shape, w.shape, stride, dilation))
    outputs_a_group = w.shape[0] // groups
    for n, k, row, column in np.ndindex(*result.shape):
        first = (k // outputs_a_group) * w.shape[1]
        for c, i, j in np.ndindex(*w.shape[1:]):
            pixel = image[
                n,
                first + c,
                row * stride[0] + i * dilation[0],
                column * stride[1] + j * dilation[1],
            ]
            result[n, k, row, column] += w[k, c, i, j] * pixel
    return result


def _result_shape(image: Any, w: Any, stride: Any, dilation: Any) -> tuple[int, ...]:
    """The shape of what comes of an image with its padding."""
    reach = [dilation[i] * (w[2 + i] - 1) + 1 for i in (0, 1)]
    height, width = ((image[2 + i] - reach[i]) // stride[i] + 1 for i in (0, 1))
    return image[0], w[0], height, width


def loops_conv_transpose2d(
    x: np.ndarray,
    w: np.ndarray,
    *,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    extra: Any,
) -> np.ndarray:
    """Each input element spreads its kernel over the output."""
    size = [
        (x.shape[2 + i] - 1) * stride[i] + dilation[i] * (w.shape[2 + i] - 1) + 1 + extra[i]
        for i in (0, 1)
    ]
    inputs_a_group = x.shape[1] // groups
    result = np.zeros((x.shape[0], w.shape[1] * groups, *size))
    for n, c, row, column in np.ndindex(*x.shape):
        first = (c // inputs_a_group) * w.shape[1]
        for k, i, j in np.ndindex(*w.shape[1:]):
            at = row * stride[0] + i * dilation[0], column * stride[1] + j * dilation[1]
            result[(n, first + k, *at)] += x[n, c, row, column] * w[c, k, i, j]
    (top, bottom), (left, right) = padding
    return result[:, :, top : size[0] - bottom, left : size[1] - right]


@dataclass(frozen=True)
class Setting:
    """One way to convolve."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def how(self) -> dict[str, Any]:
        """The attributes, as the ops take them."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }


SETTINGS = [
    Setting("plain", (2, 2, 4, 3), (3, 2, 2, 2)),
    Setting("1x1", (2, 3, 2, 3), (2, 3, 1, 1)),
    Setting("1x1 strided", (1, 2, 3, 4), (2, 2, 1, 1), stride=(2, 3)),
    Setting("1x1 padded", (1, 2, 2, 2), (2, 2, 1, 1), padding=((1, 0), (0, 2))),
    Setting("strided", (1, 2, 5, 6), (2, 2, 3, 2), stride=(2, 3)),
    Setting("stride larger than kernel", (1, 1, 5, 5), (2, 1, 2, 2), stride=(3, 3)),
    Setting("asymmetric padding", (1, 1, 3, 2), (2, 1, 2, 3), padding=((1, 0), (0, 2))),
    Setting("dilated", (1, 1, 5, 6), (1, 1, 2, 3), dilation=(3, 2)),
    Setting("grouped", (1, 4, 3, 3), (6, 2, 2, 2), groups=2),
    Setting("depthwise", (2, 3, 3, 3), (3, 1, 2, 2), padding=((1, 1), (1, 1)), groups=3),
    Setting("depthwise, two outputs a channel", (1, 2, 3, 3), (4, 1, 2, 2), groups=2),
    Setting(
        "everything",
        (2, 2, 3, 4),
        (2, 1, 2, 3),
        stride=(2, 1),
        padding=((2, 1), (0, 1)),
        dilation=(2, 1),
        groups=2,
    ),
    Setting("kernel as large as the image", (1, 2, 3, 2), (2, 2, 3, 2)),
    Setting("no images", (0, 2, 4, 4), (3, 2, 2, 2), padding=((1, 1), (1, 1))),
    Setting("no images, grouped", (0, 4, 3, 3), (2, 2, 2, 2), groups=2),
]


def _value(setting: Setting) -> Case:
    how = setting.how
    return Case(
        "conv2d",
        lambda x, w: op.conv2d(x, w, **how),
        (numbers(*setting.x), numbers(*setting.w)),
        lambda x, w: loops_conv2d(x, w, **how),
        order=2,
        name=setting.name,
    )


def output_shape(setting: Setting) -> tuple[int, ...]:
    """The shape of the convolution of a setting."""
    padded = [size + sum(ends) for size, ends in zip(setting.x[2:], setting.padding, strict=True)]
    return _result_shape((*setting.x[:2], *padded), setting.w, setting.stride, setting.dilation)


def _input(setting: Setting) -> Case:
    how = {**setting.how, "shape": setting.x}

    def expected(g: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Row by row, the transpose of the matrix that the convolution with `w` is."""
        result = np.zeros(setting.x)
        for index in np.ndindex(*setting.x):
            unit = np.zeros(setting.x)
            unit[index] = 1.0
            result[index] = np.sum(g * loops_conv2d(unit, w, **setting.how))
        return result

    return Case(
        "conv2d_input",
        lambda g, w: Expr(product.conv2d_input(g.node, w.node, **how)),
        (numbers(*output_shape(setting)), numbers(*setting.w)),
        expected,
        order=2,
        name=setting.name,
    )


def _weight(setting: Setting) -> Case:
    how = {**setting.how, "shape": setting.w}

    def expected(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        result = np.zeros(setting.w)
        for index in np.ndindex(*setting.w):
            unit = np.zeros(setting.w)
            unit[index] = 1.0
            result[index] = np.sum(g * loops_conv2d(x, unit, **setting.how))
        return result

    return Case(
        "conv2d_weight",
        lambda x, g: Expr(product.conv2d_weight(x.node, g.node, **how)),
        (numbers(*setting.x), numbers(*output_shape(setting))),
        expected,
        order=2,
        name=setting.name,
    )


_SOME = [s for s in SETTINGS if s.name in ("plain", "1x1", "everything", "depthwise", "no images")]

CASES = [_value(setting) for setting in SETTINGS]
CASES += [_input(setting) for setting in _SOME]
CASES += [_weight(setting) for setting in _SOME]
CASES += [
    Case(
        "conv2d_input",
        lambda x, w, how=how: op.conv_transpose2d(x, w, **how),
        (numbers(*x), numbers(*w)),
        lambda x, w, how=how: loops_conv_transpose2d(
            x,
            w,
            stride=how.get("stride", (1, 1)),
            padding=how.get("padding", ((0, 0), (0, 0))),
            dilation=how.get("dilation", (1, 1)),
            groups=how.get("groups", 1),
            extra=how.get("output_padding", (0, 0)),
        ),
        name=f"conv_transpose2d {name}",
    )
    for name, x, w, how in [
        ("plain", (2, 2, 2, 3), (2, 3, 2, 2), {}),
        ("strided", (1, 2, 2, 2), (2, 1, 3, 2), {"stride": (2, 3)}),
        (
            "output padding",
            (1, 1, 2, 2),
            (1, 2, 3, 3),
            {"stride": (2, 3), "padding": ((1, 1), (1, 0)), "output_padding": (1, 2)},
        ),
        ("dilated, grouped", (1, 4, 2, 2), (4, 2, 2, 2), {"dilation": (2, 1), "groups": 2}),
    ]
]
CASES += [
    Case(
        "conv2d",
        lambda x, w: op.conv1d(x, w, stride=2, padding=(2, 1), dilation=2),
        (numbers(2, 3, 7), numbers(2, 3, 2)),
        lambda x, w: loops_conv2d(
            x[:, :, None],
            w[:, :, None],
            stride=(1, 2),
            padding=((0, 0), (2, 1)),
            dilation=(1, 2),
            groups=1,
        )[:, :, 0],
        name="conv1d",
    ),
]
