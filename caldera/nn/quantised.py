"""Layers with weights of a few bits: 8 bits and two bits for inference, ternary and binary ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.int8 import GROUP, LARGEST, LEAST, PANEL, int8_linear
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
from caldera.nn.tracing import context


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
        if self.step is not None and not 0 < self.step < float("inf"):
            raise ConfigError.build("Int8Dense", expected="step= above 0", got=repr(self.step))

    def build(self, x: Expr) -> None:
        self.require(x.ndim >= 2, "a batch of vectors", f"{x.shape}")
        self.inputs = x.shape[-1]
        panels, groups = -(-self.units // PANEL), -(-self.inputs // GROUP)
        self.weight = self.state("weight", (panels, groups, PANEL, GROUP), dtype="int8")
        self.scale = self.state("scale", (panels * PANEL,), dtype="float32")
        self.offset = self.state("bias", self.scale.shape, dtype="float32") if self.bias else None

    def forward(self, x: Expr) -> Expr:
        if context().training:
            raise ConfigError.build(
                self.path,
                expected="inference",
                got="training",
                hint="train the float model, and quantise it again",
            )
        self.require(x.shape[-1] == self.inputs, f"{self.inputs} values in rows", f"{x.shape}")
        rows = op.cast(op.reshape(x, (-1, self.inputs)), "float32")
        given = [each.node for each in (self.weight, self.scale, self.offset) if each is not None]
        found = Expr(int8_linear(rows.node, *given, columns=self.units, step=self.step))
        found = op.cast(op.reshape(found, (*x.shape[:-1], self.units)), x.dtype)
        return activation_function(self.activation)(found)

    def take(self, dense: Dense) -> None:
        """Round the weights of a dense layer; both layers must have been called before."""
        weight = dense.weight.numpy().astype(np.float32)
        scale = np.maximum(np.abs(weight).max(0, initial=0.0) / np.float32(LARGEST), LEAST)
        self.weight.assign(panels_of(np.rint(weight / scale).astype(np.int8)))
        offset = None if dense.offset is None else dense.offset.numpy()
        for variable, values in ((self.scale, scale), (self.offset, offset)):
            if variable is not None:
                padded = np.zeros(variable.shape, np.float32)
                padded[: self.units] = values
                variable.assign(padded)


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


THRESHOLD = 0.7
"""Weights become zero below this part of the mean size (Li and Liu, Ternary Weight Networks)."""


class FewLevels(WeightedLayer):
    """Base class of layers whose weights are rounded to -1, 0 and 1, or to -1 and 1, times a scale.

    Each output has a scale. Training changes the weights before rounding, with the gradients of the
    rounded ones (the straight-through estimator).
    """

    levels: ClassVar[int]
    output_axis: ClassVar[int]

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
    `model.quantise("ternary")` has them in two bits each.

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


class TwoBits(WeightedLayer):
    """Base class of layers that hold rounded weights in two bits each; `quantise` makes them."""

    output_axis: ClassVar[int]

    def make_weights(self, shape: Sequence[int], outputs: int) -> None:
        self.weight_sizes = tuple(shape)
        self.codes = self.state("codes", (-(-math.prod(shape) // 4),), dtype="uint8")
        self.scale = self.state("scale", (outputs,))
        self.offset = self.state("bias", (outputs,)) if self.bias else None

    def used_weight(self) -> Expr:
        # Four codes are the digits of a byte in base 4: exact in floating point.
        parts = op.floor(op.reshape(op.cast(self.codes, "float32"), (-1, 1)) * _PLACES)
        digits = op.reshape(parts - 4.0 * op.floor(parts * 0.25), (-1,))
        whole = op.reshape(digits[: math.prod(self.weight_sizes)] - 1.0, self.weight_sizes)
        across = [1] * len(self.weight_sizes)
        across[self.output_axis] = -1
        return op.cast(whole, self.scale.dtype) * op.reshape(self.scale, tuple(across))

    def take(self, source: FewLevels) -> None:
        """Pack the rounded weights of a layer; both layers must have been called before."""
        whole, scale = (each.numpy() for each in source.rounded())
        codes = np.zeros(4 * self.codes.size, np.uint8)
        codes[: whole.size] = whole.ravel() + 1
        self.codes.assign((codes.reshape(-1, 4) * _WORTH).sum(1, dtype=np.uint8))
        self.scale.assign(scale.ravel())
        if self.offset is not None and source.offset is not None:
            self.offset.assign(source.offset.numpy())


_PLACES = np.array([1, 1 / 4, 1 / 16, 1 / 64], np.float32)
_WORTH = np.array([1, 4, 16, 64], np.uint8)


@register
@dataclass(eq=False)
class TwoBitDense(TwoBits, Dense):
    """`Dense` with fixed weights of -1, 0 and 1 in two bits each, made by `quantise`.

    >>> from caldera import nn, op
    >>> layer = nn.TwoBitDense(3)
    >>> _ = layer(op.input("x", (5, 4)))
    >>> [(state.name, state.shape) for state in layer.states()]
    [('TwoBitDense/codes', (3,)), ('TwoBitDense/scale', (3,)), ('TwoBitDense/bias', (3,))]
    """

    output_axis: ClassVar[int] = -1


@register
@dataclass(eq=False)
class TwoBitConv2D(TwoBits, Conv2D):
    """`Conv2D` with fixed weights of -1, 0 and 1 in two bits each, made by `quantise`.

    >>> from caldera import nn, op
    >>> nn.TwoBitConv2D(8, 3)(op.input("x", (5, 3, 28, 28))).shape
    (5, 8, 26, 26)
    """

    output_axis: ClassVar[int] = 0
