"""Networks with weights of a few bits: chosen layers, calibration, comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.formatting import bytes_text
from caldera.compiler.lazy import compile
from caldera.core.graph import topological
from caldera.core.graph.ops.int8 import LARGEST, LEAST
from caldera.nn.arranging import Identity
from caldera.nn.basic import Dense
from caldera.nn.config import to_config
from caldera.nn.convolution import Conv2D
from caldera.nn.few_bits import FewBitsWeight, WeightFormat
from caldera.nn.layer import Layer
from caldera.nn.normalisation import BatchNorm
from caldera.nn.quantised import (
    FewBits,
    FewLevels,
    Int8Conv2D,
    Int8Dense,
    PackedConv2D,
    PackedDense,
)

if TYPE_CHECKING:
    from caldera.train.neural_network import NeuralNetwork


@dataclass(frozen=True)
class Quantisation:
    """Comparison of a quantised network with the network that it was made from.

    `layers` has the paths of the quantised layers, and `nbytes` the bytes of all weights before and
    after. `before` and `after` are results of `evaluate`, if `quantise` was given data.
    """

    layers: tuple[str, ...]
    nbytes: tuple[int, int]
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def change(self) -> dict[str, float]:
        """The change of each result: a loss of accuracy is negative."""
        return {name: float(self.after[name]) - float(self.before[name]) for name in self.before}

    def __str__(self) -> str:
        lines = [f"quantised: {', '.join(self.layers)}"]
        lines.append(f"weights: {bytes_text(self.nbytes[0])}, then {bytes_text(self.nbytes[1])}")
        for name, change in self.change.items():
            lines.append(
                f"{name}: {self.before[name]:.4f}, then {self.after[name]:.4f}, {change:+.4f}"
            )
        return "\n".join(lines)


def quantised_config(
    model: NeuralNetwork, kind: str, samples: Any, *, ends: bool
) -> tuple[list[Any], tuple[str, ...]]:
    """Return the description of a network's layers with quantised layers, and the paths of these.

    For "int8", the first and the last layer with weights are quantised only with `ends`. With
    `samples`, steps of inputs are fixed: the largest input of each layer is measured on them.
    """
    weighted = [each for each in model.walk() if each.variables()]
    kept = weighted[:1] + weighted[-1:] if kind == "int8" and not ends else []
    largest = _largest_inputs(model, samples) if kind == "int8" and samples is not None else {}
    made: dict[int, Layer] = {}
    paths = []
    chosen = [
        each
        for each in model.walk()
        if (_fits_bytes(each) if kind == "int8" else isinstance(each, FewLevels))
        and not any(each is other for other in kept)
    ]
    norms = {id(norm) for norm in norms_after(model, chosen).values()}

    def instead(layer: Layer) -> Layer:
        if id(layer) in norms:
            return made.setdefault(id(layer), Identity(name=layer.name))
        if not any(layer is each for each in chosen):
            return layer
        if id(layer) not in made:
            made[id(layer)] = _quantised(layer, largest.get(id(layer)))
            paths.append(layer.path)
        return made[id(layer)]

    config = to_config(model.network, instead)["layers"]
    expected = "dense layers or convolutions" if kind == "int8" else "ternary or binary layers"
    require(
        paths,
        "quantise",
        expected + (" besides the first and the last layer with weights" if kept else ""),
        ", ".join(type(each).__name__ for each in weighted) or "no weights",
        "write ends=True to quantise the first and the last layer too" if kept else "",
    )
    return config, tuple(paths)


def _quantised(layer: Layer, largest: float | None) -> Layer:
    """Return a layer with the settings of `layer`, without weights yet."""
    how = {each.name: getattr(layer, each.name) for each in fields(layer) if each.init}
    if isinstance(layer, FewLevels):
        packed = PackedDense if isinstance(layer, Dense) else PackedConv2D
        return packed(**how, levels=layer.levels)
    del how["fill"]
    step = None if largest is None else max(largest / LARGEST, LEAST)
    return Int8Dense(**how, step=step) if isinstance(layer, Dense) else Int8Conv2D(**how, step=step)


def _fits_bytes(layer: Layer) -> bool:
    return type(layer) is Dense or (type(layer) is Conv2D and layer.groups == 1)


def norms_after(model: NeuralNetwork, layers: Sequence[Layer]) -> dict[int, BatchNorm]:
    """Return normalisations whose factors can become part of a convolution's weights.

    They are the only readers of a convolution in `layers`, and listed by its `id`.
    """
    if not any(type(each) is BatchNorm for each in model.walk()):
        return {}
    _, outputs, traced = model.expressions(1)
    results = [each.node for each in outputs.values()]
    readers = Counter(results)
    readers.update(given for node in topological(results) for given in node.inputs)
    calls = Counter(id(call.layer) for call in traced.calls)
    convolutions = {
        call.outputs[0].node: call.layer
        for call in traced.calls
        if type(call.layer) is Conv2D
        and call.layer.activation is None
        and calls[id(call.layer)] == 1
        and any(call.layer is each for each in layers)
    }
    return {
        id(convolutions[call.inputs[0].node]): call.layer
        for call in traced.calls
        if type(call.layer) is BatchNorm
        and calls[id(call.layer)] == 1
        and readers[call.inputs[0].node] == 1
        and call.inputs[0].node in convolutions
    }


def _largest_inputs(model: NeuralNetwork, samples: Any) -> dict[int, float]:
    """Return the largest absolute value of each layer's input, by the layer's `id`."""
    x = np.asarray(samples)
    model.ensure_built([x])
    (spec,) = model.signature.inputs[:1]
    _, _, traced = model.expressions_for([(x.shape[1:], spec[1])], len(x))
    calls = [call for call in traced.calls if _fits_bytes(call.layer)]
    plan = compile([op.max(op.abs(call.inputs[0])) for call in calls], remember=False)
    found: dict[int, float] = {}
    for call, most in zip(calls, plan.run({"x0": x.astype(spec[1])}), strict=True):
        found[id(call.layer)] = max(most.item(), found.get(id(call.layer), 0.0))
    return found


WEIGHTS = {"int8-weights": 8, "int4-weights": 4}
"""Bits of weights, by the kind of a quantisation that leaves the inputs as they are."""


def with_weight_format(model: NeuralNetwork, how: WeightFormat) -> list[Any]:
    """Return the description of a network's layers with weights of a few bits."""
    found: list[Any] = to_config(model.network)["layers"]
    for layer, each in zip(model.network.layers, found, strict=True):
        if layer.parameters() and each["layer"] != "shared":
            each["weight_format"] = how.to_config()
    return found


