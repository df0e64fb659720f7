"""Layers as plain data: the content of a model file, and facts about them without weights.

    {"layer": "Dense", "units": 10, "activation": null, "bias": true, "fill": null}

A layer is its registered name and its fields. Layers inside layers are written the same way, a
filler as {"filler": name, ...}. A layer that occurs several times (shared parameters) is written
once, with a number under "shared", and later as {"layer": "shared", "shared": number}. A file can
therefore create only registered layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.plain_data import plain, revived
from caldera.base.registry import nearest
from caldera.compiler.lazy import Expr
from caldera.core.tensor import Filler
from caldera.errors import CalderaError, ConfigError
from caldera.nn.basic import Input, Sequential, layers
from caldera.nn.few_bits import WeightFormat, set_weight_format, weight_format_of
from caldera.nn.initialisers import fill_from_config, fill_to_config
from caldera.nn.layer import Layer
from caldera.nn.tracing import context, trace

DEEPEST = 64
"""Layers inside layers that a file may hold."""
_MARKS = ("layer", "filler")
_TO_SAVE = "decorate the class with @nn.register so that files can name it"


Replacement = Callable[[Layer], Layer]
"""Returns the layer to describe for a layer: the same layer, or another one in its place."""


def to_config(layer: Layer, instead: Replacement = lambda layer: layer) -> dict[str, Any]:
    """Return a layer and all inside it as a dict that JSON can hold (without the weights).

    >>> from caldera import nn
    >>> nn.to_config(nn.Dense(10))
    {'layer': 'Dense', 'units': 10, 'activation': None, 'bias': True, 'fill': None}
    """
    return _layer_to_config(layer, {}, instead)


def _layer_to_config(
    layer: Layer, written: dict[int, dict[str, Any]], instead: Replacement
) -> dict[str, Any]:
    layer = instead(layer)
    kind = type(layer).__name__
    if kind not in layers or layers[kind] is not type(layer):
        raise ConfigError.build(
            layer.path,
            expected="a registered layer",
            got=kind,
            hint=getattr(layer, "to_save", _TO_SAVE),
        )
    if id(layer) in written:
        first = written[id(layer)]
        first.setdefault("shared", 1 + sum("shared" in each for each in written.values()))
        return {"layer": "shared", "shared": first["shared"]}
    config: dict[str, Any] = {"layer": kind}
    written[id(layer)] = config
    for field in fields(layer):
        is_unset = field.name in ("name", "device") and not getattr(layer, field.name)
        if field.init and not is_unset:
            value = getattr(layer, field.name)
            config[field.name] = _value_to_config(
                value, f"{layer.path} {field.name}=", written, instead
            )
    if layer.frozen:
        config["frozen"] = True
    how = weight_format_of(layer)
    if how is not None:
        config["weight_format"] = how.to_config()
    return config


def _value_to_config(
    value: Any, where: str, written: dict[int, dict[str, Any]], instead: Replacement
) -> Any:
    def convert(part: Any) -> Any:
        if isinstance(part, Layer):
            return _layer_to_config(part, written, instead)
        if isinstance(part, Filler):
            return fill_to_config(part)
        if part is None or isinstance(part, bool | int | float | str):
            return part
        if isinstance(part, np.integer | np.floating | np.bool_):
            return part.item()
        if isinstance(part, dict) and all(isinstance(k, str) and k not in _MARKS for k in part):
            return {key: plain(each, convert, dicts=False) for key, each in part.items()}
        raise ConfigError.build(
            where,
            expected="numbers, text, lists, dicts, layers or fillers",
            got=type(part).__name__,
            hint="a file can store no other types",
        )

    return plain(value, convert, dicts=False)


def from_config(config: Mapping[str, Any]) -> Layer:
    """Return the layer that `to_config` wrote, with new weights.

    >>> from caldera import nn
    >>> nn.from_config({"layer": "Dense", "units": 10})
    Dense(name='', units=10, activation=None, bias=True, fill=None)
    >>> nn.from_config({"layer": "Dense", "unit": 10})
    Traceback (most recent call last):
    caldera.errors.ConfigError: Dense: expected its own settings, got 'unit'; did you mean 'units'?
    """
    return _layer_from_config(config, {}, DEEPEST)


def _layer_from_config(config: Any, shared: dict[int, Layer], depth: int) -> Layer:
    require(depth != 0, "layer", f"at most {DEEPEST} layers deep", "more")
    if not isinstance(config, Mapping) or not isinstance(config.get("layer"), str):
        raise ConfigError.build("layer", expected='{"layer": name, ...}', got=repr(config)[:100])
    settings = {key: value for key, value in config.items() if key not in ("layer", "shared")}
    number = config.get("shared")
    if config["layer"] == "shared":
        if settings or not isinstance(number, int) or number not in shared:
            raise ConfigError.build(
                "shared layer", expected="the index of a preceding layer", got=repr(number)
            )
        return shared[number]
    kind = layers[config["layer"]]
    known = [field.name for field in fields(kind) if field.init]
    frozen, weight_format = settings.pop("frozen", False), settings.pop("weight_format", None)
    for key in settings:
        if key not in known:
            raise ConfigError.build(
                config["layer"],
                expected="its own settings",
                got=repr(key),
                hint=nearest(key, known),
            )
    values = {key: _value_from_config(each, shared, depth) for key, each in settings.items()}
    try:
        layer = kind(**values)
    except CalderaError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError.build(
            config["layer"], expected="settings of this class", got=str(error)
        ) from None
    layer.frozen = bool(frozen)
    if weight_format is not None:
        set_weight_format(layer, WeightFormat.from_config(weight_format))
    if isinstance(number, int):
        shared[number] = layer
    return layer


def _value_from_config(value: Any, shared: dict[int, Layer], depth: int) -> Any:
    def revive(part: Mapping[str, Any]) -> Any:
        if "layer" in part:
            return _layer_from_config(part, shared, depth - 1)
        if "filler" in part:
            return fill_from_config(part)
        return {key: revived(each, revive) for key, each in part.items()}

    return revived(value, revive)


def network(layers: Layer | Sequence[Layer]) -> Layer:
    """Return a list of layers as one layer; the paths of the layers begin with their own names.

    >>> from caldera import nn, op
    >>> whole = nn.network([nn.Input((4,)), nn.Dense(3, name="head")])
    >>> _ = whole(op.input("x", (5, 4)))
    >>> [p.name for p in whole.parameters()]
    ['head/weight', 'head/bias']
    """
    if isinstance(layers, Layer):
        return layers
    whole = Sequential(layers)
    whole._path = ""
    return whole


def sample_input(whole: Layer, input_shape: Sequence[int] | None = None) -> Expr:
    """Return an input for a single sample, of the given shape or the shape of `nn.Input`."""
    declared = next((layer for layer in whole.walk() if isinstance(layer, Input)), None)
    require(
        input_shape is not None or declared is not None,
        whole.path or "network",
        "the shape of a sample",
        hint="give input_shape=, or begin with nn.Input(shape)",
    )
    shape = declared.traced_shape if input_shape is None and declared is not None else input_shape
    dtype = None if declared is None else declared.dtype
    assert shape is not None
    return op.input("x", (1, *shape), dtype=dtype or context().dtype)


def count_parameters(
    layers: Layer | Sequence[Layer], input_shape: Sequence[int] | None = None
) -> int:
    """Return the number of trainable parameters, without allocating them.

    >>> from caldera import nn
    >>> nn.count_parameters([nn.Dense(528), nn.Dense(10)], input_shape=(784,))
    419770
    >>> nn.count_parameters(nn.models.alexnet())
    61100840
    """
    given = [layers] if isinstance(layers, Layer) else list(layers)
    # Built layers are used as they are; the remaining layers create their variables in a copy.
    kept: dict[int, Any] = {
        id(inner): inner for layer in given for inner in layer.walk() if inner.built
    }
    outline = network(copy.deepcopy(given, kept))
    x = sample_input(outline, input_shape)
    with trace(allocate=False):
        outline(x)
    return sum(parameter.size for parameter in outline.parameters())
