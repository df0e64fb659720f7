"""How the strategies share the layers of a model: they are asked, and what they say is kept.

A network is traced on two numbers of samples for each number of ranks that share its layers.
Operations and bytes grow along a line with the samples, so every other number of them follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from caldera.errors import ConfigError
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.nn.layer import Layer
from caldera.nn.tracing import LayerCall
from caldera.parallel.layout import AXIS
from caldera.parallel.pipeline.stage_partition import (
    balanced_cuts,
    stages_of,
    unit_boundaries,
    unit_flops,
    unit_starts,
    with_gradients,
)
from caldera.parallel.tensor.rank_network import RankNetwork, rank_network
from caldera.planner.layer_cost import Gradient, LayerCost
from caldera.planner.stages import Exchange, Stage
from caldera.tensor.dtype import is_float
from caldera.train.step import trace_network

if TYPE_CHECKING:
    from caldera.train.model import Model

_BACK = {"sum": "sum", "gather": "scatter", "scatter": "gather"}
"""What a collective is on the way back."""
_KINDS = {"all_sum": "sum", "all_gather": "gather", "sum_scatter": "scatter"}


@dataclass(frozen=True)
class _Units:
    """What the units of a network cost, of which the later ones begin with the calls `starts`.

    `sent_on` and `sent_back` are the bytes that cross each cut, `exchanges` those of each unit.
    """

    starts: Sequence[int]
    flops: Sequence[int]
    sent_on: Sequence[int]
    sent_back: Sequence[int]
    exchanges: Sequence[Sequence[Exchange]]


class ModelNetwork:
    """What the strategies say about a model whose layers, of those without others inside, and
    gradients are these."""

    def __init__(
        self, model: Model, layers: Sequence[LayerCost], gradients: Sequence[Gradient]
    ) -> None:
        self._model = model
        self._layers = layers
        self._gradients = gradients
        self._networks = cache(self._network)
        self._units = cache(self._units_of)
        self._cuts = cache(self._cut)

    def stages(self, count: int, ranks: int, samples: float, traced: int) -> list[Stage] | None:
        """As `PipelineParallel` cuts it, for the operations that its first rank does."""
        try:
            units, cuts = self._cuts(count, ranks, traced)
        except ConfigError:
            return None
        at = _line(ranks, samples)
        small, large = units
        starts = [0, *small.starts]
        leaves = leaf_calls(self._model, self._networks(ranks, 1).own.calls)
        edges = [0, *(sum(leaf < starts[cut] for leaf in leaves) for cut in cuts), len(leaves)]
        found = []
        for (first, last), (begin, end) in zip(
            pairwise([0, *cuts, len(starts)]), pairwise(edges), strict=True
        ):
            is_last = last == len(starts)
            numbers = [i for i, each in enumerate(self._gradients) if begin <= each.layer < end]
            exchanges = [
                Exchange(low.kind, at(low.nbytes, high.nbytes))
                for unit in range(first, last)
                for low, high in zip(small.exchanges[unit], large.exchanges[unit], strict=True)
            ]
            found.append(
                Stage(
                    begin,
                    tuple(self._layers[begin:end]),
                    tuple(numbers),
                    0.0 if is_last else at(small.sent_on[last - 1], large.sent_on[last - 1]),
                    0.0 if is_last else at(small.sent_back[last - 1], large.sent_back[last - 1]),
                    tuple(exchanges),
                )
            )
        return found

    def shards(self, ranks: int) -> Sequence[float | None]:
        """The parts of the first rank, which has most."""
        parts = self._networks(ranks, 1).parts if ranks > 1 else {}
        variables = self._model.trainable()
        return [parts[each].node.spec.nbytes if each in parts else None for each in variables]

    # --- what is kept

    def _network(self, ranks: int, times: int) -> RankNetwork:
        traced = trace_network(self._model, times * ranks, several_ranks=True)
        return rank_network(self._model, traced, ranks=ranks)

    def _units_of(self, ranks: int, times: int, starts: tuple[int, ...]) -> _Units:
        network = self._networks(ranks, times)
        own = network.own
        active = with_gradients(own.roots, network.trained)
        cuts = unit_boundaries(own, starts)
        return _Units(
            starts,
            unit_flops(own, network.trained, starts),
            [_nbytes(cut) for cut in cuts],
            [_nbytes([v for v in cut if v in active and is_float(v.dtype)]) for cut in cuts],
            _exchanges(network, starts, active, ranks),
        )

    def _cut(self, count: int, ranks: int, traced: int) -> tuple[tuple[_Units, _Units], list[int]]:
        """The units at both numbers of samples, and those with which stages after the first begin,
        for a trace of so many samples."""
        starts = tuple(unit_starts(self._networks(ranks, 1).own.calls, count)[1:])
        small, large = (self._units(ranks, times, starts) for times in (1, 2))
        # In whole numbers, as the strategy has them: `ranks` times what a trace would show.
        flops, sizes = (
            [ranks * low + (high - low) * (traced - ranks) for low, high in zip(*pair, strict=True)]
            for pair in ((small.flops, large.flops), (small.sent_on, large.sent_on))
        )
        return (small, large), balanced_cuts(flops, sizes, count)


def leaf_calls(model: Layer, calls: Sequence[LayerCall]) -> list[int]:
    """The numbers of the calls of layers that have no others inside."""
    return [
        place
        for place, call in enumerate(calls)
        if call.layer is not model and not list(call.layer.children())
    ]


def _line(ranks: int, samples: float) -> Callable[[float, float], float]:
    """What is so much for `ranks` samples, and so much for twice as many, for others."""
    part = (samples - ranks) / ranks
    return lambda low, high: low + (high - low) * part


def _nbytes(values: Sequence[Node]) -> int:
    return sum(value.spec.nbytes for value in values)


def _exchanges(
    network: RankNetwork, starts: Sequence[int], active: set[Node], ranks: int
) -> list[list[Exchange]]:
    """What the ranks that share layers exchange for each unit, there and back."""
    found: list[list[Exchange]] = [[] for _ in range(len(starts) + 1)]
    units = stages_of(network.own, starts)
    for node in topological(network.own.roots):
        kind = _KINDS.get(node.op.name)
        if kind is None or node.attrs["axis"] != AXIS:
            continue
        nbytes = float(node.spec.nbytes)
        if kind != "sum":
            # All parts take the room of the largest.
            sizes = node.attrs["sizes"]
            nbytes = max(node, node.inputs[0], key=lambda e: e.spec.size).spec.nbytes
            nbytes *= ranks * max(sizes) / sum(sizes)
        there = found[units.get(node, len(starts))]
        there.append(Exchange(kind, nbytes))
        if node.inputs[0] in active:
            there.append(Exchange(_BACK[kind], nbytes))
    return found
