"""What must be true of any cost model: limits, and that better machines are never slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caldera import compress
from caldera.parallel.planner import Cluster, Setting, Wire
from caldera.parallel.planner.asynchronous_cost import ENSEMBLE
from caldera.parallel.planner.communication_cost import (
    ALGORITHMS,
    BucketCost,
    CollectiveCost,
    allreduce,
    gradient_buckets,
    overlapped_sends,
    prefetched_and_sent,
    waited_for,
)
from caldera.parallel.planner.compression_cost import CodecCost, CodecSeconds
from caldera.parallel.planner.data_parallel_cost import status_sums
from caldera.parallel.planner.hybrid_cost import (
    FILL_DRAIN,
    ONE_F_ONE_B,
    HybridConfig,
    predict_hybrid,
)
from caldera.parallel.planner.ranking import all_ways
from tests.unit.parallel.planner.examples import (
    MEGABYTE,
    EstimatedNetwork,
    free,
    layer,
    made,
    setting,
    workload,
)

RANKS = (2, 3, 4, 8, 64)


def seconds(given: Setting) -> dict[str, float]:
    return {way.name: way.predict(given).seconds for way in all_ways(given)}


@pytest.mark.parametrize("ranks", RANKS)
def test_a_faster_machine_is_never_slower(ranks: int) -> None:
    slow = setting(ranks, latency=1e-4, bandwidth=1e8)
    before = seconds(slow)
    for better in (
        setting(ranks, latency=1e-5, bandwidth=1e8),
        setting(ranks, latency=1e-4, bandwidth=2e8),
        setting(ranks, latency=1e-4, bandwidth=1e8, sample_s=5e-4),
    ):
        after = seconds(better)
        assert after.keys() == before.keys()
        assert all(after[name] <= before[name] * (1 + 1e-12) for name in before)


@pytest.mark.parametrize("ranks", RANKS)
def test_on_a_free_link_a_step_is_what_a_rank_computes(ranks: int) -> None:
    given = free(ranks)
    for way in all_ways(given):
        found = way.predict(given)
        if not found.refused:
            assert found.seconds == pytest.approx(found.computing + found.idle), way.name
            assert found.exposed == pytest.approx(0.0, abs=1e-12), way.name


def test_on_a_free_link_data_parallelism_scales_perfectly() -> None:
    given = free(8)
    found = {way.name: way.predict(given) for way in all_ways(given)}
    assert found["DataParallel, ring"].seconds == pytest.approx(given.alone() / 8)


def test_nothing_is_sent_by_an_ensemble() -> None:
    given = setting(4)
    (ensemble,) = [way for way in all_ways(given) if way.family == ENSEMBLE]
    found = ensemble.predict(given)
    assert found.sent == 0
    assert found.seconds == given.alone()


# --- overlap


def test_what_can_be_hidden_is_the_shorter_of_exchange_and_backward_pass() -> None:
    work = [BucketCost(0.001, 1.0)] * 1000
    for each in (0.0002, 0.001, 0.004):
        exchange, backward = 1000 * each, 1.0
        whole = overlapped_sends(work, lambda bucket, each=each: CollectiveCost(each))  # type: ignore[misc]
        hidden = exchange + backward - whole
        assert hidden <= min(exchange, backward) + 1e-9
        assert hidden == pytest.approx(min(exchange, backward), rel=0.01)


def test_one_message_at_the_end_hides_nothing() -> None:
    assert overlapped_sends([BucketCost(1.0, 1.0)], lambda bucket: CollectiveCost(0.5)) == 1.5


def test_a_piece_waits_for_its_message() -> None:
    work = [BucketCost(1.0, 1.0), BucketCost(1.0, 1.0), BucketCost(1.0, 1.0)]
    assert waited_for(work, lambda bucket: CollectiveCost(2.0)) == 7.0
    assert (
        prefetched_and_sent(
            work, lambda bucket: CollectiveCost(2.0), lambda bucket: CollectiveCost()
        )
        == 7.0
    )
    # Each scatter goes between two gathers.
    assert (
        prefetched_and_sent(
            work, lambda bucket: CollectiveCost(2.0), lambda bucket: CollectiveCost(1.0)
        )
        == 9.0
    )


def test_layers_fill_messages_in_their_order() -> None:
    layers = (layer("c", 0.5, 4), layer("b", 0.25, 12), layer("a", 0.25, 12))
    work = made(layers, 0, 0)
    found = gradient_buckets(work, 8.0, bucket_bytes=20)
    assert [(each.seconds, each.nbytes) for each in found] == [(4.0, 24), (4.0, 4)]


# --- machines


def test_ranks_of_a_machine_share_its_link_and_its_cores() -> None:
    wire = Wire(0.0, 1e6)
    cluster = Cluster(8, wire, inside=Wire(0.0, 1e9), per_node=4, at_full_speed=2)
    assert cluster.slowdown == 2.0
    assert cluster.of_size(2).slowdown == 1.0
    assert cluster.between(4) == Wire(0.0, 0.5e9)
    assert cluster.between(8) == wire
    assert cluster.between(8, neighbours=False).bandwidth == 0.25e6
    # Four rings at once, one through each rank of a machine.
    assert cluster.between(2, 4).bandwidth == 0.25e6
    hierarchical = allreduce("hierarchical", 1e6, 8, cluster)
    others = [allreduce(n, 1e6, 8, cluster) for n in ALGORITHMS if n not in ("ring", "torus")]
    assert all(hierarchical.seconds <= other.seconds for other in others)


def test_within_a_machine_messages_take_a_core() -> None:
    wire = Wire(0.0, 1e9)
    spare, full = (Cluster(2, wire, per_node=2, at_full_speed=cores) for cores in (4, 2))
    assert spare.hides(2)
    assert not full.hides(2)
    given = setting(2)
    seconds, hidden = [], []
    for cluster in (spare, full):
        one = replace(given, cluster=cluster)
        found = {way.name: way.predict(one) for way in all_ways(one)}["DataParallel, ring"]
        seconds.append(found.seconds)
        hidden.append(found.computing + found.exchange - found.seconds)
    assert seconds[1] > seconds[0]
    assert hidden[0] > 0
    assert hidden[1] == pytest.approx(0.0, abs=1e-12)
    # A network carries them by itself, however busy the cores are.
    assert Cluster(2, wire, per_node=1, at_full_speed=0.5).hides(2)


def test_encoding_takes_a_core_whatever_carries_the_message() -> None:
    code = CodecCost(compress.QSGD(bits=4), few=CodecSeconds(2, 1e-9), many=CodecSeconds(8, 1e-9))
    spare = replace(free(4), codes={"QSGD, 4 bits": code})
    full = replace(spare, cluster=replace(spare.cluster, at_full_speed=1.0))
    whole = 1e-9 * spare.workload.trained / spare.workload.value
    # With a core to spare only the last message is encoded after the backward pass: one of eight.
    for given, exposed in ((spare, whole / 8), (full, whole)):
        found = {way.name: way.predict(given) for way in all_ways(given)}
        assert found["DataParallel, QSGD, 4 bits"].exposed == pytest.approx(exposed)


def test_adding_up_may_take_longer_than_the_link() -> None:
    quick, slow = Wire(0.0, 1e9), Wire(0.0, 1e9, adding=1e8)
    first, second = (allreduce("ring", 1e6, 4, Cluster(4, wire)) for wire in (quick, slow))
    assert second.seconds == pytest.approx(first.seconds * (1 + 10) / 2)


# --- pipelines and split layers


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (4, 4), (4, 16), (8, 64)])
def test_idle_slots_of_a_pipeline(stages: int, micro: int) -> None:
    given = free(stages, batch=256)
    for schedule in (ONE_F_ONE_B, FILL_DRAIN):
        mix = HybridConfig(pipeline=stages, micro=micro, schedule=schedule)
        found = predict_hybrid(given, mix)
        share = (stages - 1) / (micro + stages - 1)
        assert found.idle / found.seconds == pytest.approx(share)


def test_1f1b_keeps_as_many_micro_batches_as_stages() -> None:
    given = free(4, batch=64)
    kept, all_of_them = (
        predict_hybrid(given, HybridConfig(pipeline=4, micro=32, schedule=schedule)).memory
        for schedule in (ONE_F_ONE_B, FILL_DRAIN)
    )
    sample = given.workload.activations / 4
    assert all_of_them - kept == pytest.approx((32 - 4) * 2 * sample)


def test_stages_are_balanced_and_leave_nothing_out() -> None:
    layers = [layer(str(i), weight) for i, weight in enumerate((0.1, 0.4, 0.1, 0.1, 0.1, 0.2))]
    network = EstimatedNetwork(layers, [])
    for count in range(1, 7):
        found = network.stages(count, 1, 1.0, 1)
        assert found is not None
        assert len(found) == count
        assert [each for stage in found for each in stage.layers] == layers
        assert max(stage.weight for stage in found) >= 1 / count - 1e-9
    halves = network.stages(2, 1, 1.0, 1)
    assert [round(stage.weight, 6) for stage in halves or []] == [0.5, 0.5]
    assert network.stages(7, 1, 1.0, 1) is None


def test_split_layers_share_parameters_and_send_activations() -> None:
    given = setting(4, latency=0.0, batch=16, work=workload(layers=4))
    found = predict_hybrid(given, HybridConfig(model=4))
    # Two pairs of layers, each with a sum forward and one backward of 1 kB a sample.
    status = status_sums(given, 4).sent
    assert found.sent - status == pytest.approx(4 * 2 * 3 / 4 * 16e3)
    assert found.computing == pytest.approx(given.alone() / 4)
    states = found.memory - 16 * given.workload.activations
    assert states == pytest.approx(given.workload.memory(0) / 4)


def test_a_layer_with_few_units_stays_whole() -> None:
    given = setting(8, work=workload(layers=4))
    narrow = (*given.workload.layers[:3], layer("last", 0.25, MEGABYTE, units=2))
    work = made(narrow, 0, 0)
    found = predict_hybrid(setting(8, work=work), HybridConfig(model=8))
    assert found.computing == pytest.approx(given.alone() * (0.75 / 8 + 0.25))
    refused = predict_hybrid(setting(128, work=work), HybridConfig(model=128)).refused
    assert refused == "the widest layer has 64 units, fewer than 128 ranks"
