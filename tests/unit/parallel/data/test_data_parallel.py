"""Data parallel training equals one process on the whole batch, and all ranks stay the same."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.algorithms import ALLREDUCE
from caldera.errors import CommError, ConfigError
from caldera.parallel import DataParallel, PipelineParallel, Sharded
from caldera.parallel.data.sums import buckets
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    Trained,
    alone,
    assert_close,
    network,
    samples,
    strategies_of,
    trained,
)

data_parallel = strategies_of(DataParallel)


@cache
def one_process(dtype: str, count: int) -> Trained:
    return alone(partial(network, dtype=dtype), samples(count, dtype))


# One step in float32, five in float64; ten samples do not divide by three or four.
@pytest.mark.parametrize(
    ("dtype", "count", "ranks", "options"),
    [
        ("float32", 10, 3, {}),
        ("float32", 10, 2, {"bucket_bytes": 1}),
        ("float64", 50, 2, {}),
        ("float64", 50, 3, {"bucket_bytes": 200}),
        ("float64", 50, 4, {"bucket_bytes": 1, "overlap": False}),
    ],
)
def test_it_equals_one_process_on_the_whole_batch(
    dtype: str, count: int, ranks: int, options: dict[str, Any]
) -> None:
    found = trained(
        ranks, partial(network, dtype=dtype), data_parallel(**options), samples(count, dtype)
    )
    assert found.same_on_all_ranks()
    assert_close(found, one_process(dtype, count))


def plain(**more: Any) -> cd.NeuralNetwork:
    """Without batch normalisation: quicker to make."""
    layers = [nn.Input((FEATURES,)), nn.Dense(4, activation="tanh"), nn.Dense(CLASSES)]
    return network(layers=layers, **more)


@cache
def plain_in_one_process(dtype: str, count: int) -> Trained:
    return alone(partial(plain, dtype=dtype), samples(count, dtype))


@pytest.mark.parametrize(("dtype", "count"), [("float32", 10), ("float64", 50)])
@pytest.mark.parametrize("algorithm", sorted(ALLREDUCE))
def test_every_allreduce_algorithm_does(algorithm: str, dtype: str, count: int) -> None:
    make, data = partial(plain, dtype=dtype), samples(count, dtype)
    found = trained(3, make, data_parallel(algorithm=algorithm, bucket_bytes=100), data)
    assert found.same_on_all_ranks()
    assert_close(found, plain_in_one_process(dtype, count))


def test_shares_may_be_empty() -> None:
    """Of batches of three samples one rank has none, of the last one of two two have none."""
    data = samples(8)
    make = partial(network, batch_size=3)
    found = trained(4, make, data_parallel(), data, validation=data)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, validation=data), 1e-12)


@pytest.mark.parametrize(
    "layers",
    [
        [
            nn.Input((2, 6, 6)),
            nn.Conv2D(3, 3, padding=1),
            nn.BatchNorm(),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.LayerNorm(),
            nn.Dense(CLASSES),
        ],
        [nn.Input((4, 5)), nn.LSTM(6), nn.Dense(CLASSES)],
        [nn.Input((4, 6)), nn.MultiHeadAttention(2), nn.GlobalAveragePool(), nn.Dense(CLASSES)],
    ],
    ids=["images", "sequences", "attention"],
)
def test_layers_of_all_kinds_take_an_empty_share(layers: list[nn.Layer]) -> None:
    shape = layers[0].shape  # type: ignore[attr-defined]
    x = np.random.default_rng(0).normal(size=(4, *shape))
    data = (x, np.arange(4) % CLASSES)

    def make() -> cd.NeuralNetwork:
        return network(layers=[cd.nn.from_config(cd.nn.to_config(each)) for each in layers])

    found = trained(3, partial(make), data_parallel(), data, batch_size=2)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, batch_size=2), 1e-12)


def test_samples_count_by_their_weights() -> None:
    data = samples(23)
    weights = np.random.default_rng(2).uniform(0, 3, 23)
    how = {"sample_weights": weights, "class_weights": [1.0, 2.0, 0.5]}
    found = trained(3, plain, data_parallel(), data, **how)
    assert found.same_on_all_ranks()
    assert_close(found, alone(plain, data, **how), 1e-12)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2),
        lambda: optim.LAMB(0.01, clip=optim.ClipNorm(0.1)),
        lambda: optim.SGD(0.1, momentum=0.9, accumulate=3),
    ],
    ids=["lars", "lamb", "accumulated"],
)
def test_large_batches(optimizer: Any) -> None:
    """Rates by layer, warm-up, and a batch that grows from epoch to epoch."""

    def make() -> cd.NeuralNetwork:
        batch = optim.GrowingBatch(5, factor=2)
        return plain(optimizer=optimizer, batch_size=batch)

    data = samples(30)
    found = trained(2, make, data_parallel(), data, epochs=2)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, epochs=2), 1e-12)


def test_half_precision_with_a_loss_scale() -> None:
    make = partial(plain, dtype="float32", precision="float16")
    found = trained(2, make, data_parallel(), samples(40, "float32"))
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(40, "float32")), 2e-2)


def test_ranks_that_start_apart_are_brought_together() -> None:
    models = [plain(seed=rank) for rank in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(samples(10), parallel=DataParallel(communicator=comm), verbose=0)

    run_virtual_ranks(2, work)
    expected = plain(seed=0)
    expected.fit(samples(10), verbose=0)
    for model in models:
        for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-12)


def test_ranks_with_different_models_are_told_so() -> None:
    models = [plain(), network()]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(samples(10), parallel=DataParallel(communicator=comm), verbose=0)

    with pytest.raises(
        CommError, match=r"layer 1-Dense=.* on rank 0, got layer 1-Dense=.* on rank 1"
    ):
        run_virtual_ranks(2, work)


def test_ranks_that_call_fit_differently_are_told_so() -> None:
    models = [plain() for _ in range(2)]

    def work(comm: Communicator) -> None:
        strategy = DataParallel(communicator=comm)
        models[comm.rank].fit(samples(10 + comm.rank), parallel=strategy, verbose=0)

    with pytest.raises(CommError, match=r"samples=10 on rank 0, got samples=11 on rank 1"):
        run_virtual_ranks(2, work)


def test_ranks_about_to_send_different_messages_are_told_so() -> None:
    models = [plain(metrics=["accuracy"]), plain(metrics=[])]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(samples(10), parallel=DataParallel(communicator=comm), verbose=0)

    with pytest.raises(CommError, match="collectives of a plan: expected the same on all ranks"):
        run_virtual_ranks(2, work)


@pytest.mark.parametrize("strategy", [DataParallel, Sharded])
def test_one_rank_needs_no_others(strategy: Any) -> None:
    found = trained(1, plain, lambda comm: strategy(communicator=comm), samples(20))
    assert_close(found, alone(plain, samples(20)), 0)


@pytest.mark.parametrize("strategy", [DataParallel, Sharded, PipelineParallel])
def test_devices_with_memory_of_their_own(strategy: Any) -> None:
    """Data lie there, steps are captured and replayed, and votes are counted a batch later."""
    models = [plain(device=f"loopback:{rank}") for rank in range(2)]
    data = samples(25)

    class Tired(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1 and run.step == 4:
                run.stop("tired")

    def work(comm: Communicator) -> tuple[str, int]:
        model = models[comm.rank]
        how = {"parallel": strategy(communicator=comm), "verbose": 0}
        model.fit(data, **how)
        return model.fit(data, callbacks=[Tired()], epochs=9, **how).stopped, model.steps_done

    assert run_virtual_ranks(2, work) == [("tired", 9)] * 2
    expected = plain()
    for _ in range(3):
        expected.fit(data, verbose=0)
    for model in models:
        for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-12)


def test_each_rank_reads_its_own_samples_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Those that ranks compare before they begin are another matter.
    monkeypatch.setattr("caldera.train.training_data.data_digest", lambda data: "")
    read: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}

    class Counted(cd.data.ArrayData):
        def __init__(self, rank: int, *arrays: np.ndarray) -> None:
            super().__init__(*arrays)
            self.rank = rank

        def raw_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
            read[self.rank].append(indices.tolist())
            return super().raw_batch(indices)

    models = [plain() for _ in range(3)]

    def work(comm: Communicator) -> None:
        data = Counted(comm.rank, *samples(25))
        strategy = DataParallel(communicator=comm)
        models[comm.rank].fit(data, parallel=strategy, verbose=0, batch_size=25)

    run_virtual_ranks(3, work)
    # The first sample is looked at for its shape, before the batch.
    batches = [calls[-1] for calls in read.values()]
    assert all(call == [0] for calls in read.values() for call in calls[:-1])
    assert sorted(index for batch in batches for index in batch) == list(range(25))


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="bucket_bytes >= 1"):
        DataParallel(bucket_bytes=0)
    with pytest.raises(CommError, match="algorithm"):
        DataParallel(algorithm="carrier pigeon")


def test_messages_become_shorter_at_the_end() -> None:
    """Nothing is left to compute while the last one is under way."""
    sizes = [3200, 400_000, 32_000, 16_000, 16_000, 1600, 5]
    values = [op.var(f"v{index}", (size,)) for index, size in enumerate(sizes)]
    assert buckets(values, range(7), 1 << 20) == [[0, 1], [2, 3], [4, 5, 6]]
    assert buckets(values, range(7), 4 << 20) == [[0, 1, 2, 3, 4, 5, 6]]
