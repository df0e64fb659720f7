"""Settings for tests: models of given layers, links of round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from caldera.parallel.pipeline.stage_partition import balanced_cuts
from caldera.parallel.planner import Cluster, Compute, LayerCost, Setting, Wire, Workload
from caldera.parallel.planner.model_network import PipelineStage, StageCollective, StageGradient

MEGABYTE = 1e6


def layer(
    name: str, weight: float, nbytes: float = MEGABYTE, *, kind: str = "Dense", units: int = 64
) -> LayerCost:
    """A layer whose outputs are as large as its inputs: 1 kB a sample."""
    return LayerCost(name, kind, name, weight, weight, nbytes, nbytes, 1e3, 1e3, units=units)


def workload(layers: int = 8, nbytes: float = 8 * MEGABYTE) -> Workload:
    """Layers that are all alike; each has 8 MB of parameters, which is two messages' worth."""
    parts = tuple(layer(f"{i}", 1 / layers, nbytes) for i in range(layers))
    whole = layers * nbytes
    return made(parts, 2 * whole, whole)


def made(layers: Sequence[LayerCost], optimizer: float, workspace: float) -> Workload:
    """A workload that is described layer by layer, without a model."""
    gradients = tuple(
        StageGradient((round(each.trained / 4),), each.trained, number)
        for number, each in enumerate(layers)
        if each.trained
    )
    network = EstimatedNetwork(layers, gradients)
    backward = tuple(range(len(gradients)))[::-1]
    return Workload(
        "made", tuple(layers), 1e9, optimizer, 1e5, workspace, 4, gradients, backward, network
    )


def setting(
    ranks: int,
    *,
    latency: float = 1e-5,
    bandwidth: float = 1e9,
    batch: int = 256,
    sample_s: float = 1e-3,
    memory: float | None = None,
    work: Workload | None = None,
) -> Setting:
    """A step takes so many seconds a sample."""
    cluster = Cluster(ranks, Wire(latency, bandwidth), memory=memory)
    return Setting(work or workload(), Compute(((1.0, sample_s),)), cluster, batch)


def free(ranks: int, **more: float) -> Setting:
    """Links on which nothing takes any time."""
    return setting(ranks, latency=0.0, bandwidth=math.inf, **more)  # type: ignore[arg-type]


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


def _narrows(layer: LayerCost) -> bool:
    """True if a sum of what a layer gives costs less than to gather what it takes."""
    kinds = ("Dense", "Conv1D", "Conv2D", "MultiHeadAttention")
    return layer.kind in kinds and 2 * layer.output <= layer.given


def _in_pairs(layers: Sequence[LayerCost], samples: float, ranks: int) -> list[StageCollective]:
    """Split layers in pairs: the first by its outputs, the second by its inputs.

    Between the two nothing is sent. The outputs of the second are summed, and on the way back their
    gradients. A layer that is too small to be split takes the part of the second if it gives less
    than it takes. One without a partner gathers its outputs, and scatters their gradients.
    """
    found: list[StageCollective] = []
    first: LayerCost | None = None
    for layer in layers if ranks > 1 else ():
        if first is not None and (layer.units >= ranks or _narrows(layer)):
            found += [StageCollective("sum", layer.output * samples)] * 2
            first = None
        elif first is None and layer.units >= ranks:
            first = layer
    if first is not None:
        nbytes = first.output * samples
        found += [StageCollective("gather", nbytes), StageCollective("scatter", nbytes)]
    return found
