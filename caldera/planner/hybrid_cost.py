"""Pipelines, split layers, and data parallelism, alone and together over a mesh of ranks.

The mesh has the axes data, pipeline and model, in this order: ranks that split a layer are
neighbours, for they talk most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.planner.collective_cost import Cost, allgather, allreduce, reduce_scatter
from caldera.planner.data_parallel_cost import batch_too_small, share, status
from caldera.planner.overlap import overlapped_sends, pieces, total, without_overlap
from caldera.planner.prediction import Prediction, Setting, Way, refuse
from caldera.planner.stages import Stage, cut
from caldera.planner.workload import LayerCost, Workload

PIPELINE, TENSOR, HYBRID = "pipeline", "tensor", "hybrid"
FILL_DRAIN, ONE_F_ONE_B = "fill-drain", "1F1B"
_MICRO = (1, 2, 4, 8)
"""Micro-batches for each stage of a pipeline that are tried."""


@dataclass(frozen=True)
class HybridConfig:
    """Ranks along each axis; micro-batches and the order in which a pipeline takes them.

    >>> HybridConfig(data=2, pipeline=4, micro=8).bubble
    0.2727272727272727
    """

    data: int = 1
    pipeline: int = 1
    model: int = 1
    micro: int = 1
    schedule: str = ONE_F_ONE_B

    @property
    def bubble(self) -> float:
        """The part of its slots in which a rank of the pipeline has nothing to do."""
        return (self.pipeline - 1) / (self.micro + self.pipeline - 1)

    @property
    def family(self) -> str:
        """What it is if only one axis has more than one rank."""
        if self.data > 1 or (self.pipeline > 1 and self.model > 1):
            return HYBRID
        return PIPELINE if self.pipeline > 1 else TENSOR

    def __str__(self) -> str:
        axes = [("data", self.data), ("pipeline", self.pipeline), ("model", self.model)]
        text = " x ".join(f"{name} {size}" for name, size in axes if size > 1)
        return text + (f", {self.schedule} of {self.micro}" if self.pipeline > 1 else "")


def ways(ranks: int) -> Iterator[Way]:
    """Every mix of the three that uses all ranks, but for data parallelism alone."""
    for pipeline in _divisors(ranks):
        for model in _divisors(ranks // pipeline):
            if pipeline == model == 1:
                continue
            data = ranks // pipeline // model
            for schedule in (ONE_F_ONE_B, FILL_DRAIN) if pipeline > 1 else (ONE_F_ONE_B,):
                for factor in _MICRO if pipeline > 1 else (0,):
                    mix = HybridConfig(data, pipeline, model, max(1, factor * pipeline), schedule)
                    yield _way(mix)
    if ranks > 1:
        name = "Hybrid, dense layers split"
        maker = ("Hybrid", {"axes": {"model": ranks}, "samples": "all"})
        yield Way(HYBRID, name, maker, True, split_dense_layers)


def _way(mix: HybridConfig) -> Way:
    name, given = _maker(mix)
    return Way(mix.family, f"{name}, {mix}", (name, given), True, partial(mixed, mix=mix))


def _maker(mix: HybridConfig) -> tuple[str, dict[str, Any]]:
    if mix.pipeline > 1:
        axes = {"stages": mix.pipeline, "data": mix.data, "model": mix.model}
        order = {"micro_batches": mix.micro, "schedule": mix.schedule.lower()}
        return "PipelineParallel", axes | order
    if mix.family == TENSOR:
        return "TensorParallel", {}
    return "Hybrid", {"axes": {"data": mix.data, "model": mix.model}}


def mixed(setting: Setting, mix: HybridConfig) -> Prediction:
    """What a step costs with so many ranks along each axis."""
    samples = share(setting, mix.data)
    micro = samples / mix.micro
    widest = setting.workload.widest
    stages = _cut(setting.workload, mix.pipeline)
    reason = batch_too_small(setting, mix.data)
    if stages is None:
        reason = f"the model has fewer than {mix.pipeline} blocks"
    elif mix.model > widest:
        reason = f"no layer has more than {widest} units to split"
    elif not reason and mix.micro > samples:
        reason = f"{mix.micro} micro-batches would share {samples} samples"
    if reason or stages is None:
        return refuse(setting, reason)
    whole = setting.seconds(math.ceil(micro))
    times = [whole * stage.split(mix.model) for stage in stages]
    split = [_split_cost(stage.layers, micro, mix, setting) for stage in stages]
    handed = [_handed_on(stage, micro, mix, setting) for stage in stages[:-1]]
    # Gradients of micro-batches are added up: half of what it takes to hand them over.
    adding = setting.handing_over() / (2 * mix.model) if mix.micro > 1 else 0.0
    parts = [stage.trained / (setting.workload.trained or 1.0) for stage in stages]
    busy = [
        own + cost.seconds + adding * part
        for own, cost, part in zip(times, split, parts, strict=True)
    ]
    # A stage sends outputs there and gradients back.
    moved = [there + back for there, back in pairwise([Cost(), *handed, Cost()])]
    # They travel while it computes the next; where that takes longer, it waits.
    slot = max([*busy, *(each.seconds for each in moved)])
    first = sum(busy) + sum(each.seconds for each in moved)
    reduced = [_reduced(s, t, mix, setting) for s, t in zip(stages, times, strict=True)]
    # Stages finish one after the other; what the slowest still has to send is waited for.
    after = max(left for left, _ in reduced)
    now = status(mix.data, setting, mix.pipeline * mix.model)
    after += setting.handing_over() * max(parts) / mix.model
    seconds = first + (mix.micro - 1) * slot + after + now.seconds
    exchanges = [
        (own + other).times(mix.micro) + gradients + now
        for own, other, (_, gradients) in zip(split, moved, reduced, strict=True)
    ]
    computing = mix.micro * max(times)
    idle = sum(busy) - max(busy)
    return Prediction(
        setting.batch, seconds, computing, max(each.seconds for each in exchanges),
        exposed=max(0.0, seconds - computing - idle), idle=idle,
        sent=max(each.sent for each in exchanges),
        memory=max(_memory(i, stage, micro, mix, setting) for i, stage in enumerate(stages)),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _cut(workload: Workload, count: int) -> list[Stage] | None:
    return cut(workload.layers, count)


def _split_cost(
    layers: Sequence[LayerCost], samples: float, mix: HybridConfig, setting: Setting
) -> Cost:
    """Split layers in pairs: the first by its outputs, the second by its inputs.

    Between the two nothing is sent. The outputs of the second are summed, and on the way back their
    gradients. A layer that is too small to be split takes the part of the second if it gives less
    than it takes. One without a partner gathers its outputs, and scatters their gradients.
    """
    if mix.model == 1:
        return Cost()
    wire = setting.cluster.between(mix.model)
    found = Cost()
    first: LayerCost | None = None
    for layer in layers:
        if first is not None and (layer.units >= mix.model or layer.narrows):
            nbytes = layer.output * samples
            found += allreduce("auto", nbytes, mix.model, setting.cluster).times(2)
            first = None
        elif first is None and layer.units >= mix.model:
            first = layer
    if first is not None:
        nbytes = first.output * samples
        found += allgather(nbytes, mix.model, wire) + reduce_scatter(nbytes, mix.model, wire)
    return found


def _handed_on(stage: Stage, samples: float, mix: HybridConfig, setting: Setting) -> Cost:
    """A micro-batch to the next stage; its gradient comes back the same way."""
    wire = setting.cluster.between(2, mix.model)
    nbytes = stage.handed_on * samples
    return Cost(wire.seconds(nbytes), nbytes)


def _reduced(
    stage: Stage, seconds: float, mix: HybridConfig, setting: Setting
) -> tuple[float, Cost]:
    """Gradients over the data axis, and over the model axis those of layers that are not split: the
    time that is left after the last backward pass, and all."""
    stride = mix.pipeline * mix.model
    cluster = setting.cluster.in_background()
    whole = sum(layer.trained for layer in stage.layers if layer.units < mix.model)
    found = Cost()
    if mix.model > 1:
        found = allreduce("auto", whole, mix.data * mix.model, cluster, mix.pipeline)
    if mix.data == 1:
        return found.seconds, found

    def cost(nbytes: float) -> Cost:
        return allreduce("auto", nbytes / mix.model, mix.data, cluster, stride)

    split = [e if e.units >= mix.model else replace(e, trained=0.0) for e in stage.layers[::-1]]
    backward = seconds * (1 - setting.compute.forward)
    share_of_all = stage.weight or 1.0
    work = pieces(split, backward / share_of_all, BUCKET_BYTES * mix.model)
    exchange = total(work, cost)
    if not setting.cluster.hides(mix.data, stride):
        return found.seconds + exchange.seconds, found + exchange
    left = overlapped_sends(work, cost) - sum(piece.seconds for piece in work)
    return found.seconds + left, found + exchange


def _memory(index: int, stage: Stage, samples: float, mix: HybridConfig, setting: Setting) -> float:
    """Bytes of a rank: its part of layers that are split, all of the others, and the micro-batches
    that are on their way."""
    workload = setting.workload
    part = stage.trained / (workload.trained or 1.0)
    whole = stage.parameters + part * (workload.optimizer + workload.room)
    able = sum(layer.trained for layer in stage.layers if layer.units >= mix.model)
    split = able / (stage.trained or 1.0) * (1 - 1 / mix.model)
    flying = mix.micro if mix.schedule == FILL_DRAIN else min(mix.micro, mix.pipeline - index)
    outputs = workload.outputs or 1.0
    return whole * (1 - split) + flying * samples * workload.activations * stage.output / outputs


def split_dense_layers(setting: Setting) -> Prediction:
    """Convolutions data parallel, dense layers split over all ranks (Krizhevsky, 2014).

    Before the first dense layer every rank gathers the whole batch; a rank computes its units of
    each dense layer for all samples.
    """
    ranks, workload, cluster = setting.ranks, setting.workload, setting.cluster
    dense = [layer for layer in workload.layers if layer.is_dense]
    others = [layer for layer in workload.layers if not layer.is_dense]
    widest = max((layer.units for layer in dense), default=0)
    reason = batch_too_small(setting, ranks)
    if not reason and not (dense and any(layer.trained for layer in others)):
        reason = "it takes both dense layers and others with parameters"
    if not reason and ranks > widest:
        reason = f"no dense layer has more than {widest} units to split"
    if reason:
        return refuse(setting, reason)
    samples, wire = share(setting, ranks), cluster.between(ranks)
    computing = setting.seconds(samples) + setting.handing_over()
    backward = computing - setting.compute.forward * setting.seconds(samples)
    hidden = cluster.in_background()

    def cost(nbytes: float) -> Cost:
        return allreduce("auto", nbytes, ranks, hidden)

    # Dense layers come last: when the backward pass reaches the others, theirs are done.
    behind = pieces(others[::-1], backward, BUCKET_BYTES)
    after = overlapped_sends if cluster.hides(ranks) else without_overlap
    left = after(behind, cost) - sum(piece.seconds for piece in behind)
    moved = Cost()
    for layer in dense:
        moved += allgather(layer.given * setting.batch, ranks, wire)
        moved += reduce_scatter(layer.given * setting.batch, ranks, wire)
    moved += allgather(dense[-1].output * setting.batch, ranks, wire)
    now = status(ranks, setting)
    seconds = computing + left + moved.seconds + now.seconds
    exchange = total(behind, cost) + moved + now
    kept = sum(layer.trained for layer in dense) * (1 - 1 / ranks)
    states = kept * (1 + (workload.optimizer + workload.trained) / (workload.trained or 1.0))
    gathered = sum(layer.given for layer in dense) * (setting.batch - samples)
    return Prediction(
        setting.batch, seconds, computing, exchange.seconds, seconds - computing,
        sent=exchange.sent, memory=workload.memory(samples) - states + gathered,
    )  # fmt: skip


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
