"""Networks with weights of 8 or 2 bits: chosen layers, calibration, comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.formatting import bytes_text
from caldera.compiler.lazy import compile
from caldera.core.graph.ops.int8 import LARGEST, LEAST
from caldera.nn.basic import Dense
from caldera.nn.config import to_config
from caldera.nn.layer import Layer
from caldera.nn.quantised import FewLevels, Int8Dense, TwoBitConv2D, TwoBitDense, TwoBits

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

    def instead(layer: Layer) -> Layer:
        is_chosen = type(layer) is Dense if kind == "int8" else isinstance(layer, FewLevels)
        if not is_chosen or any(layer is each for each in kept):
            return layer
        if id(layer) not in made:
            made[id(layer)] = _quantised(layer, largest.get(id(layer)))
            paths.append(layer.path)
        return made[id(layer)]

    config = to_config(model.network, instead)["layers"]
    expected = "dense layers" if kind == "int8" else "ternary or binary layers"
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
        return TwoBitDense(**how) if isinstance(layer, Dense) else TwoBitConv2D(**how)
    del how["fill"]
    step = None if largest is None else max(largest / LARGEST, LEAST)
    return Int8Dense(**how, step=step)


def _largest_inputs(model: NeuralNetwork, samples: Any) -> dict[int, float]:
    """Return the largest absolute value of each dense layer's input, by the layer's `id`."""
    x = np.asarray(samples)
    model.ensure_built([x])
    (spec,) = model.signature.inputs[:1]
    _, _, traced = model.expressions_for([(x.shape[1:], spec[1])], len(x))
    calls = [call for call in traced.calls if type(call.layer) is Dense]
    plan = compile([op.max(op.abs(call.inputs[0])) for call in calls], remember=False)
    found: dict[int, float] = {}
    for call, most in zip(calls, plan.run({"x0": x.astype(spec[1])}), strict=True):
        found[id(call.layer)] = max(most.item(), found.get(id(call.layer), 0.0))
    return found


def take_weights(model: NeuralNetwork, source: NeuralNetwork) -> None:
    """Take the weights of the network that `model` was described from, rounded where required."""
    for new, old in zip(model.walk(), source.walk(), strict=True):
        take: Any = new.take if isinstance(new, Int8Dense | TwoBits) else None
        if take is not None and type(new) is not type(old):
            take(old)
        else:
            for name, variable in new.variables().items():
                variable.assign(old.variables()[name].numpy())


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
