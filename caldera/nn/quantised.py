"""Layers with weights of a few bits: 8 bits and packed ones, ternary and binary ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.int8 import GROUP, LARGEST, LEAST, PANEL, int8_conv2d, int8_linear
from caldera.errors import ConfigError
from caldera.nn.basic import (
    Dense,
    WeightedLayer,
    activation_function,
    check_counts,
    register,
)
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.normalisation import BatchNorm
from caldera.nn.tracing import context
from caldera.op.windows import as_sizes, as_widths


@register
@dataclass(eq=False)
class Int8Dense(Layer):
    """`Dense` with weights of 8 bits and a scale for each output; `Model.quantise` makes it.

    Inputs are rounded to 8 bits too, in steps of the largest element of each row divided by 127, or
    in fixed steps. The integers are multiplied without rounding. The layer cannot be trained.

    >>> from caldera import nn, op
    >>> nn.Int8Dense(10, activation="relu")(op.input("x", (5, 4))).shape
    (5, 10)
    """

    units: int
    activation: str | None = field(default=None, kw_only=True)
    bias: bool = True
    step: float | None = None

    def __post_init__(self) -> None:
        check_counts("Int8Dense", units=self.units)
        activation_function(self.activation)
        _check_step(self)

    def build(self, x: Expr) -> None:
        self.require(x.ndim >= 2, "a batch of vectors", f"{x.shape}")
        self.inputs = x.shape[-1]
        panels, groups = -(-self.units // PANEL), -(-self.inputs // GROUP)
        self.weight = self.state("weight", (panels, groups, PANEL, GROUP), dtype="int8")
        self.scale = self.state("scale", (panels * PANEL,), dtype="float32")
        self.offset = self.state("bias", self.scale.shape, dtype="float32") if self.bias else None

    def forward(self, x: Expr) -> Expr:
        _check_inference(self)
        self.require(x.shape[-1] == self.inputs, f"{self.inputs} values in rows", f"{x.shape}")
        rows = op.cast(op.reshape(x, (-1, self.inputs)), "float32")
        given = [each.node for each in (self.weight, self.scale, self.offset) if each is not None]
        found = Expr(int8_linear(rows.node, *given, columns=self.units, step=self.step))
        found = op.cast(op.reshape(found, (*x.shape[:-1], self.units)), x.dtype)
        return activation_function(self.activation)(found)

    def take(self, dense: Dense) -> None:
        """Round the weights of a dense layer; both layers must have been called before."""
        whole, scale = _rounded(dense.weight.numpy().astype(np.float32))
        self.weight.assign(panels_of(whole))
        offset = None if dense.offset is None else dense.offset.numpy()
        for variable, values in ((self.scale, scale), (self.offset, offset)):
            if variable is not None and values is not None:
                variable.assign(_padded(values, variable.shape))


def _check_step(layer: Int8Dense | Int8Conv2D) -> None:
    if layer.step is not None and not 0 < layer.step < float("inf"):
        where = type(layer).__name__
        raise ConfigError.build(where, expected="step= above 0", got=repr(layer.step))


def _check_inference(layer: Layer) -> None:
    require(
        not context().training,
        layer.path,
        "inference",
        "training",
        hint="train the float model, and quantise it again",
    )


def _rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix in bytes, and the scale of each column."""
    scale = np.maximum(np.abs(matrix).max(0, initial=0.0) / np.float32(LARGEST), LEAST)
    return np.rint(matrix / scale).astype(np.int8), scale


