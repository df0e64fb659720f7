"""Tensor parallelism of layers: selection, parameter shards, and the network of one rank.

Ranks along "model" share the selected layers. The network of a rank is derived before any layer
is split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property

from caldera import nn
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.collective_moves import CollectiveMoves
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.ops import copies
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.compiler.sharding.rules.registry import ShardPlacement
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.errors import ConfigError
from caldera.nn.layer import Layer
from caldera.nn.tracing import Context, LayerCall
from caldera.optim import Optimizer
from caldera.optim.sharding import Sharding
from caldera.parallel.distributed_variables import AXIS, ParameterShards, evenly

WAYS = ("outputs", "inputs", "heads", "auto")
"""By the features that a layer gives, by those it takes, by heads, or as it fits best."""
LEAST = 1 << 16
"""Elements of a weight that is worth an exchange."""


@dataclass(eq=False)
class Candidate:
    """A layer that can be split: `ways` has the layouts of its variables for each way to do it.

    `chosen` is the way; "auto" until the first product with `weight` shows what fits.
    """

    layer: Layer
    weight: Variable
    ways: Mapping[str, Mapping[Variable, CartesianLayout]]
    chosen: str = field(default="auto")


def candidates(model: Layer, ranks: int) -> Iterator[Candidate]:
    """The layers of a model that can be split over so many ranks."""
    for layer in model.walk():
        own = layer.variables()
        if layer.frozen or not layer.built:
            continue
        if isinstance(layer, nn.MultiHeadAttention):
            weight = own["input_weight"]
            yield Candidate(layer, weight, _checked({"heads": _by_heads(layer, own, ranks)}))
        elif isinstance(layer, nn.Dense):
            yield Candidate(layer, own["weight"], _checked(_by_features(own, 1, 0, ranks)))
        elif isinstance(layer, nn.Conv2D | nn.Conv1D) and layer.groups == 1:
            yield Candidate(layer, own["weight"], _checked(_by_features(own, 0, 1, ranks)))


def _by_features(
    own: Mapping[str, Variable], outputs: int, inputs: int, ranks: int
) -> dict[str, dict[Variable, CartesianLayout]]:
    """By the axes of the weight that belong to what a layer gives and takes."""
    weight, bias = own["weight"], own.get("bias")
    given = {weight: evenly(weight.shape, outputs, ranks)}
    if bias is not None:
        given[bias] = evenly(bias.shape, 0, ranks)
    return {"outputs": given, "inputs": {weight: evenly(weight.shape, inputs, ranks)}}


def _by_heads(
    layer: nn.MultiHeadAttention, own: Mapping[str, Variable], ranks: int
) -> dict[Variable, CartesianLayout]:
    width = own["output_weight"].shape[0]
    unit = width // layer.heads
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
    """Those in which every rank has something."""
    return {
        way: layouts
        for way, layouts in ways.items()
        if all(layout.elements(rank) for layout in layouts.values() for rank in layout.ranks)
    }


def chosen_layers(
    model: Layer, ranks: int, wanted: Mapping[str, str] | None, *, least: int, dense_only: bool
) -> list[Candidate]:
    """The layers to split: those that are named, or else all that are large enough."""
    known = list(candidates(model, ranks))
    if wanted is None:
        kinds = (nn.Dense, nn.MultiHeadAttention) if dense_only else (Layer,)
        return [
            each
            for each in known
            if each.weight.size >= least and each.ways and isinstance(each.layer, kinds)
        ]
    found = []
    for name, way in wanted.items():
        named = [each for each in known if name in (each.layer.path, each.layer.name)]
        if len(named) != 1:
            raise ConfigError.build(
                f"splits[{name!r}]",
                expected="one of " + ", ".join(e.layer.path for e in known),
                got=repr(name),
                hint="only dense, convolution and attention layers can be split",
            )
        (each,) = named
        if (way != "auto" and way not in each.ways) or not each.ways:
            raise ConfigError.build(
                f"splits[{name!r}]",
                expected="one of " + ", ".join([*each.ways, "auto"]) + f" for {ranks} ranks",
                got=repr(way),
                hint=f"each rank needs at least one of what is divided: {_amounts(each.layer)}",
            )
        each.chosen = way
        found.append(each)
    return found


def _amounts(layer: Layer) -> str:
    return "there are " + " and ".join(f"{n} {what}" for what, n in _divisible(layer).items())


def _divisible(layer: Layer) -> dict[str, int]:
    """What a layer that can be split has for ranks to share, and how many of each."""
    if isinstance(layer, nn.MultiHeadAttention):
        return {"heads": layer.heads}
    weight = layer.variables()["weight"]
    outputs, inputs = (1, 0) if isinstance(layer, nn.Dense) else (0, 1)
    return {"outputs": weight.shape[outputs], "inputs": weight.shape[inputs]}


def most_ranks(model: Layer, least: int = LEAST) -> dict[Layer, int]:
    """Over how many ranks each layer can be split at the most that is large enough to be.

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
    """How each variable of these layers is split, where `outputs` is what the model computes, and
    `known` are the layouts of others.

    A layer that is fed by parts of its input takes those, so that nothing is exchanged between it
    and the layer before; any other one is given all of its input, and gives parts of its output.
    """
    graph = _Choosing(rank, ranks, chosen, links)
    for variable, layout in (known or {}).items():
        graph.split_now(variable.node, stand_in(variable, layout, rank).node, layout)
    graph.written([each.node for each in outputs])
    return graph.found


