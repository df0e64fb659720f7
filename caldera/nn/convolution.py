"""Convolutions over sequences (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W).

`kernel`, `stride` and `dilation` are a number or one for each axis. `padding` is a number, a number
or a pair for each axis, "same" or "valid", as for `op.conv2d`. Weights have PyTorch's shape and
Glorot's uniform initialisation unless `fill` is given. Biases are initialised with 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import glorot_uniform
from caldera.nn.basic import WeightedLayer, activation_function, check_counts, register
from caldera.nn.initialisers import fill_or

INPUTS = {1: "sequences (N, C, L)", 2: "images (N, C, H, W)", 3: "volumes (N, C, D, H, W)"}
"""Inputs by their number of spatial axes."""
CONVOLUTIONS: dict[int, Callable[..., Expr]] = {1: op.conv1d, 2: op.conv2d, 3: op.conv3d}
TRANSPOSES: dict[int, Callable[..., Expr]] = {
    1: op.conv_transpose1d,
    2: op.conv_transpose2d,
    3: op.conv_transpose3d,
}
RANGES = {
    "filters": ("around", 4),
    "activation": ("choice", ("relu", "tanh", "gelu", "silu")),
}
"""Ranges of settings for a search, relative to a layer's number of filters."""


def _sizes(layer: str, name: str, value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Return checked sizes, one for each axis."""
    sizes = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    for each in sizes:
        check_counts(layer, **{name: each})
    require(len(sizes) == axes, layer, f"{name}= {axes} sizes", repr(value))
    return sizes


class Convolution(WeightedLayer):
    """Base class of convolutions: checks of the input, weight and bias, activation."""

    axes: ClassVar[int]
    counted: ClassVar[str] = "filters"
    """Name of the setting that determines the number of output channels."""

    kernel: int | Sequence[int]
    bias: bool
    activation: str | None
    fill: Any

    def __post_init__(self) -> None:
        activation_function(self.activation)  # Refused now, not when it is first called.
        where = type(self).__name__
        check_counts(where, **{self.counted: getattr(self, self.counted)})
        self._kernel = _sizes(where, "kernel", self.kernel, self.axes)

    def build(self, x: Expr) -> None:
        self.require(x.ndim == 2 + self.axes, INPUTS[self.axes], f"shape {x.shape}")
        self.make_weights(*self.weight_shape(x.shape[1]))

    @abstractmethod
    def weight_shape(self, channels: int) -> tuple[tuple[int, ...], int]:
        """Return the shape of the weight for `channels` input channels, and the output channels."""

    @abstractmethod
    def convolve(self, x: Expr) -> Expr:
        """Return the convolution itself."""

    def forward(self, x: Expr) -> Expr:
        y = self.convolve(x)
        if self.offset is not None:
            y = op.bias_add(y, self.offset, axis=1)
        return activation_function(self.activation)(y)

    def check_groups(self, groups: int, channels: int, filters: int) -> None:
        """Refuse groups that do not divide the channels or the filters."""
        check_counts(self.path, groups=groups)
        self.require(
            not channels % groups and not filters % groups,
            f"channels and filters that {groups} groups divide",
            f"{channels} channels and {filters} filters",
        )


@register
@dataclass(eq=False)
class Conv2D(Convolution):
    """Images convolved with `filters` kernels.

    >>> from caldera import nn, op
    >>> layer = nn.Conv2D(8, 3, stride=2, padding="same", activation="relu")
    >>> layer(op.input("x", (5, 3, 28, 28))).shape
    (5, 8, 14, 14)
    >>> layer.weight.shape
    (8, 3, 3, 3)
    """

    axes: ClassVar[int] = 2
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = RANGES

    filters: int
    kernel: int | Sequence[int]
    stride: int | Sequence[int] = 1
    padding: Any = 0
    dilation: int | Sequence[int] = 1
    groups: int = 1
    bias: bool = True
    activation: str | None = field(default=None, kw_only=True)
    fill: Any = None

    def weight_shape(self, channels: int) -> tuple[tuple[int, ...], int]:
        self.check_groups(self.groups, channels, self.filters)
        return (self.filters, channels // self.groups, *self._kernel), self.filters

    def convolve(self, x: Expr) -> Expr:
        convolve, weight = CONVOLUTIONS[self.axes], self.used_weight()
        return convolve(x, weight, self.stride, self.padding, self.dilation, self.groups)


@register
@dataclass(eq=False)
class Conv3D(Conv2D):
    """Volumes, or films, convolved with `filters` kernels.

    >>> from caldera import nn, op
    >>> nn.Conv3D(8, 3, padding="same")(op.input("x", (5, 1, 16, 28, 28))).shape
    (5, 8, 16, 28, 28)
    """

    axes: ClassVar[int] = 3


@register
@dataclass(eq=False)
class Conv1D(Conv2D):
    """Sequences (N, C, L) convolved with `filters` kernels.

    >>> from caldera import nn, op
    >>> nn.Conv1D(8, 3, padding="same")(op.input("x", (5, 2, 100))).shape
    (5, 8, 100)
    """

    axes: ClassVar[int] = 1


@register
@dataclass(eq=False)
class ConvTranspose2D(Convolution):
    """The transpose of a convolution: makes images larger, for decoders and generators.

    The weight is (C, filters / groups, h, w). `output_padding`, smaller than the stride or
    the dilation, chooses among the sizes that a stride allows. With padding="same" the images
    become `stride` times as large.

    >>> from caldera import nn, op
    >>> layer = nn.ConvTranspose2D(8, 3, stride=2, padding=1, output_padding=1)
    >>> layer(op.input("x", (5, 16, 7, 7))).shape
    (5, 8, 14, 14)
    """

    axes: ClassVar[int] = 2

    filters: int
    kernel: int | Sequence[int]
    stride: int | Sequence[int] = 1
    padding: Any = 0
    output_padding: int | Sequence[int] = 0
    dilation: int | Sequence[int] = 1
    groups: int = 1
    bias: bool = True
    activation: str | None = field(default=None, kw_only=True)
    fill: Any = None

    def weight_shape(self, channels: int) -> tuple[tuple[int, ...], int]:
        self.check_groups(self.groups, channels, self.filters)
        return (channels, self.filters // self.groups, *self._kernel), self.filters

    def convolve(self, x: Expr) -> Expr:
        return TRANSPOSES[self.axes](
            x,
            self.weight,
            self.stride,
            self.padding,
            self.output_padding,
            self.dilation,
            self.groups,
        )


@register
@dataclass(eq=False)
class ConvTranspose1D(ConvTranspose2D):
    """The transpose of a convolution of sequences (N, C, L).

    >>> from caldera import nn, op
    >>> nn.ConvTranspose1D(8, 3, stride=2, padding="same")(op.input("x", (5, 16, 7))).shape
    (5, 8, 14)
    """

    axes: ClassVar[int] = 1


@register
@dataclass(eq=False)
class ConvTranspose3D(ConvTranspose2D):
    """The transpose of a convolution of volumes (N, C, D, H, W).

    >>> from caldera import nn, op
    >>> nn.ConvTranspose3D(8, 3, stride=2)(op.input("x", (5, 16, 4, 7, 7))).shape
    (5, 8, 9, 15, 15)
    """

    axes: ClassVar[int] = 3


@register
@dataclass(eq=False)
class DepthwiseConv2D(Convolution):
    """Depthwise convolution: each channel is convolved with `multiplier` separate kernels.

    >>> from caldera import nn, op
    >>> layer = nn.DepthwiseConv2D(3, padding="same")
    >>> layer(op.input("x", (5, 16, 7, 7))).shape, layer.weight.shape
    ((5, 16, 7, 7), (16, 1, 3, 3))
    """

    axes: ClassVar[int] = 2
    counted: ClassVar[str] = "multiplier"

    kernel: int | Sequence[int]
    multiplier: int = 1
    stride: int | Sequence[int] = 1
    padding: Any = 0
    dilation: int | Sequence[int] = 1
    bias: bool = True
    activation: str | None = field(default=None, kw_only=True)
    fill: Any = None

    def weight_shape(self, channels: int) -> tuple[tuple[int, ...], int]:
        filters = channels * self.multiplier
        return (filters, 1, *self._kernel), filters

    def convolve(self, x: Expr) -> Expr:
        groups = self.weight.shape[0] // self.multiplier
        convolve = CONVOLUTIONS[self.axes]
        return convolve(x, self.weight, self.stride, self.padding, self.dilation, groups)


@register
@dataclass(eq=False)
class DepthwiseConv1D(DepthwiseConv2D):
    """Depthwise convolution of sequences (N, C, L), with `multiplier` kernels per channel.

    >>> from caldera import nn, op
    >>> nn.DepthwiseConv1D(3, padding="same")(op.input("x", (5, 16, 7))).shape
    (5, 16, 7)
    """

    axes: ClassVar[int] = 1


@register
@dataclass(eq=False)
class SeparableConv2D(Convolution):
    """A depthwise convolution with `multiplier` kernels a channel, then a 1 x 1 convolution.

    >>> from caldera import nn, op
    >>> layer = nn.SeparableConv2D(8, 3, padding="same", activation="relu")
    >>> layer(op.input("x", (5, 16, 7, 7))).shape
    (5, 8, 7, 7)
    >>> [p.shape for p in layer.parameters()]
    [(16, 1, 3, 3), (8,), (8, 16, 1, 1)]
    """

    axes: ClassVar[int] = 2
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = RANGES

    filters: int
    kernel: int | Sequence[int]
    stride: int | Sequence[int] = 1
    padding: Any = 0
    dilation: int | Sequence[int] = 1
    multiplier: int = 1
    bias: bool = True
    activation: str | None = field(default=None, kw_only=True)
    fill: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(type(self).__name__, multiplier=self.multiplier)

    def build(self, x: Expr) -> None:
        super().build(x)
        shape = (self.filters, self.weight.shape[0], *(1 for _ in self._kernel))
        self.mixing = self.parameter("mixing", shape, fill_or(self.fill, glorot_uniform()))

    def weight_shape(self, channels: int) -> tuple[tuple[int, ...], int]:
        return (channels * self.multiplier, 1, *self._kernel), self.filters

    def convolve(self, x: Expr) -> Expr:
        convolve = CONVOLUTIONS[self.axes]
        groups = self.weight.shape[0] // self.multiplier
        y = convolve(x, self.weight, self.stride, self.padding, self.dilation, groups)
        return convolve(y, self.mixing)


@register
@dataclass(eq=False)
class SeparableConv1D(SeparableConv2D):
    """`nn.SeparableConv2D` for sequences (N, C, L).

    >>> from caldera import nn, op
    >>> nn.SeparableConv1D(8, 3, padding="same")(op.input("x", (5, 16, 7))).shape
    (5, 8, 7)
    """

    axes: ClassVar[int] = 1


@register
@dataclass(eq=False)
class ConvLSTM2D(Convolution):
    """LSTM over images (N, T, C, H, W): the last output (N, filters, H, W), or all outputs.

    The gates are input, forget, cell, output (Shi and others, 2015, without peepholes). The
    convolution of the state keeps its size; `stride`, `padding` and `dilation` apply to the
    convolution of the inputs.

    >>> from caldera import nn, op
    >>> layer = nn.ConvLSTM2D(8, 3, padding="same", return_sequences=True)
    >>> layer(op.input("film", (5, 10, 3, 14, 14))).shape
    (5, 10, 8, 14, 14)
    """

    axes: ClassVar[int] = 2
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = RANGES

    filters: int
    kernel: int | Sequence[int]
    stride: int | Sequence[int] = 1
    padding: Any = 0
    dilation: int | Sequence[int] = 1
    return_sequences: bool = False
    go_backwards: bool = False
    bias: bool = True
    activation: str | None = field(default="tanh", kw_only=True)
    fill: Any = None

    def build(self, x: Expr) -> None:
        wanted = f"sequences (N, T, C, ...) with {self.axes} axes behind the channels"
        self.require(x.ndim == 3 + self.axes, wanted, f"shape {x.shape}")
        fill, width = fill_or(self.fill, glorot_uniform()), 4 * self.filters
        shape, _ = self.weight_shape(x.shape[2])
        self.weight = self.parameter("weight", shape, fill)
        self.state_weight = self.parameter("state_weight", self.weight_shape(self.filters)[0], fill)
        first = np.repeat([0.0, 1.0, 0.0, 0.0], self.filters)
        self.offset = self.parameter("bias", (width,), first) if self.bias else None

    def weight_shape(self, channels: int) -> tuple[tuple[int, ...], int]:
        return (4 * self.filters, channels, *self._kernel), 4 * self.filters

    def convolve(self, x: Expr) -> Expr:
        convolution = CONVOLUTIONS[self.axes]
        return convolution(x, self.weight, self.stride, self.padding, self.dilation)

    def forward(self, x: Expr) -> Expr:
        count, steps, *image = x.shape
        y = self.convolve(op.reshape(x, (count * steps, *image)))
        if self.offset is not None:
            y = op.bias_add(y, self.offset, axis=1)
        by_step = op.moveaxis(op.reshape(y, (count, steps, *y.shape[1:])), 1, 0)
        zero = op.zeros((count, self.filters, *y.shape[2:]), dtype=y.dtype)
        function = activation_function(self.activation)

        def body(state: tuple[Expr, ...], product: Expr) -> tuple[tuple[Expr, ...], Expr | None]:
            output, cell = state
            moved = CONVOLUTIONS[self.axes](output, self.state_weight, padding="same")
            i, f, g, o = op.split(product + moved, 4, axis=1)
            cell = op.sigmoid(f) * cell + op.sigmoid(i) * function(g)
            output = op.sigmoid(o) * function(cell)
            return (output, cell), output if self.return_sequences else None

        last, outputs = op.scan(body, (zero, zero), by_step, reverse=self.go_backwards)
        return op.moveaxis(outputs, 0, 1) if self.return_sequences else last[0]


@register
@dataclass(eq=False)
class ConvLSTM1D(ConvLSTM2D):
    """`nn.ConvLSTM2D` for sequences of sequences (N, T, C, L).

    >>> from caldera import nn, op
    >>> nn.ConvLSTM1D(8, 3, padding="same")(op.input("x", (5, 10, 3, 14))).shape
    (5, 8, 14)
    """

    axes: ClassVar[int] = 1


@register
@dataclass(eq=False)
class ConvLSTM3D(ConvLSTM2D):
    """`nn.ConvLSTM2D` for sequences of volumes (N, T, C, D, H, W).

    >>> from caldera import nn, op
    >>> nn.ConvLSTM3D(8, 3, padding="same")(op.input("x", (5, 4, 3, 6, 7, 7))).shape
    (5, 8, 6, 7, 7)
    """

    axes: ClassVar[int] = 3
