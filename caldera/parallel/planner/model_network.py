"""Layers of a model shared between ranks, as the strategies partition them.

A network is traced with two numbers of samples for each number of ranks that share its layers.
Operations and bytes are linear in the samples, so all other numbers follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from caldera import op
from caldera.core.graph import Node, topological
from caldera.core.tensor.dtype import is_float
from caldera.errors import ConfigError
from caldera.nn import Layer, LayerCall
from caldera.parallel.distributed_variables import AXIS
from caldera.parallel.pipeline.stage_partition import (
    balanced_cuts,
    boundary_values,
    readers,
    stages_of,
    unit_flops,
    unit_starts,
    with_gradients,
)
from caldera.parallel.tensor.layer_sharding import RankNetwork, rank_network
from caldera.train.step import trace_network

if TYPE_CHECKING:
    from caldera.train.model import Model


@dataclass(frozen=True)
class LayerCost:
    """Cost of one layer, per sample.

    - `block`: the part of the model it belongs to; a pipeline is split between blocks.
    - `weight`: its share of the time of a step; all layers sum to 1. `operations`: its operations
      in the forward pass.
    - `parameters`, `trained`: bytes; `output`, `given`: bytes of its output and input.
    - `units`: the maximum number of ranks that can share it; 1 if it cannot be split.
    - `synchronised`: channels whose statistics batch normalisation sums over ranks.
    """

    path: str
    kind: str
    block: str
    weight: float
    operations: float
    parameters: float
    trained: float
    output: float
    given: float
    units: int = 1
    synchronised: int = 0

    @property
    def is_dense(self) -> bool:
        """True if it has many parameters for its number of operations."""
        return self.kind == "Dense"


@dataclass(frozen=True)
class StageGradient:
    """The gradient of a parameter, which belongs to the layer of that number."""

    shape: tuple[int, ...]
    nbytes: float
    layer: int
    dtype: str = "float32"


class StageCollective(NamedTuple):
    """Something that all ranks which share layers wait for: "sum", "gather" or "scatter", and the
    bytes of the whole value."""

    kind: str
    nbytes: float


@dataclass(frozen=True, eq=False)
class PipelineStage:
    """Consecutive layers on one rank of a pipeline, or on several ranks that share them.

    `first` is the index of its first layer, `gradients` the indices of its own gradients, and
    `shared` those of parameters used by several stages, which each stage stores. For a micro-batch
    it sends `sent_on` bytes to the next stage and receives `sent_back`, and the ranks that share
    its layers perform the `exchanges`.
    """

    first: int
    layers: tuple[LayerCost, ...]
    gradients: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    sent_on: float = 0.0
    sent_back: float = 0.0
    exchanges: tuple[StageCollective, ...] = ()

    @cached_property
    def weight(self) -> float:
        """Its part of the time of a step."""
        return sum(layer.weight for layer in self.layers)

    @cached_property
    def trained(self) -> float:
        """Bytes of its gradients."""
        return sum(layer.trained for layer in self.layers)

    @cached_property
    def parameters(self) -> float:
        """Bytes of its parameters."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def output(self) -> float:
        """Bytes of all layer outputs for one sample."""
        return sum(layer.output for layer in self.layers)

    def split(self, ways: int) -> float:
        """Return the fraction of a step's time per rank if `ways` ranks split its layers."""
        able = sum(layer.weight for layer in self.layers if layer.units >= ways)
        return able / ways + self.weight - able


class StageNetwork(Protocol):
    """Interface to the partition of layers over ranks."""

    def stages(
        self, count: int, ranks: int, samples: float, traced: int
    ) -> list[PipelineStage] | None:
        """Return `count` stages of `ranks` ranks each, or None if there are too few layers.

        `samples` is the size of a micro-batch, `traced` the size that determines the cuts.
        """

    def shards(self, ranks: int, *, dense_only: bool = False) -> Sequence[float | None]:
        """Return the bytes of a rank's part of each gradient if `ranks` ranks share layers.

        None means that the gradient is not split.
        """

    def of_all_samples(self, ranks: int, samples: float) -> tuple[StageCollective, ...]:
        """Return the exchanges of `ranks` ranks that share dense layers but not samples.

        Each rank has `samples` samples, and the samples of all ranks are gathered.
        """


