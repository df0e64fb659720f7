"""Recurrent cells: one step of a plain RNN, an LSTM or a GRU, and its parameters.

The gates and the two biases follow PyTorch, so its weights load, transposed, and the parameter
counts agree. Input weights have Glorot's uniform initialisation, state weights an orthogonal
matrix. Biases are initialised with 0, except for the LSTM's forget gate, with 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor import glorot_uniform, orthogonal
from caldera.nn.basic import activation_function, check_counts, register
from caldera.nn.layer import Layer


class Weights(NamedTuple):
    """Parameters for one direction."""

    input_weight: Variable
    state_weight: Variable
    input_bias: Variable
    state_bias: Variable


@dataclass(eq=False)
class Recurrence(Layer):
    """One step of a recurrent network: `cell(x, *state)` is the next state.

    Without a state the step begins with zeros.
    """

    gates: ClassVar[int]
    """Number of vectors of `units` numbers computed in a step."""
    states_held: ClassVar[int] = 1
    """Number of such vectors passed from step to step; the first is the output."""
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {"units": ("around", 4)}

    units: int

    def __post_init__(self) -> None:
        check_counts(type(self).__name__, units=self.units)

    def build(self, x: Expr, *state: Any) -> None:
        self.require(x.ndim == 2, "samples (N, C) of a single step", f"shape {x.shape}")
        self._weights = [self._direction(x.shape[-1], "")]

    def _direction(self, channels: int, suffix: str) -> Weights:
        width = self.gates * self.units
        return Weights(
            self.parameter(f"input_weight{suffix}", (channels, width), glorot_uniform()),
            self.parameter(f"state_weight{suffix}", (self.units, width), orthogonal()),
            self.parameter(f"input_bias{suffix}", (width,), self.first_bias()),
            self.parameter(f"state_bias{suffix}", (width,)),
        )

    def first_bias(self) -> Any:
        """Return the filler of the input's bias; None means zeros."""
        return None

    def bias_outside(self, weights: Weights) -> Expr:
        """Return the bias that can be added before the loop."""
        return weights.input_bias + weights.state_bias

    @abstractmethod
    def step(self, x: Expr, state: tuple[Expr, ...], weights: Weights) -> tuple[Expr, ...]:
        """Return the next state; `x` is the input times `input_weight`, with its bias."""

    def forward(self, x: Expr, *state: Any) -> Any:
        channels = self._weights[0].input_weight.shape[0]
        self.require(x.ndim == 2 and x.shape[1] == channels, f"(N, {channels})", f"{x.shape}")
        weights = self._weights[0]
        product = op.linear(x, weights.input_weight, self.bias_outside(weights))
        new = self.step(product, self.first_states(state, len(x)), weights)
        return new if len(new) > 1 else new[0]

    def first_states(self, given: Any, count: int) -> tuple[Expr, ...]:
        """Return the initial states: those given, (N, units) each, else zeros."""
        wanted, dtype = self.states_held * len(self._weights), self._weights[0].input_weight.dtype
        if isinstance(given, Expr):
            given = tuple(given) if given.ndim == 3 else (given,)
        given = tuple(each for each in given or () if each is not None)
        if not given:
            return (op.broadcast(op.cast(0.0, dtype), (count, self.units)),) * wanted
        self.require(
            [each.shape for each in given] == [(count, self.units)] * wanted,
            f"a state of {wanted} x {(count, self.units)}",
            ", ".join(str(each.shape) for each in given),
            "pass states as the layer returns them",
        )
        return given


@register
@dataclass(eq=False)
class RNNCell(Recurrence):
    """One step of `nn.RNN`: the next state (N, units) from x (N, C) and the last one.

    >>> from caldera import nn, op
    >>> cell = nn.RNNCell(4)
    >>> x = op.input("x", (5, 3))
    >>> cell(x, cell(x)).shape
    (5, 4)
    """

    gates: ClassVar[int] = 1

    activation: str = field(default="tanh", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        activation_function(self.activation)  # Refused now, not when it is first called.

    def step(self, x: Expr, state: tuple[Expr, ...], weights: Weights) -> tuple[Expr, ...]:
        return (activation_function(self.activation)(x + state[0] @ weights.state_weight),)


@register
@dataclass(eq=False)
class LSTMCell(Recurrence):
    """One step of `nn.LSTM`: cell(x, output, cell) returns the next (output, cell).

    x has shape (N, C), both states (N, units). Initial states are zeros by default.

    >>> from caldera import nn, op
    >>> cell = nn.LSTMCell(4)
    >>> x = op.input("x", (5, 3))
    >>> h, c = cell(x)
    >>> h, c = cell(x, h, c)
    >>> h.shape, c.shape
    ((5, 4), (5, 4))
    """

    gates: ClassVar[int] = 4
    states_held: ClassVar[int] = 2

    def first_bias(self) -> Any:
        return np.repeat([0.0, 1.0, 0.0, 0.0], self.units)

    def step(self, x: Expr, state: tuple[Expr, ...], weights: Weights) -> tuple[Expr, ...]:
        output, cell = state
        i, f, g, o = op.split(x + output @ weights.state_weight, 4, axis=1)
        cell = op.sigmoid(f) * cell + op.sigmoid(i) * op.tanh(g)
        return op.sigmoid(o) * op.tanh(cell), cell


@register
@dataclass(eq=False)
class GRUCell(Recurrence):
    """One step of `nn.GRU`: the next state (N, units) from x (N, C) and the last one.

    >>> from caldera import nn, op
    >>> cell = nn.GRUCell(4)
    >>> x = op.input("x", (5, 3))
    >>> cell(x, cell(x)).shape
    (5, 4)
    """

    gates: ClassVar[int] = 3

    def bias_outside(self, weights: Weights) -> Expr:
        return weights.input_bias

    def step(self, x: Expr, state: tuple[Expr, ...], weights: Weights) -> tuple[Expr, ...]:
        (last,) = state
        reset, update, new = op.split(x, 3, axis=1)
        product = last @ weights.state_weight + weights.state_bias
        reset_state, update_state, new_state = op.split(product, 3, axis=1)
        gate = op.sigmoid(update + update_state)
        candidate = op.tanh(new + op.sigmoid(reset + reset_state) * new_state)
        return (candidate + gate * (last - candidate),)
