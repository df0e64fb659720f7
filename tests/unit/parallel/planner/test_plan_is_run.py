"""What is planned is what a run does: the same cuts, buckets, servers and bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, parallel
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.algorithms.segments import (
    allgather_volume,
    allreduce_volume,
    even_counts,
    reduce_scatter_volume,
)
from caldera.core.graph.ops.collective import Message
from caldera.parallel.data import sums
from caldera.parallel.pipeline.stage_partition import balanced_cuts
from caldera.parallel.planner import Cluster, Compute, Setting, Wire, workload_of
from caldera.parallel.planner.asynchronous_cost import server_bytes
from caldera.parallel.planner.communication_cost import (
    allgather,
    allreduce,
    gradient_buckets,
    reduce_scatter,
)
from caldera.parallel.planner.hybrid_cost import HybridConfig, stages_of
from caldera.parallel.planner.prediction import Prediction, TrainingWay
from caldera.parallel.planner.ranking import all_ways
from caldera.train.fit import run_setup
from tests.unit.parallel.planner.counting import sent_in_a_step

WIRE = Wire(1e-6, 1e9)
BATCH = 24


def dense() -> cd.NeuralNetwork:
    widths = random.Random(4).sample(range(8, 90), 6)
    layers = [nn.Input((12,)), *(nn.Dense(width, activation="tanh") for width in widths)]
    return cd.NeuralNetwork(layers, optimizer="adam", batch_size=BATCH)


def wide() -> cd.NeuralNetwork:
    """Layers that are worth splitting, of uneven widths."""
    layers = [nn.Input((12,)), nn.Dense(700), nn.ReLU(), nn.Dense(301), nn.ReLU(), nn.Dense(9)]
    return cd.NeuralNetwork(layers, optimizer="sgd", batch_size=BATCH)


def convolutional() -> cd.NeuralNetwork:
    layers = [
        nn.Input((12,)),
        nn.Reshape((3, 2, 2)),
        nn.Conv2D(32, 1),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Conv2D(240, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(300),
        nn.Dense(10),
    ]
    return cd.NeuralNetwork(layers, optimizer="momentum", batch_size=BATCH)


NETWORKS = {"dense": dense, "wide": wide, "convolutional": convolutional}


def setting_of(model: cd.NeuralNetwork, ranks: int) -> Setting:
    cluster = Cluster(ranks, WIRE, per_node=ranks)
    return Setting(workload_of(model), Compute(((1.0, 1e-3),)), cluster, BATCH, every=1)


def begun(
    name: str, ranks: int, make: Callable[[Communicator], Any], look: Callable[[Any], Any]
) -> list[Any]:
    """What is seen of the strategies of all ranks when a run has begun."""
    models = [NETWORKS[name]() for _ in range(ranks)]

    def work(comm: Communicator) -> Any:
        strategy = make(comm)
        strategy.begin(run_setup(models[comm.rank], strategy))
        return look(strategy)

    return run_virtual_ranks(ranks, work)


# --- cuts


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("data", "stages", "model", "micro"), [(1, 2, 1, 3), (1, 3, 1, 5), (2, 2, 1, 2), (1, 2, 2, 4)]
)
def test_stages_begin_with_the_planned_layers(
    name: str, data: int, stages: int, model: int, micro: int
) -> None:
    setting = setting_of(NETWORKS[name](), data * stages * model)
    planned = stages_of(setting, HybridConfig(data, stages, model, micro))
    if name == "dense" and model > 1:
        model, data = 1, 2  # Nothing is large enough to be split.
    assert planned is not None
    found = begun(
        name,
        data * stages * model,
        lambda comm: parallel.PipelineParallel(
            stages, micro_batches=micro, data=data, model=model, communicator=comm
        ),
        lambda strategy: strategy.begins_with,
    )
    starts = [layer.path for stage in planned[1:] for layer in stage.layers[:1]]
    assert found == [starts] * len(found)


def test_the_dearest_stage_is_as_cheap_as_can_be() -> None:
    generator = random.Random(1)
    for _ in range(50):
        costs = [generator.randrange(10) for _ in range(7)]
        sizes = [generator.randrange(4) for _ in range(6)]
        for groups in (1, 2, 3, 5, 7):
            best = min(_dearest(costs, cuts) for cuts in combinations(range(1, 7), groups - 1))
            assert _dearest(costs, balanced_cuts(costs, sizes, groups)) == best


def _dearest(costs: Sequence[int], cuts: Sequence[int]) -> int:
    return max(sum(costs[begin:end]) for begin, end in pairwise([0, *cuts, len(costs)]))


# --- buckets and servers


@pytest.mark.parametrize("name", NETWORKS)
def test_buckets_are_those_of_the_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    all_reduce = sums.all_reduce

    def noted(values: Any, message: Message) -> Any:
        if not message.now:
            seen.append([value.spec.nbytes for value in values])
        return all_reduce(values, message)

    monkeypatch.setattr(sums, "all_reduce", noted)
    x, y = np.ones((BATCH, 12), np.float32), np.zeros(BATCH, np.int64)
    NETWORKS[name]().fit((x, y), parallel=_One(bucket_bytes=30_000), verbose=0)
    planned = gradient_buckets(workload_of(NETWORKS[name]()), 1.0, bucket_bytes=30_000)
    buckets = [[each.nbytes for each in bucket.gradients] for bucket in planned if bucket.nbytes]
    assert len(buckets) > 1
    assert buckets == seen[: len(buckets)]
    assert math.isclose(sum(bucket.seconds for bucket in planned), 1.0)


class _One(parallel.DataParallel):
    """One rank that writes down what several would exchange."""

    is_distributed = True


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_have_the_planned_parameters(name: str, servers: int) -> None:
    found = begun(
        name,
        3,
        lambda comm: parallel.ParameterServer(servers, communicator=comm),
        lambda strategy: [shard.nbytes for shard in strategy._shards],
    )
    assert found == [server_bytes(setting_of(NETWORKS[name](), 3), servers)] * 3


# --- bytes


# Each way with a network that has what it has to count: statistics, optimizer state of its own,
# layers that are worth splitting, or none that is.
@pytest.mark.parametrize(
    ("name", "ranks", "way"),
    [
        ("convolutional", 3, "DataParallel, ring"),
        ("dense", 4, "DataParallel, halving"),
        ("wide", 2, "DataParallel, factors"),
        ("convolutional", 2, "DataParallel, factors"),
        ("convolutional", 3, "Sharded, stage 2"),
        ("dense", 3, "Sharded, stage 3"),
        ("wide", 2, "TensorParallel, model 2"),
        ("convolutional", 2, "TensorParallel, model 2"),
        ("wide", 4, "Hybrid, data 2 x model 2"),
        ("convolutional", 4, "Hybrid, data 2 x model 2"),
        ("convolutional", 2, "Hybrid, dense layers split"),
        ("dense", 3, "PipelineParallel, pipeline 3, 1F1B of 6"),
        ("convolutional", 4, "PipelineParallel, data 2 x pipeline 2, fill-drain of 4"),
        ("wide", 4, "PipelineParallel, pipeline 2 x model 2, 1F1B of 2"),
        ("convolutional", 2, "ParameterServer, synchronous, 2 servers"),
        ("dense", 2, "LocalSGD, every 1 steps"),
        ("convolutional", 2, "ElasticAveraging, every 1 steps"),
        ("wide", 3, "Gossip, ring"),
    ],
)
def test_what_is_planned_is_what_is_sent(
    name: str, ranks: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, prediction = predicted(name, ranks, way)
    assert not prediction.refused
    counted = sent_in_a_step(NETWORKS[name], planned, ranks, 12, 2, monkeypatch)
    # Targets, and what ranks say to each other about the step, are a few hundred bytes.
    assert prediction.sent == pytest.approx(counted, rel=1e-3, abs=250)


def predicted(name: str, ranks: int, way: str) -> tuple[TrainingWay, Prediction]:
    setting = setting_of(NETWORKS[name](), ranks)
    (planned,) = [each for each in all_ways(setting) if each.name == way]
    return planned, planned.predict(setting)


@pytest.mark.parametrize(
    ("name", "ranks", "way", "reason"),
    [
        ("dense", 2, "TensorParallel, model 2", "units"),
        ("dense", 4, "Hybrid, data 2 x model 2", "units"),
        ("dense", 2, "Hybrid, dense layers split", "dense layer"),
        ("wide", 2, "Hybrid, dense layers split", "dense layer"),
        ("dense", 4, "PipelineParallel, pipeline 2 x model 2, 1F1B of 2", "units"),
    ],
)
def test_ways_that_split_nothing_are_refused(name: str, ranks: int, way: str, reason: str) -> None:
    assert reason in predicted(name, ranks, way)[1].refused


def test_volumes_are_those_of_the_collectives() -> None:
    generator = random.Random(2)
    for _ in range(100):
        ranks, elements = generator.randrange(2, 9), generator.randrange(1, 10_000)
        counts = even_counts(elements, ranks)
        scattered = [reduce_scatter_volume(rank, counts) for rank in range(ranks)]
        gathered = [allgather_volume(rank, counts) for rank in range(ranks)]
        summed = [allreduce_volume(rank, ranks, elements) for rank in range(ranks)]
        for cost, volumes in (
            (reduce_scatter(4 * elements, ranks, WIRE), scattered),
            (allgather(4 * elements, ranks, WIRE), gathered),
            (allreduce("ring", 4 * elements, ranks, Cluster(ranks, WIRE)), summed),
        ):
            most = max(volume.sent for volume in volumes)
            assert cost.sent == pytest.approx(4 * most, abs=8)