_BACK = {"sum": "sum", "gather": "scatter", "scatter": "gather"}
"""The collective of the backward pass for each collective of the forward pass."""
_KINDS = {"all_sum": "sum", "all_gather": "gather", "sum_scatter": "scatter"}


@dataclass(frozen=True)
class _Units:
    """Costs of the units of a network; the units after the first start at the calls `starts`.

    `sent_on` and `sent_back` are the bytes that cross each cut, `exchanges` the bytes of each unit,
    and `readers` the units that read each trained parameter.
    """

    starts: Sequence[int]
    flops: Sequence[float]
    sent_on: Sequence[float]
    sent_back: Sequence[float]
    exchanges: Sequence[Sequence[StageCollective]]
    readers: Sequence[set[int]]

    def towards(self, other: _Units, way: float) -> _Units:
        """Interpolate linearly towards other costs, or extrapolate beyond them."""

        def between(first: Sequence[float], second: Sequence[float]) -> list[float]:
            return [low + (high - low) * way for low, high in zip(first, second, strict=True)]

        pairs = zip(self.exchanges, other.exchanges, strict=True)
        return replace(
            self,
            flops=between(self.flops, other.flops),
            sent_on=between(self.sent_on, other.sent_on),
            sent_back=between(self.sent_back, other.sent_back),
            exchanges=[_between(low, high, way) for low, high in pairs],
        )


def _between(
    low: Sequence[StageCollective], high: Sequence[StageCollective], way: float
) -> list[StageCollective]:
    pairs = zip(low, high, strict=True)
    return [StageCollective(a.kind, a.nbytes + (b.nbytes - a.nbytes) * way) for a, b in pairs]


