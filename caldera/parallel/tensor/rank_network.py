"""A network as one of the ranks that share its layers computes it, before anything is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.layout import CartesianLayout
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.core.graph.node import Node
from caldera.nn.layer import Layer
from caldera.nn.tracing import Context, LayerCall
from caldera.parallel.layout import AXIS
from caldera.parallel.tensor.layer_sharding import LEAST, chosen_layers, layouts_of, stand_in


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
) -> RankNetwork:
    """The network of a model of which so many ranks share the layers; nothing is changed by it."""
    outputs = traced.calls[0].outputs
    found: dict[Variable, CartesianLayout] = {}
    if ranks > 1:
        chosen = chosen_layers(model, ranks, splits, least=least, dense_only=dense_only)
        found = layouts_of(chosen, outputs, rank, ranks)
    parts = {whole: stand_in(whole, layout, rank) for whole, layout in found.items()}
    leaves = {whole.node: (part.node, found[whole]) for whole, part in parts.items()}

    def network(own: Mapping[Variable, Variable], graph: RankGraph) -> TracedNetwork:
        roots = graph.written([each.node for each in outputs])
        return rewritten_network(model, traced, graph, roots, lambda each: own.get(each, each))

    trained = [node for v in model.trainable() for node in (v.node, parts.get(v, v).node)]
    return RankNetwork(
        network(parts, RankGraph(rank, ranks, leaves, AXIS)),
        frozenset(trained),
        parts,
        lambda: network({}, RankGraph(rank, ranks, {}, AXIS)),
    )
