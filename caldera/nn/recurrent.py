"""Recurrent layers over sequences (N, T, C): plain RNN, LSTM, GRU.

The products with the inputs are computed for all steps together, before the loop. Each step is a
step of the cell in `caldera.nn.cells`.

Sequences of different length are padded. A second input marks the real steps: the lengths, integers
(N,), or truth values (N, T). At a padded step the state is unchanged and the output is 0, so the
values in the padding have no influence on any result.

`layer(x, state=h)` begins with a state, (N, units); for an LSTM the state is `(h, c)`.
`return_state` adds the states after the last step to the result, so a long sequence may come in
parts. With `bidirectional` the states of the second direction follow the states of the first. A
layer with `stateful=n` keeps the states of n sequences from batch to batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require, shown, within
from caldera.compiler.lazy import Expr
from caldera.core.tensor import bool_, is_integer
from caldera.nn.basic import register
from caldera.nn.cells import GRUCell, LSTMCell, Recurrence, RNNCell, Weights
from caldera.nn.layer import Layer
from caldera.nn.tracing import context


@dataclass(eq=False)
class Recurrent(Recurrence):
    """Base class of recurrent layers: the settings, the loop, directions, masks, states."""

    settled: ClassVar[frozenset[str]] = Layer.settled | {"stateful"}

    return_sequences: bool = False
    bidirectional: bool = False
    go_backwards: bool = False
    return_mask: bool = False
    return_state: bool = False
    stateful: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        here = type(self).__name__
        require(
            not self.bidirectional or not self.go_backwards,
            here,
            "both directions, or one",
            "bidirectional and go_backwards",
        )
        require(
            not self.return_mask or self.return_sequences,
            here,
            "a mask together with sequences",
            "return_mask without return_sequences",
        )
        require(
            not (self.return_mask and self.return_state),
            here,
            "a mask or states in addition to the result",
            "return_mask and return_state",
        )
        within(here, "stateful", self.stateful, 0, 1 << 20)
        require(
            not self.stateful or not (self.bidirectional or self.go_backwards),
            here,
            "stateful only for sequences that are read forwards",
            "a layer that reads them backwards",
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
        shape = (self.stateful, self.units)
        names = [f"kept_state{number}" for number in range(self.states_held)]
        self._kept = [self.state(name, shape) for name in names if self.stateful]

    def reset_states(self) -> None:
        """Set the kept states to zeros, for new sequences."""
        for variable in self._kept if self.built else ():
            variable.assign(np.zeros(variable.shape))

    def forward(self, x: Expr, mask: Expr | None = None, state: Any = None) -> Any:
        if x.ndim != 3 or x.shape[-1] != self._weights[0].input_weight.shape[0]:
            channels = self._weights[0].input_weight.shape[0]
            raise self.refuse(f"sequences (N, T, {channels})", f"shape {x.shape}")
        real = None if mask is None else self._steps_that_are_real(mask, x)
        now = context()
        # A trace for the shapes of parameters alone may have any number of samples.
        kept = self._kept if state is None and now.allocate else []
        self.require(
            not kept or len(x) == self.stateful,
            f"batches of {self.stateful} sequences, the number of the stored states",
            f"shape {x.shape}",
            f"set batch_size={self.stateful}, and train on a multiple of this number of sequences",
        )
        given = [now.latest(each) for each in kept] if state is None else state
        first = self.first_states(given, len(x))
        backwards = (False, True) if self.bidirectional else (self.go_backwards,)
        held = self.states_held
        results = [
            self._run(x, real, weights, reverse, first[number * held : (number + 1) * held])
            for number, (weights, reverse) in enumerate(zip(self._weights, backwards, strict=True))
        ]
        y = results[0][0] if len(results) == 1 else op.concat([y for y, _ in results], axis=-1)
        last = tuple(each for _, states in results for each in states)
        for variable, each in zip(kept, last, strict=False):
            now.update(variable, each)
        if self.return_state:
            return (y, *last)
        return (y, mask) if self.return_mask and mask is not None else y

    def _steps_that_are_real(self, mask: Expr, x: Expr) -> Expr:
        """Return the mask, by step: (T, N, 1)."""
        count, steps = x.shape[:2]
        if is_integer(mask.dtype) and mask.shape == (count,):
            real = op.less(np.arange(steps)[:, None], mask)
        elif mask.dtype == bool_ and mask.shape == (count, steps):
            real = op.transpose(mask)
        else:
            raise self.refuse(
                f"lengths of shape ({count},), or booleans of shape ({count}, {steps})",
                f"{mask.dtype.name} of shape {mask.shape}",
            )
        return op.unsqueeze(real, 2)

    def _run(
        self,
        x: Expr,
        real: Expr | None,
        weights: Weights,
        reverse: bool,
        first: tuple[Expr, ...],
    ) -> tuple[Expr, tuple[Expr, ...]]:
        """Return the output, (N, units) or (N, T, units), and the states after the last step."""
        by_step = op.transpose(x, (1, 0, 2))
        if real is not None:
            # Padding is replaced by 0: 0 * nan would be nan, in the gradients of the weights as
            # well.
            by_step = op.where(real, by_step, 0.0)
        inputs = op.linear(by_step, weights.input_weight, self.bias_outside(weights))
        zero = op.broadcast(op.cast(0.0, inputs.dtype), (x.shape[0], self.units))
        first = tuple(op.cast(each, inputs.dtype) for each in first)

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
        last, outputs = op.scan(body, first, sequence, reverse=reverse)
        return op.transpose(outputs, (1, 0, 2)) if self.return_sequences else last[0], last


@register
@dataclass(eq=False)
class RNN(Recurrent, RNNCell):
    """h = tanh(x W + h U + b): the last h (N, units), or all steps (N, T, units).

    `layer(x, state=h)` begins with a state instead of zeros.

    Args:
        units: Number of elements of the state.
        return_sequences: True to return all steps instead of the last one.
        bidirectional: True to join the results of both directions.
        go_backwards: True to start at the last step; the output of step t keeps index t.
        return_mask: True to return (sequences, mask), for the next layer.
        return_state: True to return (y, h).
        stateful: Number of sequences whose states are kept from batch to batch, until
            `reset_states`; 0 for none.
        activation: Name of the activation.

    >>> from caldera import nn, op
    >>> x = op.input("x", (5, 10, 3))
    >>> nn.RNN(4)(x).shape
    (5, 4)
    >>> layer = nn.RNN(4, return_state=True)
    >>> y, h = layer(x[:, :6])
    >>> y, h = layer(x[:, 6:], state=h)
    >>> h.shape
    (5, 4)
    """


@register
@dataclass(eq=False)
class LSTM(Recurrent, LSTMCell):
    """Long short-term memory: the last output (N, units), or all outputs (N, T, units).

    The gates are input, forget, cell, output, in this order. The state is (h, c).

    Args:
        units: Number of elements of each state.
        return_sequences: True to return all steps instead of the last one.
        bidirectional: True to join the results of both directions.
        go_backwards: True to start at the last step; the output of step t keeps index t.
        return_mask: True to return (sequences, mask), for the next layer.
        return_state: True to return (y, h, c).
        stateful: Number of sequences whose states are kept from batch to batch, until
            `reset_states`; 0 for none.

    >>> from caldera import nn, op
    >>> x = op.input("x", (5, 10, 3))
    >>> nn.LSTM(4, return_sequences=True, bidirectional=True)(x).shape
    (5, 10, 8)
    >>> nn.LSTM(4)(x, [10, 8, 3, 1, 1]).shape
    (5, 4)
    """


@register
@dataclass(eq=False)
class GRU(Recurrent, GRUCell):
    """Gated recurrent units: the last output (N, units), or all outputs (N, T, units).

    The gates are reset, update, new, in this order; the reset acts after the product with the
    state, as in PyTorch and cuDNN.

    Args:
        units: Number of elements of the state.
        return_sequences: True to return all steps instead of the last one.
        bidirectional: True to join the results of both directions.
        go_backwards: True to start at the last step; the output of step t keeps index t.
        return_mask: True to return (sequences, mask), for the next layer.
        return_state: True to return (y, h).
        stateful: Number of sequences whose states are kept from batch to batch, until
            `reset_states`; 0 for none.

    >>> from caldera import nn, op
    >>> nn.GRU(4)(op.input("x", (5, 10, 3))).shape
    (5, 4)
    """


def Bidirectional(layer: Recurrent) -> Recurrent:
    """Return a recurrent layer that reads its sequences in both directions, and joins the results.

    The same as `bidirectional=True` of the layer.

    >>> from caldera import nn, op
    >>> nn.Bidirectional(nn.LSTM(4))(op.input("x", (5, 7, 3))).shape
    (5, 8)
    """
    whole: Any = layer
    is_recurrent = isinstance(layer, Recurrent)
    require(is_recurrent, "Bidirectional", "a recurrent layer, such as nn.LSTM(64)", shown(layer))
    return replace(whole, bidirectional=True)
