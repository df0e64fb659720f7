"""Default search spaces: ranges declared by layers, optimizers and the zoo."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from caldera.base.arguments import require
from caldera.errors import ConfigError
from caldera.nn import Layer, to_config
from caldera.search.architecture import repeat
from caldera.search.dimension import choice, integer, log, uniform
from caldera.search.space import Space
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork
from caldera.train.saving.model_file import layers_from_config, settings_from_config, settings_of

_ACTIVATIONS = ("choice", ("relu", "tanh", "gelu", "silu"))
RANGES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "mlp": {
        "hidden": ("list", 1, 4, 32, 1024),
        "activation": _ACTIVATIONS,
        "dropout": ("uniform", 0.0, 0.6),
    },
    "lenet5": {"activation": _ACTIVATIONS, "pooling": ("choice", ("max", "average"))},
    "lstm_classifier": {
        "width": ("whole", 16, 256),
        "units": ("whole", 16, 512),
        "depth": ("whole", 1, 3),
        "bidirectional": ("choice", (False, True)),
        "dropout": ("uniform", 0.0, 0.6),
    },
    "alexnet": {"dropout": ("uniform", 0.2, 0.7)},
    "vgg16": {"dropout": ("uniform", 0.2, 0.7)},
    "vgg19": {"dropout": ("uniform", 0.2, 0.7)},
    "gpt": {
        "depth": ("whole", 1, 12),
        "width": ("choice", (64, 128, 256, 512)),
        "heads": ("choice", (2, 4, 8)),
        "dropout": ("uniform", 0.0, 0.3),
    },
}
"""Ranges of the arguments of models in the zoo, in the words of `Layer.ranges`.

("list", least, most, low, high) is a list of integers."""
_BATCHES = (16, 32, 64, 128, 256)
_WIDTHS = ("units", "filters")


def space_of(model: Any) -> Space:
    """Return an initial space: ranges around a model's settings, or of a zoo function.

    `search.build_like(model)` builds models from the selected values. For a network that is a plain
    list of layers the widths vary, except in the last layer. For other networks only arguments vary
    that cannot break them.

    >>> import caldera as cd
    >>> from caldera import nn, search
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(32, activation="relu"), nn.Dense(3)])
    >>> search.space_of(model)
    Space(learning_rate, batch_size, dense1_units, dense1_activation)
    >>> search.space_of(nn.models.mlp)
    Space(hidden, activation, dropout)
    """
    if isinstance(model, Model):
        return Space(
            _settings(model) | {name: part for name, (_, _, part) in _places(model).items()}
        )
    name = getattr(model, "__name__", "")
    if not callable(model) or name not in RANGES:
        raise ConfigError.build(
            "space_of",
            expected="a model, or a function of the zoo with default ranges",
            got=repr(model)[:80],
            hint="known: " + ", ".join(RANGES),
        )
    taken = inspect.signature(model).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    return Space(
        {key: _part(said, None) for key, said in RANGES[name].items() if takes_all or key in taken}
    )


def build_like(model: Model) -> Callable[..., Model]:
    """Return a function that builds similar networks from the parameters of `space_of`.

    >>> import caldera as cd
    >>> from caldera import nn, search
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(32, activation="relu"), nn.Dense(3)])
    >>> build = search.build_like(model)
    >>> build(dense1_units=8, learning_rate=0.1).parameters()[0].shape
    (4, 8)
    """
    network = model.sequence() if isinstance(model, Model) else None
    if network is None:
        raise ConfigError.build(
            "build_like",
            expected="a NeuralNetwork, which is a list of layers",
            got=type(model).__name__,
            hint="write a build function for a custom model",
        )
    layers, settings = to_config(network)["layers"], settings_of(model)
    places, device = _places(model), model.device
    known = [*_settings(model), *places]

    def build(**parameters: Any) -> Model:
        made, given = copy.deepcopy(layers), copy.deepcopy(settings)
        owners = {name: (given["optimizer"]["arguments"], name) for name in known}
        owners |= {name: (made[index], argument) for name, (index, argument, _) in places.items()}
        owners["batch_size"] = given, "batch_size"
        for name, value in parameters.items():
            require(
                name in owners,
                "build_like",
                "a name of space_of(model)",
                repr(name),
                hint="known: " + ", ".join(known),
            )
            owner, argument = owners[name]
            owner[argument] = value
        where = "build_like"
        chosen = settings_from_config(given, where)
        return NeuralNetwork(layers_from_config(made, where), **chosen, device=device)

    return build


def _settings(model: Model) -> dict[str, Any]:
    """Return the dimensions of the optimizer and the batch size."""
    optimizer, found = model.optimizer, {}
    arguments = optimizer.arguments()
    for name, said in optimizer.ranges.items():
        value = arguments.get(name)
        # A schedule has its own form, and no decay at all is a decision.
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = _part(said, value)
    if not model.between_epochs:
        sizes = sorted({*_BATCHES, model.batch_size})
        found["batch_size"] = choice(sizes)
    return found


def _places(model: Model) -> dict[str, tuple[int, str, Any]]:
    """Return the layer index, the argument and the dimension of each parameter by name."""
    network = model.sequence()
    if network is None:
        return {}
    layers: list[Layer] = list(network.layers)
    plain = not any(True for layer in layers for _ in layer.children())
    last = max((i for i, layer in enumerate(layers) if layer.parameters()), default=-1)
    found: dict[str, tuple[int, str, Any]] = {}
    for index, layer in enumerate(layers):
        for argument, said in layer.ranges.items():
            value = getattr(layer, argument)
            # The task fixes the width of the last layer; a nested block may add its input.
            fixed = index == last or (argument in _WIDTHS and not plain)
            if value is None or fixed:
                continue
            name = f"{type(layer).__name__.lower()}{index}_{argument}"
            found[name] = (index, argument, _part(said, value))
    return found


def _part(said: tuple[Any, ...], value: Any) -> Any:
    """Return a part of a space from the words of `Layer.ranges`."""
    match said:
        case ("around", factor):
            return integer(max(1, math.ceil(value / factor)), math.ceil(value * factor), log=True)
        case ("near", factor):
            return log(value / factor, value * factor)
        case ("choice", values):
            is_known = value is None or value in values
            return choice(list(values) if is_known else [value, *values])
        case ("whole", low, high):
            return integer(low, high, log=True)
        case ("list", least, most, low, high):
            return repeat(integer(low, high, log=True), least, most)
        case ("log", low, high):
            return log(low, high)
        case _:
            return uniform(*said[1:])