def stand_in(variable: Variable, layout: ShardLayout, rank: int) -> Variable:
    """Stands for a rank's part of a variable in graphs that are never run."""
    part = Spec(layout.local_shape(rank), variable.dtype)
    return Variable(Symbol(variable.name, part, "variable"))


FEATURES = {"matmul": -1, "conv2d": 1}
"""The axis of what a weight is multiplied with that the product sums over."""


class _Choosing(RankGraph):
    """Decides about each layer when it is met."""

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
        way = layer.chosen
        if way == "auto":
            fed_by_parts = self._has_parts_along(x, FEATURES[node.op.name])
            usual = "inputs" if fed_by_parts and "inputs" in layer.ways else "outputs"
            way = usual if usual in layer.ways else next(iter(layer.ways))
        layer.chosen = way
        for variable, layout in layer.ways[way].items():
            self.found[variable] = layout
            self.split_now(variable.node, stand_in(variable, layout, self.rank).node, layout)
        self.settle_again(reversed(seen[:-1]))

    def _has_parts_along(self, node: Node, axis: int) -> bool:
        layout = self.suited(node)
        return layout is not None and layout.splits[axis] is not None


class ShardedLayers:
    """Which parameters are split over the ranks of `along`, and this rank's part of each.

    `wanted` are the splits of layers by their names; without it, all layers are split whose weight
    has at least `least` elements. Until `choose` has been called nothing is split.

    - `shards`: the parameters that are split; `links`: what moves cost, by the measured link.
    - `direct`: whether parts may go from rank to rank, which needs kernels of the host.
    """

    def __init__(
        self,
        where: str,
        along: Communicator,
        everyone: Communicator,
        wanted: Mapping[str, str] | None,
        least: int,
    ) -> None:
        if wanted is not None and not isinstance(wanted, Mapping):
            raise ConfigError.build(
                where,
                expected='splits by the names of layers, as in {"1-Dense": "outputs"}',
                got=repr(wanted),
                hint="model.summary() shows the names",
            )
        if unknown := sorted(set((wanted or {}).values()) - set(WAYS)):
            raise ConfigError.build(
                where, expected="splits by " + ", ".join(WAYS), got=", ".join(map(repr, unknown))
            )
        self.wanted = wanted
        self.least = least
        self.rank, self.ranks = along.rank, along.size
        self._along = along
        # Other groups of ranks may have measured other links, and have to decide alike.
        self.links = Links(*everyone.bcast_object(astuple(Links.between(along))))
        self.direct = False
        self.clear()

    def clear(self) -> None:
        """Nothing is split."""
        self.shards = ParameterShards(self._along)

    def choose(
        self, model: Layer, optimizer: Optimizer, outputs: Sequence[Expr], *, dense_only: bool
    ) -> None:
        """Decide, for a model that computes these outputs, and take what the optimizer keeps."""
        if self.ranks == 1:
            return
        chosen = chosen_layers(
            model, self.ranks, self.wanted, least=self.least, dense_only=dense_only
        )
        layouts = layouts_of(chosen, outputs, self.rank, self.ranks, links=self.links)
        self.use(layouts, optimizer)

    def use(self, layouts: Mapping[Variable, ShardLayout], optimizer: Optimizer) -> None:
        """Have parameters in these layouts, and what the optimizer keeps for them."""
        for whole, layout in layouts.items():
            self.shards.add(whole, layout, optimizer)

    def part(self, variable: Variable) -> Variable:
        """What this rank has of a parameter while steps run."""
        return self.shards.part(variable)

    def graph(self) -> RankGraph:
        """Rewrites graphs over parameters into graphs over this rank's parts of them."""
        parts = {
            whole: (part, layout)
            for whole, (part, layout) in self.shards.leaves().items()
            if isinstance(layout, ShardLayout)
        }
        return RankGraph(self.rank, self.ranks, parts, AXIS, direct=self.direct, links=self.links)

    def sharding(self, variables: Sequence[Variable], gradients: Sequence[Node]) -> Sharding:
        """Which variables are parts, and of which of them the gradients are."""
        wholes = self.shards.wholes
        pairs = zip(variables, gradients, strict=True)
        parts = {each: variable if variable in wholes else None for variable, each in pairs}
        return Sharding(wholes, AXIS, parts, {part: n for part, n in self._copies() if n > 1})

    def over_copies(self, part: Variable, gradient: Expr) -> Expr:
        """The sum of the terms that ranks have which have the same part of a parameter."""
        layout = self._layout(part)
        alike = copies(layout)
        if alike == 1:
            return gradient
        moves = CollectiveMoves(self.rank, self.ranks, AXIS, self.links, direct=True)
        return Expr(moves.written(gradient.node, ShardPlacement(layout, alike), layout))

    def _copies(self) -> Iterator[tuple[Variable, int]]:
        return ((part, copies(self._layout(part))) for part in self.shards.wholes)

    def _layout(self, part: Variable) -> ShardLayout:
        _, layout = self.shards.leaves()[self.shards.wholes[part].node]
        assert isinstance(layout, ShardLayout)
        return layout


