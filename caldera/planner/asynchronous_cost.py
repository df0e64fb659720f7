"""Parameter servers, and ways in which ranks agree only now and then or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from caldera.planner.collective_cost import Cost, allreduce
from caldera.planner.data_parallel_cost import batch_too_small, share
from caldera.planner.prediction import Prediction, Setting, Way, refuse

SERVER, AVERAGING, ENSEMBLE = "parameter server", "averaging", "ensemble"
_MODES = {"synchronous": True, "asynchronous": False, "stale": False}
_BOUND = 4
"""Steps that a rank may be ahead of the slowest, with bounded staleness."""


def ways(ranks: int, every: int) -> Iterator[Way]:
    """Every way of this kind."""
    if ranks < 2:
        return
    for mode, exact in _MODES.items():
        for servers in _powers(ranks):
            given = {"servers": servers, "mode": mode}
            given |= {"bound": _BOUND} if mode == "stale" else {}
            name = f"ParameterServer, {mode}, {servers} server{'s' * (servers > 1)}"
            cost = partial(parameter_server_cost, servers=servers, mode=mode)
            yield Way(SERVER, name, ("ParameterServer", given), exact, cost)
    yield Way(SERVER, "Hogwild", ("Hogwild", {}), False, _hogwild)
    local = ("LocalSGD", {"every": every})
    yield Way(AVERAGING, f"LocalSGD, every {every} steps", local, every == 1, _local)
    elastic = ("ElasticAveraging", {"every": every})
    yield Way(AVERAGING, f"ElasticAveraging, every {every} steps", elastic, False, _elastic)
    for pattern, partners in (("random pairs", 1), ("ring", 2)):
        maker = ("Gossip", {"pattern": pattern})
        cost = partial(_gossip, partners=partners)
        yield Way(AVERAGING, f"Gossip, {pattern}", maker, False, cost)
    yield Way(ENSEMBLE, f"Ensemble of {ranks} models", ("Ensemble", {}), False, _ensemble)


def parameter_server_cost(setting: Setting, servers: int, mode: str) -> Prediction:
    """Every rank sends its gradients to servers and gets parameters. Some ranks are servers as
    well, and their links carry what all others send and get.

    Synchronous: all push, then all pull. Else a rank goes on with what it has got, and as many
    steps are done as servers can carry.
    """
    ranks, workload = setting.ranks, setting.workload
    reason = batch_too_small(setting, ranks)
    sizes = [prod(shape) * workload.value for shape in workload.shapes]
    if not reason and servers > len(sizes):
        reason = f"{servers} servers would share {len(sizes)} parameters, which stay whole"
    if reason:
        return refuse(setting, reason)
    samples = share(setting, ranks)
    # Gradients are packed and added up, parameters packed and unpacked.
    computing = setting.seconds(samples) + 4 * setting.handing_over()
    wire = setting.cluster.in_background().between(ranks, neighbours=False)
    wire = wire.met() if ranks > 2 else wire
    shares = _shares(sizes, servers)
    kept = max(shares)
    # A rank's gradients in as many parts as there are servers, a server's from all others.
    own = wire.seconds(workload.trained - (min(shares) if servers == ranks else 0), servers)
    carried = (ranks - 1) * kept
    at_server = wire.summed(carried, ranks - 1)
    if mode == "synchronous":
        exchange = max(own, at_server) + max(own, wire.seconds(carried, ranks - 1))
        seconds = computing + exchange
    else:
        exchange = 2 * own
        seconds = max(computing + exchange, at_server)
    # What a server keeps of its own gradients it does not send.
    sent = carried + workload.trained - kept
    return Prediction(
        setting.batch, seconds, computing, exchange, seconds - computing, sent=sent,
        memory=workload.memory(samples) + 2 * kept,
    )  # fmt: skip


def _shares(sizes: Sequence[float], servers: int) -> list[float]:
    """Bytes of each server: whole parameters are dealt out, the largest first.

    >>> _shares([6.0, 5.0, 2.0], 2)
    [6.0, 7.0]
    """
    loads = [0.0] * servers
    for nbytes in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += nbytes
    return loads


def _hogwild(setting: Setting) -> Prediction:
    """All ranks of a machine change one copy of the parameters: nothing is sent."""
    ranks, workload = setting.ranks, setting.workload
    reason = batch_too_small(setting, ranks)
    if not reason and ranks > setting.cluster.per_node:
        reason = f"{ranks} ranks are not on one machine"
    if reason:
        return refuse(setting, reason)
    samples = share(setting, ranks)
    computing = setting.seconds(samples)
    shared = (workload.parameters + workload.optimizer) * (1 - 1 / ranks)
    memory = workload.memory(samples) - shared
    return Prediction(setting.batch, computing, computing, memory=memory)


def _local(setting: Setting) -> Prediction:
    """Parameters and what the optimizer keeps are averaged."""
    return _now_and_then(setting, setting.workload.parameters + setting.workload.optimizer, 0.0)


def _elastic(setting: Setting) -> Prediction:
    """Each rank is drawn to a centre that all of them keep."""
    return _now_and_then(setting, setting.workload.parameters, setting.workload.parameters)


def _now_and_then(setting: Setting, nbytes: float, more_memory: float) -> Prediction:
    ranks = setting.ranks
    reason = batch_too_small(setting, ranks)
    if reason:
        return refuse(setting, reason)
    whole = allreduce("auto", nbytes, ranks, setting.cluster.in_background())
    # What is sent is weighed before, and the sum after.
    cost = whole + Cost(2 * setting.handing_over())
    return _after_each_step(setting, cost.times(1 / setting.every), more_memory)


def _gossip(setting: Setting, partners: int) -> Prediction:
    """Parameters to one partner or to both neighbours, after each step."""
    nbytes = setting.workload.parameters
    partners = min(partners, setting.ranks - 1)
    wire = setting.cluster.between(setting.ranks, neighbours=partners == 2)
    wire = wire.met() if partners == 2 else wire
    reason = batch_too_small(setting, setting.ranks)
    if reason:
        return refuse(setting, reason)
    # The mean is over as many models: they are packed, weighed, added, divided and unpacked.
    mixing = (partners + 3) * setting.handing_over()
    cost = Cost(wire.seconds(partners * nbytes, partners) + mixing, partners * nbytes)
    return _after_each_step(setting, cost, nbytes)


def _ensemble(setting: Setting) -> Prediction:
    """Each rank trains a model of its own on all samples: more models, none of them sooner."""
    computing = setting.seconds(setting.batch)
    memory = setting.workload.memory(setting.batch)
    return Prediction(setting.batch, computing, computing, memory=memory)


def _after_each_step(setting: Setting, cost: Cost, more_memory: float) -> Prediction:
    samples = share(setting, setting.ranks)
    computing = setting.seconds(samples)
    memory = setting.workload.memory(samples) + more_memory
    return Prediction(
        setting.batch, computing + cost.seconds, computing, cost.seconds, cost.seconds,
        sent=cost.sent, memory=memory,
    )  # fmt: skip


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... up to a number."""
    return [2**power for power in range(int(math.log2(most)) + 1)]
