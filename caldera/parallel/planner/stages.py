"""Layer costs, gradients and pipeline stages of a network, and the data that ranks exchange.

`ModelNetwork` calls the strategies, so its results agree with their behaviour. `EstimatedNetwork`
is for a workload that is described layer by layer, without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple, Protocol

from caldera.parallel.pipeline.stage_partition import balanced_cuts

_DENSE = ("Dense",)
_WEIGHTED = (*_DENSE, "Conv1D", "Conv2D", "MultiHeadAttention")


@dataclass(frozen=True)
class LayerCost:
    """One layer, for one sample.

    - `block`: the part of the model it belongs to; a pipeline is cut between those.
    - `weight`: its part of the time of a step; those of all layers add up to 1. `operations` is
      its part of those of the forward pass.
    - `parameters`, `trained`: bytes; `output`, `given`: bytes of what it makes and of its input.
    - `units`: over how many ranks it can be split at the most; 1 if it cannot.
    - `synchronised`: channels whose statistics are summed over ranks, for batch normalisation.
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
        """Whether it has many parameters for the work it does."""
        return self.kind in _DENSE

    @property
    def narrows(self) -> bool:
        """Whether to sum what it gives costs less than to gather what it takes."""
        return self.kind in _WEIGHTED and 2 * self.output <= self.given


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
    """Layers that follow each other, on one rank of a pipeline or on several that share them.

    `first` is the number of its first layer, `gradients` has those of the gradients that are its
    own, `shared` those of parameters that several stages read, which all of them have. For a
    micro-batch it sends `sent_on` bytes to the next stage and gets `sent_back`, and the ranks that
    share its layers make the `exchanges`.
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
        """Bytes of everything that its layers make of one sample."""
        return sum(layer.output for layer in self.layers)

    def split(self, ways: int) -> float:
        """The part of a step's time that a rank has left if so many split its layers."""
        able = sum(layer.weight for layer in self.layers if layer.units >= ways)
        return able / ways + self.weight - able


class StageNetwork(Protocol):
    """Who knows how ranks share layers."""

    def stages(
        self, count: int, ranks: int, samples: float, traced: int
    ) -> list[PipelineStage] | None:
        """The network in so many stages, each of which is so many ranks; None if it has too few
        layers. `samples` are those of a micro-batch, `traced` those that decide about the cuts."""

    def shards(self, ranks: int, *, dense_only: bool = False) -> Sequence[float | None]:
        """For each gradient the bytes of a rank's part of it, if so many ranks share layers; None
        if it stays whole."""

    def of_all_samples(self, ranks: int, samples: float) -> tuple[StageCollective, ...]:
        """What so many ranks exchange that share dense layers, where each has so many samples of
        its own and those of all are gathered."""


class EstimatedNetwork:
    """Layers one after the other, cut between blocks; those that can be are split in pairs."""

    def __init__(self, layers: Sequence[LayerCost], gradients: Sequence[StageGradient]) -> None:
        self._layers = layers
        self._gradients = gradients

    def stages(
        self, count: int, ranks: int, samples: float, traced: int
    ) -> list[PipelineStage] | None:
        """Blocks with about as many operations; the last layer's output crosses a cut.

        >>> def layer(name, part):
        ...     return LayerCost(name, "Dense", name, part, part, 4, 4, 4, 4)
        >>> network = EstimatedNetwork([layer("a", 0.5), layer("b", 0.25), layer("c", 0.25)], [])
        >>> [stage.weight for stage in network.stages(2, 1, 1.0, 1)]
        [0.5, 0.5]
        """
        blocks = [list(each) for _, each in groupby(self._layers, key=lambda layer: layer.block)]
        if count > len(blocks):
            return None
        costs = [sum(layer.operations for layer in block) for block in blocks]
        sizes = [round(block[-1].output) for block in blocks[:-1]]
        edges = [0]
        for first, last in pairwise([0, *balanced_cuts(costs, sizes, count), len(blocks)]):
            edges.append(edges[-1] + sum(map(len, blocks[first:last])))
        return [
            self._stage(first, last, samples, ranks, is_last=last == len(self._layers))
            for first, last in pairwise(edges)
        ]

    def _stage(
        self, first: int, last: int, samples: float, ranks: int, is_last: bool
    ) -> PipelineStage:
        layers = tuple(self._layers[first:last])
        numbers = [i for i, each in enumerate(self._gradients) if first <= each.layer < last]
        sent = 0.0 if is_last else layers[-1].output * samples
        exchanges = tuple(_in_pairs(layers, samples, ranks))
        return PipelineStage(first, layers, tuple(numbers), (), sent, sent, exchanges)

    def shards(self, ranks: int, *, dense_only: bool = False) -> Sequence[float | None]:
        """An equal part of whatever belongs to a layer that can be split."""
        owners = [self._layers[each.layer] for each in self._gradients]
        able = [1 < ranks <= e.units and (e.is_dense or not dense_only) for e in owners]
        return [
            gradient.nbytes / ranks if can else None
            for gradient, can in zip(self._gradients, able, strict=True)
        ]

    def of_all_samples(self, ranks: int, samples: float) -> tuple[StageCollective, ...]:
        """What the dense layers take is gathered, and what the last of them gives."""
        dense = [layer for layer in self._layers if layer.is_dense]
        found = []
        for layer in dense:
            nbytes = layer.given * samples * ranks
            found += [StageCollective("gather", nbytes), StageCollective("scatter", nbytes)]
        return (*found, StageCollective("gather", dense[-1].output * samples * ranks))


def _in_pairs(layers: Sequence[LayerCost], samples: float, ranks: int) -> list[StageCollective]:
    """Split layers in pairs: the first by its outputs, the second by its inputs.

    Between the two nothing is sent. The outputs of the second are summed, and on the way back their
    gradients. A layer that is too small to be split takes the part of the second if it gives less
    than it takes. One without a partner gathers its outputs, and scatters their gradients.
    """
    found: list[StageCollective] = []
    first: LayerCost | None = None
    for layer in layers if ranks > 1 else ():
        if first is not None and (layer.units >= ranks or layer.narrows):
            found += [StageCollective("sum", layer.output * samples)] * 2
            first = None
        elif first is None and layer.units >= ranks:
            first = layer
    if first is not None:
        nbytes = first.output * samples
        found += [StageCollective("gather", nbytes), StageCollective("scatter", nbytes)]
    return found
