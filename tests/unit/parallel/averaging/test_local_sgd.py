"""Local SGD: the mean of all models every so many steps."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CommError, ConfigError, NonFiniteError
from caldera.parallel import DataParallel, ElasticAveraging, Gossip, LocalSGD
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    MakeStrategy,
    Trained,
    alone,
    assert_close,
    assert_same,
    network,
    samples,
    strategies_of,
    trained,
    values,
)

local = strategies_of(LocalSGD)
AVERAGED: dict[str, MakeStrategy] = {
    "local": local(every=2),
    "elastic": lambda comm: ElasticAveraging(every=2, communicator=comm),
    "ring": lambda comm: Gossip(communicator=comm),
    "pairs": lambda comm: Gossip("random pairs", every=2, communicator=comm),
}


def plain(optimizer: Any = "sgd", **more: Any) -> cd.NeuralNetwork:
    """With dropout, whose masks do not depend on how a batch is split."""
    layers = [
        nn.Input((FEATURES,)),
        nn.Dense(4, activation="tanh"),
        nn.Dropout(0.3),
        nn.Dense(CLASSES),
    ]
    return network(optimizer, layers=layers, **more)


def normalised(**more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(4), nn.BatchNorm(), nn.Dense(CLASSES)]
    return network("sgd", layers=layers, **more)


@cache
def synchronous(optimizer: str, dtype: str, count: int) -> Trained:
    make = partial(plain, optimizer, dtype=dtype)
    return trained(3, make, lambda comm: DataParallel(communicator=comm), samples(count, dtype))


# One step in float32, five in float64; ten samples do not divide by three.
@pytest.mark.parametrize(("dtype", "count"), [("float32", 10), ("float64", 50)])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_mean_after_every_step_is_data_parallel(optimizer: str, dtype: str, count: int) -> None:
    found = trained(
        3, partial(plain, optimizer, dtype=dtype), local(every=1), samples(count, dtype)
    )
    assert found.same_on_all_ranks()
    assert_close(found, synchronous(optimizer, dtype, count))


def test_block_momentum_after_every_step_is_sgd_with_momentum() -> None:
    rate, data = optim.SGD(0.1), samples(50)
    found = trained(3, partial(plain, lambda: rate), local(every=1, momentum=0.8), data)
    assert found.same_on_all_ranks()
    momentum = partial(plain, lambda: optim.SGD(0.1, momentum=0.8))
    wanted = alone(momentum, data).models[0].parameters()
    for one, other in zip(found.models[0].parameters(), wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-10, atol=1e-12)


def test_ranks_without_samples_wait_for_nobody_and_change_nothing() -> None:
    """Of a batch of three one rank of four has none, of the last of two two have none.

    The learning rate follows the number of steps, which goes on on all of them.
    """
    data = samples(8)

    def make() -> cd.NeuralNetwork:
        optimizer = optim.SGD(optim.LinearWarmUp(4, then=0.2), momentum=0.9, weight_decay=0.01)
        return plain(lambda: optimizer, batch_size=3)

    found = trained(4, make, local(every=1), data, epochs=2)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, epochs=2), 1e-12)


@pytest.mark.parametrize("name", AVERAGED)
def test_empty_shares_do_no_harm(name: str) -> None:
    """Not to running statistics either: there is no mean of no samples."""
    data = samples(7)
    make = partial(normalised, batch_size=2)
    found = trained(3, make, AVERAGED[name], data, epochs=2, validation=data, watch=False)
    assert found.same_on_all_ranks()
    assert all(np.isfinite(value).all() for value in values(found.models[0]).values())


def test_samples_count_by_their_weights() -> None:
    data = samples(23)
    weights = np.random.default_rng(2).uniform(0, 3, 23)
    # The first rank's samples of the first batch count for nothing.
    weights[:3] = 0.0
    how: dict[str, Any] = {"sample_weights": weights, "shuffle": False}
    found = trained(3, plain, local(every=1), data, **how)
    assert found.same_on_all_ranks()
    assert_close(found, alone(plain, data, **how), 1e-12)


def test_in_between_ranks_go_their_own_ways() -> None:
    """Every third of seven steps all have the same; and at the end, the mean of what they had."""
    found = trained(2, plain, local(every=3), samples(70))
    same = [one == other for one, other in zip(*found.steps, strict=True)]
    assert same == [False, False, True, False, False, True, False]
    last = [np.frombuffer(steps[-1]) for steps in found.steps]
    for model in found.models:
        flat = np.concatenate([p.numpy().ravel() for p in model.parameters()])
        np.testing.assert_allclose(flat, (last[0] + last[1]) / 2, rtol=1e-13, atol=1e-16)


def test_epochs_do_not_interfere() -> None:
    """Validation sees the mean, but ranks go on with their own: every counts through epochs."""
    data = samples(20)
    whole = trained(2, plain, local(every=5), data, epochs=4)
    watched = trained(2, plain, local(every=5), data, epochs=4, validation=data)
    assert whole.steps == watched.steps
    same = [one == other for one, other in zip(*whole.steps, strict=True)]
    assert [step + 1 for step, is_same in enumerate(same) if is_same] == [5]


def test_what_the_optimizer_keeps_may_stay_with_its_rank() -> None:
    seen: dict[str, list[bool]] = {}
    for state in ("average", "keep"):
        kept: list[list[bytes]] = [[], []]

        class Look(cd.Callback):
            def __init__(self, there: list[bytes]) -> None:
                self.there = there

            def batch_ends(self, run: cd.Run) -> None:
                variables = run.model.optimizer.state.values()
                self.there.append(
                    b"".join(v.numpy().tobytes() for s in variables for v in s.values())
                )

        models = [plain("momentum") for _ in range(2)]

        def work(
            comm: Communicator, state: str = state, models: Any = models, kept: Any = kept
        ) -> None:
            models[comm.rank].fit(
                samples(40),
                parallel=LocalSGD(2, state=state, communicator=comm),
                verbose=0,
                callbacks=[Look(kept[comm.rank])],
            )

        run_virtual_ranks(2, work)
        seen[state] = [one == other for one, other in zip(*kept, strict=True)]
        # When the run is over they are the same in any case.
        assert_same(values(models[0]), values(models[1]))
    assert seen == {"average": [False, True] * 2, "keep": [False] * 4}


def test_batch_normalisation_is_by_rank_and_its_statistics_are_averaged() -> None:
    data = samples(8)
    found = trained(2, partial(normalised, batch_size=8), local(every=1), data, shuffle=False)
    halves = []
    for half in (slice(0, 4), slice(4, 8)):
        part = (data[0][half], data[1][half])
        halves.append(alone(partial(normalised, batch_size=4), part, shuffle=False).models[0])
    for name, value in values(found.models[0]).items():
        if name != "step":
            mean = (values(halves[0])[name] + values(halves[1])[name]) / 2
            np.testing.assert_allclose(value, mean, rtol=1e-13, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("name", AVERAGED)
def test_the_history_is_that_of_all_ranks_and_of_the_mean_model(name: str) -> None:
    # Eleven samples do not divide by three.
    data = samples(22)
    make = partial(normalised, metrics=["accuracy", "confusion_matrix"], batch_size=11)
    found = trained(3, make, AVERAGED[name], data, validation=data, watch=False)
    assert found.same_on_all_ranks()
    history, model = found.histories[0], found.models[0]
    after = model.evaluate(data)
    assert history["val_loss"][-1] == pytest.approx(after["loss"], rel=1e-12)
    assert history["val_accuracy"][-1] == after["accuracy"]
    # Every sample was counted once.
    assert np.sum(history["confusion_matrix"][-1]) == 22


def lars() -> optim.Optimizer:
    return optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2)


def lamb() -> optim.Optimizer:
    return optim.LAMB(0.01, clip=optim.ClipNorm(0.1))


@pytest.mark.parametrize(
    ("name", "optimizer"), [("local", lars), ("elastic", lamb), ("ring", lars), ("pairs", lamb)]
)
def test_large_batches(name: str, optimizer: Any) -> None:
    """Rates by layer, warm-up, and a batch that grows from epoch to epoch."""

    def make() -> cd.NeuralNetwork:
        return plain(optimizer, batch_size=optim.GrowingBatch(4, factor=2))

    found = trained(2, make, AVERAGED[name], samples(16), epochs=2, watch=False)
    assert found.same_on_all_ranks()
    assert values(found.models[0])["step"] == 4 + 2
    assert all(np.isfinite(value).all() for value in values(found.models[0]).values())


def test_half_precision_has_a_loss_scale_by_rank() -> None:
    make = partial(plain, dtype="float32", precision="float16")
    found = trained(2, make, local(every=1), samples(40, "float32"))
    assert_close(found, alone(make, samples(40, "float32")), 2e-2)


@pytest.mark.parametrize("name", AVERAGED)
def test_one_rank_needs_no_others(name: str) -> None:
    found = trained(1, plain, AVERAGED[name], samples(25))
    assert_close(found, alone(plain, samples(25)), 0)


@pytest.mark.parametrize("name", AVERAGED)
def test_devices_with_memory_of_their_own(name: str) -> None:
    data = samples(20)
    found = trained(2, plain, AVERAGED[name], data, epochs=2, validation=data)
    devices = iter(["loopback:0", "loopback:1"])
    there = trained(
        2, lambda: plain(device=next(devices)), AVERAGED[name], data, epochs=2, validation=data
    )
    assert_close(there, found, 1e-12)


@pytest.mark.parametrize("name", AVERAGED)
def test_a_wish_of_one_rank_stops_all_of_them(name: str) -> None:
    class Tired(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1 and run.step == 3:
                run.stop("rank 1 is tired")

    models = [plain() for _ in range(3)]

    def work(comm: Communicator) -> tuple[str, int]:
        model = models[comm.rank]
        history = model.fit(
            samples(100), parallel=AVERAGED[name](comm), verbose=0, callbacks=[Tired()]
        )
        return history.stopped, model.steps_done

    # Those who exchange with all hear of it at the next exchange, the others one later.
    steps = {"local": 4, "elastic": 4, "ring": 5, "pairs": 6}[name]
    assert run_virtual_ranks(3, work) == [("rank 1 is tired", steps)] * 3


def test_a_rank_whose_loss_is_no_number_ends_all_of_them() -> None:
    x, y = samples(40)
    x[9] = np.nan
    models = [plain(batch_size=4) for _ in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(
            (x, y), parallel=LocalSGD(100, communicator=comm), verbose=0, shuffle=False
        )

    # Sample 9 is the second of its batch, in the first rank's half.
    with pytest.raises(NonFiniteError, match=r"rank 0: fit, step 2: .* the input"):
        run_virtual_ranks(2, work)


def bytes_sent(ranks: int, make: MakeStrategy, **how: Any) -> list[tuple[int, int]]:
    """What plans have sent on each rank, and how large the parameters are."""
    models = [plain("momentum", dtype="float32") for _ in range(ranks)]

    def work(comm: Communicator) -> tuple[int, int]:
        strategy, model = make(comm), models[comm.rank]
        model.fit(samples(60, "float32"), parallel=strategy, verbose=0, **how)
        size = sum(p.numpy().nbytes for p in model.parameters())
        return strategy.plan_communicator.traffic.total.bytes_sent, size

    return run_virtual_ranks(ranks, work)


@pytest.mark.parametrize(("state", "factor"), [("average", 2), ("keep", 1)])
@pytest.mark.parametrize("every", [1, 3])
def test_bytes_are_those_of_the_formula(every: int, state: str, factor: int) -> None:
    """2 (n-1)/n S in a ring for each mean; SGD with momentum keeps as much as there is."""
    exchanges, weight = 6 // every, 8
    for sent, size in bytes_sent(2, local(every=every, state=state, algorithm="ring")):
        assert sent == exchanges * (factor * size + weight)


def test_ranks_with_other_options_are_told_so() -> None:
    models = [plain() for _ in range(2)]

    def work(comm: Communicator) -> None:
        strategy = LocalSGD(every=2 + comm.rank, communicator=comm)
        models[comm.rank].fit(samples(10), parallel=strategy, verbose=0)

    with pytest.raises(CommError, match=r"every=2.* on rank 0, got .*every=3.* on rank 1"):
        run_virtual_ranks(2, work)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="LocalSGD: expected every >= 1"):
        LocalSGD(every=0)
    with pytest.raises(ConfigError, match="state= 'average' or 'keep', got 'forget'"):
        LocalSGD(state="forget")
    with pytest.raises(ConfigError, match=r"0 <= momentum < 1, got 1\.0"):
        LocalSGD(momentum=1.0)
    with pytest.raises(ConfigError, match="during a run"):
        _ = LocalSGD().model
