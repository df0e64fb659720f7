"""`parallel.plan`: what is proposed for real models, and what is said about it."""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import caldera as cd
from caldera import nn, parallel
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks
from caldera.errors import ConfigError
from caldera.parallel.planner import (
    Cluster,
    Compute,
    Proposal,
    Wire,
    Workload,
    measured_wire,
    prediction,
    workload_of,
)
from caldera.parallel.planner.data_parallel_cost import COMPRESSED, DATA, SHARDED
from caldera.parallel.planner.hybrid_cost import HYBRID, PIPELINE
from caldera.parallel.planner.prediction import measured
from caldera.parallel.planner.ranking import all_ways, build_strategy
from tests.unit.parallel.planner.examples import setting

SLOW, QUICK = "100Mb", "100Gb"
WIDE = 2048
"""Parameters of several messages."""


def network(batch_size: int = 256, width: int = 528, **more: Any) -> cd.NeuralNetwork:
    layers = nn.models.mlp((784,), hidden=(width,) * 3, activation="sigmoid")
    return cd.NeuralNetwork(layers, batch_size=batch_size, **more)


@cache
def workload(width: int) -> Workload:
    """It keeps how strategies share the layers, which is most of what a plan takes."""
    return workload_of(network(width=width))


@cache
def proposal(ranks: int = 8, link: str | None = QUICK, width: int = 528, **more: Any) -> Proposal:
    given = {"speed": "50G"} | more
    with patch("caldera.parallel.planner.proposal.workload_of", lambda model: workload(width)):
        return parallel.plan(network(width=width), ranks=ranks, link=link, **given)


def test_enough_compute_and_a_quick_link_make_it_data_parallel() -> None:
    best = proposal().ranking("weak").best
    assert best.way.family == DATA
    assert best.prediction.exposed < 0.1 * best.prediction.seconds


def test_the_table_has_the_proposed_way_first() -> None:
    found = proposal()
    for scaling in ("strong", "weak"):
        lines = found.table(scaling).splitlines()
        assert lines[2].startswith(found.ranking(scaling).best.way.name)
    assert "strong scaling: 8 ranks, a batch of 256" in str(found)
    assert "weak scaling: 8 ranks, a batch of 2,048" in str(found)


def test_a_series_goes_from_one_rank_to_all() -> None:
    found = proposal(ranks=12)
    assert [each.setting.ranks for each in found.series("strong")] == [1, 2, 4, 8, 12]
    assert {each.setting.batch for each in found.series("strong")} == {256}
    assert [each.setting.batch for each in found.series("weak")][:2] == [256, 512]


def test_only_what_equals_one_process_is_proposed_unless_asked() -> None:
    assert proposal(link=SLOW).ranking("weak").best.way.exact
    loose = proposal(link=SLOW, exact=False).ranking("weak").best
    assert loose.way.family == COMPRESSED
    text = proposal(link=SLOW).explain("weak")
    assert "not equal to one process (*)" in text
    assert loose.way.name in text


def test_sentences_say_what_bounds_it() -> None:
    assert "It is bound by computing" in proposal(speed="1G").explain("weak")
    assert "bandwidth of the links, 100 Mbit/s" in proposal(link=SLOW).explain("weak")
    slow_start = proposal(latency="50ms").explain("weak")
    assert "bound by the latency of messages, 50.0 ms" in slow_start


def test_sentences_say_when_fewer_ranks_are_faster() -> None:
    text = proposal(ranks=64, link=SLOW, latency="1ms").explain("strong")
    assert "With this batch one rank is faster than 64" in text


# --- memory


def test_what_does_not_fit_is_rejected_with_the_reason() -> None:
    everything = workload_of(network(width=WIDE)).memory(32)
    found = proposal(memory=int(0.6 * everything), batch_per_rank=32, width=WIDE)
    best = found.ranking("weak").best
    assert best.prediction.memory <= 0.6 * everything
    assert best.way.family != DATA
    assert "Rejected for memory: data parallel (all of it)" in found.explain("weak")
    assert SHARDED in {entry.way.family for entry in found.ranking("weak").usable()}


def test_each_stage_of_sharding_needs_less() -> None:
    entries = {
        e.way.name: e.prediction for e in proposal(ranks=16, width=WIDE).ranking("weak").entries
    }
    plain = entries["DataParallel, ring"].memory
    first, second, third = (entries[f"Sharded, stage {i}"].memory for i in (1, 2, 3))
    assert plain > first > second > third


def test_nothing_fits() -> None:
    with pytest.raises(ConfigError, match=r"plan of 8 ranks: expected a way to train that fits"):
        proposal(memory="1MB")


