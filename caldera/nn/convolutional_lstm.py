"""Long short-term memory whose products are convolutions, for films (N, T, C, H, W)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor import glorot_uniform
from caldera.nn.basic import activation_function, register
from caldera.nn.convolution import CONVOLUTIONS, RANGES, Convolution
from caldera.nn.initialisers import fill_or


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
