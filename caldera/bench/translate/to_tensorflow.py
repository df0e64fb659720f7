"""A Caldera network in TensorFlow: variables, and a function of them to put into `tf.function`.

Images are computed with as (N, H, W, C): on processors, TensorFlow has its kernels for that order
alone. They are given, as in Caldera, as (N, C, H, W).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import nn
from caldera.bench.translate._recurrent import directions, tensorflow_loop
from caldera.bench.translate._walk import Framework, Function, Pool, values
from caldera.bench.translate._windows import (
    Windows,
    channels_last_axis,
    window_means,
    windows_of_convolution,
    windows_of_pool,
)
from caldera.lazy import Variable
from caldera.nn.models import PaddedShortcut
from caldera.nn.recurrent import Recurrent
from caldera.op.windows import as_pair
from caldera.optional import optional_import
from caldera.train.model import Model


@dataclass(frozen=True)
class _Run:
    """One use of the network."""

    training: bool


@dataclass(frozen=True)
class TensorFlowNetwork:
    """The network in TensorFlow; arrays are in the order and shapes of `model.parameters()`."""

    _framework: _TensorFlow
    _function: Function

    def __call__(self, x: Any, training: bool) -> Any:
        """The results for what the Caldera model takes; training updates the running statistics."""
        framework = self._framework
        found = self._function(
            _Run(training), framework.from_ours(framework.tf.convert_to_tensor(x))
        )
        return framework.tf.nest.map_structure(framework.to_ours, found)

    @property
    def variables(self) -> list[Any]:
        """The parameters as variables of TensorFlow, for `tf.GradientTape` and optimizers."""
        return [self._framework.held(each) for each in self._framework.model.parameters()]

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take these values as parameters."""
        for variable, array in zip(self.variables, self._framework.checked(arrays), strict=True):
            variable.assign(array)

    def arrays(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        """`variables`, or gradients of them, as arrays in Caldera's shapes."""
        framework = self._framework
        convert = framework.tf.convert_to_tensor
        return [
            framework.ours(variable, convert(tensor).numpy())
            for variable, tensor in zip(framework.model.parameters(), tensors, strict=True)
        ]

    def parameters(self) -> list[np.ndarray]:
        """The values of the parameters."""
        return self.arrays(self.variables)

    def states(self) -> list[np.ndarray]:
        """The running statistics, in the order of `model.states()`."""
        return [self._framework.held(each).numpy() for each in self._framework.model.states()]


def to_tensorflow(model: Model) -> TensorFlowNetwork:
    """The identical network in TensorFlow, with the model's weights and statistics as they are now.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.bench.translate import to_tensorflow
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, "relu")])
    >>> network = to_tensorflow(model)  # doctest: +SKIP
    >>> network(np.zeros((5, 4), "float32"), training=True).shape  # doctest: +SKIP
    TensorShape([5, 3])
    """
    tf = optional_import("tensorflow", "tensorflow", "to_tensorflow")
    framework = _TensorFlow(model, tf)
    return TensorFlowNetwork(framework, framework.translate(model))


class _TensorFlow(Framework):
    name = "TensorFlow"

    def __init__(self, model: Model, tf: Any) -> None:
        self.tf = tf
        self._held: dict[int, Any] = {}
        super().__init__(model, _activations(tf))

    def held(self, variable: Variable) -> Any:
        """The variable of TensorFlow that stands for one of Caldera."""
        return self._held[id(variable)]

    def _hold(self, variable: Variable, axes: tuple[int, ...] | None = None) -> Any:
        if id(variable) not in self._held:
            if axes is not None:
                self.reorder(variable, axes)
            start = self.theirs(variable, values([variable])[0])
            self._held[id(variable)] = self.tf.Variable(start)
        return self._held[id(variable)]

    # --- the order of axes

    def from_ours(self, x: Any) -> Any:
        """A value in the order of axes that is computed with."""
        return self.tf.transpose(x, (0, 2, 3, 1)) if len(x.shape) == 4 else x

    def to_ours(self, x: Any) -> Any:
        """A value in Caldera's order of axes."""
        return self.tf.transpose(x, (0, 3, 1, 2)) if len(x.shape) == 4 else x

    def concat(self, parts: list[Any], axis: int) -> Any:
        return self.tf.concat(parts, channels_last_axis(axis, len(parts[0].shape)))

    # --- dense layers and convolutions

    def _linear(self, weight: Variable, bias: Variable | None) -> Callable[[Any], Any]:
        tf = self.tf
        kernel = self._hold(weight)
        offset = None if bias is None else self._hold(bias)

        def apply(x: Any) -> Any:
            y = tf.matmul(x, kernel) if len(x.shape) == 2 else tf.tensordot(x, kernel, 1)
            return y if offset is None else tf.nn.bias_add(y, offset)

        return apply

    def dense(self, layer: nn.Dense) -> Function:
        linear = self._linear(layer.weight, layer.offset)
        # The last axis is W, also for images.
        return self.then(lambda run, x: self.from_ours(linear(self.to_ours(x))), layer.activation)

    def conv2d(self, layer: nn.Conv2D) -> Function:
        tf = self.tf
        windows = windows_of_convolution(layer)
        kernel = self._hold(layer.weight, (2, 3, 1, 0))
        offset = None if layer.offset is None else self._hold(layer.offset)
        if layer.groups > 1 or windows.dilation != (1, 1):
            raise self.refuse(
                layer, "no groups and no dilation",
                f"groups={layer.groups} and dilation={layer.dilation}",
                "on processors, TensorFlow has no gradients of these",
            )  # fmt: skip

        def apply(run: Any, x: Any) -> Any:
            padding = [(0, 0), *windows.padding(x.shape[1:3]), (0, 0)]
            y = tf.nn.conv2d(x, kernel, windows.stride, padding)
            return y if offset is None else tf.nn.bias_add(y, offset)

        return self.then(apply, layer.activation)

    # --- pools

    def pool(self, layer: Pool) -> Function:
        windows = windows_of_pool(layer)
        if isinstance(layer, nn.MaxPool2D) or getattr(layer, "kind", "") == "max":
            return lambda run, x: self._largest(x, windows)
        if isinstance(layer, nn.AveragePool2D) and not layer.count_padding:
            return lambda run, x: (
                self._means(x, windows) / self._means(self.tf.ones_like(x[:1, :, :, :1]), windows)
            )
        return lambda run, x: self._means(x, windows)

    def _largest(self, x: Any, windows: Windows) -> Any:
        padding = [(0, 0), *windows.padding(x.shape[1:3]), (0, 0)]
        is_padded = any(width for widths in padding for width in widths)
        return self.tf.nn.max_pool2d(
            x, windows.size, windows.stride, padding if is_padded else "VALID"
        )

    def _means(self, x: Any, windows: Windows) -> Any:
        """The means of windows in which padding counts as zeros."""
        padding = [(0, 0), *windows.padding(x.shape[1:3]), (0, 0)]
        if any(width for widths in padding for width in widths):
            x = self.tf.pad(x, padding)
        return self.tf.nn.avg_pool2d(x, windows.size, windows.stride, "VALID")

    def global_average_pool(self, layer: nn.GlobalAveragePool) -> Function:
        def apply(run: Any, x: Any) -> Any:
            rank = len(x.shape)
            return self.tf.reduce_mean(x, [channels_last_axis(i, rank) for i in range(2, rank)])

        return apply

    def adaptive_average_pool(self, layer: nn.AdaptiveAveragePool2D) -> Function:
        size = as_pair(layer.size, "size", layer.path)

        def apply(run: Any, x: Any) -> Any:
            image = tuple(x.shape[1:3])
            if image == size:
                return x
            if all(length % count == 0 for length, count in zip(image, size, strict=True)):
                window = tuple(a // b for a, b in zip(image, size, strict=True))
                return self.tf.nn.avg_pool2d(x, window, window, "VALID")
            rows, columns = (
                self.tf.constant(window_means(length, count), x.dtype)
                for length, count in zip(image, size, strict=True)
            )
            return self.tf.einsum("nhwc,ph,qw->npqc", x, rows, columns)

        return apply

    def padded_shortcut(self, layer: PaddedShortcut) -> Function:
        def apply(run: Any, x: Any) -> Any:
            kept = x[:, :: layer.stride, :: layer.stride]
            missing = layer.channels - x.shape[3]
            before = missing // 2
            return self.tf.pad(kept, [(0, 0), (0, 0), (0, 0), (before, missing - before)])

        return apply

    # --- normalisation

    def batch_norm(self, layer: nn.BatchNorm) -> Function:
        tf = self.tf
        scale, shift = self._hold(layer.weight), self._hold(layer.bias)
        mean, variance = self._hold(layer.mean), self._hold(layer.variance)

        def apply(run: Any, x: Any) -> Any:
            rank = len(x.shape)
            if not run.training:
                return self._normalised(x, mean, variance, scale, shift, layer.eps)
            if rank == 4 and x.dtype == tf.float32:
                y, of_batch, unbiased, *_ = tf.raw_ops.FusedBatchNormV3(
                    x=x, scale=scale, offset=shift, mean=[], variance=[], epsilon=layer.eps,
                    is_training=True,
                )  # fmt: skip
            else:
                axes = [axis for axis in range(rank) if axis != channels_last_axis(1, rank)]
                of_batch, spread = tf.nn.moments(x, axes)
                y = self._normalised(x, of_batch, spread, scale, shift, layer.eps)
                count = tf.cast(tf.size(x) // tf.size(of_batch), x.dtype)
                unbiased = spread * count / tf.maximum(count - 1, 1)
            mean.assign_sub(layer.momentum * (mean - of_batch))
            variance.assign_sub(layer.momentum * (variance - unbiased))
            return y

        return apply

    def _normalised(
        self, x: Any, mean: Any, variance: Any, scale: Any, shift: Any, eps: float
    ) -> Any:
        shape = [1] * len(x.shape)
        shape[channels_last_axis(1, len(shape))] = -1
        parts = (self.tf.reshape(each, shape) for each in (mean, variance, shift, scale))
        return self.tf.nn.batch_normalization(x, *parts, eps)

    def layer_norm(self, layer: nn.LayerNorm) -> Function:
        tf = self.tf
        axes = self.last_axes(layer)
        scale, shift = self._hold(layer.weight), self._hold(layer.bias)

        def apply(run: Any, x: Any) -> Any:
            x = self.to_ours(x)
            mean, variance = tf.nn.moments(x, axes, keepdims=True)
            return self.from_ours(
                tf.nn.batch_normalization(x, mean, variance, shift, scale, layer.eps)
            )

        return apply

    def local_response_norm(self, layer: nn.LocalResponseNorm) -> Function:
        tf = self.tf
        alpha = layer.alpha / layer.size

        def apply(run: Any, x: Any) -> Any:
            rank = len(x.shape)
            if rank == 4 and layer.size % 2 and x.dtype == tf.float32:
                radius = layer.size // 2
                return tf.nn.local_response_normalization(x, radius, layer.k, alpha, layer.beta)
            channel = channels_last_axis(1, rank)
            padding = [(0, 0)] * rank
            padding[channel] = (layer.size // 2, (layer.size - 1) // 2)
            squares = tf.pad(tf.square(x), padding)
            count = x.shape[channel]
            neighbours = [
                tf.gather(squares, tf.range(i, i + count), axis=channel) for i in range(layer.size)
            ]
            return x / (layer.k + alpha * tf.add_n(neighbours)) ** layer.beta

        return apply

    # --- shapes, dropout

    def flatten(self, layer: nn.Flatten) -> Function:
        def apply(run: Any, x: Any) -> Any:
            return self.tf.reshape(self.to_ours(x), (-1, math.prod(x.shape[1:])))

        return apply

    def reshape(self, layer: nn.Reshape) -> Function:
        return lambda run, x: self.from_ours(
            self.tf.reshape(self.to_ours(x), (x.shape[0], *layer.shape))
        )

    def dropout(self, layer: nn.Dropout) -> Function:
        def apply(run: Any, x: Any) -> Any:
            return self.tf.nn.dropout(x, layer.rate) if run.training and layer.rate else x

        return apply

    # --- sequences

    def embedding(self, layer: nn.Embedding) -> Function:
        table = self._hold(layer.weight)
        if layer.mask_zero:
            return lambda run, words: (self.tf.gather(table, words), words != 0)
        return lambda run, words: self.tf.gather(table, words)

    def scores(self, layer: nn.Embedding) -> Function:
        table = self._hold(layer.weight)
        return lambda run, x: self.tf.tensordot(x, self.tf.transpose(table), 1)

    def positions(self, layer: nn.PositionalEmbedding) -> Function:
        table = self._hold(layer.weight)
        return lambda run, x: x + table[: x.shape[1]]

    def attention(self, layer: nn.MultiHeadAttention) -> Function:
        tf = self.tf
        inputs = self._linear(layer.weight, layer.offset)
        outputs = self._linear(layer.output_weight, layer.output_offset)

        def apply(run: Any, x: Any, *rest: Any) -> Any:
            self.self_attention_only(layer, rest)
            count, steps, width = x.shape
            shape = (count, steps, layer.heads, width // layer.heads)
            q, k, v = (
                tf.transpose(tf.reshape(part, shape), (0, 2, 1, 3))
                for part in tf.split(inputs(x), 3, axis=2)
            )
            scores = tf.matmul(q * (1 / math.sqrt(shape[3])), k, transpose_b=True)
            if layer.causal:
                lowest = tf.constant(-math.inf, x.dtype)
                scores = tf.where(np.tri(steps, dtype=bool), scores, lowest)
            mixed = tf.matmul(tf.nn.softmax(scores), v)
            return outputs(tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), x.shape))

        return apply

    def recurrent(self, layer: Recurrent) -> Function:
        tf = self.tf
        held = [([self._hold(each) for each in own], back) for own, back in directions(layer)]

        def apply(run: Any, x: Any, mask: Any = None) -> Any:
            real = mask
            if mask is not None and len(mask.shape) == 1:
                real = tf.sequence_mask(mask, x.shape[1])
            results = [tensorflow_loop(tf, layer, x, real, own, back) for own, back in held]
            y = tf.concat(results, -1)
            return (y, mask) if layer.return_mask and mask is not None else y

        return apply


def _activations(tf: Any) -> dict[str, Callable[..., Any]]:
    def hard_sigmoid(x: Any) -> Any:
        return tf.nn.relu6(x + 3) / 6

    def leaky_relu(x: Any, slope: float = 0.01) -> Any:
        # TensorFlow's own rounds the slope to float32, also in float64.
        is_single = x.dtype == tf.float32
        return tf.nn.leaky_relu(x, slope) if is_single else tf.where(x > 0, x, slope * x)

    def gelu(x: Any, approximate: bool = False) -> Any:
        # The formula of `tf.nn.gelu`, which rounds its constants to float32, also in float64.
        if approximate:
            gate = tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3)))
        else:
            gate = tf.math.erf(x * math.sqrt(0.5))
        return 0.5 * x * (1 + gate)

    return {
        "relu": tf.nn.relu,
        "sigmoid": tf.sigmoid,
        "tanh": tf.tanh,
        "leaky_relu": leaky_relu,
        "elu": lambda x, alpha=1.0: tf.where(x > 0, x, alpha * tf.nn.elu(x)),
        "selu": tf.nn.selu,
        "gelu": gelu,
        "silu": tf.nn.silu,
        "softplus": tf.nn.softplus,
        "hard_sigmoid": hard_sigmoid,
        "hard_swish": lambda x: x * hard_sigmoid(x),
        "rbf": lambda x, eps=1.0: tf.exp(-tf.square(eps * x)),
        "softmax": lambda x, axis=-1: tf.nn.softmax(x, channels_last_axis(axis, len(x.shape))),
        "log_softmax": lambda x, axis=-1: tf.nn.log_softmax(
            x, channels_last_axis(axis, len(x.shape))
        ),
    }
