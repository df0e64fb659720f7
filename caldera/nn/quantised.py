"""Layers with weights of a few bits, for inference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.int8 import GROUP, LARGEST, LEAST, PANEL, int8_linear
from caldera.errors import ConfigError
from caldera.nn.basic import Dense, activation_function, check_counts, register
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

    arrays: ClassVar[tuple[str, ...]] = ("weight", "scale", "bias")

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
