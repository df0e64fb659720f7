"""Parameter servers, and ways in which ranks agree only now and then or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from caldera.parallel.asynchronous.transport import PUSH_HEADER_BYTES, REPLY_HEADER_BYTES, deal
from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.parallel.data.sums import bucket_indices
from caldera.parallel.planner.communication_cost import CollectiveCost, allreduce
from caldera.parallel.planner.data_parallel_cost import (
    samples_per_rank,
    statistics_sums,
    status_sums,
)
from caldera.parallel.planner.prediction import (
    CannotTrain,
    Prediction,
    Setting,
    TrainingWay,
    priced,
)

SERVER, AVERAGING, ENSEMBLE = "parameter server", "averaging", "ensemble"
_MODES = {"synchronous": True, "asynchronous": False, "stale": False}
_BOUND = 4
"""Steps that a rank may be ahead of the slowest, with bounded staleness."""


def ways(ranks: int, every: int) -> Iterator[TrainingWay]:
    """Yield all asynchronous strategies for these ranks."""
    if ranks < 2:
        return
    for mode, exact in _MODES.items():
        for servers in (2**power for power in range(int(math.log2(ranks)) + 1)):
            given = {"servers": servers, "mode": mode}
            given |= {"bound": _BOUND} if mode == "stale" else {}
            name = f"ParameterServer, {mode}, {servers} server{'s' * (servers > 1)}"
            cost = partial(parameter_server_cost, servers=servers, mode=mode)
            yield TrainingWay(SERVER, name, ("ParameterServer", given), exact, cost)
    yield TrainingWay(SERVER, "Hogwild", ("Hogwild", {}), False, _hogwild)
    local = ("LocalSGD", {"every": every})
    yield TrainingWay(AVERAGING, f"LocalSGD, every {every} steps", local, every == 1, _local)
    elastic = ("ElasticAveraging", {"every": every})
    yield TrainingWay(AVERAGING, f"ElasticAveraging, every {every} steps", elastic, False, _elastic)
    for pattern, partners in (("random pairs", 1), ("ring", 2)):
        maker = ("Gossip", {"pattern": pattern})
        cost = partial(_gossip, partners=partners)
        yield TrainingWay(AVERAGING, f"Gossip, {pattern}", maker, False, cost)
    yield TrainingWay(ENSEMBLE, f"Ensemble of {ranks} models", ("Ensemble", {}), False, _ensemble)


@priced
def parameter_server_cost(setting: Setting, servers: int, mode: str) -> Prediction:
    """Predict parameter servers: every rank sends gradients to servers and receives parameters.

    Server ranks are also workers, and their links carry the traffic of all ranks. Synchronous: all
    ranks push, then all pull. Otherwise a rank continues with the parameters it has, and the
    servers' links limit the number of steps.
    """
    ranks, workload = setting.ranks, setting.workload
    samples, count = samples_per_rank(setting, ranks), len(workload.gradients)
    if servers > count:
        raise CannotTrain(f"{servers} servers would share {count} parameters, which stay whole")
    # Gradients are packed and added up, parameters packed and unpacked.
    passes = 4.0
    if setting.cluster.is_full:
        # A server's thread takes a core from the ranks: it updates parameters and copies them for
        # each rank.
        passes += 2 * ranks / servers
    computing = setting.seconds(samples) + passes * setting.handing_over()
    wire = setting.cluster.in_background().between(ranks, neighbours=False)
    wire = wire.met() if ranks > 2 else wire
    shards = server_bytes(setting, servers)
    kept = max(shards)
    # A rank sends one part per server; a server receives its part from every rank.
    pushed = sum(shards) + servers * PUSH_HEADER_BYTES
    own = wire.seconds(pushed - (min(shards) if servers == ranks else 0), servers)
    carried = (ranks - 1) * kept
    at_server = wire.summed(carried, ranks - 1)
    now = CollectiveCost()
    if mode == "synchronous":
        exchange = max(own, at_server) + max(own, wire.seconds(carried, ranks - 1))
        now = status_sums(setting, ranks) + statistics_sums(setting, workload.layers, ranks)
        seconds = computing + exchange + now.seconds
    else:
        exchange = 2 * own
        seconds = max(computing + exchange, at_server)
    # A server's own gradients are not sent.
    replies = (ranks - 1) * (kept + REPLY_HEADER_BYTES)
    sent = replies + pushed - kept - PUSH_HEADER_BYTES
    return Prediction(
        setting.batch,
        seconds,
        computing,
        exchange + now.seconds,
        seconds - computing,
        sent=max(sent, pushed if servers < ranks else 0) + now.sent,
        memory=workload.memory(samples) + 2 * kept,
    )


def server_bytes(setting: Setting, servers: int) -> list[float]:
    """Return bytes of the parameters of each server."""
    sizes = [gradient.nbytes for gradient in setting.workload.gradients]
    owners = deal([round(nbytes) for nbytes in sizes], servers)
    return [
        sum(nbytes for nbytes, owner in zip(sizes, owners, strict=True) if owner == server)
        for server in range(servers)
    ]


@priced
def _hogwild(setting: Setting) -> Prediction:
    """Predict Hogwild: the ranks of a machine share one copy of the parameters, without
    messages.
    """
    ranks, workload = setting.ranks, setting.workload
    samples = samples_per_rank(setting, ranks)
    if ranks > setting.cluster.per_node:
        raise CannotTrain(f"{ranks} ranks are not on one machine")
    computing = setting.seconds(samples)
    shared = (workload.parameters + workload.optimizer) * (1 - 1 / ranks)
    return Prediction(setting.batch, computing, computing, memory=workload.memory(samples) - shared)


def _local(setting: Setting) -> Prediction:
    """Predict local SGD: parameters, optimizer state and running statistics are averaged."""
    workload = setting.workload
    sizes = [round(gradient.nbytes) for gradient in workload.gradients]
    kept = round(workload.optimizer / (workload.trained or 1.0))
    return _now_and_then(setting, [*sizes * (1 + kept), *_statistics(setting)], 0.0)


def _elastic(setting: Setting) -> Prediction:
    """Predict elastic averaging: each rank is drawn to a centre, which every rank stores."""
    sizes = [round(gradient.nbytes) for gradient in setting.workload.gradients]
    return _now_and_then(setting, sizes, setting.workload.parameters)


def _statistics(setting: Setting) -> list[int]:
    """Return bytes of the running means and variances."""
    workload = setting.workload
    return [2 * each.synchronised * workload.value for each in workload.layers if each.synchronised]


def _now_and_then(setting: Setting, sizes: list[int], more_memory: float) -> Prediction:
    ranks, cluster = setting.ranks, setting.cluster.in_background()
    buckets = bucket_indices(sizes, [""] * len(sizes), range(len(sizes)), BUCKET_BYTES)
    messages = [sum(sizes[index] for index in bucket) for bucket in buckets]
    whole = sum(
        (allreduce("auto", nbytes, ranks, cluster) for nbytes in messages), CollectiveCost()
    )
    # Values are weighted before the exchange, and the sum afterwards.
    cost = whole + CollectiveCost(2 * setting.handing_over())
    return _after_each_step(setting, cost.times(1 / setting.every), more_memory)


def _gossip(setting: Setting, partners: int) -> Prediction:
    """Return parameters to one partner or to both neighbours, after each step."""
    nbytes = setting.workload.trained + sum(_statistics(setting))
    partners = min(partners, setting.ranks - 1)
    wire = setting.cluster.between(setting.ranks, neighbours=partners == 2)
    wire = wire.met() if partners == 2 else wire
    # Every model is weighted and added; the own model is packed, divided and unpacked.
    mixing = (3 + 2 * (partners + 1)) * setting.handing_over()
    cost = CollectiveCost(wire.seconds(partners * nbytes, partners) + mixing, partners * nbytes)
    return _after_each_step(setting, cost, nbytes)


def _ensemble(setting: Setting) -> Prediction:
    """Predict ensembles: each rank trains a separate model on all samples."""
    computing = setting.seconds(setting.batch)
    memory = setting.workload.memory(setting.batch)
    return Prediction(setting.batch, computing, computing, memory=memory)


@priced
def _after_each_step(setting: Setting, cost: CollectiveCost, more_memory: float) -> Prediction:
    samples = samples_per_rank(setting, setting.ranks)
    computing = setting.seconds(samples)
    memory = setting.workload.memory(samples) + more_memory
    return Prediction(
        setting.batch,
        computing + cost.seconds,
        computing,
        cost.seconds,
        cost.seconds,
        sent=cost.sent,
        memory=memory,
    )
