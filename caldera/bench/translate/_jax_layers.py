"""Translation of each layer to JAX: a function of the current run and of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from caldera import nn
from caldera.bench.translate._walk import Function, LayerTranslator, Pool, groups_of, values
from caldera.bench.translate._windows import (
    WindowShape,
    channels_last_axis,
    directions,
    jax_loop,
    window_means,
    windows_of_convolution,
    windows_of_pool,
)
from caldera.compiler.lazy import Variable
from caldera.nn.models import PaddedShortcut
from caldera.nn.recurrent import Recurrent
from caldera.op.windows import as_pair
from caldera.train.model import Model


class JaxState(NamedTuple):
    """State that a step changes besides the parameters: running statistics, and the key of dropout.

    >>> JaxState(statistics=[], key=None).statistics
    []
    """

    statistics: list[Any]
    key: Any


@dataclass
class Interpreter:
    """State of a traced call of the network."""

    params: Sequence[Any]
    state: JaxState
    training: bool
    narrow: Any = None
    new_statistics: dict[int, Any] = field(default_factory=dict)
    draws: int = 0

    def factor(self, place: int) -> Any:
        """Return a parameter in the precision of products and of the values added to them."""
        return self.narrowed(self.params[place])

    def narrowed(self, value: Any) -> Any:
        """Return a value in the precision of products."""
        return value if self.narrow is None else value.astype(self.narrow)


class JaxLayers(LayerTranslator):
    """Translation of layers to JAX."""

    name = "JAX"

    def __init__(self, model: Model, jax: Any, data_format: str, cudnn_attention: bool) -> None:
        self.jax = jax
        self.cudnn_attention = cudnn_attention
        self.statistics = values(model.states())
        self.data_format = data_format
        self.channels_last = data_format == "NHWC"
        self._parameter_places = {id(each): i for i, each in enumerate(model.parameters())}
        self._state_places = {id(each): i for i, each in enumerate(model.states())}
        super().__init__(model, self._make_activations())

    def _place(self, variable: Variable) -> int:
        return self._parameter_places[id(variable)]

    # --- the order of axes

    def from_ours(self, x: Any) -> Any:
        """Return a value in the order of axes that is computed with."""
        x = self.jax.numpy.asarray(x)
        return x.transpose(0, 2, 3, 1) if self.channels_last and x.ndim == 4 else x

    def to_ours(self, x: Any) -> Any:
        """Return a value in Caldera's order of axes."""
        return x.transpose(0, 3, 1, 2) if self.channels_last and x.ndim == 4 else x

    def _axis(self, axis: int, rank: int) -> int:
        return channels_last_axis(axis, rank) if self.channels_last else axis

    def _by_channel(self, vector: Any, rank: int) -> Any:
        """Return a number for each channel, ready to be broadcast."""
        shape = [1] * rank
        shape[self._axis(1, rank)] = -1
        return vector.reshape(shape)

    def _over_images(self, vertical: Any, horizontal: Any, rest: Any) -> tuple[Any, ...]:
        """Return a setting for each axis: two for the image axes, and `rest` for samples and
        channels.
        """
        if self.channels_last:
            return rest, vertical, horizontal, rest
        return rest, rest, vertical, horizontal

    def _image(self, x: Any) -> tuple[int, int]:
        return x.shape[self._axis(2, 4)], x.shape[self._axis(3, 4)]

    def concat(self, parts: list[Any], axis: int) -> Any:
        return self.jax.numpy.concatenate(parts, self._axis(axis, parts[0].ndim))

    # --- dense layers and convolutions

    def _linear(self, weight: Variable, bias: Variable | None) -> Function:
        place = self._place(weight)
        if bias is None:
            return lambda run, x: x @ run.factor(place)
        offset = self._place(bias)
        return lambda run, x: x @ run.factor(place) + run.factor(offset)

    def dense(self, layer: nn.Dense) -> Function:
        linear = self._linear(layer.weight, layer.offset)

        def apply(run: Any, x: Any) -> Any:
            # The last axis is W, also for images.
            return self.from_ours(linear(run, self.to_ours(x)))

        return self.then(apply, layer.activation)

    def conv2d(self, layer: nn.Conv2D | nn.DepthwiseConv2D) -> Function:
        windows = windows_of_convolution(layer)
        if self.channels_last:
            self.reorder(layer.weight, (2, 3, 1, 0))

        def convolved(x: Any, filters: Any, layout: tuple[str, str, str]) -> Any:
            return self.jax.lax.conv_general_dilated(
                x,
                filters,
                windows.stride,
                windows.padding(self._image(x)),
                rhs_dilation=windows.dilation,
                dimension_numbers=layout,
                feature_group_count=groups_of(layer),
            )

        return self._convolution(layer, "HWIO" if self.channels_last else "OIHW", convolved)

    def _convolution(
        self,
        layer: nn.Conv2D | nn.DepthwiseConv2D | nn.ConvTranspose2D,
        kernels: str,
        convolved: Callable[[Any, Any, tuple[str, str, str]], Any],
    ) -> Function:
        place = self._place(layer.weight)
        offset = None if layer.offset is None else self._place(layer.offset)
        layout = (self.data_format, kernels, self.data_format)

        def apply(run: Any, x: Any) -> Any:
            y = convolved(x, run.factor(place), layout)
            return y if offset is None else y + self._by_channel(run.factor(offset), 4)

        return self.then(apply, layer.activation)

    def conv_transpose2d(self, layer: nn.ConvTranspose2D) -> Function:
        windows = windows_of_convolution(layer)
        even = windows.even_padding()
        if even is None or layer.groups != 1:
            raise self.refuse(
                layer,
                "equal padding on both sides, and one group",
                f"padding={layer.padding}, groups={layer.groups}",
            )
        kernels, taps = "IOHW", (2, 3)
        if self.channels_last:
            kernels, taps = "HWIO", (0, 1)
            self.reorder(layer.weight, (2, 3, 0, 1))
        more = as_pair(layer.output_padding, "output_padding", layer.path, 0)
        # A convolution of the image with zeros between its pixels, by the filters turned round.
        reach = [
            step * (size - 1) - width
            for step, size, width in zip(windows.dilation, windows.size, even, strict=True)
        ]
        padding = [(width, width + end) for width, end in zip(reach, more, strict=True)]

        def convolved(x: Any, filters: Any, layout: tuple[str, str, str]) -> Any:
            return self.jax.lax.conv_general_dilated(
                x,
                self.jax.numpy.flip(filters, taps),
                (1, 1),
                padding,
                lhs_dilation=windows.stride,
                rhs_dilation=windows.dilation,
                dimension_numbers=layout,
            )

        return self._convolution(layer, kernels, convolved)

    # --- pools

    def pool(self, layer: Pool) -> Function:
        windows = windows_of_pool(layer)
        if isinstance(layer, nn.MaxPool2D) or getattr(layer, "kind", "") == "max":
            return lambda run, x: self._reduce(x, windows, self.jax.lax.max, -math.inf)
        if isinstance(layer, nn.AveragePool2D) and not layer.count_padding:
            return lambda run, x: (
                self._sums(x, windows) / self._sums(self.jax.numpy.ones_like(x[:1]), windows)
            )
        return lambda run, x: self._sums(x, windows) / math.prod(windows.size)

    def _sums(self, x: Any, windows: WindowShape) -> Any:
        return self._reduce(x, windows, self.jax.lax.add, 0.0)

    def _reduce(self, x: Any, windows: WindowShape, function: Any, start: float) -> Any:
        padding = windows.padding(self._image(x))
        # A NumPy scalar keeps the dtype, and lets JAX see that the reduction is a known one.
        return self.jax.lax.reduce_window(
            x,
            np.asarray(start, x.dtype)[()],
            function,
            self._over_images(*windows.size, 1),
            self._over_images(*windows.stride, 1),
            self._over_images(*padding, (0, 0)),
        )

    def global_average_pool(self, layer: nn.GlobalAveragePool) -> Function:
        def apply(run: Any, x: Any) -> Any:
            return x.mean(tuple(self._axis(axis, x.ndim) for axis in range(2, x.ndim)))

        return apply

    def adaptive_average_pool(self, layer: nn.AdaptiveAveragePool2D) -> Function:
        size = as_pair(layer.size, "size", layer.path)
        letters = "nhwc,ph,qw->npqc" if self.channels_last else "nchw,ph,qw->ncpq"

        def apply(run: Any, x: Any) -> Any:
            image = self._image(x)
            if image == size:
                return x
            if all(length % count == 0 for length, count in zip(image, size, strict=True)):
                height, width = (a // b for a, b in zip(image, size, strict=True))
                windows = WindowShape(layer.path, (height, width), (height, width))
                return self._sums(x, windows) / (height * width)
            rows, columns = (
                window_means(length, count).astype(x.dtype)
                for length, count in zip(image, size, strict=True)
            )
            return self.jax.numpy.einsum(letters, x, rows, columns)

        return apply

    def padded_shortcut(self, layer: PaddedShortcut) -> Function:
        def apply(run: Any, x: Any) -> Any:
            every = slice(None, None, layer.stride)
            kept = x[self._over_images(every, every, slice(None))]
            missing = layer.channels - x.shape[self._axis(1, 4)]
            widths = [(0, 0)] * 4
            widths[self._axis(1, 4)] = (missing // 2, missing - missing // 2)
            return self.jax.numpy.pad(kept, widths)

        return apply

    # --- normalisation

    def batch_norm(self, layer: nn.BatchNorm) -> Function:
        jnp, lax = self.jax.numpy, self.jax.lax
        scale, shift = self._place(layer.weight), self._place(layer.bias)
        kept = self._state_places[id(layer.mean)], self._state_places[id(layer.variance)]

        def apply(run: Any, given: Any) -> Any:
            x = self._wide(given)
            rank = x.ndim
            if run.training:
                channel = self._axis(1, rank)
                axes = tuple(axis for axis in range(rank) if axis != channel)
                mean, variance = x.mean(axes), x.var(axes)
                count = x.size // x.shape[channel]
                unbiased = variance * (count / max(count - 1, 1))
                for place, new in zip(kept, (mean, unbiased), strict=True):
                    old = run.new_statistics.get(place, run.state.statistics[place])
                    step = layer.momentum * (lax.stop_gradient(new) - old)
                    run.new_statistics[place] = old + step
            else:
                mean, variance = (run.state.statistics[place] for place in kept)
            factor = run.params[scale] / jnp.sqrt(variance + layer.eps)
            centred = x - self._by_channel(mean, rank)
            offset = self._by_channel(run.params[shift], rank)
            return (centred * self._by_channel(factor, rank) + offset).astype(given.dtype)

        return apply

    def _wide(self, x: Any) -> Any:
        """Convert half precision to float32, as required by sums over many values."""
        return x.astype(np.float32) if x.dtype.itemsize < 4 else x

    def layer_norm(self, layer: nn.LayerNorm) -> Function:
        axes = self.last_axes(layer)
        scale, shift = self._place(layer.weight), self._place(layer.bias)
        lax = self.jax.lax

        def apply(run: Any, given: Any) -> Any:
            x = self.to_ours(self._wide(given))
            centred = x - x.mean(axes, keepdims=True)
            y = centred * lax.rsqrt((centred * centred).mean(axes, keepdims=True) + layer.eps)
            y = y * run.params[scale] + run.params[shift]
            return self.from_ours(y.astype(given.dtype))

        return apply

    def group_norm(self, layer: nn.GroupNorm) -> Function:
        scale, shift = self._place(layer.weight), self._place(layer.bias)

        def apply(run: Any, given: Any) -> Any:
            x = self.to_ours(self._wide(given))
            parts = x.reshape(x.shape[0], layer.groups, -1)
            centred = parts - parts.mean(2, keepdims=True)
            variance = (centred * centred).mean(2, keepdims=True)
            y = (centred * self.jax.lax.rsqrt(variance + layer.eps)).reshape(x.shape)
            each = (-1, *[1] * (x.ndim - 2))
            y = y * run.params[scale].reshape(each) + run.params[shift].reshape(each)
            return self.from_ours(y.astype(given.dtype))

        return apply

    def local_response_norm(self, layer: nn.LocalResponseNorm) -> Function:
        lax = self.jax.lax

        def apply(run: Any, given: Any) -> Any:
            x = self._wide(given)
            channel = self._axis(1, x.ndim)
            size, padding = [1] * x.ndim, [(0, 0)] * x.ndim
            size[channel] = layer.size
            padding[channel] = (layer.size // 2, (layer.size - 1) // 2)
            zero = np.zeros((), x.dtype)[()]
            sums = lax.reduce_window(x * x, zero, lax.add, size, [1] * x.ndim, padding)
            y = x / (layer.k + layer.alpha / layer.size * sums) ** layer.beta
            return y.astype(given.dtype)

        return apply

    # --- shapes, dropout

    def flatten(self, layer: nn.Flatten) -> Function:
        return lambda run, x: self.to_ours(x).reshape(x.shape[0], -1)

    def reshape(self, layer: nn.Reshape) -> Function:
        return lambda run, x: self.from_ours(self.to_ours(x).reshape(x.shape[0], *layer.shape))

    def dropout(self, layer: nn.Dropout) -> Function:
        kept = 1 - layer.rate

        def apply(run: Any, x: Any) -> Any:
            if not run.training or layer.rate == 0:
                return x
            run.draws += 1
            key = self.jax.random.fold_in(run.state.key, run.draws)
            return self.jax.numpy.where(self.jax.random.bernoulli(key, kept, x.shape), x / kept, 0)

        return apply

    # --- sequences

    def embedding(self, layer: nn.Embedding) -> Function:
        place = self._place(layer.weight)
        if layer.mask_zero:
            return lambda run, words: (run.narrowed(run.params[place][words]), words != 0)
        # Narrowed afterwards: the gradients of a word's vector are added up as they are.
        return lambda run, words: run.narrowed(run.params[place][words])

    def scores(self, layer: nn.Embedding) -> Function:
        place = self._place(layer.weight)
        return lambda run, x: x @ run.factor(place).T

    def positions(self, layer: nn.PositionalEmbedding) -> Function:
        place = self._place(layer.weight)
        return lambda run, x: x + run.factor(place)[: x.shape[1]]

    def attention(self, layer: nn.MultiHeadAttention) -> Function:
        jnp = self.jax.numpy
        inputs = self._linear(layer.weight, layer.offset)
        outputs = self._linear(layer.output_weight, layer.output_offset)

        def apply(run: Any, x: Any, *rest: Any) -> Any:
            self.self_attention_only(layer, rest)
            count, steps, width = x.shape
            shape = (count, steps, layer.heads, width // layer.heads)
            parts = jnp.split(inputs(run, x), 3, axis=2)
            if self.cudnn_attention:
                mixed = self.jax.nn.dot_product_attention(
                    *(part.reshape(shape) for part in parts),
                    is_causal=layer.causal,
                    implementation="cudnn",
                )
                return outputs(run, mixed.reshape(x.shape))
            q, k, v = (part.reshape(shape).transpose(0, 2, 1, 3) for part in parts)
            scores = (q * (1 / math.sqrt(shape[3]))) @ k.swapaxes(2, 3)
            if layer.causal:
                scores = jnp.where(np.tri(steps, dtype=bool), scores, -math.inf)
            mixed = self.jax.nn.softmax(self._wide(scores)).astype(v.dtype) @ v
            return outputs(run, mixed.transpose(0, 2, 1, 3).reshape(x.shape))

        return apply

    def recurrent(self, layer: Recurrent) -> Function:
        jnp = self.jax.numpy
        held = [([self._place(each) for each in own], back) for own, back in directions(layer)]

        def apply(run: Any, x: Any, mask: Any = None) -> Any:
            real = mask
            if mask is not None and mask.ndim == 1:
                real = np.arange(x.shape[1]) < mask[:, None]
            results = [
                jax_loop(self.jax, layer, x, real, [run.factor(p) for p in own], back, self._wide)
                for own, back in held
            ]
            y = jnp.concatenate(results, -1)
            return (y, mask) if layer.return_mask and mask is not None else y

        return apply

    def _make_activations(self) -> dict[str, Callable[..., Any]]:
        functions = self.jax.nn
        jnp = self.jax.numpy
        return {
            "relu": functions.relu,
            "sigmoid": functions.sigmoid,
            "tanh": jnp.tanh,
            "leaky_relu": lambda x, slope=0.01: functions.leaky_relu(x, slope),
            "elu": lambda x, alpha=1.0: functions.elu(x, alpha),
            "selu": functions.selu,
            "gelu": lambda x, approximate=False: functions.gelu(x, approximate),
            "gelu_tanh": lambda x: functions.gelu(x, True),
            "silu": functions.silu,
            "softplus": functions.softplus,
            "hard_sigmoid": functions.hard_sigmoid,
            "hard_swish": functions.hard_swish,
            "mish": functions.mish,
            "softsign": functions.soft_sign,
            "rbf": lambda x, eps=1.0: jnp.exp(-jnp.square(eps * x)),
            "softmax": lambda x, axis=-1: functions.softmax(x, self._axis(axis, x.ndim)),
            "log_softmax": lambda x, axis=-1: functions.log_softmax(x, self._axis(axis, x.ndim)),
        }