def few_bits_of(layer: Layer) -> dict[str, FewBitsWeight]:
    """Return a layer's weights of a few bits by name, without inner layers."""
    found = [each for each in vars(layer).values() if isinstance(each, FewBitsWeight)]
    return {each.name: each for each in found}


def take_weights(model: NeuralNetwork, source: NeuralNetwork) -> None:
    """Take the weights of the network that `model` was described from, rounded where required."""
    norms = norms_after(source, tuple(source.walk()))
    for new, old in zip(model.walk(), source.walk(), strict=True):
        take: Any = new.take if isinstance(new, Int8Conv2D | Int8Dense | FewBits) else None
        if isinstance(new, Int8Conv2D) and isinstance(old, Conv2D) and type(old) is not Int8Conv2D:
            new.take(old, norms.get(id(old)))
        elif take is not None and type(new) is not type(old):
            take(old)
        else:
            targets: dict[str, Any] = {**new.variables(), **few_bits_of(new)}
            values = old.variables()
            # A normalisation that became part of its convolution has none left.
            for name in targets.keys() & values.keys():
                targets[name].assign(values[name].numpy())


def comparison(
    model: NeuralNetwork, source: NeuralNetwork, paths: tuple[str, ...], data: Any
) -> Quantisation:
    """Compare the sizes of two networks, and their results on data if there are any."""
    sizes = [
        sum(each.tensor.nbytes for each in (*network.parameters(), *network.states()))
        for network in (source, model)
    ]
    results: list[dict[str, Any]] = [{}, {}]
    if data is not None:
        results = [network.evaluate(data) for network in (source, model)]
    return Quantisation(paths, (sizes[0], sizes[1]), *results)
