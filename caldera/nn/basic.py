"""Basic layers: input and output, dense layers, activations, shapes, dropout, sequences."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, TypeVar

from caldera import op
from caldera.base.arguments import refusal, require
from caldera.base.registry import Registry
from caldera.compiler.lazy import Expr
from caldera.core.tensor import glorot_uniform
from caldera.errors import ConfigError
from caldera.nn.few_bits import matrix, weights_in
from caldera.nn.initialisers import fill_or
from caldera.nn.layer import Layer

L = TypeVar("L", bound=Layer)

layers: Registry[type[Layer]] = Registry("layer")
"""Layers by name: what model files and recipes may hold."""

activations: Registry[Callable[..., Expr]] = Registry("activation")
"""Activation functions by name: the valid values of a layer's `activation`."""

for _name in (
    "relu",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "elu",
    "selu",
    "gelu",
    "silu",
    "softplus",
    "hard_sigmoid",
    "hard_swish",
    "mish",
    "softsign",
    "rbf",
    "softmax",
    "log_softmax",
):
    activations.add(_name, getattr(op, _name))
activations.add("gelu_tanh", partial(op.gelu, approximate=True))
_SHRINK = 0.5
_BY_FORMULA: dict[str, Callable[[Expr], Expr]] = {
    "relu6": lambda x: op.clip(x, 0.0, 6.0),
    "hard_tanh": lambda x: op.clip(x, -1.0, 1.0),
    "log_sigmoid": lambda x: -op.softplus(-x),
    "soft_shrink": lambda x: x - op.clip(x, -_SHRINK, _SHRINK),
    "hard_shrink": lambda x: op.where(op.abs(x) > _SHRINK, x, 0.0),
    "tanh_shrink": lambda x: x - op.tanh(x),
    "softmin": lambda x: op.softmax(-x),
    "glu": lambda x: op.mul(*_halves(x)),
}
for _name, _function in _BY_FORMULA.items():
    activations.add(_name, _function)


def _halves(x: Expr) -> tuple[Expr, Expr]:
    """Return the first half of the last axis, and the gate that the second half is."""
    first, second = op.split(x, 2, axis=-1)
    return first, op.sigmoid(second)


def register(kind: type[L]) -> type[L]:
    """Register a custom layer under its class name, so that models with it can be saved.

    >>> from dataclasses import dataclass, fields
    >>> from caldera import nn
    >>> @nn.register
    ... @dataclass(eq=False)
    ... class Double(nn.Layer):
    ...     def forward(self, x):
    ...         return x * 2.0
    >>> nn.layers["Double"] is Double
    True
    """
    if not (isinstance(kind, type) and issubclass(kind, Layer)):
        raise refusal("nn.register", "kind", "a class of layers", kind)
    layers.add(kind.__name__, kind)
    return kind


def activation_function(name: str | None) -> Callable[[Expr], Expr]:
    """Return the function of an activation; None (or "linear") is the identity."""
    return _identity if name is None or name == "linear" else activations[name]


def _identity(x: Expr) -> Expr:
    # No lambda: layers keep it, and can be pickled.
    return x


def check_counts(layer: str, **counts: Any) -> None:
    """Refuse settings of a layer that are not whole numbers of at least 1, or beyond all memory."""
    for name, value in counts.items():
        require(
            not isinstance(value, bool) and isinstance(value, int) and 1 <= value < 2**31,
            layer,
            f"{name}= an integer >= 1",
            repr(value),
        )


STEPS_TRACED = 64
"""Number of steps assumed for sequences of any length when only shapes are requested."""


def shape_text(shape: Sequence[int | None]) -> str:
    """Return the text of a shape for errors.

    >>> shape_text((3, None)), shape_text((None,))
    ('(3, any)', '(any,)')
    """
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