def test_one_scaling_may_fit_where_the_other_does_not() -> None:
    found = proposal(memory="20MB", batch_per_rank=100_000)
    assert found.scalings() == ["strong"]
    assert "weak scaling: plan of 8 ranks: expected a way" in str(found)
    with pytest.raises(ConfigError, match="a way to train that fits"):
        found.ranking("weak")


# --- mistakes


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 0}, "ranks, ranks_per_node and every of at least 1"),
        ({"every": 0}, "ranks, ranks_per_node and every of at least 1"),
        ({"batch_size": 0}, "batch_size and batch_per_rank >= 1"),
        ({"link": "100G"}, "b is for bits, B for bytes"),
        ({"link": None}, "several processes to measure it between"),
        ({"latency": "2"}, "a time such as 2us"),
        ({"memory": "80Gb"}, "bytes such as 80GB"),
        ({"speed": "quick"}, "operations a second such as 30T"),
    ],
)
def test_mistakes_are_told(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        proposal(**wrong)


def test_a_scaling_that_is_none() -> None:
    with pytest.raises(ConfigError, match="'strong' or 'weak', got 'linear'"):
        proposal().ranking("linear")


# --- strategies


def test_the_proposed_strategy_trains() -> None:
    models = [network(batch_size=16) for _ in range(2)]
    found = parallel.plan(models[0], ranks=2, link=QUICK, speed="1G")
    assert found.ranking("weak").best.way.family == DATA
    x, y = np.zeros((16, 784), np.float32), np.zeros(16, np.int64)

    def work(comm: Communicator) -> float:
        strategy = found.strategy("weak", comm)
        return models[comm.rank].fit((x, y), parallel=strategy, verbose=0)["loss"][0]

    first, second = run_virtual_ranks(2, work)
    assert first == second


def test_a_strategy_is_for_the_ranks_that_were_planned() -> None:
    with pytest.raises(ConfigError, match="expected 8 ranks, as was planned, got 1"):
        proposal(speed="1G").strategy("weak")


def test_a_compressed_strategy_has_a_compressor_of_its_own() -> None:
    found = proposal(ranks=2, link=SLOW, exact=False)
    assert found.ranking("weak").best.way.family == COMPRESSED

    def made(comm: Communicator) -> Any:
        strategy = found.strategy("weak", comm)
        assert isinstance(strategy, parallel.DataParallel)
        return strategy.compression

    first, second = run_virtual_ranks(2, made)
    assert type(first) is type(second)
    assert first is not second


def test_a_way_that_caldera_has_no_strategy_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = proposal(speed="1G")
    monkeypatch.delattr(parallel, "DataParallel", raising=False)
    monkeypatch.delitem(parallel._LATER, "DataParallel")
    with pytest.raises(ConfigError, match=r"expected parallel\.DataParallel, got a Caldera that"):
        found.strategy("weak")
    monkeypatch.setattr(parallel, "DataParallel", lambda communicator: None, raising=False)
    with pytest.raises(ConfigError, match="that takes algorithm, got one that does not"):
        found.strategy("weak")


def test_every_way_that_has_a_strategy_makes_it() -> None:
    chosen = list(all_ways(setting(4)))
    assert {way.maker[0] for way in chosen} == {
        "DataParallel",
        "Sharded",
        "ParameterServer",
        "LocalSGD",
        "ElasticAveraging",
        "Gossip",
        "Ensemble",
        "TensorParallel",
        "Hybrid",
        "PipelineParallel",
        "Hogwild",
    }

    def made(comm: Communicator) -> list[str]:
        return [type(build_strategy(way, 4, comm)).__name__ for way in chosen]

    assert run_virtual_ranks(4, made)[0] == [way.maker[0] for way in chosen]


def test_one_rank_trains_alone() -> None:
    found = proposal(ranks=1)
    assert found.strategy().is_distributed is False
    assert found.ranking().best.prediction.sent == 0


# --- measuring


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = network()
    before = [p.numpy().copy() for p in model.parameters()]
    compute, work = measured(model, workload_of(model), batch=16)
    assert [size for size, _ in compute.points] == [1, 4, 16]
    assert all(seconds > 0 for _, seconds in compute.points)
    assert 0.1 <= compute.forward <= 0.6
    assert work.activations > 0
    assert work.workspace >= work.trained
    for old, parameter in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(old, parameter.numpy())
    assert not model.optimizer.state


def test_ranks_that_measure_together_get_the_times_of_the_slowest(monkeypatch: Any) -> None:
    took, run = threading.local(), prediction.StepPlans.train

    def slow_on_one_rank(steps: Any, *given: Any) -> None:
        run(steps, *given)
        time.sleep(took.extra)

    monkeypatch.setattr(prediction.StepPlans, "train", slow_on_one_rank)

    def work(comm: Communicator) -> Compute:
        took.extra = 0.005 * comm.rank
        model = network()
        return measured(model, workload_of(model), batch=4, communicator=comm)[0]

    first, second = run_virtual_ranks(2, work)
    assert first == second
    assert all(seconds > 0.005 for _, seconds in first.points)


def test_a_link_measured_on_shared_cores_is_not_slowed_by_them_again() -> None:
    wire = Wire(1e-6, 1e9, adding=1e8, meeting=5e8, turn=1e-3, sharing=2.0)
    for ranks, slower in ((2, 1), (4, 1), (8, 2)):
        cluster = Cluster(ranks, wire, per_node=ranks, at_full_speed=2, turn=1e-4)
        found = cluster.between(ranks)
        assert found.adding == wire.adding / slower
        assert found.bandwidth == wire.meeting / slower
        assert found.turn == pytest.approx(1e-3 + (2e-4 if ranks == 8 else 0.0))


def test_networks_that_read_words_are_measured() -> None:
    layers = nn.models.gpt(vocabulary=11, context=4, width=8, depth=1, heads=2)
    model = cd.NeuralNetwork(layers, batch_size=2)
    compute, _ = measured(model, workload_of(model), batch=2)
    assert len(compute.points) == 2


def test_the_link_between_ranks_is_measured_by_all_of_them() -> None:
    wires = run_virtual_ranks(3, measured_wire)
    assert wires[0] == wires[1] == wires[2]
    assert wires[0].latency > 0
    with pytest.raises(ConfigError, match="several ranks"):
        measured_wire(SingleProcess())


def test_a_link_is_at_least_as_fast_as_the_sums_that_it_carried() -> None:
    slow = Wire(1e-6, 1e3)
    with patch("caldera.parallel.planner.cluster.measured_link", lambda comm: slow):
        found = run_virtual_ranks(2, measured_wire)[0]
    assert found.meeting <= found.bandwidth
    assert found.bandwidth > 100 * slow.bandwidth
    assert found.summed(1e6) == found.seconds(1e6)


def test_compute_is_a_line_between_what_was_measured_and_never_falls() -> None:
    compute = Compute(((1.0, 1.0), (2.0, 0.5), (4.0, 3.0)))
    assert [compute.seconds(each) for each in (1, 2, 3, 4, 5)] == [1.0, 1.0, 2.0, 3.0, 4.0]
    assert compute.faster(2).seconds(4) == 1.5
    for wrong in ((), ((0.0, 1.0),), ((2.0, 1.0), (1.0, 2.0)), ((1.0, -1.0),)):
        with pytest.raises(ConfigError, match="growing numbers of samples"):
            Compute(wrong)
    with pytest.raises(ConfigError, match="latency of 0 or more"):
        Wire(-1.0, 1.0)


# --- models


def test_a_workload_is_what_the_summary_says() -> None:
    model = network(optimizer="adam")
    found, summary = workload_of(model), model.summary(show=False)
    assert found.parameters == summary.parameter_bytes
    assert found.flops == summary.flops
    assert found.optimizer == 2 * summary.parameter_bytes
    assert sum(layer.weight for layer in found.layers) == pytest.approx(1.0)


def test_blocks_of_residual_networks_stay_whole() -> None:
    model = cd.NeuralNetwork(nn.models.resnet20(), batch_size=64)
    found = parallel.plan(model, ranks=8, link=QUICK, speed="1T")
    families = {entry.way.family for entry in found.ranking().usable()}
    assert {DATA, SHARDED, PIPELINE, HYBRID, COMPRESSED} <= families
    blocks = {layer.block for layer in workload_of(model).layers}
    assert "layer1.0" in blocks
    assert sum(layer.synchronised for layer in workload_of(model).layers) > 0


def test_frozen_layers_are_not_exchanged() -> None:
    model = network()
    next(layer for layer in model.network.layers if isinstance(layer, nn.Dense)).freeze()
    found = workload_of(model)
    assert found.trained < found.parameters


def test_the_chart_shows_both_kinds_of_scaling(tmp_path: Path) -> None:
    text = proposal().plot(tmp_path / "plan.svg").read_text()
    for words in ("strong scaling: ms a step", "weak scaling: times as fast", "parameter server"):
        assert words in text
    assert "nan" not in text
    with pytest.raises(ConfigError, match=r"\.svg"):
        proposal().plot(tmp_path / "plan.png")
