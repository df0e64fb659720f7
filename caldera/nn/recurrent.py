"""Recurrent layers over sequences (N, T, C): plain RNN, LSTM, GRU.

The products with the inputs are made for all steps at once, before the loop. The gates and the two
biases are PyTorch's, so its weights load, transposed, and the numbers of parameters agree.

Sequences of different length are padded; what is real is a second input: the lengths, whole numbers
(N,), or truth values (N, T). At a step that is not real the state stays as it is and the output is
0, so the numbers that stand in the padding have no influence on anything.

Input weights begin with Glorot's uniform numbers, state weights with an orthogonal matrix, biases
with 0 (that of the LSTM's forget gate with 1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from caldera import op
from caldera.base.arguments import require, shown
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor import bool_, glorot_uniform, is_integer, orthogonal
from caldera.nn.basic import activation_function, check_counts, register
from caldera.nn.layer import Layer


class Weights(NamedTuple):
    """The parameters of one direction."""

    input_weight: Variable
    state_weight: Variable
    input_bias: Variable
    state_bias: Variable


class Recurrent(Layer):
    """What the recurrent layers share: the loop, directions, masks."""

    gates: ClassVar[int]
    """How many vectors of `units` numbers a step computes."""
    states_held: ClassVar[int] = 1
    """How many such vectors go from step to step; the first is the output."""
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {"units": ("around", 4)}

    units: int
    return_sequences: bool
    bidirectional: bool
    go_backwards: bool
    return_mask: bool

    def __post_init__(self) -> None:
        check_counts(type(self).__name__, units=self.units)
        require(
            not self.bidirectional or not self.go_backwards,
            type(self).__name__,
            "both directions, or one",
            "bidirectional and go_backwards",
        )
        require(
            not self.return_mask or self.return_sequences,
            type(self).__name__,
            "a mask to go with sequences",
            "return_mask without return_sequences",
        )

    def build(self, x: Expr, *rest: Any) -> None:
        self.require(
            x.ndim == 3,
            "sequences (N, T, C)",
            f"shape {x.shape}",
            "words need nn.Embedding before it",
        )
        # Named as the two directions of PyTorch.
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        self._weights = [self._direction(x.shape[-1], suffix) for suffix in suffixes]

    def _direction(self, channels: int, suffix: str) -> Weights:
        width = self.gates * self.units
        return Weights(
            self.parameter(f"input_weight{suffix}", (channels, width), glorot_uniform()),
            self.parameter(f"state_weight{suffix}", (self.units, width), orthogonal()),
            self.parameter(f"input_bias{suffix}", (width,), self.first_bias()),
            self.parameter(f"state_bias{suffix}", (width,)),
        )

    def first_bias(self) -> Any:
        """What the input's bias begins with."""
        return None

    def bias_outside(self, weights: Weights) -> Expr:
        """The bias that can be added before the loop."""
        return weights.input_bias + weights.state_bias

    @abstractmethod
    def step(self, x: Expr, state: tuple[Expr, ...], weights: Weights) -> tuple[Expr, ...]:
        """The next state from the input's product `x` and the last state."""

    def forward(self, x: Expr, mask: Expr | None = None) -> Any:
        if x.ndim != 3 or x.shape[-1] != self._weights[0].input_weight.shape[0]:
            channels = self._weights[0].input_weight.shape[0]
            raise self.refuse(f"sequences (N, T, {channels})", f"shape {x.shape}")
        real = None if mask is None else self._steps_that_are_real(mask, x)
        backwards = (False, True) if self.bidirectional else (self.go_backwards,)
        results = [
            self._run(x, real, weights, reverse)
            for weights, reverse in zip(self._weights, backwards, strict=True)
        ]
        y = results[0] if len(results) == 1 else op.concat(results, axis=-1)
        return (y, mask) if self.return_mask and mask is not None else y

    def _steps_that_are_real(self, mask: Expr, x: Expr) -> Expr:
        """The mask, by step: (T, N, 1)."""
        count, steps = x.shape[:2]
        if is_integer(mask.dtype) and mask.shape == (count,):
            real = op.less(np.arange(steps)[:, None], mask)
        elif mask.dtype == bool_ and mask.shape == (count, steps):
            real = op.transpose(mask)
        else:
            raise self.refuse(
                f"lengths of shape ({count},), or truth values of shape ({count}, {steps})",
                f"{mask.dtype.name} of shape {mask.shape}",
            )
        return op.unsqueeze(real, 2)

    def _run(self, x: Expr, real: Expr | None, weights: Weights, reverse: bool) -> Expr:
        by_step = op.transpose(x, (1, 0, 2))
        if real is not None:
            # Whatever stands there: 0 * nan would be nan, in the gradients of the weights as well.
            by_step = op.where(real, by_step, 0.0)
        inputs = op.linear(by_step, weights.input_weight, self.bias_outside(weights))
        zero = op.broadcast(op.cast(0.0, inputs.dtype), (x.shape[0], self.units))

        def body(state: tuple[Expr, ...], given: Any) -> tuple[tuple[Expr, ...], Expr | None]:
            product, is_real = given if real is not None else (given, None)
            new = self.step(product, state, weights)
            output = new[0]
            if is_real is not None:
                output = op.where(is_real, output, zero)
                pairs = zip(new, state, strict=True)
                new = tuple(op.where(is_real, after, before) for after, before in pairs)
            return new, output if self.return_sequences else None

        sequence = inputs if real is None else (inputs, real)
        last, outputs = op.scan(body, (zero,) * self.states_held, sequence, reverse=reverse)
        return op.transpose(outputs, (1, 0, 2)) if self.return_sequences else last[0]


