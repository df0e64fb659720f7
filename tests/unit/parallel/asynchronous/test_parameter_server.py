"""Parameter servers: in step they equal one process, and at their own pace nothing is lost."""

from __future__ import annotations

import shutil
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import compress, nn, op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import ConfigError, NonFiniteError
from caldera.nn.layer import Layer
from caldera.parallel import DataParallel, ParameterServer
from caldera.parallel.asynchronous.server import ServerOptimizer
from caldera.parallel.asynchronous.transport import ServerShard, push_codec
from caldera.train.saving.checkpoint import CheckpointFolder, read_checkpoint
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

servers = strategies_of(ParameterServer)

HEAD_BYTES, REPLY_BYTES = 64, 24
"""What a push and a reply have beside gradients and parameters."""
OPTIMIZERS = {
    "adam": lambda: optim.Adam(0.01),
    "lars": lambda: optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2),
    "lamb": lambda: optim.LAMB(0.01, clip=optim.ClipValue(0.1)),
    "accumulated": lambda: optim.SGD(0.1, momentum=0.9, accumulate=2),
    "groups": lambda: optim.SGD(0.1, weight_decay=0.1, groups=[optim.Group("1-*", 2.0, 0.0)]),
}


def plain(optimizer: Any = "momentum", **more: Any) -> cd.NeuralNetwork:
    """Without batch normalisation."""
    layers = [nn.Input((FEATURES,)), nn.Dense(4, activation="tanh"), nn.Dense(CLASSES)]
    return network(optimizer, layers=layers, **more)


def fitted(
    ranks: int, make: Any, data: Any, how: Any = None, **options: Any
) -> tuple[Trained, list[ParameterServer]]:
    """What ranks had after training, and their strategies."""
    made: dict[int, ParameterServer] = {}

    def strategy(comm: Communicator) -> ParameterServer:
        made[comm.rank] = ParameterServer(communicator=comm, **options)
        return made[comm.rank]

    found = trained(ranks, make, strategy, data, watch=False, **how or {})
    return found, [made[rank] for rank in range(ranks)]


# --- in step


@cache
def one_process(dtype: str, count: int) -> Trained:
    return alone(partial(network, dtype=dtype), samples(count, dtype))


# One step in float32, five in float64, batch normalisation and dropout included; ten samples do
# not divide by three or four.
@pytest.mark.parametrize(("dtype", "count"), [("float32", 10), ("float64", 50)])
@pytest.mark.parametrize(("ranks", "count_of_servers"), [(2, 1), (3, 2), (4, 4)])
def test_synchronous_equals_one_process_on_the_whole_batch(
    dtype: str, count: int, ranks: int, count_of_servers: int
) -> None:
    made = partial(network, dtype=dtype)
    found = trained(ranks, made, servers(count_of_servers), samples(count, dtype))
    assert found.same_on_all_ranks()
    assert_close(found, one_process(dtype, count))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_runs_at_the_servers(optimizer: str) -> None:
    make = partial(plain, OPTIMIZERS[optimizer])
    found = trained(2, make, servers(2), samples(50))
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(50)), 1e-12)


def test_one_server_has_all_gradients_and_several_do_not() -> None:
    make = partial(plain, lambda: optim.SGD(0.1, clip=optim.ClipNorm(0.1)))
    found = trained(2, make, servers(1), samples(50))
    assert_close(found, alone(make, samples(50)), 1e-12)
    with pytest.raises(ConfigError, match=r"one parameter at a time, got SGD with ClipNorm"):
        trained(2, make, servers(2), samples(50))


