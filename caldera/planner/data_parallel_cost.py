"""Data parallelism: what it costs plain, sharded and compressed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.parallel.data.sufficient_factors import factors_are_smaller
from caldera.planner.collective_cost import ALGORITHMS, Cost, allgather, allreduce, reduce_scatter
from caldera.planner.compression_cost import CodecCost
from caldera.planner.overlap import (
    BucketCost,
    overlapped_sends,
    pieces,
    prefetched_and_sent,
    total,
    waited_for,
    without_overlap,
)
from caldera.planner.prediction import Prediction, Setting, Way, refuse

DATA, SHARDED, COMPRESSED = "data parallel", "sharded", "compressed"


def ways(codes: Mapping[str, CodecCost]) -> Iterator[Way]:
    """Every kind of data parallelism."""
    for algorithm in ALGORITHMS:
        cost = partial(_plain, algorithm=algorithm)
        maker: tuple[str, dict[str, Any]] = ("DataParallel", {"algorithm": algorithm})
        yield Way(DATA, f"DataParallel, {algorithm}", maker, True, cost)
    yield Way(DATA, "DataParallel, factors", ("DataParallel", {"factors": True}), True, _by_factors)
    for stage in (1, 2, 3):
        maker = ("Sharded", {"stage": stage})
        yield Way(SHARDED, f"Sharded, stage {stage}", maker, True, partial(_sharded, stage=stage))
    for name, code in codes.items():
        maker = ("DataParallel", {"compression": code.compressor})
        cost = partial(_compressed, name=name)
        yield Way(COMPRESSED, f"DataParallel, {name}", maker, False, cost)


def share(setting: Setting, ranks: int) -> int:
    """The samples of the rank that has most."""
    return math.ceil(setting.batch / ranks)


def batch_too_small(setting: Setting, ranks: int) -> str:
    """Why so many ranks cannot share a batch; empty if they can."""
    if ranks <= setting.batch:
        return ""
    return f"{ranks} ranks would share a batch of {setting.batch} samples"


def status(ranks: int, setting: Setting, stride: int = 1) -> Cost:
    """Messages that all ranks wait for: the loss, and statistics of batch normalisation."""
    found = Cost()
    for size, count in setting.workload.waited_for.items():
        found += allreduce("auto", size, ranks, setting.cluster, stride).times(count)
    return found


def _computing(setting: Setting, samples: int) -> tuple[float, float]:
    """Seconds of a step whose gradients are exchanged, and of its forward pass."""
    computing = setting.seconds(samples)
    return computing + setting.handing_over(), setting.compute.forward * computing


def _plain(setting: Setting, algorithm: str) -> Prediction:
    cluster = setting.cluster.in_background()
    return _exchanged(setting, lambda nbytes: allreduce(algorithm, nbytes, setting.ranks, cluster))


def _compressed(setting: Setting, name: str) -> Prediction:
    code, workload = setting.codes[name], setting.workload
    wire = setting.cluster.in_background().between(setting.ranks, neighbours=False)

    def cost(nbytes: float) -> Cost:
        return code.cost(round(nbytes / workload.value), setting.ranks, wire)

    def encoding(nbytes: float) -> Cost:
        seconds = code.seconds(nbytes / workload.value, setting.ranks)
        return Cost(seconds * setting.cluster.slowdown)

    found = _exchanged(setting, cost, encoding)
    # What was not sent is kept for the next step.
    return replace(found, memory=found.memory + workload.trained)


def _by_factors(setting: Setting) -> Prediction:
    """Dense layers send what their gradients are products of, wherever that is less, and every rank
    multiplies those of all samples."""
    ranks, batch, value = setting.ranks, setting.batch, setting.workload.value
    cluster = setting.cluster.in_background()
    factored, layers = [], []
    for layer in setting.workload.layers:
        inputs, outputs = round(layer.given / value), round(layer.output / value)
        if layer.is_dense and layer.trained and factors_are_smaller(batch, inputs, outputs):
            factored.append(layer)
            layer = replace(layer, trained=0.0)
        layers.append(layer)
    if not factored:
        return refuse(setting, "no dense layer's inputs and outputs are less than its gradient")
    rest = replace(setting, workload=replace(setting.workload, layers=tuple(layers)))
    found = _exchanged(rest, lambda nbytes: allreduce("auto", nbytes, ranks, cluster))
    if found.refused:
        return found
    moved = sum(
        (allgather((e.given + e.output) * batch, ranks, cluster.between(ranks)) for e in factored),
        Cost(),
    )
    # One of three passes of these layers is over all samples.
    part = sum(layer.weight for layer in factored) / 3
    more = part * (setting.seconds(batch) - setting.seconds(share(setting, ranks)))
    return replace(
        found, seconds=found.seconds + moved.seconds + more, computing=found.computing + more,
        exchange=found.exchange + moved.seconds, exposed=found.exposed + moved.seconds,
        sent=found.sent + moved.sent, memory=setting.workload.memory(share(setting, ranks)),
    )  # fmt: skip


def _exchanged(
    setting: Setting,
    cost: Callable[[float], Cost],
    encoding: Callable[[float], Cost] = lambda nbytes: Cost(),
) -> Prediction:
    """Gradients in messages that leave while the backward pass goes on.

    Encoding takes a core: where none is left, the rank computes that much later.
    """
    ranks, workload = setting.ranks, setting.workload
    reason = batch_too_small(setting, ranks)
    if reason:
        return refuse(setting, reason)
    samples = share(setting, ranks)
    computing, forward = _computing(setting, samples)
    behind = pieces(workload.layers[::-1], computing - forward, BUCKET_BYTES)
    now = status(ranks, setting)
    exchange = total(behind, cost) + total(behind, encoding) + now
    if not setting.cluster.hides(ranks):
        after = without_overlap(behind, cost, encoding)
    elif setting.cluster.is_full:
        after = overlapped_sends(behind, cost) + total(behind, encoding).seconds
    else:
        after = overlapped_sends(behind, lambda nbytes: cost(nbytes) + encoding(nbytes))
    seconds = forward + after + now.seconds
    return Prediction(
        setting.batch, seconds, computing, exchange.seconds, seconds - computing,
        sent=exchange.sent, memory=workload.memory(samples),
    )  # fmt: skip


def _sharded(setting: Setting, stage: int) -> Prediction:
    ranks, workload, cluster = setting.ranks, setting.workload, setting.cluster
    reason = batch_too_small(setting, ranks)
    if reason:
        return refuse(setting, reason)
    samples = share(setting, ranks)
    computing, forward = _computing(setting, samples)
    wire = cluster.in_background().between(ranks)

    def gather(nbytes: float) -> Cost:
        return allgather(nbytes, ranks, wire)

    def scatter(nbytes: float) -> Cost:
        return reduce_scatter(nbytes, ranks, wire)

    there = pieces(workload.layers, forward, BUCKET_BYTES)
    back = pieces(workload.layers[::-1], computing - forward, BUCKET_BYTES)
    now = status(ranks, setting)
    exchange = total(there, gather) + total(back, scatter) + now
    if stage == 3:
        exchange += total(back, gather)
    if not cluster.hides(ranks):
        seconds = computing + exchange.seconds - now.seconds
    elif stage < 3:
        seconds = waited_for(there, gather) + overlapped_sends(back, scatter)
    else:
        seconds = prefetched_and_sent(there, gather, lambda nbytes: Cost())
        seconds += prefetched_and_sent(back, gather, scatter)
    seconds += now.seconds
    return Prediction(
        setting.batch, seconds, computing, exchange.seconds, seconds - computing,
        sent=exchange.sent, memory=_memory(setting, stage, samples, back),
    )  # fmt: skip


def _memory(setting: Setting, stage: int, samples: int, messages: Sequence[BucketCost]) -> float:
    """A rank's part of what is shared out, and two messages of what is put together again."""
    workload, ranks = setting.workload, setting.ranks
    around = min(2 * max((piece.nbytes for piece in messages), default=0.0), workload.trained)
    parameters = workload.parameters + workload.trained / ranks
    room = workload.room
    if stage >= 2:
        room = max(room - workload.trained, 0.0) + workload.trained / ranks + around
    if stage == 3:
        parameters = workload.parameters - workload.trained * (1 - 1 / ranks) + around
    kept = workload.optimizer / ranks
    return parameters + kept + room + workload.activations * samples
