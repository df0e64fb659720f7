"""Cost of data parallelism: plain, sharded and compressed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from caldera.core.graph.ops.collective import shard_size
from caldera.parallel.data.sums import factors_are_smaller
from caldera.parallel.planner.communication_cost import (
    ALGORITHMS,
    BucketCost,
    CollectiveCost,
    CostOf,
    allgather,
    allreduce,
    gradient_buckets,
    overlapped_sends,
    parameter_buckets,
    prefetched_and_sent,
    reduce_scatter,
    total,
    waited_for,
    without_overlap,
)
from caldera.parallel.planner.compression_cost import CodecCost
from caldera.parallel.planner.model_network import LayerCost
from caldera.parallel.planner.prediction import (
    CannotTrain,
    Prediction,
    Setting,
    TrainingWay,
    priced,
)

STATUS_BYTES = 40
"""Bytes of losses and metrics that ranks sum in each step before they continue."""
DATA, SHARDED, COMPRESSED = "data parallel", "sharded", "compressed"


def ways(codes: Mapping[str, CodecCost]) -> Iterator[TrainingWay]:
    """Yield all data-parallel strategies."""
    for algorithm in ALGORITHMS:
        cost = partial(_plain, algorithm=algorithm)
        maker: tuple[str, dict[str, Any]] = ("DataParallel", {"algorithm": algorithm})
        yield TrainingWay(DATA, f"DataParallel, {algorithm}", maker, True, cost)
    yield TrainingWay(
        DATA, "DataParallel, factors", ("DataParallel", {"factors": True}), True, _by_factors
    )
    for stage in (1, 2, 3):
        maker = ("Sharded", {"stage": stage})
        yield TrainingWay(
            SHARDED, f"Sharded, stage {stage}", maker, True, partial(_sharded, stage=stage)
        )
    for name, code in codes.items():
        maker = ("DataParallel", {"compression": code.compressor})
        cost = partial(_compressed, name=name)
        yield TrainingWay(COMPRESSED, f"DataParallel, {name}", maker, False, cost)


def samples_per_rank(setting: Setting, ranks: int) -> int:
    """Return the samples of the rank that has most; raise if a rank would have none."""
    if ranks > setting.batch:
        raise CannotTrain(f"{ranks} ranks would share a batch of {setting.batch} samples")
    return math.ceil(setting.batch / ranks)


def status_sums(setting: Setting, ranks: int, algorithm: str = "auto") -> CollectiveCost:
    """Return the loss and the metrics of a step, which all ranks wait for."""
    return allreduce(algorithm, STATUS_BYTES, ranks, setting.cluster)


def statistics_sums(
    setting: Setting,
    layers: Sequence[LayerCost],
    ranks: int,
    stride: int = 1,
    algorithm: str = "auto",
) -> CollectiveCost:
    """Return the cost of batch normalisation's sums over ranks, which are not overlapped.

    There are two messages forward, the first with the number of samples, and one backward.
    """
    value = setting.workload.value
    found = CollectiveCost()
    for layer in layers:
        if layer.synchronised:
            vector = layer.synchronised * value
            for nbytes in (vector + value, vector, 2 * vector):
                found += allreduce(algorithm, nbytes, ranks, setting.cluster, stride)
    return found


def _waited_for(setting: Setting, algorithm: str = "auto") -> CollectiveCost:
    ranks, layers = setting.ranks, setting.workload.layers
    sums = statistics_sums(setting, layers, ranks, algorithm=algorithm)
    return status_sums(setting, ranks, algorithm) + sums


def _computing(setting: Setting, samples: int) -> tuple[float, float]:
    """Return seconds of a step whose gradients are exchanged, and of its forward pass."""
    computing = setting.seconds(samples)
    return computing + setting.handing_over(), setting.compute.forward * computing


@priced
def _plain(setting: Setting, algorithm: str) -> Prediction:
    cluster = setting.cluster.in_background()
    return _exchanged(
        setting,
        lambda bucket: allreduce(algorithm, bucket.nbytes, setting.ranks, cluster),
        waited=_waited_for(setting, algorithm),
    )


@priced
def _compressed(setting: Setting, name: str) -> Prediction:
    code, workload = setting.codes[name], setting.workload
    wire = setting.cluster.in_background().between(setting.ranks, neighbours=False)

    def cost(bucket: BucketCost) -> CollectiveCost:
        return code.cost([each.shape for each in bucket.gradients], setting.ranks, wire)

    def encoding(bucket: BucketCost) -> CollectiveCost:
        seconds = code.seconds(bucket.nbytes / workload.value, setting.ranks)
        return CollectiveCost(seconds * setting.cluster.slowdown)

    found = _exchanged(setting, cost, encoding)
    # The compression error is stored until the next step.
    return replace(found, memory=found.memory + workload.trained)


@priced
def _by_factors(setting: Setting) -> Prediction:
    """Predict data parallelism by factors.

    Dense layers send the factors of their gradients where these are smaller, and every rank
    multiplies the factors of all samples.
    """
    ranks, batch, workload = setting.ranks, setting.batch, setting.workload
    cluster = setting.cluster.in_background()
    factored = {
        number: gradient
        for number, gradient in enumerate(workload.gradients)
        if _has_factors(gradient.shape, workload.layers[gradient.layer], setting)
    }
    if not factored:
        raise CannotTrain("no dense layer's inputs and outputs are less than its gradient")
    rest = [number for number in workload.backward if number not in factored]
    found = _exchanged(
        setting, lambda bucket: allreduce("auto", bucket.nbytes, ranks, cluster), order=rest
    )
    # Ranks with fewer samples pad to the same number of rows.
    rows = ranks * samples_per_rank(setting, ranks) * workload.value
    moved = sum(
        (
            allgather(sum(each.shape) * rows, ranks, cluster.between(ranks))
            for each in factored.values()
        ),
        CollectiveCost(),
    )
    # One of three passes of these layers is over all samples.
    layers = {workload.layers[each.layer] for each in factored.values()}
    part = sum(layer.weight for layer in layers) / 3
    more = part * (setting.seconds(batch) - setting.seconds(samples_per_rank(setting, ranks)))
    return replace(
        found,
        seconds=found.seconds + moved.seconds + more,
        computing=found.computing + more,
        exchange=found.exchange + moved.seconds,
        exposed=found.exposed + moved.seconds,
        sent=found.sent + moved.sent,
    )


def _has_factors(shape: tuple[int, ...], layer: LayerCost, setting: Setting) -> bool:
    """Return True if a gradient is a product over samples with smaller factors."""
    if not layer.is_dense or len(shape) != 2:
        return False
    inputs, outputs = shape
    # A layer that is applied to every position of a sequence has more rows than samples.
    is_by_sample = round(layer.output / setting.workload.value) == outputs
    return is_by_sample and factors_are_smaller(setting.batch, inputs, outputs)


def _exchanged(
    setting: Setting,
    cost: CostOf,
    encoding: CostOf = lambda bucket: CollectiveCost(),
    *,
    order: Sequence[int] | None = None,
    waited: CollectiveCost | None = None,
) -> Prediction:
    """Predict gradients exchanged in messages during the backward pass.

    Encoding occupies a core: without a free core, it delays the computation.
    """
    ranks, workload = setting.ranks, setting.workload
    samples = samples_per_rank(setting, ranks)
    computing, forward = _computing(setting, samples)
    behind = gradient_buckets(workload, computing - forward, order)
    now = _waited_for(setting) if waited is None else waited
    exchange = total(behind, cost) + total(behind, encoding) + now
    if not setting.cluster.hides(ranks):
        after = without_overlap(behind, cost, encoding)
    elif setting.cluster.is_full:
        after = overlapped_sends(behind, cost) + total(behind, encoding).seconds
    else:
        after = overlapped_sends(behind, lambda bucket: cost(bucket) + encoding(bucket))
    seconds = forward + after + now.seconds
    return Prediction(
        setting.batch,
        seconds,
        computing,
        exchange.seconds,
        seconds - computing,
        sent=exchange.sent,
        memory=workload.memory(samples),
    )


@priced
def _sharded(setting: Setting, stage: int) -> Prediction:
    ranks, workload, cluster = setting.ranks, setting.workload, setting.cluster
    samples = samples_per_rank(setting, ranks)
    computing, forward = _computing(setting, samples)
    # Gathered parameters are unpacked, in stage 3 before both passes.
    computing += (1 + (stage == 3)) * setting.handing_over()
    wire = cluster.in_background().between(ranks)

    def padded(bucket: BucketCost) -> float:
        """Return the size of a bucket padded to equal parts of each parameter."""
        sizes = [shard_size(math.prod(each.shape), ranks) for each in bucket.gradients]
        return ranks * sum(sizes) * workload.value

    def gather(bucket: BucketCost) -> CollectiveCost:
        return allgather(padded(bucket), ranks, wire)

    def scatter(bucket: BucketCost) -> CollectiveCost:
        return reduce_scatter(padded(bucket), ranks, wire)

    there = parameter_buckets(workload, forward)
    back = gradient_buckets(workload, computing - forward)
    now = _waited_for(setting)
    exchange = total(there, gather) + total(back, scatter) + now
    if stage == 3:
        exchange += total(there, gather)
    if not cluster.hides(ranks):
        seconds = computing + exchange.seconds - now.seconds
    elif stage < 3:
        seconds = waited_for(there, gather) + overlapped_sends(back, scatter)
    else:
        seconds = prefetched_and_sent(there, gather, lambda bucket: CollectiveCost())
        seconds += prefetched_and_sent(back, gather, scatter)
    seconds += now.seconds
    return Prediction(
        setting.batch,
        seconds,
        computing,
        exchange.seconds,
        seconds - computing,
        sent=exchange.sent,
        memory=_memory(setting, stage, samples, back),
    )


def _memory(setting: Setting, stage: int, samples: int, messages: Sequence[BucketCost]) -> float:
    """Return the memory of a rank: its shard of values, and two messages of gathered ones."""
    workload, ranks = setting.workload, setting.ranks
    around = min(2 * max((bucket.nbytes for bucket in messages), default=0.0), workload.trained)
    parameters = workload.parameters + workload.trained / ranks
    workspace = workload.workspace
    if stage >= 2:
        workspace = max(workspace - workload.trained, 0.0) + workload.trained / ranks + around
    if stage == 3:
        parameters = workload.parameters - workload.trained * (1 - 1 / ranks) + around
    kept = workload.optimizer / ranks
    return parameters + kept + workspace + workload.activations * samples