def test_one_rank_needs_no_server() -> None:
    found = trained(1, plain, servers(mode="asynchronous"), samples(20))
    assert_close(found, alone(plain, samples(20)), 0)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_devices_with_memory_of_their_own(mode: str) -> None:
    models = [plain(device=f"loopback:{rank}") for rank in range(2)]
    expected = plain()
    expected.fit(samples(30), verbose=0)

    def work(comm: Communicator) -> Any:
        strategy = ParameterServer(mode=mode, communicator=comm)
        models[comm.rank].fit(samples(30), parallel=strategy, verbose=0)
        return strategy.record.applied

    assert run_virtual_ranks(2, work) == [3 if mode == "synchronous" else 6] * 2
    for mine, same, other in zip(*(m.parameters() for m in (*models, expected)), strict=True):
        np.testing.assert_array_equal(mine.numpy(), same.numpy())
        if mode == "synchronous":
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-12)


# --- at their own pace


@pytest.mark.parametrize(("ranks", "count_of_servers"), [(2, 1), (5, 2)])
def test_a_bound_of_0_equals_synchronous(ranks: int, count_of_servers: int) -> None:
    """Metrics, weights of samples and shares without any sample included."""
    data = samples(23)
    weights = np.arange(23.0) % 3
    how = {"sample_weights": weights, "validation": samples(7), "epochs": 2, "batch_size": 4}
    make = partial(plain, metrics=["accuracy", "confusion_matrix"])
    found, strategies = fitted(
        ranks, make, data, how, servers=count_of_servers, mode="stale", bound=0
    )
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, **how), 1e-12)
    assert set(strategies[0].record.gaps) == {0}


def test_a_bound_of_0_normalises_over_the_whole_batch() -> None:
    """Batch normalisation and dropout included; three ranks do not divide batches of ten."""
    found, strategies = fitted(3, network, samples(50), mode="stale", bound=0)
    assert found.same_on_all_ranks()
    assert_close(found, alone(network, samples(50)), 1e-12)
    assert set(strategies[0].record.gaps) == {0}


@pytest.mark.parametrize("optimizer", ["adam", "accumulated"])
def test_a_batch_that_counts_for_nothing_is_a_step(optimizer: str) -> None:
    """Moments and momentum go on, as they do in one process."""
    how = {"sample_weights": np.repeat([1.0, 0.0, 2.0], 4), "batch_size": 4, "shuffle": False}
    make = partial(plain, OPTIMIZERS[optimizer])
    found, _ = fitted(2, make, samples(12), how, servers=2)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, samples(12), **how), 1e-12)


class Slow(cd.Callback):
    """Makes one rank slower than the others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def batch_ends(self, run: cd.Run) -> None:
        if run.communicator.rank == self.rank:
            time.sleep(0.01)


class Held(cd.Callback):
    """Rank 2 takes no second step before rank 0 has run ahead as far as it may."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.reached = threading.Event()

    def batch_ends(self, run: cd.Run) -> None:
        if run.communicator.rank == 0 and run.step == self.steps:
            self.reached.set()
        if run.communicator.rank == 2 and run.step == 1:
            assert self.reached.wait(30)


@pytest.mark.parametrize("bound", [1, 3])
def test_the_gap_never_exceeds_the_bound(bound: int) -> None:
    how = {"callbacks": [Held(steps=bound + 1)], "epochs": 2}
    found, strategies = fitted(3, plain, samples(100), how, servers=2, mode="stale", bound=bound)
    assert found.same_on_all_ranks()
    record = strategies[1].record
    assert record == strategies[0].record
    assert (min(record.gaps), max(record.gaps)) == (0, bound)
    assert sum(record.gaps.values()) == 2 * 3 * 20
    assert (record.sent, record.applied) == (60, 20)


@pytest.mark.parametrize("count_of_servers", [1, 2])
def test_asynchronous_updates_applied_are_those_sent(count_of_servers: int) -> None:
    """In the last batch, of two samples, one rank of three has none and sends nothing."""
    make = partial(plain, "sgd")
    how = {"callbacks": [Slow(rank=0)], "epochs": 3, "validation": samples(7)}
    found, strategies = fitted(
        3, make, samples(62), how, servers=count_of_servers, mode="asynchronous"
    )
    assert found.same_on_all_ranks()
    record = strategies[0].record
    assert record.sent == record.applied == 3 * (6 * 3 + 2)
    assert all(int(model.optimizer.step.numpy()) == record.applied for model in found.models)
    # The last of three first gradients comes from parameters that two updates have changed since.
    assert max(record.gaps) >= 2
    history = found.histories[0]
    assert history["loss"][-1] < history["loss"][0]
    # It evaluates what all ranks have.
    assert history["val_loss"][-1] == pytest.approx(
        found.models[1].evaluate(samples(7))["loss"], rel=1e-9
    )


