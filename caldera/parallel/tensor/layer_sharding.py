"""Tensor parallelism of layers: parameter shards, and the network of one rank.

Ranks along "model" share the selected layers. The network of a rank is derived before any layer
is split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.collective_moves import CollectiveMoves, is_plain
from caldera.compiler.sharding.distributions import Distribution
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import copies
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.compiler.sharding.rules.registry import ShardPlacement
from caldera.compiler.sharding.volume import Links, summary
from caldera.core.graph.node import Node
from caldera.errors import ConfigError
from caldera.nn import Context, Layer, LayerCall
from caldera.optim import Optimizer
from caldera.optim.sharding import Sharding
from caldera.parallel.distributed_variables import AXIS, ParameterShards
from caldera.parallel.tensor.candidates import LEAST, stand_in
from caldera.parallel.tensor.layer_layouts import WAYS, LayerLayouts, check_layouts, chosen_layouts


class ShardedLayers:
    """Parameters split over the ranks of `along`, and this rank's part of each.

    `wanted` contains the layouts of layers; without it, all layers are split whose weight has at
    least `least` elements. Before `choose` no parameter is split.

    - `shards`: the split parameters; `links`: cost of transfers, from the measured link.
    - `may_place`: True if layer outputs may have layouts as well.
    - `direct`: True if ranks may exchange parts directly, which requires host kernels.
    """

    def __init__(
        self,
        where: str,
        along: Communicator,
        everyone: Communicator,
        wanted: LayerLayouts | None,
        least: int,
    ) -> None:
        # No layer at all may be split, as before there were layouts for them.
        if wanted is not None and wanted != {}:
            check_layouts(where, wanted)
        self.where = where
        values = wanted.values() if isinstance(wanted, Mapping) else [wanted]
        words = (None, "auto", *WAYS)
        self.may_place = not all(isinstance(each, str | None) and each in words for each in values)
        self.wanted = wanted
        self.least = least
        self.rank, self.ranks = along.rank, along.size
        self._along = along
        # Other groups of ranks may have measured other links, and have to decide alike.
        self.links = Links(*everyone.bcast_object(astuple(Links.between(along))))
        self.direct = False
        self.clear()

    def clear(self) -> None:
        """Remove all splits."""
        self.shards = ParameterShards(self._along)

    def choose(
        self, model: Layer, optimizer: Optimizer, calls: Sequence[LayerCall], *, dense_only: bool
    ) -> Mapping[Layer, Distribution]:
        """Choose splits from a model's layer calls, and split the optimizer state.

        Return the requested layouts of layer outputs.
        """
        chosen = chosen_layouts(
            self.where,
            model,
            self.wanted,
            calls,
            self.ranks,
            least=self.least,
            dense_only=dense_only,
        )
        if self.ranks > 1:
            found = chosen.of_parameters(calls[0].outputs, self.rank, self.ranks, self.links)
            if not self.direct:
                _check_plain(self.where, found, self.ranks)
            for whole, layout in found.items():
                self.shards.add(whole, layout, optimizer)
        return chosen.outputs

    def part(self, variable: Variable) -> Variable:
        """Return this rank's part of a parameter while steps run."""
        return self.shards.part(variable)

    def graph(self) -> RankGraph:
        """Return rewriter from graphs over parameters to graphs over this rank's parts."""
        parts = {
            whole: (part, layout)
            for whole, (part, layout) in self.shards.leaves().items()
            if isinstance(layout, ShardLayout)
        }
        return RankGraph(self.rank, self.ranks, parts, AXIS, direct=self.direct, links=self.links)

    def sharding(self, variables: Sequence[Variable], gradients: Sequence[Node]) -> Sharding:
        """Return which variables and gradients are parts."""
        wholes = self.shards.wholes
        pairs = zip(variables, gradients, strict=True)
        parts = {each: variable if variable in wholes else None for variable, each in pairs}
        alike = {part: copies(self._layout(part)) for part in wholes}
        return Sharding(wholes, AXIS, parts, {part: n for part, n in alike.items() if n > 1})

    def over_copies(self, part: Variable, gradient: Expr) -> Expr:
        """Return the sum of the terms that ranks have which have the same part of a parameter."""
        layout = self._layout(part)
        alike = copies(layout)
        if alike == 1:
            return gradient
        moves = CollectiveMoves(self.rank, self.ranks, AXIS, self.links, direct=True)
        return Expr(moves.written(gradient.node, ShardPlacement(layout, alike), layout))

    def _layout(self, part: Variable) -> ShardLayout:
        _, layout = self.shards.leaves()[self.shards.wholes[part].node]
        assert isinstance(layout, ShardLayout)
        return layout


def _check_plain(where: str, layouts: Mapping[Variable, ShardLayout], ranks: int) -> None:
    for variable, layout in layouts.items():
        if not is_plain(layout, ranks):
            raise ConfigError.build(
                f"{where}: {variable.name}",
                expected="one axis shared out over all ranks, where devices are no hosts",
                got=summary(layout),
                hint='take "rows", "columns", "inputs" or "replicated"',
            )


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
    """Network of one rank, `own`, derived from the network of one process, `whole`.

    `trained` are the nodes of trained parameters and of the rank's parts; `parts` maps each split
    parameter to the placeholder of its part.
    """

    own: TracedNetwork
    trained: frozenset[Node]
    parts: Mapping[Variable, Variable]
    make_whole: Callable[[], TracedNetwork]

    @cached_property
    def whole(self) -> TracedNetwork:
        """Network of one process."""
        return self.make_whole()


def rank_network(
    model: Layer,
    traced: Context,
    *,
    rank: int = 0,
    ranks: int = 1,
    splits: LayerLayouts | None = None,
    least: int = LEAST,
    dense_only: bool = False,
    links: Links | None = None,
) -> RankNetwork:
    """Return the network of a rank if `ranks` ranks share the layers of a model.

    The model is not changed.
    """
    outputs = traced.calls[0].outputs
    found: Mapping[Variable, ShardLayout] = {}
    if ranks > 1:
        found = chosen_layouts(
            "splits", model, splits, traced.calls, ranks, least=least, dense_only=dense_only
        ).of_parameters(outputs, rank, ranks, links)
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
