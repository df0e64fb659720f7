"""Layers that can be split over ranks, and how each is: by outputs, by inputs, or by heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caldera import nn
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.nn.layer import Layer
from caldera.parallel.distributed_variables import AXIS, evenly

LEAST = 1 << 16
"""Elements of a weight that is worth an exchange."""


@dataclass(eq=False)
class Candidate:
    """A layer that can be split: `ways` has the layouts of its variables for each way to do it."""

    layer: Layer
    weight: Variable
    ways: Mapping[str, Mapping[Variable, CartesianLayout]]


def candidates(model: Layer, ranks: int) -> Iterator[Candidate]:
    """Yield the layers of a model that `ranks` ranks can share."""
    for layer in model.walk():
        own = layer.variables()
        if layer.frozen or not layer.built:
            continue
        if isinstance(layer, nn.MultiHeadAttention):
            weight = own["input_weight"]
            if weight.shape[1] != 3 * weight.shape[0]:
                continue  # keys of fewer heads, or of another width, than queries
            yield Candidate(layer, weight, _checked({"heads": _by_heads(layer, own, ranks)}))
        elif isinstance(layer, nn.Dense):
            yield Candidate(layer, own["weight"], _checked(_by_features(own, 1, 0, ranks)))
        elif isinstance(layer, nn.Conv2D | nn.Conv1D) and layer.groups == 1:
            yield Candidate(layer, own["weight"], _checked(_by_features(own, 0, 1, ranks)))


def _by_features(
    own: Mapping[str, Variable], outputs: int, inputs: int, ranks: int
) -> dict[str, dict[Variable, CartesianLayout]]:
    """Return the splits along the weight's axes of output and input features."""
    weight, bias = own["weight"], own.get("bias")
    given = {weight: evenly(weight.shape, outputs, ranks)}
    if bias is not None:
        given[bias] = evenly(bias.shape, 0, ranks)
    return {"outputs": given, "inputs": {weight: evenly(weight.shape, inputs, ranks)}}


def _by_heads(
    layer: nn.MultiHeadAttention, own: Mapping[str, Variable], ranks: int
) -> dict[Variable, CartesianLayout]:
    unit = own["output_weight"].shape[0] // layer.heads
    found = {
        own["input_weight"]: evenly(own["input_weight"].shape, 1, ranks, unit, blocks=3),
        own["output_weight"]: evenly(own["output_weight"].shape, 0, ranks, unit),
    }
    if layer.bias:
        found[own["input_bias"]] = evenly(own["input_bias"].shape, 0, ranks, unit, blocks=3)
    return found


def _checked(
    ways: Mapping[str, Mapping[Variable, CartesianLayout]],
) -> dict[str, Mapping[Variable, CartesianLayout]]:
    """Return the splits in which every rank has a part."""
    return {
        way: layouts
        for way, layouts in ways.items()
        if all(layout.elements(rank) for layout in layouts.values() for rank in layout.ranks)
    }


def amounts(layer: Layer) -> str:
    """Describe the divisible dimensions of a layer."""
    return "there are " + " and ".join(f"{n} {what}" for what, n in _divisible(layer).items())


def _divisible(layer: Layer) -> dict[str, int]:
    """Return the divisible dimensions of a layer, with their sizes."""
    if isinstance(layer, nn.MultiHeadAttention):
        return {"heads": layer.heads}
    weight = layer.variables()["weight"]
    outputs, inputs = (1, 0) if isinstance(layer, nn.Dense) else (0, 1)
    return {"outputs": weight.shape[outputs], "inputs": weight.shape[inputs]}


def most_ranks(model: Layer, least: int = LEAST) -> dict[Layer, int]:
    """Return the maximum number of ranks for each layer that is large enough to be split.

    >>> from caldera import nn, op
    >>> network = nn.Sequential([nn.Dense(256), nn.Dense(3)])
    >>> _ = network(op.input("x", (2, 512)))
    >>> list(most_ranks(network).values())
    [512]
    """
    large = [each.layer for each in candidates(model, 1) if each.weight.size >= least]
    return {layer: max(_divisible(layer).values()) for layer in large}


def layouts_of(
    chosen: Sequence[Candidate],
    outputs: Sequence[Expr],
    rank: int,
    ranks: int,
    known: Mapping[Variable, ShardLayout] | None = None,
    links: Links | None = None,
) -> dict[Variable, CartesianLayout]:
    """Return the layout of each variable of the chosen layers.

    `outputs` are the model's outputs, `known` the layouts of further variables. A layer whose input
    is split uses the parts directly, without an exchange with the previous layer. Any other layer
    receives its whole input and returns a part of its output.
    """
    graph = _Choosing(rank, ranks, chosen, links)
    for variable, layout in (known or {}).items():
        graph.split_now(variable.node, stand_in(variable, layout, rank).node, layout)
    graph.written([each.node for each in outputs])
    return graph.found


def stand_in(variable: Variable, layout: ShardLayout, rank: int) -> Variable:
    """Return a placeholder for a rank's part of a variable, for graphs that never run."""
    part = Spec(layout.local_shape(rank), variable.dtype)
    return Variable(Symbol(variable.name, part, "variable"))


FEATURES = {"matmul": -1, "conv2d": 1}
"""Axis of the operand multiplied with a weight that the product sums over."""


class _Choosing(RankGraph):
    """Graph of a rank that selects the layout of each layer when it reaches the layer."""

    def __init__(
        self, rank: int, ranks: int, chosen: Sequence[Candidate], links: Links | None
    ) -> None:
        super().__init__(rank, ranks, {}, AXIS, links=links)
        self.found: dict[Variable, CartesianLayout] = {}
        self._open = {each.weight.node: each for each in chosen}

    def before(self, node: Node) -> None:
        if node.op.name not in FEATURES:
            return
        x, weight = node.inputs
        # A weight may be seen in another shape, or in pieces.
        seen = [weight]
        while seen[-1].op.kind == "movement":
            seen.append(seen[-1].inputs[0])
        layer = self._open.pop(seen[-1], None)
        if layer is None:
            return
        fed_by_parts = self._has_parts_along(x, FEATURES[node.op.name])
        usual = "inputs" if fed_by_parts and "inputs" in layer.ways else "outputs"
        way = usual if usual in layer.ways else next(iter(layer.ways))
        for variable, layout in layer.ways[way].items():
            self.found[variable] = layout
            self.split_now(variable.node, stand_in(variable, layout, self.rank).node, layout)
        self.settle_again(reversed(seen[:-1]))

    def _has_parts_along(self, node: Node, axis: int) -> bool:
        layout = self.suited(node)
        return layout is not None and layout.splits[axis] is not None
