"""Cost of pipelines, split layers and data parallelism, separately and combined over a mesh.

The mesh has the axes data, pipeline and model, in this order: ranks that split a layer are
neighbours, since they communicate most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from caldera.parallel.pipeline.stage_partition import traced_samples
from caldera.parallel.planner.communication_cost import (
    BucketCost,
    CollectiveCost,
    allgather,
    allreduce,
    gradient_buckets,
    overlapped_sends,
    reduce_scatter,
    total,
    without_overlap,
)
from caldera.parallel.planner.data_parallel_cost import (
    samples_per_rank,
    statistics_sums,
    status_sums,
)
from caldera.parallel.planner.model_network import PipelineStage, StageCollective
from caldera.parallel.planner.prediction import (
    CannotTrain,
    Prediction,
    Setting,
    TrainingWay,
    priced,
)

PIPELINE, TENSOR, HYBRID = "pipeline", "tensor", "hybrid"
FILL_DRAIN, ONE_F_ONE_B = "fill-drain", "1F1B"
_MICRO = (1, 2, 4, 8)
"""Micro-batches for each stage of a pipeline that are tried."""


@dataclass(frozen=True)
class HybridConfig:
    """Ranks along each axis; micro-batches and the order in which a pipeline takes them."""

    data: int = 1
    pipeline: int = 1
    model: int = 1
    micro: int = 1
    schedule: str = ONE_F_ONE_B

    @property
    def family(self) -> str:
        """Name of the strategy if only one axis has more than one rank."""
        if self.data > 1 or (self.pipeline > 1 and self.model > 1):
            return HYBRID
        return PIPELINE if self.pipeline > 1 else TENSOR

    def __str__(self) -> str:
        axes = [("data", self.data), ("pipeline", self.pipeline), ("model", self.model)]
        text = " x ".join(f"{name} {size}" for name, size in axes if size > 1)
        return text + (f", {self.schedule} of {self.micro}" if self.pipeline > 1 else "")


def ways(ranks: int) -> Iterator[TrainingWay]:
    """Yield every combination that uses all ranks, except pure data parallelism."""
    for pipeline in _divisors(ranks):
        for model in _divisors(ranks // pipeline):
            if pipeline == model == 1:
                continue
            data = ranks // pipeline // model
            for schedule in (ONE_F_ONE_B, FILL_DRAIN) if pipeline > 1 else (ONE_F_ONE_B,):
                for factor in _MICRO if pipeline > 1 else (0,):
                    mix = HybridConfig(data, pipeline, model, max(1, factor * pipeline), schedule)
                    maker = _maker(mix)
                    cost = partial(predict_hybrid, mix=mix)
                    yield TrainingWay(mix.family, f"{maker[0]}, {mix}", maker, True, cost)
    if ranks > 1:
        name = "Hybrid, dense layers split"
        maker = ("Hybrid", {"axes": {"model": ranks}, "samples": "all"})
        yield TrainingWay(HYBRID, name, maker, True, split_dense_layers)


def _maker(mix: HybridConfig) -> tuple[str, dict[str, Any]]:
    if mix.pipeline > 1:
        axes = {"stages": mix.pipeline, "data": mix.data, "model": mix.model}
        order = {"micro_batches": mix.micro, "schedule": mix.schedule.lower()}
        return "PipelineParallel", axes | order
    if mix.family == TENSOR:
        return "TensorParallel", {}
    return "Hybrid", {"axes": {"data": mix.data, "model": mix.model}}


def check_width(what: str, widest: int, ranks: int) -> None:
    """Raise if the widest layer has fewer units than there are ranks.

    >>> check_width("dense layer", 10, 16)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    caldera.parallel.planner.prediction.CannotTrain: the widest dense layer has 10 units, fewer...
    """
    if widest <= 1 < ranks:
        raise CannotTrain(f"no {what} has units that could be split over ranks")
    if widest < ranks:
        raise CannotTrain(f"the widest {what} has {widest} units, fewer than {ranks} ranks")


@priced
def predict_hybrid(setting: Setting, mix: HybridConfig) -> Prediction:
    """Return the cost of a step with the given numbers of ranks along each axis."""
    check_width("layer", setting.workload.widest, mix.model)
    samples = samples_per_rank(setting, mix.data)
    if mix.micro > samples:
        raise CannotTrain(f"{mix.micro} micro-batches would share {samples} samples")
    stages = stages_of(setting, mix)
    if stages is None:
        raise CannotTrain(f"the model has fewer than {mix.pipeline} blocks")
    micro = samples / mix.micro
    whole = setting.seconds(math.ceil(micro))
    times = [whole * stage.split(mix.model) for stage in stages]
    split = [_shared(stage.exchanges, mix, setting) for stage in stages]
    # Adding gradients of micro-batches costs half of their transfer.
    adding = setting.handing_over() / (2 * mix.model) if mix.micro > 1 else 0.0
    parts = [stage.trained / (setting.workload.trained or 1.0) for stage in stages]
    busy = [
        own + cost.seconds + adding * part
        for own, cost, part in zip(times, split, parts, strict=True)
    ]
    moved = _between_stages(stages, mix, setting)
    # They travel while it computes the next; where that takes longer, it waits.
    slot = max([*busy, *(each.seconds for each in moved)])
    first = sum(busy) + sum(each.seconds for each in moved)
    reduced = [_reduced(s, t, mix, setting) for s, t in zip(stages, times, strict=True)]
    # Stages finish sequentially; the slowest stage's remaining sends end the step.
    after = max(left for left, _ in reduced)
    now = status_sums(setting, setting.ranks)
    # Batch normalisation is over a micro-batch of all pipelines, for which those wait.
    stride = mix.pipeline * mix.model
    sums = [statistics_sums(setting, stage.layers, mix.data, stride) for stage in stages]
    sums = [each.times(mix.micro) for each in sums]
    after += setting.handing_over() * max(parts) / mix.model
    waited = now.seconds + max(each.seconds for each in sums)
    seconds = first + (mix.micro - 1) * slot + after + waited
    exchanges = [
        (own + other).times(mix.micro) + gradients + normalised + now
        for own, other, (_, gradients), normalised in zip(split, moved, reduced, sums, strict=True)
    ]
    computing = mix.micro * max(times)
    idle = sum(busy) - max(busy)
    return Prediction(
        setting.batch,
        seconds,
        computing,
        max(each.seconds for each in exchanges),
        exposed=max(0.0, seconds - computing - idle),
        idle=idle,
        sent=max(each.sent for each in exchanges),
        memory=max(_memory(i, stage, micro, mix, setting) for i, stage in enumerate(stages)),
    )


def stages_of(setting: Setting, mix: HybridConfig) -> list[PipelineStage] | None:
    """Return the stages of a model, or None if it has too few layers."""
    traced = traced_samples(setting.batch, mix.data, mix.micro, mix.model)
    samples = samples_per_rank(setting, mix.data) / mix.micro
    return setting.workload.network.stages(mix.pipeline, mix.model, samples, traced)


def _shared(
    exchanges: Sequence[StageCollective], mix: HybridConfig, setting: Setting
) -> CollectiveCost:
    """Return the cost of exchanges between the ranks of a stage, for a micro-batch."""
    if mix.model == 1:
        return CollectiveCost()
    wire = setting.cluster.between(mix.model)
    found = CollectiveCost()
    for kind, nbytes in exchanges:
        if kind == "sum":
            found += allreduce("auto", nbytes, mix.model, setting.cluster)
        else:
            found += (allgather if kind == "gather" else reduce_scatter)(nbytes, mix.model, wire)
    return found


def _between_stages(
    stages: Sequence[PipelineStage], mix: HybridConfig, setting: Setting
) -> list[CollectiveCost]:
    """Return the cost of each stage's sends for a micro-batch: outputs forward, gradients back."""
    wire = setting.cluster.between(2, mix.model)
    # The wait for cores was measured around a ring, whose messages wait for each other.
    wire = replace(wire, turn=wire.turn / max(setting.ranks - 1, 1))

    def sent(nbytes: float) -> CollectiveCost:
        return CollectiveCost(wire.seconds(nbytes), nbytes)

    there = [sent(stage.sent_on) for stage in stages[:-1]]
    back = [sent(stage.sent_back) for stage in stages[:-1]]
    ends = zip([*there, CollectiveCost()], [CollectiveCost(), *back], strict=True)
    return [first + second for first, second in ends]


