"""Windows of convolutions and pools, and recurrent loops, for frameworks that lack such layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import nn
from caldera.compiler.lazy import Variable
from caldera.nn import AveragePool2D, Conv2D, ConvTranspose2D, DepthwiseConv2D, MaxPool2D, Pooling2D
from caldera.nn.recurrent import Recurrent
from caldera.op.windows import as_padding, as_pair, beyond_padding

_NAMES = ("input_weight", "state_weight", "input_bias", "state_bias")


def directions(layer: Recurrent) -> list[tuple[list[Variable], bool]]:
    """Return each direction's variables in the loop's order, and True if it runs backwards."""
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
    """Return one direction in JAX; `widened` is a value in the precision of sums."""
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


Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


@dataclass(frozen=True)
class WindowShape:
    """The size of the windows, their distance, and the padding as the layer has it written.

    >>> windows = WindowShape("pool", size=(3, 3), stride=(2, 2), written=0, partial=True)
    >>> windows.padding((8, 8))
    ((0, 1), (0, 1))
    """

    where: str
    size: Pair
    stride: Pair
    dilation: Pair = (1, 1)
    written: Any = 0
    partial: bool = False
    """True if windows that extend past the bottom or right count with the pixels they cover."""

    def padding(self, image: Sequence[int]) -> Padding:
        """((top, bottom), (left, right)) for images of these sizes."""
        vertical, horizontal = (
            self._completed(widths, image[axis], axis)
            for axis, widths in enumerate(self._stated(tuple(image)))
        )
        return vertical, horizontal

    def even_padding(self) -> Pair | None:
        """Return the padding as (vertical, horizontal), if for all images both ends have the same.

        Partial windows are left out of account.

        >>> WindowShape("conv", size=(3, 3), stride=(1, 1), written="same").even_padding()
        (1, 1)
        >>> WindowShape("conv", size=(3, 3), stride=(2, 2), written="same").even_padding() is None
        True
        """
        if self.written == "same" and self.stride != (1, 1):
            return None
        # With a stride of 1, what "same" adds does not depend on the size of the image.
        (top, bottom), (left, right) = self._stated(self.size)
        return (top, left) if (top, left) == (bottom, right) else None

    def _stated(self, image: tuple[int, ...]) -> Padding:
        return as_padding(self.written, self.where, image, self.size, self.stride, self.dilation)

    def _completed(self, widths: Pair, length: int, axis: int) -> Pair:
        before, after = widths
        if not self.partial:
            return before, after
        return before, after + beyond_padding(length, self.size[axis], self.stride[axis], widths)


def windows_of_convolution(layer: Conv2D | ConvTranspose2D | DepthwiseConv2D) -> WindowShape:
    """Return the windows of a convolution, or of the one whose transpose it is."""
    return WindowShape(
        layer.path,
        as_pair(layer.kernel, "kernel", layer.path),
        as_pair(layer.stride, "stride", layer.path),
        as_pair(layer.dilation, "dilation", layer.path),
        layer.padding,
    )


def windows_of_pool(layer: Pooling2D | MaxPool2D | AveragePool2D) -> WindowShape:
    """Return the windows of a pool; without a stride they lie side by side."""
    size = as_pair(layer.size, "size", layer.path)
    stride = size if layer.stride is None else as_pair(layer.stride, "stride", layer.path)
    partial = isinstance(layer, MaxPool2D) and layer.partial_windows
    return WindowShape(layer.path, size, stride, written=layer.padding, partial=partial)


def window_means(length: int, count: int) -> np.ndarray:
    """The matrix that takes the means of `count` windows laid over an axis, as adaptive pools do.

    >>> window_means(3, 2).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    begins = np.arange(count) * length // count
    ends = -(-(np.arange(count) + 1) * length // count)
    positions = np.arange(length)
    covered = (positions >= begins[:, None]) & (positions < ends[:, None])
    return covered / (ends - begins)[:, None]


def channels_last_axis(axis: int, rank: int) -> int:
    """Return the position in (N, H, W, C) of an axis of (N, C, H, W); other ranks keep their axes.

    >>> channels_last_axis(1, 4), channels_last_axis(-1, 4), channels_last_axis(1, 2)
    (3, 2, 1)
    """
    return (0, 3, 1, 2)[axis] if rank == 4 else axis