def test_the_loss_is_that_of_all_samples() -> None:
    """Nothing changes with a rate this small, so it can be computed beforehand."""
    make = partial(plain, lambda: optim.SGD(1e-12))
    found, _ = fitted(3, make, samples(62), mode="asynchronous")
    assert found.histories[0]["loss"][0] == pytest.approx(
        make().evaluate(samples(62))["loss"], rel=1e-9
    )


# --- one run


@pytest.mark.parametrize("options", [{"mode": "asynchronous"}, {"mode": "stale", "bound": 4}])
def test_a_wish_of_one_rank_stops_all_after_the_same_step(options: dict[str, Any]) -> None:
    class Tired(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 2 and run.step == 3:
                run.stop("rank 2 is tired")

    models = [plain() for _ in range(3)]

    def work(comm: Communicator) -> tuple[str, int]:
        strategy = ParameterServer(communicator=comm, **options)
        how = {"parallel": strategy, "callbacks": [Slow(2), Tired()], "verbose": 0}
        history = models[comm.rank].fit(samples(1000), **how)
        return history.stopped, models[comm.rank].steps_done

    found = run_virtual_ranks(3, work)
    assert len(set(found)) == 1
    reason, steps = found[0]
    assert reason == "rank 2 is tired"
    assert 4 <= steps <= 100


class StopAt(cd.Callback):
    """Ends a run on one rank's vote."""

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_ends(self, run: cd.Run) -> None:
        if run.step == self.step and run.communicator.rank == 1:
            run.stop("it is late")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (servers(2), lambda comm: DataParallel(communicator=comm)),
        (servers(1, mode="stale", bound=0), servers(2)),
        (lambda comm: DataParallel(communicator=comm), servers(2, mode="stale", bound=0)),
    ],
    ids=["to data parallel", "from stale", "to stale"],
)
def test_a_run_goes_on_on_other_ranks_with_another_strategy(
    first: Any, second: Any, tmp_path: Path
) -> None:
    make = partial(plain, lambda: optim.Adam(0.01), batch_size=6)
    data = samples(40)
    how: dict[str, Any] = {"watch": False, "checkpoint": tmp_path, "epochs": 2}
    stopped = trained(3, make, first, data, callbacks=[StopAt(2)], **how)
    assert [each.stopped for each in stopped.histories] == ["it is late"] * 3
    (saved,) = CheckpointFolder(tmp_path).steps()
    assert 3 <= saved < 7
    found = trained(2, make, second, data, resume=True, **how)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, epochs=2), 1e-12)


def test_checkpoints_in_the_middle_of_an_asynchronous_epoch_have_what_all_did(
    tmp_path: Path,
) -> None:
    make = partial(plain, "sgd", batch_size=6)
    data = samples(62)
    models = [make() for _ in range(2)]

    def work(comm: Communicator) -> None:
        saver = cd.Checkpointer(tmp_path, every_steps=4, every_epoch=False, keep=100)
        strategy = ParameterServer(mode="asynchronous", communicator=comm)
        callbacks = [Slow(1), saver]
        models[comm.rank].fit(data, parallel=strategy, verbose=0, callbacks=callbacks)

    run_virtual_ranks(2, work)
    assert CheckpointFolder(tmp_path).steps() == [11, 8, 4]
    for step in (4, 8):
        tensors = read_checkpoint(tmp_path / f"step-{step}", step).tensors
        assert tensors["run/training/weight"] == 6 * step
        assert tensors["optimizer/step"] == 2 * step
    shutil.rmtree(tmp_path / "step-11")
    models = [make() for _ in range(3)]

    def resumed(comm: Communicator) -> list[int]:
        strategy = ParameterServer(mode="asynchronous", communicator=comm)
        return (
            models[comm.rank]
            .fit(data, parallel=strategy, verbose=0, checkpoint=tmp_path, resume=True, epochs=2)
            .epochs
        )

    assert run_virtual_ranks(3, resumed) == [[0, 1]] * 3
    # An epoch has ten batches of six samples, and one of two, of which one of three ranks has none.
    assert int(models[2].optimizer.step.numpy()) == 2 * 8 + (3 * 2 + 2) + (3 * 10 + 2)