def _padded(values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    padded = np.zeros(shape, np.float32)
    padded[: len(values)] = values
    return padded


@register
@dataclass(eq=False)
class Int8Conv2D(Conv2D):
    """`Conv2D` with weights of 8 bits and a scale for each filter; `Model.quantise` makes it.

    Images are rounded to 8 bits too, in steps of the largest element of each image divided by 127,
    or in fixed steps. The integers are multiplied without rounding. The layer cannot be trained.

    >>> from caldera import nn, op
    >>> layer = nn.Int8Conv2D(8, 3, padding="same", activation="relu")
    >>> layer(op.input("x", (5, 16, 28, 28))).shape, layer.weight.shape
    ((5, 8, 28, 28), (1, 3, 3, 4, 16, 4))
    """

    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self)
        require(self.groups == 1, "Int8Conv2D", "groups=1", repr(self.groups))

    def make_weights(self, shape: Sequence[int], outputs: int) -> None:
        _, self.channels, *kernel = shape
        panels, groups = -(-outputs // PANEL), -(-self.channels // GROUP)
        self.weight = self.state("weight", (panels, *kernel, groups, PANEL, GROUP), dtype="int8")
        self.scale = self.state("scale", (panels * PANEL,), dtype="float32")
        self.shift = self.state("bias", self.scale.shape, dtype="float32")

    def forward(self, x: Expr) -> Expr:
        _check_inference(self)
        self.require(
            x.ndim == 4 and x.shape[1] == self.channels, f"{self.channels} channels", f"{x.shape}"
        )
        strides, gaps = (
            as_sizes(value, 2, name, self.path)
            for name, value in (("stride", self.stride), ("dilation", self.dilation))
        )
        found = int8_conv2d(
            op.cast(x, "float32").node,
            *(each.node for each in (self.weight, self.scale, self.shift)),
            filters=self.filters,
            step=self.step,
            stride=strides,
            padding=as_widths(
                self.padding, self.path, x.shape[2:], self.weight.shape[1:3], strides, gaps
            ),
            dilation=gaps,
        )
        return activation_function(self.activation)(op.cast(Expr(found), x.dtype))

    def take(self, source: Conv2D, norm: BatchNorm | None = None) -> None:
        """Round the filters of a convolution, with the normalisation that follows it, if any."""
        weight, offset = source.weight.numpy().astype(np.float32), np.zeros(self.filters)
        if source.offset is not None:
            offset = source.offset.numpy()
        if norm is not None:
            given = (norm.weight, norm.bias, norm.mean, norm.variance)
            scale, shift, mean, variance = (each.numpy().astype(np.float64) for each in given)
            gain = scale / np.sqrt(variance + norm.eps)
            weight = (weight * gain[:, None, None, None]).astype(np.float32)
            offset = (offset - mean) * gain + shift
        whole, scale = _rounded(weight.reshape(self.filters, -1).T)
        self.weight.assign(filters_of(whole.T.reshape(weight.shape)))
        for variable, values in ((self.scale, scale), (self.shift, offset)):
            variable.assign(_padded(values, variable.shape))


def panels_of(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix of bytes in the order of `int8_linear`.

    >>> panels_of(np.ones((5, 17), np.int8)).shape
    (2, 2, 16, 4)
    """
    rows, columns = matrix.shape
    panels, groups = -(-columns // PANEL), -(-rows // GROUP)
    padded = np.zeros((groups * GROUP, panels * PANEL), np.int8)
    padded[:rows, :columns] = matrix
    parts = padded.reshape(groups, GROUP, panels, PANEL)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1))


def filters_of(weight: np.ndarray) -> np.ndarray:
    """Return filters of bytes (K, C, h, w) in the order of `int8_conv2d`.

    >>> filters_of(np.ones((17, 5, 3, 2), np.int8)).shape
    (2, 3, 2, 2, 16, 4)
    """
    filters, channels, *kernel = weight.shape
    groups = -(-channels // GROUP)
    padded = np.zeros((*kernel, groups * GROUP, filters), np.int8)
    padded[:, :, :channels] = weight.transpose(2, 3, 1, 0)
    found = panels_of(padded.reshape(-1, filters))
    return found.reshape(len(found), *kernel, groups, PANEL, GROUP)


THRESHOLD = 0.7
"""Weights become zero below this part of the mean size (Li and Liu, Ternary Weight Networks)."""


class FewLevels(WeightedLayer):
    """Base class of layers whose weights are rounded to -1, 0 and 1, or to -1 and 1, times a scale.

    Each output has a scale. Training changes the weights before rounding, with the gradients of the
    rounded ones (the straight-through estimator).
    """

    levels: ClassVar[int]
    output_axis: ClassVar[int]
    may_be_few_bits: ClassVar[bool] = False

    def rounded(self) -> tuple[Expr, Expr]:
        """Return the rounded weight, and the scales with the same number of axes."""
        weight, output = self.weight, self.output_axis % self.weight.ndim
        axes = tuple(axis for axis in range(weight.ndim) if axis != output)
        size = op.abs(weight)
        mean = op.mean(size, axes, keepdims=True)
        if self.levels == 2:
            return op.where(weight < 0, -1.0, 1.0), mean
        large = size > THRESHOLD * mean
        kept = op.cast(large, weight.dtype)
        count = op.maximum(op.sum(kept, axes, keepdims=True), 1.0)
        scale = op.sum(size * kept, axes, keepdims=True) / count
        return op.where(large, op.sign(weight), 0.0), scale

    def used_weight(self) -> Expr:
        whole, scale = self.rounded()
        found = whole * scale
        return self.weight + op.stop_gradient(found - self.weight) if context().training else found


@register
@dataclass(eq=False)
class TernaryDense(FewLevels, Dense):
    """`Dense` with weights of -1, 0 and 1 times a scale for each output.

    Weights smaller than 0.7 of the mean size of an output's weights are zero. A copy by
    `model.quantise("ternary")` packs five weights into a byte.

    >>> import numpy as np
    >>> from caldera import nn, op
    >>> layer = nn.TernaryDense(3)
    >>> _ = layer(op.input("x", (5, 4)))
    >>> layer.weight.assign(np.array([[1.0, -2.0, 0.5]] * 3 + [[-0.5, 0.0, 4.0]]))
    >>> layer.used_weight().numpy().round(2).tolist()
    [[1.0, -2.0, 0.0], [1.0, -2.0, 0.0], [1.0, -2.0, 0.0], [0.0, 0.0, 4.0]]
    """

    levels: ClassVar[int] = 3
    output_axis: ClassVar[int] = -1


@register
@dataclass(eq=False)
class BinaryDense(TernaryDense):
    """`Dense` with weights of -1 and 1 times a scale for each output; see `TernaryDense`.

    >>> from caldera import nn, op
    >>> nn.BinaryDense(3, activation="relu")(op.input("x", (5, 4))).shape
    (5, 3)
    """

    levels: ClassVar[int] = 2


@register
@dataclass(eq=False)
class TernaryConv2D(FewLevels, Conv2D):
    """`Conv2D` with weights of -1, 0 and 1 times a scale for each filter; see `TernaryDense`.

    >>> from caldera import nn, op
    >>> nn.TernaryConv2D(8, 3, padding="same")(op.input("x", (5, 3, 28, 28))).shape
    (5, 8, 28, 28)
    """

    levels: ClassVar[int] = 3
    output_axis: ClassVar[int] = 0


@register
@dataclass(eq=False)
class BinaryConv2D(TernaryConv2D):
    """`Conv2D` with weights of -1 and 1 times a scale for each filter; see `TernaryDense`.

    >>> from caldera import nn, op
    >>> nn.BinaryConv2D(8, 3)(op.input("x", (5, 3, 28, 28))).shape
    (5, 8, 26, 26)
    """

    levels: ClassVar[int] = 2


class FewBits(WeightedLayer):
    """Base class of layers with packed weights: 8, 5 or 4 in a byte for 2, 3 or 4 `levels`.

    `quantise` makes them. The levels are -1, 0, 1 and 2; two levels are -1 and 1.
    """

    output_axis: ClassVar[int]
    levels: int

    def make_weights(self, shape: Sequence[int], outputs: int) -> None:
        self.require(self.levels in PER_BYTE, "levels= 2, 3 or 4", f"{self.levels}")
        self.weight_sizes = tuple(shape)
        count = -(-math.prod(shape) // PER_BYTE[self.levels])
        self.codes = self.state("codes", (count,), dtype="uint8")
        self.scale = self.state("scale", (outputs,))
        self.offset = self.state("bias", (outputs,)) if self.bias else None

    def used_weight(self) -> Expr:
        # The codes are the digits of a byte. Numbers stay half a unit away from whole ones: no
        # rounding error changes a digit.
        levels = float(self.levels)
        halves = op.reshape(op.cast(self.codes, "float32"), (-1, 1)) + 0.5
        parts = op.floor(halves / _worth(self.levels).astype(np.float32))
        digits = op.reshape(parts - levels * op.floor((parts + 0.5) / levels), (-1,))
        whole = op.reshape(digits[: math.prod(self.weight_sizes)], self.weight_sizes)
        whole = whole * 2.0 - 1.0 if self.levels == 2 else whole - 1.0
        across = [1] * len(self.weight_sizes)
        across[self.output_axis] = -1
        return op.cast(whole, self.scale.dtype) * op.reshape(self.scale, tuple(across))

    def take(self, source: FewLevels) -> None:
        """Pack the rounded weights of a layer; both layers must have been called before."""
        whole, scale = (each.numpy() for each in source.rounded())
        worth = _worth(self.levels)
        codes = np.zeros(worth.size * self.codes.size, np.uint8)
        codes[: whole.size] = whole.ravel() > 0 if self.levels == 2 else whole.ravel() + 1
        self.codes.assign((codes.reshape(-1, worth.size) * worth).sum(1, dtype=np.uint8))
        self.scale.assign(scale.ravel())
        if self.offset is not None and source.offset is not None:
            self.offset.assign(source.offset.numpy())


PER_BYTE = {2: 8, 3: 5, 4: 4}
"""Weights in a byte, by the number of levels."""


def _worth(levels: int) -> np.ndarray:
    """Return the weight of each digit of a byte.

    >>> _worth(3).tolist()
    [1, 3, 9, 27, 81]
    """
    return levels ** np.arange(PER_BYTE[levels], dtype=np.uint8)


@register
@dataclass(eq=False)
class PackedDense(FewBits, Dense):
    """`Dense` with fixed weights of -1, 0 and 1, five in a byte, made by `quantise("ternary")`.

    Weights of -1 and 1 (`levels=2`) are bits, eight in a byte.

    >>> from caldera import nn, op
    >>> layer = nn.PackedDense(3)
    >>> _ = layer(op.input("x", (5, 4)))
    >>> [(state.name, state.shape) for state in layer.states()]
    [('PackedDense/codes', (3,)), ('PackedDense/scale', (3,)), ('PackedDense/bias', (3,))]
    """

    output_axis: ClassVar[int] = -1
    levels: int = field(default=3, kw_only=True)


@register
@dataclass(eq=False)
class PackedConv2D(FewBits, Conv2D):
    """`Conv2D` with fixed weights of -1, 0 and 1, five in a byte; see `PackedDense`.

    >>> from caldera import nn, op
    >>> nn.PackedConv2D(8, 3)(op.input("x", (5, 3, 28, 28))).shape
    (5, 8, 26, 26)
    """

    output_axis: ClassVar[int] = 0
    levels: int = field(default=3, kw_only=True)


@register
@dataclass(eq=False)
class TwoBitDense(PackedDense):
    """`PackedDense` of files of earlier versions, with four weights in a byte."""

    levels: int = field(default=4, kw_only=True)


@register
@dataclass(eq=False)
class TwoBitConv2D(PackedConv2D):
    """`PackedConv2D` of files of earlier versions, with four weights in a byte."""

    levels: int = field(default=4, kw_only=True)