@dataclass(frozen=True)
class TracedNetwork:
    """A network as it was written down for one part of a batch.

    `roots` are the nodes that a step needs, `free` those symbols' nodes that every rank may read.
    """

    calls: Sequence[LayerCall]
    roots: Sequence[Node]
    free: frozenset[Node]


def rewritten_network(
    model: Layer,
    traced: Context,
    graph: RankGraph,
    roots: Sequence[Node],
    part: Callable[[Variable], Variable],
) -> TracedNetwork:
    """The network over a rank's parts of parameters, where `graph` has made `roots` of those."""

    def here(given: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(Expr(node) for node in graph.here([each.node for each in given]))

    calls = [
        LayerCall(call.layer, here(call.inputs), here(call.outputs), call.inside)
        for call in traced.calls
    ]
    free = [each.node for each in (*map(part, model.parameters()), *model.states())]
    if traced.random is not None:
        free.append(traced.random.node)
    return TracedNetwork(calls, roots, frozenset(free))


@dataclass(frozen=True)
class RankNetwork:
    """What one rank computes, `own`, of the network that one process would compute, `whole`.

    `trained` are the nodes of the parameters that are trained, and of the rank's parts of them;
    `parts` has what stands for its part of each parameter that is split.
    """

    own: TracedNetwork
    trained: frozenset[Node]
    parts: Mapping[Variable, Variable]
    make_whole: Callable[[], TracedNetwork]

    @cached_property
    def whole(self) -> TracedNetwork:
        """The network of one process."""
        return self.make_whole()


def rank_network(
    model: Layer,
    traced: Context,
    *,
    rank: int = 0,
    ranks: int = 1,
    splits: Mapping[str, str] | None = None,
    least: int = LEAST,
    dense_only: bool = False,
    links: Links | None = None,
) -> RankNetwork:
    """The network of a model of which so many ranks share the layers; nothing is changed by it."""
    outputs = traced.calls[0].outputs
    found: dict[Variable, CartesianLayout] = {}
    if ranks > 1:
        chosen = chosen_layers(model, ranks, splits, least=least, dense_only=dense_only)
        found = layouts_of(chosen, outputs, rank, ranks, links=links)
    parts = {whole: stand_in(whole, layout, rank) for whole, layout in found.items()}
    leaves = {whole.node: (part.node, found[whole]) for whole, part in parts.items()}

    def network(own: Mapping[Variable, Variable], graph: RankGraph) -> TracedNetwork:
        roots = graph.written([each.node for each in outputs])
        return rewritten_network(model, traced, graph, roots, lambda each: own.get(each, each))

    trained = [node for v in model.trainable() for node in (v.node, parts.get(v, v).node)]
    return RankNetwork(
        network(parts, RankGraph(rank, ranks, leaves, AXIS, links=links)),
        frozenset(trained),
        parts,
        lambda: network({}, RankGraph(rank, ranks, {}, AXIS, links=links)),
    )