# --- bytes


def _bytes(strategy: ParameterServer) -> tuple[int, int]:
    counts = [channel.traffic.total for channel in strategy.channels]
    return sum(c.bytes_sent for c in counts), sum(c.bytes_received for c in counts)


def test_a_worker_sends_all_gradients_and_gets_all_parameters() -> None:
    found, (server, worker) = fitted(2, plain, samples(50))
    size = 8 * sum(each.size for each in found.models[0].parameters())
    # Five steps, and a word at the end.
    sent, received = 5 * size + 6 * HEAD_BYTES, 6 * (size + REPLY_BYTES)
    assert _bytes(worker) == (sent, received)
    assert _bytes(server) == (received, sent)


def test_pushed_gradients_may_travel_in_fewer_bits() -> None:
    exact, (_, worker) = fitted(2, plain, samples(50), compression=compress.Lossless())
    assert_close(exact, alone(plain, samples(50)), 1e-12)
    found, (_, worker) = fitted(
        2, plain, samples(50), compression=compress.QSGD(8, feedback=True), mode="asynchronous"
    )
    assert found.same_on_all_ranks()
    count = sum(each.size for each in found.models[0].parameters())
    pushed = compress.QSGD(8).code.size(count)
    assert pushed is not None
    assert pushed < count * 2
    assert _bytes(worker)[0] == 5 * pushed + 6 * HEAD_BYTES


def test_the_largest_of_all_elements_may_be_pushed_alone() -> None:
    """All of them equal one process, and a tenth takes about a tenth of the bytes."""
    exact, _ = fitted(2, plain, samples(50), compression=compress.TopK(10**6))
    assert_close(exact, alone(plain, samples(50)), 1e-12)
    for mode in ({}, {"mode": "asynchronous"}, {"mode": "stale", "bound": 2}):
        code = compress.TopK(0.1, bits=4)
        found, (_, worker) = fitted(2, plain, samples(50), compression=code, **mode)
        assert found.same_on_all_ranks()
        size = 8 * sum(each.size for each in found.models[0].parameters())
        assert _bytes(worker)[0] < 5 * size / 10 + 6 * HEAD_BYTES