@register
@dataclass(eq=False)
class Input(Layer):
    """Input of the network: the shape of one sample, and its dtype if it is not a float.

    An axis of None has any size: `nn.Input((3, None, None))` is for images of all sizes. Each size
    has a plan. A first axis of None denotes sequences of any length (see `data.RaggedData`).
    Numeric sequences have a mask as a second input, which marks the real steps; word sequences have
    none. With `layout="NHWC"`, images have the channels last, which are moved to the first axis.

    >>> from caldera import nn, op
    >>> nn.Input((28, 28))(op.input("x", (5, 28, 28))).shape
    (5, 28, 28)
    >>> nn.Input((28, 28, 3), layout="NHWC")(op.input("x", (5, 28, 28, 3))).shape
    (5, 3, 28, 28)
    """

    shape: Sequence[int | None]
    dtype: str | None = None
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        require(
            not isinstance(self.shape, int),
            "Input",
            "the shape of a sample",
            repr(self.shape),
            f"write nn.Input(({self.shape},))",
        )
        self.shape = tuple(self.shape)
        channels_last = self.layout == "NHWC" and len(self.shape) == 3
        require(
            self.layout == "NCHW" or channels_last,
            "Input",
            "layout= NCHW, or NHWC for images (height, width, channels)",
            f"{self.layout!r} for {self.shape}",
        )

    @property
    def traced_shape(self) -> tuple[int, ...]:
        """Shape of a sample, with `STEPS_TRACED` steps for sequences of any length."""
        return tuple(STEPS_TRACED if each is None else each for each in self.shape)

    @property
    def is_open(self) -> bool:
        """True for sequences of any length, of which later axes are known."""
        return bool(self.shape) and self.shape[0] is None and None not in self.shape[1:]

    @property
    def open_axes(self) -> frozenset[int]:
        """The axes of a sample that have any size."""
        return frozenset(axis for axis, size in enumerate(self.shape) if size is None)

    def forward(self, x: Expr, mask: Expr | None = None) -> Any:
        fits = x.ndim == 1 + len(self.shape) and all(
            size in (None, given) for size, given in zip(self.shape, x.shape[1:], strict=True)
        )
        self.require(
            fits,
            f"samples of shape {shape_text(self.shape)}",
            f"{x.shape[1:]}",
            "the first axis is the sample axis",
        )
        if self.layout == "NHWC":
            x = op.transpose(x, (0, 3, 1, 2))
        return x if mask is None else (x, mask)


@register
@dataclass(eq=False)
class Output(Layer):
    """Output of the network: its input, checked to have `shape` if one is given.

    >>> from caldera import nn, op
    >>> nn.Output((3,))(op.input("x", (5, 3))).shape
    (5, 3)
    """

    shape: Sequence[int] | None = None

    def forward(self, x: Expr) -> Expr:
        wanted = x.shape[1:] if self.shape is None else tuple(self.shape)
        self.require(x.shape[1:] == wanted, f"results of shape {wanted}", f"{x.shape[1:]}")
        return x


class WeightedLayer(Layer):
    """Base class of layers with a weight and a bias: dense layers and convolutions."""

    bias: bool
    fill: Any
    may_be_few_bits: ClassVar[bool] = True

    def make_weights(self, shape: Sequence[int], outputs: int) -> None:
        """Create the weight, and the bias of each output if there is one."""
        fill = fill_or(self.fill, glorot_uniform())
        if len(shape) == 2 and self.may_be_few_bits:
            self.weight = matrix(self, "weight", shape, fill, inputs=0)
        else:
            self.weight = self.parameter("weight", shape, fill)
        self.offset = self.parameter("bias", (outputs,)) if self.bias else None

    def used_weight(self) -> Expr:
        """Return the weight that inputs are multiplied by."""
        return self.weight


@register
@dataclass(eq=False)
class Dense(WeightedLayer):
    """Dense layer: x @ weight + bias over the last axis, then an activation if one is named.

    Biases are initialised with 0.

    Args:
        units: Number of outputs.
        bias: True for a trainable bias.
        fill: Initial weights: a filler, number or array; by default Glorot's uniform ones.
        activation: Name of an activation, such as "relu".
        name: Name of the layer, for parameters and messages.
        device: Device of the layer, by default the device of the model.

    >>> from caldera import nn, op
    >>> nn.Dense(10, activation="relu")(op.input("x", (5, 4))).shape
    (5, 10)
    """

    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "units": ("around", 4),
        "activation": ("choice", ("relu", "tanh", "gelu", "silu")),
    }

    units: int
    activation: str | None = field(default=None, kw_only=True)
    bias: bool = True
    fill: Any = None

    def __post_init__(self) -> None:
        check_counts("Dense", units=self.units)
        activation_function(self.activation)  # Refused now, not when it is first called.

    def build(self, x: Expr) -> None:
        self.require(
            x.ndim >= 2, "a batch of vectors", f"{x.shape}", "the first axis is the sample axis"
        )
        self.make_weights((x.shape[-1], self.units), self.units)

    def forward(self, x: Expr) -> Expr:
        weight = self.used_weight()
        self.require(
            x.shape[-1:] == weight.shape[:1],
            f"{weight.shape[0]} values on the last axis",
            f"{x.shape}",
            "images need nn.Flatten before it" if x.ndim > 2 else "",
        )
        return activation_function(self.activation)(op.linear(x, weight, self.offset))


