"""LSTM and GRU step by step, for JAX, which has no such layer of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from caldera import nn
from caldera.compiler.lazy import Variable
from caldera.nn.recurrent import Recurrent

_NAMES = ("input_weight", "state_weight", "input_bias", "state_bias")


def directions(layer: Recurrent) -> list[tuple[list[Variable], bool]]:
    """The variables of each direction, as the loop below takes them, and whether it goes back."""
    held = layer.variables()
    ends = {"": False, "_reverse": True} if layer.bidirectional else {"": layer.go_backwards}
    return [([held[name + end] for name in _NAMES], back) for end, back in ends.items()]


def jax_loop(
    jax: Any,
    layer: Recurrent,
    x: Any,
    real: Any,
    weights: Sequence[Any],
    reverse: bool,
    widened: Callable[[Any], Any],
) -> Any:
    """One direction in JAX; `widened` is a value in the precision of sums."""
    jnp, sigmoid = jax.numpy, jax.nn.sigmoid
    input_weight, state_weight, input_bias, state_bias = weights

    def lstm(product: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        output, cell = state
        i, f, g, o = jnp.split(product + output @ state_weight, 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * jnp.tanh(g)
        return (sigmoid(o) * jnp.tanh(cell)).astype(output.dtype), cell

    def gru(product: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (last,) = state
        reset, update, new = jnp.split(product, 3, axis=1)
        of_state = jnp.split(last @ state_weight + state_bias, 3, axis=1)
        gate = sigmoid(update + of_state[1])
        candidate = jnp.tanh(new + sigmoid(reset + of_state[0]) * of_state[2])
        return (candidate + gate * (last - candidate),)

    is_lstm = isinstance(layer, nn.LSTM)
    step = lstm if is_lstm else gru

    def body(state: tuple[Any, ...], given: Any) -> tuple[tuple[Any, ...], Any]:
        product, is_real = given
        new = step(product, state)
        output = new[0]
        if is_real is not None:
            output = jnp.where(is_real, output, 0)
            pairs = zip(new, state, strict=True)
            new = tuple(jnp.where(is_real, after, before) for after, before in pairs)
        return new, output if layer.return_sequences else None

    bias = input_bias + state_bias if is_lstm else input_bias
    products = x.transpose(1, 0, 2) @ input_weight + bias
    by_step = None if real is None else real.T[:, :, None]
    zero = jnp.zeros((x.shape[0], layer.units), products.dtype)
    # A cell adds up over all steps.
    start = (zero, widened(zero))[: layer.states_held]
    last, outputs = jax.lax.scan(body, start, (products, by_step), reverse=reverse)
    return outputs.transpose(1, 0, 2) if layer.return_sequences else last[0]
