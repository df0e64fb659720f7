"""Conversion of user-written layouts of layers to layouts of parameters and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caldera import nn
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.distributions import Axis, Distribution, Replicated, as_layout
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, along_axis
from caldera.compiler.sharding.ops import copies
from caldera.compiler.sharding.volume import Links
from caldera.core.tensor.shape import Shape, size
from caldera.errors import CalderaError, ConfigError
from caldera.nn import Layer, LayerCall
from caldera.parallel.tensor.candidates import (
    LEAST,
    Candidate,
    amounts,
    candidates,
    layouts_of,
)

WORDS = ("rows", "columns", "inputs", "replicated", "auto")
"""Split by samples, by output features, by input features, not at all, or automatically."""
WAYS = ("outputs", "heads", "inputs")
"""Words for parameters only. "outputs" and "heads" equal "columns", except that the output stays in
the layout that suits the next layer.
"""
OUTPUT = "output"
"""Name of a layer's output, in addition to its parameters' names."""
OUTPUT_AXES: dict[type[Layer], dict[str, int]] = {
    nn.Dense: {"weight": 1, "bias": 0},
    nn.Conv1D: {"weight": 0, "bias": 0},
    nn.Conv2D: {"weight": 0, "bias": 0},
    nn.BatchNorm: {"weight": 0, "bias": 0},
    nn.Embedding: {"weight": 1},
}
"""Axes of parameters that correspond to output features."""

Wanted = str | Distribution | Mapping[str, Any]
Key = str | int | type[Layer]
LayerLayouts = Mapping[Key, Wanted] | Mapping[str, str] | str


@dataclass
class ChosenLayouts:
    """Chosen layouts of `parameters` and `outputs`, and the layers `left` to choose.

    The remaining layers are chosen once the layouts of preceding outputs are known.
    """

    parameters: dict[Variable, ShardLayout] = field(default_factory=dict)
    outputs: dict[Layer, Distribution] = field(default_factory=dict)
    left: list[Candidate] = field(default_factory=list)

    def of_parameters(
        self, made: Sequence[Expr], rank: int, ranks: int, links: Links | None = None
    ) -> dict[Variable, ShardLayout]:
        """Return the layouts of partitioned parameters; `made` are the model's outputs."""
        found = dict(self.parameters)
        found |= layouts_of(self.left, made, rank, ranks, found, links)
        return {
            each: layout
            for each, layout in found.items()
            if not layout.is_replicated or len(layout.ranks) < ranks
        }


# --- what is given


def check_layouts(where: str, given: Any) -> None:
    """Raise for values that are not layouts of a layer, before a model exists."""
    if given == "auto" and isinstance(given, str):
        return
    if not isinstance(given, Mapping) or not given:
        raise ConfigError.build(
            where,
            expected='layouts by layers, or "auto"',
            got=repr(given),
            hint='for example {nn.Conv2D: "rows", "2-Dense": dm.Columns()}; model.summary() '
            "shows the names of layers",
        )
    for key, value in given.items():
        is_layer = isinstance(key, type) and issubclass(key, Layer)
        if not is_layer and (isinstance(key, bool) or not isinstance(key, str | int)):
            raise ConfigError.build(
                where,
                expected="a layer's name, its number or a class of layers as a key",
                got=repr(key),
            )
        _check_value(f"{where}[{_text(key)}]", value)