@register
@dataclass(eq=False)
class RNN(Recurrent):
    """h = tanh(x W + h U + b): the last h (N, units), or all of them (N, T, units).

    `bidirectional` joins the results of both directions. `go_backwards` starts at the last step;
    the output of step t still stands at t. `return_mask` hands the mask on to the next layer: the
    result is (sequences, mask).

    >>> from caldera import nn, op
    >>> nn.RNN(4)(op.input("x", (5, 10, 3))).shape
    (5, 4)
    """

    gates: ClassVar[int] = 1

    units: int
    activation: str = field(default="tanh", kw_only=True)
    return_sequences: bool = False
    bidirectional: bool = False
    go_backwards: bool = False
    return_mask: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        activation_function(self.activation)  # Refused now, not when it is first called.

    def step(self, x: Expr, state: tuple[Expr, ...], weights: Weights) -> tuple[Expr, ...]:
        return (activation_function(self.activation)(x + state[0] @ weights.state_weight),)


@dataclass(eq=False)
class Gated(Recurrent):
    """What recurrent layers with gates share: their settings."""

    units: int
    return_sequences: bool = False
    bidirectional: bool = False
    go_backwards: bool = False
    return_mask: bool = False


@register
@dataclass(eq=False)
class LSTM(Gated):
    """Long short-term memory: the last output (N, units), or all of them (N, T, units).

    The gates are input, forget, cell, output, in this order. The switches are those of `nn.RNN`.

    >>> from caldera import nn, op
    >>> x = op.input("x", (5, 10, 3))
    >>> nn.LSTM(4, return_sequences=True, bidirectional=True)(x).shape
    (5, 10, 8)
    >>> nn.LSTM(4)(x, [10, 8, 3, 1, 1]).shape
    (5, 4)
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
class GRU(Gated):
    """Gated recurrent units: the last output (N, units), or all of them (N, T, units).

    The gates are reset, update, new, in this order; the reset acts after the product with the
    state, as in PyTorch and cuDNN. The switches are those of `nn.RNN`.

    >>> from caldera import nn, op
    >>> nn.GRU(4)(op.input("x", (5, 10, 3))).shape
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


def Bidirectional(layer: Recurrent) -> Recurrent:
    """A recurrent layer that reads its sequences in both directions, and joins the results.

    The same as `bidirectional=True` of the layer.

    >>> from caldera import nn, op
    >>> nn.Bidirectional(nn.LSTM(4))(op.input("x", (5, 7, 3))).shape
    (5, 8)
    """
    whole: Any = layer
    is_recurrent = isinstance(layer, Recurrent)
    require(is_recurrent, "Bidirectional", "a recurrent layer, such as nn.LSTM(64)", shown(layer))
    return replace(whole, bidirectional=True)