FullyConnected = Dense
"""MagmaDNN's name of `Dense`."""


@register
@dataclass(eq=False)
class Activation(Layer):
    """Activation by name; each also has a separate layer (`nn.ReLU`, `nn.Sigmoid`, ...).

    >>> import caldera as cd
    >>> from caldera import nn
    >>> nn.Activation("relu")(cd.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    kind: str

    def __post_init__(self) -> None:
        activation_function(self.kind)  # Refused now, not when it is first called.

    def forward(self, x: Expr) -> Expr:
        return activation_function(self.kind)(x)


def samples_of(layer: Layer, x: Expr) -> int:
    """Return the number of samples in a layer's input."""
    layer.require(x.shape, "a batch (N, ...)", "a scalar")
    return x.shape[0]


class FunctionLayer(Layer):
    """A layer that is an operation, called with the input and the layer's own settings in order."""

    function: ClassVar[Callable[..., Expr]]

    def forward(self, x: Expr) -> Expr:
        settings = [each.name for each in fields(self) if each.init and not each.kw_only]
        return self.function(x, *[getattr(self, name) for name in settings])


@register
@dataclass(eq=False)
class Flatten(Layer):
    """Layer that reshapes each sample to a vector.

    >>> from caldera import nn, op
    >>> nn.Flatten()(op.input("x", (5, 2, 3))).shape
    (5, 6)
    """

    def forward(self, x: Expr) -> Expr:
        return op.reshape(x, (samples_of(self, x), math.prod(x.shape[1:])))


@register
@dataclass(eq=False)
class Reshape(Layer):
    """Layer that reshapes each sample (one size may be -1).

    >>> from caldera import nn, op
    >>> nn.Reshape((3, -1))(op.input("x", (5, 12))).shape
    (5, 3, 4)
    """

    shape: Sequence[int]

    def forward(self, x: Expr) -> Expr:
        return op.reshape(x, (samples_of(self, x), *self.shape))


def named_in_order(
    parts: Sequence[Layer], fallback: str = "{index}-{kind}"
) -> Iterator[tuple[str, Layer]]:
    """Yield layers of a list by their own name, else by position and kind."""
    for index, layer in enumerate(parts):
        yield layer.name or fallback.format(index=index, kind=type(layer).__name__), layer


def check_layers(where: str, parts: Any) -> tuple[Layer, ...]:
    """Return the layers as an immutable tuple; raise if two have the same name."""
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise ConfigError.build(where, expected="a list of layers", got=repr(parts))
    found: dict[str, Layer] = {}
    for layer in parts:
        if not isinstance(layer, Layer):
            raise ConfigError.build(
                where,
                expected="layers",
                got=repr(layer),
                hint="use nn.Activation(name) for a function by name",
            )
        require(
            not layer.name or found.setdefault(layer.name, layer) is layer,
            where,
            "a distinct name for every layer",
            f"two named {layer.name!r}",
        )
    return tuple(parts)


@register
@dataclass(eq=False)
class Sequential(Layer):
    """Layers called in sequence; if one returns a tuple, its items are the inputs of the next.

    >>> from caldera import nn, op
    >>> block = nn.Sequential([nn.Dense(8), nn.ReLU(), nn.Dense(2)])
    >>> block(op.input("x", (5, 4))).shape
    (5, 2)
    """

    layers: Sequence[Layer]

    def __post_init__(self) -> None:
        self.layers = check_layers("Sequential", self.layers)

    def children(self) -> Iterator[tuple[str, Layer]]:
        return named_in_order(self.layers)

    def forward(self, *inputs: Expr) -> Any:
        self.require(inputs, "an input", "none")
        value: Any = inputs if len(inputs) > 1 else inputs[0]
        for layer in self.layers:
            several = value if isinstance(value, tuple) else (value,)
            if len(several) > 1:
                _check_takes(layer, several)
            with weights_in(layer):
                value = layer(*several)
        return value


def _check_takes(layer: Layer, values: tuple[Any, ...]) -> None:
    try:
        inspect.signature(layer.forward).bind(*values)
    except TypeError:
        raise layer.refuse(
            "one input",
            f"{len(values)} results of the layer before, such as a sequence and its mask",
            "put a layer there that accepts them all, such as nn.LSTM or nn.MeanPooling with a "
            "mask",
        ) from None