def _check_value(where: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not isinstance(each, Distribution) and each not in ("rows", "columns", "replicated"):
                raise ConfigError.build(
                    f"{where}[{name!r}]",
                    expected='a layout such as dm.Rows(), "rows", "columns" or "replicated"',
                    got=repr(each),
                )
    elif not isinstance(value, Distribution) and not (
        isinstance(value, str) and value in (*WORDS, *WAYS)
    ):
        raise ConfigError.build(
            where,
            expected="one of " + ", ".join(WORDS) + ", a layout such as dm.Rows(), or "
            "layouts by the names of parameters",
            got=repr(value),
        )


def _text(key: Key) -> str:
    return key.__name__ if isinstance(key, type) else repr(key)


def described(given: Any) -> Any:
    """Describe layouts in words, for comparison between ranks."""
    if not isinstance(given, Mapping):
        return given
    return {_text(key): repr(value) for key, value in given.items()}


# --- which layers are meant


@dataclass(frozen=True)
class Meant:
    """Requested layout of a layer, its source, and whether it was given for the layer itself."""

    where: str
    value: Wanted
    itself: bool


def layers_meant(where: str, model: Layer, given: Mapping[Any, Wanted]) -> dict[Layer, Meant]:
    """Return the requested layout of each layer.

    A name or index takes precedence over a class, and a layer over its container.
    """
    found: dict[Layer, Meant] = {}
    for key, value in sorted(given.items(), key=lambda each: not isinstance(each[0], type)):
        here = f"{where}[{_text(key)}]"
        meant = _meant(here, model, key)
        for layer in meant if isinstance(value, Mapping) else _inside(meant):
            itself = layer in meant and not isinstance(key, type)
            if layer in meant or layer not in found:
                found[layer] = Meant(here, value, itself)
    return found


def _inside(meant: Sequence[Layer]) -> Iterator[Layer]:
    for layer in meant:
        inner = [each for each in layer.walk() if not list(each.children())]
        yield from (each for each in inner if each not in meant)
        yield layer


def _meant(where: str, model: Layer, key: Key) -> list[Layer]:
    known = [layer for layer in model.walk() if layer is not model]
    if isinstance(key, type):
        found = [layer for layer in known if isinstance(layer, key)]
        expected = "a class of which the model has layers"
    elif isinstance(key, str):
        found = [layer for layer in known if key in (layer.path, layer.name)]
        expected = "one of " + ", ".join(layer.path for layer in known)
    else:
        own = [layer for _, layer in model.children()]
        found = own[key:][:1] if -len(own) <= key < len(own) else []
        expected = f"a number from 0 to {len(own) - 1}, of the layers of the model"
    if not found or (len(found) > 1 and not isinstance(key, type)):
        raise ConfigError.build(
            where, expected=expected, got=_text(key), hint="model.summary() shows the layers"
        )
    return found


# --- layouts


def chosen_layouts(
    where: str,
    model: Layer,
    given: LayerLayouts | None,
    calls: Sequence[LayerCall],
    ranks: int,
    *,
    least: int = LEAST,
    dense_only: bool = False,
) -> ChosenLayouts:
    """Return the layouts of a model's parameters and layer outputs on `ranks` ranks.

    `calls` are the layer calls of a whole batch. Without layouts, layers are split whose weight has
    at least `least` elements.
    """
    found = ChosenLayouts()
    open_ = {each.layer: each for each in candidates(model, ranks) if each.ways}
    if given is None:
        kinds = (nn.Dense, nn.MultiHeadAttention) if dense_only else (Layer,)
        found.left = [
            each
            for layer, each in open_.items()
            if each.weight.size >= least and isinstance(layer, kinds)
        ]
        return found
    shapes = _output_shapes(calls)
    if isinstance(given, str):
        inputs = {call.layer: call.inputs[0].shape for call in reversed(calls) if call.inputs}
        found.left = [
            each
            for layer, each in open_.items()
            if not isinstance(layer, nn.Conv1D | nn.Conv2D)
            and layer in inputs
            and each.weight.size > size(inputs[layer]) + size(shapes[layer][0])
        ]
        return found
    for layer, meant in layers_meant(where, model, given).items():
        if meant.value == "auto":
            found.left += [open_[layer]] if layer in open_ else []
            continue
        layouts = _of_layer(layer, meant, shapes.get(layer, ()), ranks, found.outputs)
        if not layer.frozen:
            for variable, layout in layouts.items():
                found.parameters.setdefault(variable, layout)
    return found


def _output_shapes(calls: Sequence[LayerCall]) -> dict[Layer, list[Shape]]:
    found: dict[Layer, list[Shape]] = {}
    for call in calls:
        found.setdefault(call.layer, []).extend(each.shape for each in call.outputs)
    return found


def _of_layer(
    layer: Layer,
    meant: Meant,
    shapes: Sequence[Shape],
    ranks: int,
    outputs: dict[Layer, Distribution],
) -> dict[Variable, ShardLayout]:
    where, value = meant.where, meant.value
    if isinstance(value, Mapping):
        return _by_name(where, layer, value, ranks, outputs)
    if isinstance(value, str) and value in WAYS:
        return _of_weights(meant, layer, value, ranks)
    distribution = _distribution(layer, value, len(shapes[0]) if shapes else 2)
    outputs[layer] = distribution
    found: dict[Variable, ShardLayout] = {}
    for shape in shapes:
        layout = layout_on(where, distribution, shape, ranks)
        for variable, own in _following(layer, layout, ranks).items():
            found.setdefault(variable, own)
    return found


def _by_name(
    where: str,
    layer: Layer,
    value: Mapping[str, Any],
    ranks: int,
    outputs: dict[Layer, Distribution],
) -> dict[Variable, ShardLayout]:
    trained = {each.symbol for each in layer.parameters()}
    own = {name: each for name, each in layer.variables().items() if each.symbol in trained}
    found: dict[Variable, ShardLayout] = {}
    for name, each in value.items():
        if name == OUTPUT:
            outputs[layer] = _distribution(layer, each, 2)
        elif name in own:
            given = _distribution(layer, each, 2)
            found[own[name]] = layout_on(f"{where}[{name!r}]", given, own[name].shape, ranks)
        else:
            raise ConfigError.build(
                f"{where}[{name!r}]",
                expected="one of " + ", ".join([*own, OUTPUT]),
                got=repr(name),
                hint=f"these are the parameters and the output of {layer.path}",
            )
    return found


def _of_weights(meant: Meant, layer: Layer, way: str, ranks: int) -> dict[Variable, ShardLayout]:
    """Return the layouts of a layer's parameters by outputs, inputs or heads."""
    for each in candidates(layer, ranks):
        if each.layer is not layer:
            continue
        if way in each.ways:
            return dict(each.ways[way])
        raise ConfigError.build(
            meant.where,
            expected="one of " + ", ".join([*each.ways, "auto"]) + f" for {ranks} ranks",
            got=repr(way),
            hint=f"each rank needs at least one element of the divided axis: {amounts(layer)}",
        )
    if list(layer.children()) or layer.frozen or not meant.itself:
        return {}
    raise ConfigError.build(
        meant.where,
        expected="a dense layer or a convolution with a feature for each rank",
        got=f'"{way}" for {type(layer).__name__} {layer.path}',
    )


def _distribution(layer: Layer, value: Any, axes: int) -> Distribution:
    if isinstance(value, Distribution):
        return value
    if value == "replicated":
        return Replicated()
    return Axis(0) if value == "rows" else Axis(_features(layer, axes))


def _features(layer: Layer, axes: int) -> int:
    """Return the feature axis of a layer's output."""
    by_channels = axes > 3 or isinstance(layer, nn.Conv1D | nn.Conv2D)
    return 1 if by_channels and not isinstance(layer, nn.Dense | nn.Embedding) else -1


def layout_on(where: str, given: Distribution, shape: Shape, ranks: int) -> ShardLayout:
    """Return a layout for a value of this shape over up to `ranks` ranks."""
    try:
        layout = as_layout(given, shape, range(ranks))
        copies(layout)
    except CalderaError as error:
        raise ConfigError.build(
            where,
            expected=f"a layout for a value of shape {shape} on {ranks} ranks",
            got=repr(given),
            hint=str(error),
        ) from None
    if max(layout.ranks) >= ranks:
        raise ConfigError.build(
            where,
            expected=f"a layout on ranks 0 to {ranks - 1}",
            got=f"{given!r}, on {', '.join(map(str, layout.ranks))}",
        )
    return layout


def _following(layer: Layer, layout: ShardLayout, ranks: int) -> dict[Variable, ShardLayout]:
    """Return parameters that belong to features, as those are shared out."""
    if not isinstance(layout, CartesianLayout) or not layout.shape:
        return {}
    if len(layout.ranks) < ranks:
        return {}
    axis = _features(layer, len(layout.shape)) % len(layout.shape)
    in_groups = isinstance(layer, nn.Conv1D | nn.Conv2D) and layer.groups != 1
    if layout.splits[axis] is None or in_groups:
        return {}
    own = layer.variables()
    if isinstance(layer, nn.MultiHeadAttention):
        ways = [each.ways for each in candidates(layer, ranks)]
        return dict(ways[0].get("heads", {})) if ways else {}
    features = layout.without([each for each in range(len(layout.shape)) if each != axis])
    found: dict[Variable, ShardLayout] = {}
    axes = next((each for kind, each in OUTPUT_AXES.items() if isinstance(layer, kind)), {})
    for name, along in axes.items():
        if name in own and own[name].shape[along] == features.shape[0]:
            shape, split = own[name].shape, features.splits[0]
            found[own[name]] = along_axis(shape, along, split, features.ranks)
    return found