@pytest.mark.parametrize(
    "options",
    [
        {"k": 3},
        {"k": 2, "block": 16},
        {"k": 0.2, "scope": "global"},
        {"k": 0.2, "sampled": True},
        {"k": 3, "bits": 4},
    ],
)
def test_what_is_pushed_and_what_is_kept_are_the_gradient_and_what_was_kept(
    options: dict[str, Any],
) -> None:
    shard = ServerShard(
        0, (op.var("a", (6, 7), dtype="float32"), op.var("b", (9,), dtype="float32"))
    )
    code = push_codec(compress.TopK(**options), rank=1)
    code.begin([shard])
    generator, kept = np.random.default_rng(0), np.zeros(shard.size, "float32")
    for _ in range(3):
        gradient = generator.normal(size=shard.size).astype("float32")
        message = code.encoded(shard, gradient.copy())
        code.step_taken()
        sent = code.decoded(message, shard.size, shard.dtype)
        left = np.concatenate([code.state()[f"residual/{n}"].reshape(-1) for n in "ab"])
        if "bits" in options:
            # What rounding adds to a value it takes from what is kept.
            np.testing.assert_allclose(sent + left, gradient + kept, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(sent + left, gradient + kept)
            assert not np.any((sent != 0) & (left != 0))
        assert 0 < np.count_nonzero(sent) < shard.size / 2
        kept = left.copy()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_what_was_not_sent_yet_is_kept(after: int, tmp_path: Path) -> None:
    """With no batch left to train on, the sum over ranks is what it was."""

    def total(ranks: int, resume: bool) -> dict[str, np.ndarray]:
        how = {"checkpoint": tmp_path, "resume": resume, "epochs": 1}
        code = compress.OneBit()
        _, strategies = fitted(ranks, plain, samples(30), how, compression=code, servers=1)
        states = [each._code.state() for each in strategies if each._code is not None]
        return {
            name: np.sum([each[name] for each in states], axis=0)
            for name in states[0]
            if name.startswith("residual/")
        }

    before, again = total(3, resume=False), total(after, resume=True)
    if after == 1:
        # One process has nothing to send.
        return
    assert before.keys() == again.keys()
    assert any(np.abs(value).max() > 0 for value in before.values())
    for name, value in before.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-12, atol=1e-15)


# --- what goes wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "sometimes"}, "mode= 'synchronous', 'asynchronous', 'stale', got 'sometimes'"),
        ({"mode": "stale"}, "bound= 0 or more with mode='stale'"),
        ({"mode": "stale", "bound": -1}, "bound= 0 or more with mode='stale'"),
        ({"bound": 1}, "and none with others, got mode='synchronous', bound=1"),
        ({"servers": 2}, "from 1 to 1 servers"),
        ({"compression": compress.PowerSGD(1)}, "compression= Cast, QSGD"),
        ({"compression": compress.TopK(0.1, momentum=0.9)}, "TopK without momentum"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParameterServer(**options)


def test_networks_that_do_not_fit_are_refused() -> None:
    layers = [nn.Input((FEATURES,)), nn.Dense(CLASSES, bias=False)]
    with pytest.raises(ConfigError, match=r"at most 1 servers, one a parameter, got servers=2"):
        trained(2, partial(network, layers=layers), servers(2), samples(10))


@pytest.mark.parametrize("options", [{}, {"mode": "asynchronous"}, {"mode": "stale", "bound": 1}])
def test_a_worker_that_fails_ends_all(options: dict[str, Any]) -> None:
    class Failing(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1 and run.step == 3:
                raise ValueError("the data of this rank are broken")

    with pytest.raises(ValueError, match="the data of this rank are broken"):
        trained(3, plain, servers(2, **options), samples(100), callbacks=[Failing()])


@pytest.mark.parametrize("options", [{}, {"mode": "asynchronous"}, {"mode": "stale", "bound": 1}])
def test_a_server_that_fails_ends_all(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def update(*_: Any) -> None:
        taken.append(1)
        if len(taken) == 3:
            raise ValueError("the server is out of order")

    monkeypatch.setattr(ServerOptimizer, "update", update)
    with pytest.raises(ValueError, match="the server is out of order"):
        trained(3, plain, servers(2, **options), samples(100))


class Logarithm(Layer):
    """Something that a bad sample makes infinite."""

    def forward(self, x: cd.Expr) -> cd.Expr:
        return op.log(x)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_the_rank_whose_sample_was_bad_is_named(mode: str) -> None:
    x, y = np.abs(samples(40)[0]) + 0.1, samples(40)[1]
    x[35] = 0.0
    make = partial(network, layers=[nn.Input((FEATURES,)), Logarithm(), nn.Dense(CLASSES)])
    # Sample 35 is the last of its batch, in the second rank's half.
    with pytest.raises(NonFiniteError, match=r"rank 1: fit, step 8(?s:.*)op.log"):
        trained(2, make, servers(mode=mode), (x, y), shuffle=False, batch_size=4)
