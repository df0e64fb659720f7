"""Recurrent layers: the products with the inputs outside of the loop, the rest inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.onnx.operators.elementwise import FORMULAS
from caldera.onnx.operators.registry import Value, operator

Activation = Callable[[Value], Expr]
State = tuple[Expr, ...]

_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "tanh": lambda x: op.tanh(x),
    "sigmoid": lambda x: op.sigmoid(x),
    "affine": lambda x, *, alpha=1.0, beta=0.0: op.add(op.mul(x, alpha), beta),
    "thresholdedrelu": lambda x, *, alpha=1.0: op.where(op.greater_equal(x, alpha), x, 0.0),
    "scaledtanh": lambda x, *, alpha=1.0, beta=1.0: op.mul(op.tanh(op.mul(x, beta)), alpha),
    **{
        name.lower(): FORMULAS[name]
        for name in ("Relu", "Softsign", "Softplus", "LeakyRelu", "HardSigmoid", "Elu")
    },
}


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """Return the functions by name; functions with parameters take the next values of the lists."""
    lists = {"alpha": iter(alphas), "beta": iter(betas)}
    found: list[Activation] = []
    for name in map(str.lower, names):
        require(name in _FUNCTIONS, "onnx", ", ".join(_FUNCTIONS), repr(name))
        wanted = lists.keys() & signature(_FUNCTIONS[name]).parameters.keys()
        numbers = {each: next(lists[each], None) for each in wanted}
        given = {each: number for each, number in numbers.items() if number is not None}
        found.append(partial(_FUNCTIONS[name], **given))
    return found


@dataclass(frozen=True)
class _Weights:
    """Weights of a direction, transposed: (C, gates H), (H, gates H), and two biases."""

    inputs: Expr
    states: Expr
    input_bias: Expr
    state_bias: Expr
    functions: list[Activation]


Step = Callable[[_Weights, Expr, State], State]


@dataclass(frozen=True)
class _Layer:
    """Common code of the three kinds of recurrent layers."""

    default_functions: tuple[str, ...]
    adds_state_bias_inside: bool = False

    def run(
        self,
        x: Value,
        w: Value,
        r: Value,
        b: Value,
        lengths: Value,
        firsts: Sequence[Value],
        step: Callable[[int], Step],
        *,
        layout: int = 0,
        direction: str = "forward",
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] = (),
        activation_beta: Sequence[float] = (),
        hidden_size: int | None = None,
    ) -> tuple[Expr, ...]:
        """All outputs (T, directions, N, H), then the last of each state (directions, N, H)."""
        sequence = op.transpose(x, (1, 0, 2)) if layout else x
        directions = w.shape[0]
        names = activations or self.default_functions * directions
        each = _activations(names, activation_alpha, activation_beta)
        share = len(each) // directions
        results = []
        for i in range(directions):
            weights = self._weights(w, r, b, i, each[share * i : share * (i + 1)])
            starts = [self._first(first, i, layout, sequence, r) for first in firsts]
            backwards = direction == "reverse" or i == 1
            results.append(_loop(sequence, weights, starts, lengths, step(i), reverse=backwards))
        y = op.stack([outputs for outputs, _ in results], axis=1)
        lasts = [op.stack([last[j] for _, last in results], axis=0) for j in range(len(firsts))]
        if layout:
            y = op.transpose(y, (2, 0, 1, 3))
            lasts = [op.transpose(last, (1, 0, 2)) for last in lasts]
        return y, *lasts

    def _weights(
        self, w: Value, r: Value, b: Value, i: int, functions: list[Activation]
    ) -> _Weights:
        both = np.zeros(2 * w.shape[1], w.dtype) if b is None else op.gather(b, i)
        input_bias, state_bias = op.split(both, 2)
        if not self.adds_state_bias_inside:
            input_bias = op.add(input_bias, state_bias)
        inputs, states = (op.transpose(op.gather(each, i)) for each in (w, r))
        return _Weights(inputs, states, input_bias, state_bias, functions)

    def _first(self, first: Value, i: int, layout: int, x: Value, r: Value) -> Expr:
        if first is None:
            return op.broadcast(op.cast(0.0, x.dtype), (x.shape[1], r.shape[2]))
        return op.gather(first, i, axis=1 if layout else 0)


def _loop(
    x: Value,
    weights: _Weights,
    starts: Sequence[Expr],
    lengths: Value,
    step: Step,
    *,
    reverse: bool,
) -> tuple[Expr, State]:
    given: tuple[Value, ...] = (op.linear(x, weights.inputs, weights.input_bias),)
    if lengths is not None:
        real = op.less(np.arange(x.shape[0])[:, None], op.cast(lengths, "int64"))
        given = (*given, op.unsqueeze(real, 2))

    def body(state: State, given: tuple[Expr, ...]) -> tuple[State, Expr]:
        product, *is_real = given
        new = step(weights, product, state)
        if not is_real:
            return new, new[0]
        kept = tuple(op.where(is_real[0], a, b) for a, b in zip(new, state, strict=True))
        return kept, op.where(is_real[0], new[0], 0.0)

    last, outputs = op.scan(body, tuple(starts), given, reverse=reverse)
    return outputs, last


def _clipped(clip: float | None) -> Callable[[Value], Value]:
    return (lambda x: x) if clip is None else (lambda x: op.clip(x, -clip, clip))


_SHARED = (
    "layout",
    "direction",
    "activations",
    "activation_alpha",
    "activation_beta",
    "hidden_size",
)


@operator("RNN", further=_SHARED)
def rnn(
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    *,
    clip: float | None = None,
    **how: Any,
) -> tuple[Expr, ...]:
    """h = f(x W + h R + b)."""
    bounded = _clipped(clip)

    def step(weights: _Weights, product: Expr, state: State) -> State:
        total = op.add(product, op.matmul(state[0], weights.states))
        return (weights.functions[0](bounded(total)),)

    return _Layer(("Tanh",)).run(x, w, r, b, sequence_lens, [initial_h], lambda i: step, **how)


@operator("GRU", further=_SHARED)
def gru(
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    *,
    clip: float | None = None,
    linear_before_reset: int = 0,
    **how: Any,
) -> tuple[Expr, ...]:
    """Gates z (update), r (reset), h (new); the reset acts before or after the product."""
    bounded = _clipped(clip)

    def step(weights: _Weights, product: Expr, state: State) -> State:
        (last,) = state
        f, g = weights.functions
        z_in, r_in, h_in = op.split(product, 3, axis=1)
        z_matrix, r_matrix, h_matrix = op.split(weights.states, 3, axis=1)
        z_bias, r_bias, h_bias = op.split(weights.state_bias, 3)
        update = f(bounded(op.add(op.add(z_in, op.matmul(last, z_matrix)), z_bias)))
        reset = f(bounded(op.add(op.add(r_in, op.matmul(last, r_matrix)), r_bias)))
        if linear_before_reset:
            more = op.mul(reset, op.add(op.matmul(last, h_matrix), h_bias))
        else:
            more = op.add(op.matmul(op.mul(reset, last), h_matrix), h_bias)
        new = g(bounded(op.add(h_in, more)))
        return (op.add(new, op.mul(update, op.sub(last, new))),)

    layer = _Layer(("Sigmoid", "Tanh"), adds_state_bias_inside=True)
    return layer.run(x, w, r, b, sequence_lens, [initial_h], lambda i: step, **how)


@operator("LSTM", further=_SHARED)
def lstm(
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    initial_c: Value = None,
    p: Value = None,
    *,
    clip: float | None = None,
    input_forget: int = 0,
    **how: Any,
) -> tuple[Expr, ...]:
    """Gates i, o, f, c; with peepholes (p) the first three also see the cell."""
    bounded = _clipped(clip)

    def step_of(direction: int) -> Step:
        peepholes = op.split(op.gather(p, direction), 3) if p is not None else None

        def seen(total: Expr, cell: Expr, gate: int) -> Expr:
            more = total if peepholes is None else op.add(total, op.mul(peepholes[gate], cell))
            return bounded(more)

        def step(weights: _Weights, product: Expr, state: State) -> State:
            last, cell = state
            f, g, h = weights.functions
            total = op.add(product, op.matmul(last, weights.states))
            i_in, o_in, f_in, c_in = op.split(total, 4, axis=1)
            enter = f(seen(i_in, cell, 0))
            forget = op.sub(1.0, enter) if input_forget else f(seen(f_in, cell, 2))
            new = op.add(op.mul(forget, cell), op.mul(enter, g(bounded(c_in))))
            return op.mul(f(seen(o_in, new, 1)), h(new)), new

        return step

    return _Layer(("Sigmoid", "Tanh", "Tanh")).run(
        x, w, r, b, sequence_lens, [initial_h, initial_c], step_of, **how
    )