def _reduced(
    stage: PipelineStage, seconds: float, mix: HybridConfig, setting: Setting
) -> tuple[float, CollectiveCost]:
    """Return the exposed time and the total cost of summing gradients.

    Gradients are summed over the data axis, and gradients of unsplit layers over the model axis
    too.
    """
    workload, cluster = setting.workload, setting.cluster.in_background()
    shards = workload.network.shards(mix.model)
    sizes = [workload.gradients[i].nbytes if e is None else e for i, e in enumerate(shards)]
    # A pipeline takes them from the last parameter to the first.
    order = workload.backward if mix.pipeline == 1 else range(len(sizes) - 1, -1, -1)
    own, shared = (
        [number for number in order if number in chosen]
        for chosen in (set(stage.gradients), set(stage.shared))
    )
    backward = seconds * (1 - setting.compute.forward) / (stage.weight or 1.0)
    layers = range(stage.first, stage.first + len(stage.layers))
    left, found = 0.0, CollectiveCost()
    for numbers, ranks, stride in (
        ([i for i in own if shards[i] is not None], mix.data, mix.pipeline * mix.model),
        ([i for i in own if shards[i] is None], mix.data * mix.model, mix.pipeline),
        ([i for i in shared if shards[i] is not None], mix.data, mix.pipeline * mix.model),
        ([i for i in shared if shards[i] is not None], mix.pipeline, mix.model),
        ([i for i in shared if shards[i] is None], setting.ranks, 1),
    ):

        def cost(bucket: BucketCost, ranks: int = ranks, stride: int = stride) -> CollectiveCost:
            return allreduce("auto", bucket.nbytes, ranks, cluster, stride)

        if ranks == 1 or not numbers:
            continue
        work = gradient_buckets(workload, backward, numbers, sizes, layers)
        exchange = total(work, cost)
        found += exchange
        if not setting.cluster.hides(ranks, stride):
            left += exchange.seconds
        else:
            left += overlapped_sends(work, cost) - sum(bucket.seconds for bucket in work)
    return left, found


