"""Traversal of a network's layers, shared by the translations to all frameworks.

A layer becomes a function f(run, *inputs); `run` is the current use of the network (whether it
trains, and the location of weights that the framework passes in). A framework defines the
translation of elementary layers; composite layers are translated here for all frameworks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from caldera import nn
from caldera.compiler.lazy import Variable
from caldera.errors import ConfigError, DtypeError, ShapeError
from caldera.nn.models import GPT, GoogLeNet, Inception3, PaddedShortcut
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork

Function = Callable[..., Any]
Pool = nn.Pooling2D | nn.MaxPool2D | nn.AveragePool2D

# By the exact class: a subclass may define another `forward`.
RULES: dict[type[nn.Layer], str] = {
    nn.Activation: "named_activation",
    nn.AdaptiveAveragePool2D: "adaptive_average_pool",
    nn.Add: "add",
    nn.AveragePool2D: "pool",
    nn.BatchNorm: "batch_norm",
    nn.Branches: "branches",
    nn.Concat: "concatenation",
    nn.Conv2D: "conv2d",
    nn.ConvTranspose2D: "conv_transpose2d",
    nn.Dense: "dense",
    nn.DepthwiseConv2D: "conv2d",
    nn.Dropout: "dropout",
    nn.Embedding: "embedding",
    nn.Flatten: "flatten",
    nn.GRU: "recurrent",
    nn.GlobalAveragePool: "global_average_pool",
    nn.GroupNorm: "group_norm",
    nn.Input: "identity",
    nn.LSTM: "recurrent",
    nn.LayerNorm: "layer_norm",
    nn.LocalResponseNorm: "local_response_norm",
    nn.MaxPool2D: "pool",
    nn.MultiHeadAttention: "attention",
    nn.Output: "identity",
    nn.Pooling2D: "pool",
    nn.PositionalEmbedding: "positions",
    nn.Reshape: "reshape",
    nn.Residual: "residual",
    nn.Sequential: "sequential",
    nn.TransformerBlock: "transformer_block",
    GPT: "gpt",
    GoogLeNet: "with_heads",
    Inception3: "with_heads",
    NeuralNetwork: "neural_network",
    PaddedShortcut: "padded_shortcut",
}
ACTIVATION_LAYERS: dict[type[nn.Layer], str] = {
    nn.ELU: "elu",
    nn.GELU: "gelu",
    nn.HardSigmoid: "hard_sigmoid",
    nn.HardSwish: "hard_swish",
    nn.LeakyReLU: "leaky_relu",
    nn.LogSoftmax: "log_softmax",
    nn.Mish: "mish",
    nn.RBF: "rbf",
    nn.ReLU: "relu",
    nn.SELU: "selu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Softmax: "softmax",
    nn.Softplus: "softplus",
    nn.Softsign: "softsign",
    nn.Tanh: "tanh",
}
RULES.update(dict.fromkeys(ACTIVATION_LAYERS, "activation_layer"))


class LayerTranslator(ABC):
    """Translation of layers to a framework."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        missing = sorted({rule for rule in RULES.values() if not hasattr(cls, rule)})
        if missing:
            raise TypeError(f"{cls.__name__} lacks {', '.join(missing)}")

    def __init__(self, model: Model, activations: Mapping[str, Callable[..., Any]]) -> None:
        self.model = model
        self._activations = activations
        self._translated: dict[int, Function] = {}
        self._axes: dict[int, tuple[int, ...]] = {}
        _check_dtypes(self.where, model)

    @property
    def where(self) -> str:
        """Name of this translation in errors."""
        return f"translation to {self.name}"

    def translate(self, layer: nn.Layer) -> Function:
        """Return the function of a layer.

        A layer that is used twice has one, with the same weights.
        """
        if id(layer) not in self._translated:
            self._translated[id(layer)] = getattr(self, self._rule(layer))(layer)
        return self._translated[id(layer)]

    def _rule(self, layer: nn.Layer) -> str:
        kind = type(layer)
        if kind not in RULES:
            raise self.refuse(
                layer,
                f"a layer that is known in {self.name}",
                kind.__name__,
                "known are " + ", ".join(sorted(known.__name__ for known in RULES)),
            )
        if not layer.built:
            raise self.refuse(
                layer,
                "a layer that has its parameters",
                "a new one",
                "start with nn.Input, or call model.build_for(x)",
            )
        if layer.frozen:
            raise self.refuse(layer, "layers that train", "a frozen one", "call freeze(False)")
        return RULES[kind]

    def refuse(self, layer: nn.Layer, expected: str, got: str, hint: str = "") -> ConfigError:
        """Return the error for a layer that cannot be translated; raise it."""
        path = layer.path or type(layer).__name__
        return ConfigError.build(f"{self.where}, {path}", expected=expected, got=got, hint=hint)

    # --- weights: the same numbers, perhaps with the axes in another order

    def reorder(self, variable: Variable, axes: tuple[int, ...]) -> None:
        """Remember that the framework has a variable's axes in this order."""
        self._axes[id(variable)] = axes

    def theirs(self, variable: Variable, array: np.ndarray) -> np.ndarray:
        """Values of a variable as the framework keeps them; a copy."""
        axes = self._axes.get(id(variable))
        return np.array(array if axes is None else array.transpose(axes), order="C")

    def ours(self, variable: Variable, array: np.ndarray) -> np.ndarray:
        """Return the framework's values of a variable in Caldera's shape; a copy."""
        axes = self._axes.get(id(variable))
        return np.array(array if axes is None else array.transpose(np.argsort(axes)), order="C")

    def checked(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Arrays that are meant as the model's parameters, in the framework's order of axes."""
        variables = self.model.parameters()
        given = [np.shape(array) for array in arrays]
        expected = [variable.shape for variable in variables]
        if given != expected:
            raise ShapeError.build(
                self.where,
                expected=f"{len(expected)} arrays in the shapes of model.parameters()",
                got=f"{len(given)} arrays, of which do not fit: "
                + str([pair for pair in zip(given, expected, strict=False) if pair[0] != pair[1]]),
            )
        return [
            self.theirs(variable, np.asarray(array))
            for variable, array in zip(variables, arrays, strict=True)
        ]

    # --- layers made of layers

    def identity(self, layer: nn.Layer) -> Function:
        """Return a layer that only checks."""
        return lambda run, x: x

    def neural_network(self, layer: NeuralNetwork) -> Function:
        """Translate a model defined by a list of layers."""
        return self._in_order(layer.network.layers)

    def sequential(self, layer: nn.Sequential) -> Function:
        """Translate layers called in order."""
        return self._in_order(layer.layers)

    def _in_order(self, layers: Sequence[nn.Layer]) -> Function:
        functions = [self.translate(each) for each in layers]

        def apply(run: Any, *inputs: Any) -> Any:
            value: Any = inputs if len(inputs) > 1 else inputs[0]
            for function in functions:
                value = function(run, *value) if isinstance(value, tuple) else function(run, value)
            return value

        return apply

    def residual(self, layer: nn.Residual) -> Function:
        """Translate x plus the result of layers on x."""
        inner = self._in_order(layer.layers)
        shortcut = (
            self.identity(layer) if layer.shortcut is None else self.translate(layer.shortcut)
        )
        return self.then(lambda run, x: inner(run, x) + shortcut(run, x), layer.activation)

    def branches(self, layer: nn.Branches) -> Function:
        """Return several layers on the same input, joined."""
        functions = [self.translate(each) for each in layer.branches]
        axis = layer.axis
        return lambda run, x: self.concat([function(run, x) for function in functions], axis)

    def concatenation(self, layer: nn.Concat) -> Function:
        """Return several inputs, joined."""
        return lambda run, *inputs: self.concat(list(inputs), layer.axis)

    def add(self, layer: nn.Add) -> Function:
        """Return several inputs, added."""

        def apply(run: Any, first: Any, *others: Any) -> Any:
            for other in others:
                first = first + other
            return first

        return apply

    def transformer_block(self, layer: nn.TransformerBlock) -> Function:
        """Translate attention and two dense layers, each added to its input."""
        attend = self._in_order([layer.norm1, layer.attention, layer.drop1])
        think = self._in_order([layer.norm2, layer.hidden, layer.output, layer.drop2])

        def apply(run: Any, x: Any, *rest: Any) -> Any:
            if rest:
                raise self._no_mask(layer)
            x = x + attend(run, x)
            return x + think(run, x)

        return apply

    def gpt(self, layer: GPT) -> Function:
        """Return the transformer whose last product shares the table of words."""
        body = self._in_order([layer.words, layer.positions, layer.drop, *layer.blocks, layer.norm])
        scores = self.scores(layer.words)
        return lambda run, words: scores(run, body(run, words))

    def with_heads(self, layer: GoogLeNet | Inception3) -> Function:
        """Return a network that has auxiliary outputs while it trains."""
        if layer.rescale_input:
            raise self.refuse(layer, "rescale_input=False", "True", "rescale the data instead")
        body = [(each, self.translate(each)) for each in layer.body]
        heads = {
            follows: (name, self.translate(head)) for name, (follows, head) in layer._heads.items()
        }
        last = self.translate(layer.fc)

        def apply(run: Any, x: Any) -> Any:
            found = {}
            for each, function in body:
                x = function(run, x)
                if run.training and each in heads:
                    name, head = heads[each]
                    found[name] = head(run, x)
            main = last(run, x)
            return {"main": main, **found} if layer.auxiliary else main

        return apply

    # --- activations

    def activation_layer(self, layer: nn.Layer) -> Function:
        """Translate an activation that is a separate layer, with its settings."""
        settings = {
            field.name: getattr(layer, field.name)
            for field in fields(layer)
            if field.init and field.name not in ("name", "device")
        }
        function = self._activation(ACTIVATION_LAYERS[type(layer)])
        return lambda run, x: function(x, **settings)

    def named_activation(self, layer: nn.Activation) -> Function:
        """Return an activation by name."""
        return self.then(self.identity(layer), layer.kind)

    def then(self, first: Function, activation: str | None) -> Function:
        """Return a function followed by the activation of that name, if there is one."""
        if activation in (None, "linear"):
            return first
        function = self._activation(str(activation))
        return lambda run, *inputs: function(first(run, *inputs))

    def _activation(self, name: str) -> Callable[..., Any]:
        if name not in self._activations:
            raise ConfigError.build(
                self.where,
                expected=f"an activation that is known in {self.name}",
                got=name,
                hint="known are " + ", ".join(sorted(self._activations)),
            )
        return self._activations[name]

    # --- what settings have no translation

    def self_attention_only(self, layer: nn.MultiHeadAttention, rest: Sequence[Any]) -> None:
        """Refuse attention to another sequence, or with a mask."""
        if rest:
            raise self._no_mask(layer)

    def _no_mask(self, layer: nn.Layer) -> ConfigError:
        return self.refuse(layer, "one sequence", "also a mask or another sequence to attend to")

    def last_axes(self, layer: nn.LayerNorm) -> tuple[int, ...]:
        """Return the axes of layer normalisation, counted from the end.

        They must be the last ones.
        """
        axes = tuple(layer.axis) if isinstance(layer.axis, Sequence) else (layer.axis,)
        if sorted(axes) != list(range(-len(axes), 0)):
            raise self.refuse(layer, "the last axes, as negative numbers", f"axis={layer.axis}")
        return axes

    # --- a framework adds the elementary layers that RULES names

    @abstractmethod
    def concat(self, parts: list[Any], axis: int) -> Any:
        """Return values joined along an axis."""

    @abstractmethod
    def scores(self, layer: nn.Embedding) -> Function:
        """Return the product of vectors with every row of a table of words."""


def groups_of(layer: nn.Conv2D | nn.DepthwiseConv2D) -> int:
    """Return the number of channel groups that a convolution does not mix."""
    if isinstance(layer, nn.DepthwiseConv2D):
        return int(layer.weight.shape[0] // layer.multiplier)
    return layer.groups


def values(variables: Sequence[Variable]) -> list[np.ndarray]:
    """Return the current values of variables.

    >>> from caldera import op
    >>> [array.tolist() for array in values([op.var("x", (2,))])]
    [[0.0, 0.0]]
    """
    return [variable.numpy() for variable in variables]


def _check_dtypes(where: str, model: Model) -> None:
    found = {variable.dtype.name for variable in model.parameters()}
    if not found <= {"float32", "float64"}:
        raise DtypeError.build(
            where,
            expected="parameters of float32 or float64",
            got=", ".join(sorted(found)),
            hint="make the model with dtype='float32' and give precision= for the rest",
        )
