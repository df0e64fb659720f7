"""What the planner says is sent is what communicators count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import caldera as cd
from caldera import compress, nn, parallel
from caldera.comm import Communicator, run_virtual_ranks
from caldera.parallel.planner import Cluster, Compute, Setting, Wire, workload_of
from caldera.parallel.planner.communication_cost import (
    ALGORITHMS,
    allgather,
    allreduce,
    reduce_scatter,
)
from caldera.parallel.planner.compression_cost import CodecCost, default_codecs
from caldera.parallel.planner.data_parallel_cost import statistics_sums, status_sums
from caldera.parallel.planner.ranking import all_ways
from caldera.train.strategy import Strategy
from tests.unit.parallel.planner.counting import sent_in_a_step

ELEMENTS = 12 * 64
"""Divided by 2, 3 and 4 ranks, and by rows and columns of them."""
WIRE = Wire(1e-6, 1e9)


def sent(ranks: int, work: Callable[[Communicator], object], nodes: list[int] | None = None) -> int:
    """The bytes of the rank that sends most."""

    def counted(comm: Communicator) -> int:
        before = comm.traffic.mark()
        work(comm)
        return comm.traffic.since(before).total.bytes_sent

    return max(run_virtual_ranks(ranks, counted, nodes))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_allreduce(name: str, ranks: int) -> None:
    def work(comm: Communicator) -> None:
        comm.algorithm = name
        numbers = np.ones(ELEMENTS, np.float32)
        comm.Allreduce(numbers, numbers)

    nodes = [0, 0, 1, 1][:ranks]
    cluster = Cluster(ranks, WIRE, per_node=2)
    assert allreduce(name, 4 * ELEMENTS, ranks, cluster).sent == sent(ranks, work, nodes)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_halves_of_a_ring(ranks: int) -> None:
    whole = np.ones(ELEMENTS, np.float32)
    part = np.ones(ELEMENTS // ranks, np.float32)
    there = sent(ranks, lambda comm: comm.ReduceScatter(whole, part.copy()))
    assert reduce_scatter(4 * ELEMENTS, ranks, WIRE).sent == there
    there = sent(ranks, lambda comm: comm.Allgather(part, whole.copy()))
    assert allgather(4 * ELEMENTS, ranks, WIRE).sent == there


def test_the_ring_sends_twice_all_but_one_part() -> None:
    for ranks in (2, 4, 8, 1024):
        cost = allreduce("ring", 1e6, ranks, Cluster(ranks, Wire(0.0, 1e6)))
        assert cost.sent == pytest.approx(2 * (ranks - 1) / ranks * 1e6)
        assert cost.seconds == pytest.approx(2 * (ranks - 1) / ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "compressor", [compress.QSGD(bits=4), compress.Cast("float16"), compress.TernGrad()]
)
def test_dense_compression(compressor: compress.Compressor, ranks: int) -> None:
    elements = ranks * 1024

    def work(comm: Communicator) -> None:
        type(compressor)(**compressor.arguments()).exchange(
            "w", np.ones(elements, np.float32), comm
        )

    assert CodecCost(compressor).cost([(elements,)], ranks, WIRE).sent == sent(ranks, work)


@pytest.mark.parametrize("ranks", [2, 4])
def test_top16_of_512_in_four_bits(ranks: int) -> None:
    made = compress.compressors.make
    elements = 1 << 16

    def work(comm: Communicator) -> None:
        gradient = np.random.default_rng(comm.rank).normal(size=elements).astype(np.float32)
        made("top16_q4").exchange("w", gradient, comm)

    # How places are packed depends on where they are: an estimate.
    expected = CodecCost(made("top16_q4")).cost([(elements,)], ranks, WIRE).sent
    assert expected == pytest.approx(sent(ranks, work), rel=0.1)


# --- whole strategies


def network() -> cd.NeuralNetwork:
    """Two layers whose parameters 2, 3 and 4 divide, with batch normalisation between them."""
    layers = [nn.Input((12,)), nn.Dense(24, bias=False), nn.BatchNorm(), nn.Dense(12)]
    return cd.NeuralNetwork(layers, optimizer="sgd", batch_size=24)


def counted_in_training(ranks: int, make: Callable[[Communicator], Strategy]) -> float:
    """Bytes that the busiest rank sends in a step."""
    models = [network() for _ in range(ranks)]
    x, y = np.ones((24, 12), np.float32), np.zeros(24, np.int64)

    def work(comm: Communicator) -> int:
        strategy = make(comm)
        before = strategy.plan_communicator.traffic.mark()
        models[comm.rank].fit((x, y), parallel=strategy, verbose=0)
        return strategy.plan_communicator.traffic.since(before).total.bytes_sent

    return max(run_virtual_ranks(ranks, work))


def given(ranks: int, model: cd.NeuralNetwork) -> Setting:
    return Setting(workload_of(model), Compute(((1.0, 1e-3),)), Cluster(ranks, WIRE), batch=24)


def predicted(ranks: int, name: str) -> float:
    setting = given(ranks, network())
    (way,) = [way for way in all_ways(setting) if way.name == name]
    return way.predict(setting).sent


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallel_training(ranks: int) -> None:
    there = counted_in_training(
        ranks, lambda comm: parallel.DataParallel(algorithm="ring", communicator=comm)
    )
    # The small messages go by the quickest algorithm here, by the chosen one there.
    assert predicted(ranks, "DataParallel, ring") == pytest.approx(there, rel=0.2)


@pytest.mark.parametrize(("ranks", "stage"), [(2, 1), (4, 2), (4, 3)])
def test_sharded_training(ranks: int, stage: int) -> None:
    there = counted_in_training(ranks, lambda comm: parallel.Sharded(stage, communicator=comm))
    assert predicted(ranks, f"Sharded, stage {stage}") == pytest.approx(there, rel=0.1)


@pytest.mark.parametrize(
    ("ranks", "pattern"), [(2, "random pairs"), (4, "random pairs"), (4, "ring")]
)
def test_gossip(ranks: int, pattern: str) -> None:
    there = counted_in_training(ranks, lambda comm: parallel.Gossip(pattern, communicator=comm))
    assert predicted(ranks, f"Gossip, {pattern}") == pytest.approx(there, rel=0.25)


# --- whatever there is a strategy for; more of them, to the byte, are in test_plan_is_run


def wide_network() -> cd.NeuralNetwork:
    """Layers that are worth splitting."""
    layers = [nn.Input((128,)), nn.Dense(512), nn.Dense(256), nn.Dense(8)]
    return cd.NeuralNetwork(layers, optimizer="sgd", batch_size=32)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        (4, "ParameterServer, synchronous, 2 servers"),
        (4, "TensorParallel, model 4"),
        (2, "PipelineParallel, pipeline 2, 1F1B of 4"),
        (3, "LocalSGD, every 1 steps"),
        (2, "DataParallel, 1 bit"),
        (2, "DataParallel, random 1%"),
        (2, "DataParallel, PowerSGD, rank 4"),
        (2, "Hogwild"),
    ],
)
def test_what_a_rank_sends_in_a_step(
    ranks: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = workload_of(wide_network())
    setting = Setting(
        work,
        Compute(((1.0, 1e-3),)),
        Cluster(ranks, WIRE, per_node=ranks),
        32,
        default_codecs(WIRE),
        every=1,
    )
    (way,) = [way for way in all_ways(setting) if way.name == name]
    there = sent_in_a_step(wide_network, way, ranks, 128, 2, monkeypatch)
    # Short messages, of losses and metrics, go by another algorithm.
    assert way.predict(setting).sent == pytest.approx(there, rel=0.15, abs=1000)


def test_stage_3_sends_half_as_much_again() -> None:
    def gradients(name: str) -> float:
        layers, setting = workload_of(network()).layers, given(2, network())
        waited = status_sums(setting, 2) + statistics_sums(setting, layers, 2)
        return predicted(2, name) - waited.sent

    assert gradients("Sharded, stage 1") == gradients("DataParallel, ring")
    assert gradients("Sharded, stage 3") == 1.5 * gradients("DataParallel, ring")