def _memory(
    index: int, stage: PipelineStage, samples: float, mix: HybridConfig, setting: Setting
) -> float:
    """Return the memory of a rank in bytes: its parts of split layers, whole unsplit layers, and
    the micro-batches in flight.
    """
    workload = setting.workload
    part = stage.trained / (workload.trained or 1.0)
    whole = stage.parameters + part * (workload.optimizer + workload.workspace)
    able = sum(layer.trained for layer in stage.layers if layer.units >= mix.model)
    split = able / (stage.trained or 1.0) * (1 - 1 / mix.model)
    flying = mix.micro if mix.schedule == FILL_DRAIN else min(mix.micro, mix.pipeline - index)
    outputs = workload.outputs or 1.0
    return whole * (1 - split) + flying * samples * workload.activations * stage.output / outputs


@priced
def split_dense_layers(setting: Setting) -> Prediction:
    """Return convolutions data parallel, dense layers split over all ranks (Krizhevsky, 2014).

    Before the first dense layer every rank gathers the whole batch; a rank computes its units of
    each dense layer for all samples.
    """
    ranks, workload, cluster = setting.ranks, setting.workload, setting.cluster
    dense = [layer for layer in workload.layers if layer.is_dense]
    samples = samples_per_rank(setting, ranks)
    if not (dense and any(each.trained for each in workload.layers if not each.is_dense)):
        raise CannotTrain("it takes both dense layers and others with parameters")
    check_width("dense layer", max(layer.units for layer in dense), ranks)
    computing = setting.seconds(samples) + setting.handing_over()
    backward = computing - setting.compute.forward * setting.seconds(samples)
    hidden = cluster.in_background()

    def cost(bucket: BucketCost) -> CollectiveCost:
        return allreduce("auto", bucket.nbytes, ranks, hidden)

    shards = workload.network.shards(ranks, dense_only=True)
    behind = gradient_buckets(workload, backward, [i for i in workload.backward if not shards[i]])
    after = overlapped_sends if cluster.hides(ranks) else without_overlap
    left = after(behind, cost) - sum(bucket.seconds for bucket in behind)
    exchanges = workload.network.of_all_samples(ranks, samples)
    moved = _shared(exchanges, HybridConfig(model=ranks), setting)
    now = status_sums(setting, ranks) + statistics_sums(setting, workload.layers, ranks)
    seconds = computing + left + moved.seconds + now.seconds
    exchange = total(behind, cost) + moved + now
    whole = zip(workload.gradients, shards, strict=True)
    kept = sum(gradient.nbytes - shard for gradient, shard in whole if shard is not None)
    states = kept * (1 + (workload.optimizer + workload.trained) / (workload.trained or 1.0))
    gathered = sum(layer.given for layer in dense) * (setting.batch - samples)
    return Prediction(
        setting.batch,
        seconds,
        computing,
        exchange.seconds,
        seconds - computing,
        sent=exchange.sent,
        memory=workload.memory(samples) - states + gathered,
    )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