class ModelNetwork:
    """Partitions of a model by the strategies, for its innermost layers.

    Results are cached, since the same queries occur many times.
    """

    def __init__(self, model: Model, layers: Sequence[LayerCost]) -> None:
        self._model = model
        self._layers = layers
        self._traces = cache(partial(trace_network, model, several_ranks=True))
        self._networks = cache(self._network)
        self._units = cache(self._units_of)
        self._cuts = cache(self._cuts_of)
        self._gathered = cache(self._gathered_exchanges)
        self.shards = cache(self._shards)
        self._variables = model.trainable()
        self._leaves = leaf_calls(model, self._networks(1, 1).own.calls)

    def stages(
        self, count: int, ranks: int, samples: float, traced: int
    ) -> list[PipelineStage] | None:
        """Return the stages of `PipelineParallel`, with the operations of their first rank."""
        try:
            starts = self._starts(count, ranks)
        except ConfigError:
            return None
        small, large = (self._units(ranks, times, starts) for times in (1, 2))
        units = small.towards(large, (samples - ranks) / ranks)
        groups = list(pairwise([0, *self._cuts(count, ranks, traced), len(starts) + 1]))
        spans = [set(range(first, last)) for first, last in groups]
        shared = [i for i, read in enumerate(units.readers) if not any(read <= s for s in spans)]
        return [self._stage(units, first, last, shared) for first, last in groups]

    def _stage(self, units: _Units, first: int, last: int, shared: Sequence[int]) -> PipelineStage:
        """Return the stage of some units."""
        begin, end = (self._layer_at(units, unit) for unit in (first, last))
        read_here = set(range(first, last))
        is_last = last > len(units.starts)
        return PipelineStage(
            begin,
            tuple(self._layers[begin:end]),
            tuple(i for i, read in enumerate(units.readers) if read <= read_here),
            tuple(shared),
            0.0 if is_last else units.sent_on[last - 1],
            0.0 if is_last else units.sent_back[last - 1],
            tuple(each for unit in range(first, last) for each in units.exchanges[unit]),
        )

    def _layer_at(self, units: _Units, unit: int) -> int:
        """Return the number of the layer that a unit begins with."""
        calls = [0, *units.starts, self._leaves[-1] + 1]
        return bisect_left(self._leaves, calls[unit])

    def of_all_samples(self, ranks: int, samples: float) -> tuple[StageCollective, ...]:
        """Return the collectives of `Hybrid` with `samples="all"` and divided dense layers."""
        small, large = (self._gathered(ranks, times) for times in (1, 2))
        return tuple(_between(small, large, samples - 1))

    # --- what is kept

    def _shards(self, ranks: int, *, dense_only: bool = False) -> Sequence[float | None]:
        """Return the parts of the first rank, which has most."""
        parts = self._networks(ranks, 1, dense_only=dense_only).parts if ranks > 1 else {}
        return [parts[e].node.spec.nbytes if e in parts else None for e in self._variables]

    def _network(self, ranks: int, times: int, *, dense_only: bool = False) -> RankNetwork:
        model = self._model
        if not dense_only:
            return rank_network(model, self._traces(times * ranks), ranks=ranks)
        sizes = [times] * ranks
        traced = trace_network(
            model,
            times,
            several_ranks=True,
            samples=lambda own: op.all_gather(own, sizes, 0, axis=AXIS),
        )
        return rank_network(model, traced, ranks=ranks, dense_only=True)

    def _gathered_exchanges(self, ranks: int, times: int) -> list[StageCollective]:
        network = self._networks(ranks, times, dense_only=True)
        active = with_gradients(network.own.roots, network.trained)
        (found,) = _exchanges(network, {}, active, ranks)
        return found

    def _units_of(self, ranks: int, times: int, starts: tuple[int, ...]) -> _Units:
        network = self._networks(ranks, times)
        own = network.own
        active = with_gradients(own.roots, network.trained)
        units = stages_of(own, starts)
        cuts = boundary_values(own, units, len(starts))
        return _Units(
            starts,
            unit_flops(own, network.trained, starts),
            [_nbytes(cut) for cut in cuts],
            [_nbytes([v for v in cut if v in active and is_float(v.dtype)]) for cut in cuts],
            _exchanges(network, units, active, ranks),
            self._readers(network, units),
        )

    def _readers(self, network: RankNetwork, units: Mapping[Node, int]) -> list[set[int]]:
        found = readers(network.own, units)
        variables = [network.parts.get(each, each) for each in self._variables]
        everywhere = set(units.values())
        # Unused parameters are stored on all ranks.
        return [found.get(each.node) or everywhere for each in variables]

    def _starts(self, count: int, ranks: int) -> tuple[int, ...]:
        """Return the calls with which units after the first begin, of which there are enough."""
        return tuple(unit_starts(self._networks(ranks, 1).own.calls, count)[1:])

    def _cuts_of(self, count: int, ranks: int, traced: int) -> list[int]:
        """Return the units that start the stages after the first, for a trace of `traced`
        samples.
        """
        small, large = (self._units(ranks, n, self._starts(count, ranks)) for n in (1, 2))
        # Integers as in the strategy: `ranks` times the values of a trace.
        flops, sizes = (
            [
                round(ranks * low + (high - low) * (traced - ranks))
                for low, high in zip(*both, strict=True)
            ]
            for both in ((small.flops, large.flops), (small.sent_on, large.sent_on))
        )
        return balanced_cuts(flops, sizes, count)


def leaf_calls(model: Layer, calls: Sequence[LayerCall]) -> list[int]:
    """Return the numbers of the calls of layers that have no others inside."""
    return [
        place
        for place, call in enumerate(calls)
        if call.layer is not model and not list(call.layer.children())
    ]


def _nbytes(values: Sequence[Node]) -> int:
    return sum(value.spec.nbytes for value in values)


def _exchanges(
    network: RankNetwork, units: Mapping[Node, int], active: set[Node], ranks: int
) -> list[list[StageCollective]]:
    """Return the exchanges between ranks that share layers, for each unit, forward and backward."""
    found: list[list[StageCollective]] = [[] for _ in range(1 + max(units.values(), default=0))]
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
        there = found[units.get(node, -1)]
        there.append(StageCollective(kind, nbytes))
        if node.inputs[0] in active:
            there.append(StageCollective(_BACK[kind], nbytes))
    return found
