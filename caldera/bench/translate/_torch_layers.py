"""Translation of each layer to PyTorch, with PyTorch's own layers if they exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from caldera import nn
from caldera.bench.translate._walk import Function, LayerTranslator, Pool, groups_of
from caldera.bench.translate._windows import WindowShape, windows_of_convolution, windows_of_pool
from caldera.compiler.lazy import Variable
from caldera.nn.models import PaddedShortcut
from caldera.nn.recurrent import Recurrent
from caldera.op.windows import as_pair
from caldera.train.model import Model

_GATES = {
    "input_weight": "weight_ih_l0",
    "state_weight": "weight_hh_l0",
    "input_bias": "bias_ih_l0",
    "state_bias": "bias_hh_l0",
}


class _Slot(NamedTuple):
    """Location of a variable: an attribute of a PyTorch layer."""

    owner: Any
    attribute: str

    @property
    def tensor(self) -> Any:
        return getattr(self.owner, self.attribute)


class TorchLayers(LayerTranslator):
    """Translation of layers to PyTorch."""

    name = "PyTorch"

    def __init__(self, model: Model, torch: Any) -> None:
        self.torch = torch
        self.parts: list[Any] = []
        self.slots: dict[int, _Slot] = {}
        super().__init__(model, _activations(torch))

    def fill(self, variables: Sequence[Variable], arrays: Sequence[np.ndarray]) -> None:
        """Copy arrays, in PyTorch's order of axes, to where variables lie."""
        with self.torch.no_grad():
            for variable, array in zip(variables, arrays, strict=True):
                self.slots[id(variable)].tensor.copy_(self.torch.from_numpy(array))

    def _hold(self, layer: Any, **variables: Variable | None) -> Any:
        """Make a layer of PyTorch part of the module; its attributes are these variables."""
        self.parts.append(layer)
        for attribute, variable in variables.items():
            if variable is not None:
                self.slots[id(variable)] = _Slot(layer, attribute)
        return layer

    def _function(
        self, layer: Any, activation: str | None = None, **variables: Variable | None
    ) -> Function:
        """Return the function of a held layer of PyTorch, followed by an activation."""
        self._hold(layer, **variables)
        return self.then(lambda run, x: layer(x), activation)

    def _linear(self, weight: Variable, bias: Variable | None) -> Any:
        inputs, outputs = weight.shape
        self.reorder(weight, (1, 0))
        layer = self.torch.nn.Linear(inputs, outputs, bias=bias is not None)
        return self._hold(layer, weight=weight, bias=bias)

    def concat(self, parts: list[Any], axis: int) -> Any:
        return self.torch.cat(parts, axis)

    def dense(self, layer: nn.Dense) -> Function:
        linear = self._linear(layer.weight, layer.offset)
        return self.then(lambda run, x: linear(x), layer.activation)

    # --- images

    def _padded(self, x: Any, windows: WindowShape, value: float) -> Any:
        (top, bottom), (left, right) = windows.padding(x.shape[2:])
        return self.torch.nn.functional.pad(x, (left, right, top, bottom), value=value)

    def conv2d(self, layer: nn.Conv2D | nn.DepthwiseConv2D) -> Function:
        windows = windows_of_convolution(layer)
        even = windows.even_padding()
        filters, groups = layer.weight.shape[0], groups_of(layer)
        channels = layer.weight.shape[1] * groups
        conv = self.torch.nn.Conv2d(
            channels,
            filters,
            windows.size,
            windows.stride,
            even or 0,
            windows.dilation,
            groups,
            bias=layer.offset is not None,
        )
        if even is not None:
            return self._function(conv, layer.activation, weight=layer.weight, bias=layer.offset)
        self._hold(conv, weight=layer.weight, bias=layer.offset)
        return self.then(lambda run, x: conv(self._padded(x, windows, 0.0)), layer.activation)

    def conv_transpose2d(self, layer: nn.ConvTranspose2D) -> Function:
        windows = windows_of_convolution(layer)
        even = windows.even_padding()
        if even is None:
            raise self.refuse(layer, "equal padding on both sides", f"padding={layer.padding}")
        conv = self.torch.nn.ConvTranspose2d(
            layer.weight.shape[0],
            layer.filters,
            windows.size,
            windows.stride,
            even,
            layer.output_padding,
            layer.groups,
            bias=layer.offset is not None,
            dilation=windows.dilation,
        )
        return self._function(conv, layer.activation, weight=layer.weight, bias=layer.offset)

    def pool(self, layer: Pool) -> Function:
        windows = windows_of_pool(layer)
        even = windows.even_padding()
        # PyTorch takes no padding of more than half a window.
        if even is not None and any(
            2 * width > size for width, size in zip(even, windows.size, strict=True)
        ):
            even = None
        size, stride = windows.size, windows.stride
        if isinstance(layer, nn.MaxPool2D) or getattr(layer, "kind", "") == "max":
            pools, outside, more = (
                self.torch.nn.MaxPool2d,
                -math.inf,
                {"ceil_mode": windows.partial},
            )
        else:
            counts = not isinstance(layer, nn.AveragePool2D) or layer.count_padding
            pools, outside, more = self.torch.nn.AvgPool2d, 0.0, {"count_include_pad": counts}
        if even is not None:
            return self._function(pools(size, stride, even, **more))
        plain = self._hold(pools(size, stride))
        if more.get("count_include_pad", True):
            return lambda run, x: plain(self._padded(x, windows, outside))

        def apply(run: Any, x: Any) -> Any:
            share = plain(self._padded(self.torch.ones_like(x[:1, :1]), windows, 0.0))
            return plain(self._padded(x, windows, 0.0)) / share

        return apply

    def global_average_pool(self, layer: nn.GlobalAveragePool) -> Function:
        return lambda run, x: x.mean(dim=tuple(range(2, x.ndim)))

    def adaptive_average_pool(self, layer: nn.AdaptiveAveragePool2D) -> Function:
        size = as_pair(layer.size, "size", layer.path)
        return self._function(self.torch.nn.AdaptiveAvgPool2d(size))

    def padded_shortcut(self, layer: PaddedShortcut) -> Function:
        pad = self.torch.nn.functional.pad

        def apply(run: Any, x: Any) -> Any:
            kept = x[:, :, :: layer.stride, :: layer.stride]
            missing = layer.channels - x.shape[1]
            before = missing // 2
            return pad(kept, (0, 0, 0, 0, before, missing - before))

        return apply

    # --- normalisation

    def batch_norm(self, layer: nn.BatchNorm) -> Function:
        batch_norm = self.torch.nn.functional.batch_norm
        # The layer holds the tensors; its own `forward` would insist on one number of axes.
        held = self._hold(
            self.torch.nn.BatchNorm2d(layer.weight.shape[0], layer.eps, layer.momentum),
            weight=layer.weight,
            bias=layer.bias,
            running_mean=layer.mean,
            running_var=layer.variance,
        )

        def apply(run: Any, x: Any) -> Any:
            return batch_norm(
                x,
                held.running_mean,
                held.running_var,
                held.weight,
                held.bias,
                run.training,
                layer.momentum,
                layer.eps,
            )

        return apply

    def layer_norm(self, layer: nn.LayerNorm) -> Function:
        self.last_axes(layer)
        norm = self.torch.nn.LayerNorm(layer.weight.shape, layer.eps)
        return self._function(norm, weight=layer.weight, bias=layer.bias)

    def group_norm(self, layer: nn.GroupNorm) -> Function:
        norm = self.torch.nn.GroupNorm(layer.groups, layer.weight.shape[0], layer.eps)
        return self._function(norm, weight=layer.weight, bias=layer.bias)

    def local_response_norm(self, layer: nn.LocalResponseNorm) -> Function:
        norm = self.torch.nn.LocalResponseNorm(layer.size, layer.alpha, layer.beta, layer.k)
        return self._function(norm)

    # --- shapes, dropout

    def flatten(self, layer: nn.Flatten) -> Function:
        return lambda run, x: x.flatten(1)

    def reshape(self, layer: nn.Reshape) -> Function:
        return lambda run, x: x.reshape(x.shape[0], *layer.shape)

    def dropout(self, layer: nn.Dropout) -> Function:
        return self._function(self.torch.nn.Dropout(layer.rate))

    # --- sequences

    def embedding(self, layer: nn.Embedding) -> Function:
        table = self._hold(self.torch.nn.Embedding(layer.count, layer.width), weight=layer.weight)
        if layer.mask_zero:
            return lambda run, words: (table(words), words != 0)
        return lambda run, words: table(words)

    def scores(self, layer: nn.Embedding) -> Function:
        slot = self.slots[id(layer.weight)]
        return lambda run, x: self.torch.nn.functional.linear(x, slot.tensor)

    def positions(self, layer: nn.PositionalEmbedding) -> Function:
        table = self._hold(self.torch.nn.Embedding(*layer.weight.shape), weight=layer.weight)
        return lambda run, x: x + table.weight[: x.shape[1]]

    def attention(self, layer: nn.MultiHeadAttention) -> Function:
        attend = self.torch.nn.functional.scaled_dot_product_attention
        inputs = self._linear(layer.weight, layer.offset)
        outputs = self._linear(layer.output_weight, layer.output_offset)

        def apply(run: Any, x: Any, *rest: Any) -> Any:
            self.self_attention_only(layer, rest)
            q, k, v = (
                part.unflatten(2, (layer.heads, -1)).transpose(1, 2)
                for part in inputs(x).chunk(3, dim=2)
            )
            return outputs(attend(q, k, v, is_causal=layer.causal).transpose(1, 2).flatten(2))

        return apply

    def recurrent(self, layer: Recurrent) -> Function:
        kind = self.torch.nn.LSTM if isinstance(layer, nn.LSTM) else self.torch.nn.GRU
        variables = layer.variables()
        channels = variables["input_weight"].shape[0]
        bound: dict[str, Variable | None] = {}
        for name, variable in variables.items():
            plain = name.removesuffix("_reverse")
            bound[_GATES[plain] + name.removeprefix(plain)] = variable
            if variable.ndim == 2:
                self.reorder(variable, (1, 0))
        loop = self._hold(
            kind(channels, layer.units, batch_first=True, bidirectional=layer.bidirectional),
            **bound,
        )

        def apply(run: Any, x: Any, mask: Any = None) -> Any:
            turned = x.flip(1) if layer.go_backwards else x
            if mask is not None:
                real = self._steps_that_are_real(mask, x)
                y = self._masked(loop, turned, real.flip(1) if layer.go_backwards else real)
            else:
                y = loop(turned)
            outputs, last = _outputs_and_last(self.torch, y)
            if not layer.return_sequences:
                return last
            outputs = outputs.flip(1) if layer.go_backwards else outputs
            return (outputs, mask) if layer.return_mask and mask is not None else outputs

        return apply

    def _steps_that_are_real(self, mask: Any, x: Any) -> Any:
        if mask.ndim == 2:
            return mask
        return self.torch.arange(x.shape[1], device=x.device) < mask[:, None]

    def _masked(self, loop: Any, x: Any, real: Any) -> Any:
        """Run the loop only over real steps, which are moved to the front for it and back
        afterwards.
        """
        torch = self.torch
        rnn = torch.nn.utils.rnn
        order = torch.argsort(~real, dim=1, stable=True)
        in_front = x.gather(1, order[:, :, None].expand_as(x))
        lengths = real.sum(1)
        # A sequence without any step is not allowed there; its results are set to zero below.
        packed = rnn.pack_padded_sequence(
            in_front, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, last = loop(packed)
        outputs, _ = rnn.pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        places = torch.argsort(order, dim=1)
        outputs = outputs.gather(1, places[:, :, None].expand_as(outputs)) * real[:, :, None]
        last = (last[0] if isinstance(last, tuple) else last) * (lengths > 0)[None, :, None]
        return outputs, last


def _outputs_and_last(torch: Any, result: Any) -> tuple[Any, Any]:
    """Return all outputs, and the last of each direction side by side."""
    outputs, last = result
    hidden = last[0] if isinstance(last, tuple) else last
    return outputs, torch.cat(tuple(hidden), dim=-1)


def _activations(torch: Any) -> dict[str, Callable[..., Any]]:
    f = torch.nn.functional

    def hard_sigmoid(x: Any) -> Any:
        # PyTorch's own has a derivative that is rounded to float32, also in float64.
        return f.hardsigmoid(x) if x.dtype == torch.float32 else f.relu6(x + 3) / 6

    return {
        "relu": f.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "leaky_relu": lambda x, slope=0.01: f.leaky_relu(x, slope),
        "elu": lambda x, alpha=1.0: f.elu(x, alpha),
        "selu": f.selu,
        "gelu": lambda x, approximate=False: f.gelu(
            x, approximate="tanh" if approximate else "none"
        ),
        "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
        "silu": f.silu,
        # Above PyTorch's own threshold of 20 it would leave out 2e-9.
        "softplus": lambda x: f.softplus(x, threshold=40.0),
        "hard_sigmoid": hard_sigmoid,
        "hard_swish": f.hardswish,
        "mish": f.mish,
        "softsign": f.softsign,
        "rbf": lambda x, eps=1.0: torch.exp(-torch.square(eps * x)),
        "softmax": lambda x, axis=-1: torch.softmax(x, axis),
        "log_softmax": lambda x, axis=-1: torch.log_softmax(x, axis),
    }
