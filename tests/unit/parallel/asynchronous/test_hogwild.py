"""Hogwild: one copy of the parameters, which all ranks change without locks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.comm import Communicator, run_virtual_ranks, shared_memory
from caldera.errors import ConfigError
from caldera.parallel import Hogwild, ParameterServer
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    alone,
    assert_close,
    network,
    samples,
    trained,
    values,
)


def plain(optimizer: Any = "sgd", **more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(4, activation="tanh"), nn.Dense(CLASSES)]
    return network(optimizer, layers=layers, **more)


def hogwild(comm: Communicator) -> Hogwild:
    return Hogwild(communicator=comm)


class Look(cd.Callback):
    """Rank 0 writes to a parameter, and rank 1 looks at its own."""

    def __init__(self) -> None:
        self.seen: float | None = None

    def epoch_begins(self, run: cd.Run) -> None:
        (parameter, *_) = run.model.parameters()
        if run.communicator.rank == 0:
            parameter.assign(np.full(parameter.shape, 42.0))
        run.communicator.Barrier()
        if run.communicator.rank == 1:
            self.seen = float(parameter.numpy()[0, 0])


def test_there_is_one_copy_of_the_parameters_while_it_trains() -> None:
    look = Look()
    found = trained(2, plain, hogwild, samples(20), watch=False, callbacks=[look])
    assert look.seen == 42.0
    # After that each rank has its own again, with the same values.
    assert found.same_on_all_ranks()
    first, second = (model.parameters()[0] for model in found.models)
    first.assign(np.zeros(first.shape))
    assert np.abs(second.numpy()).max() > 1


def line(count: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """Targets that a linear network can give, but for some noise."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, FEATURES))
    return x, x @ np.arange(1.0, 7.0)[:, None] + 0.1 * generator.normal(size=(count, 1))


def linear(batch_size: int, optimizer: Any = "sgd") -> cd.NeuralNetwork:
    made = optimizer() if callable(optimizer) else optimizer
    more = {} if callable(optimizer) else {"learning_rate": 0.02}
    return cd.NeuralNetwork(
        [nn.Input((FEATURES,)), nn.Dense(1)],
        loss="mse",
        optimizer=made,
        dtype="float64",
        batch_size=batch_size,
        **more,
    )


@pytest.mark.parametrize("optimizer", ["sgd", lambda: optim.Adam(0.05)], ids=["sgd", "adam"])
def test_it_comes_to_nearly_what_one_process_does(optimizer: Any) -> None:
    """A rank's part of a batch of twelve has four samples, and is a step of its own."""
    data, epochs = line(), 12
    found = trained(3, partial(linear, 12, optimizer), hogwild, data, watch=False, epochs=epochs)
    expected = alone(partial(linear, 4, optimizer), data, epochs=epochs)
    assert found.same_on_all_ranks()
    here, there = (each.models[0].evaluate(data)["loss"] for each in (found, expected))
    start = linear(12).evaluate(data)["loss"]
    assert there < 0.01 * start
    assert here < 1.5 * there
    for mine, other in zip(*(t.models[0].parameters() for t in (found, expected)), strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), atol=0.1)


def test_steps_are_counted_exactly() -> None:
    """In the last batch, of two samples, one rank of three has none and takes no step."""
    strategies: dict[int, Hogwild] = {}

    def strategy(comm: Communicator) -> Hogwild:
        strategies[comm.rank] = hogwild(comm)
        return strategies[comm.rank]

    found = trained(3, plain, strategy, samples(62), watch=False, epochs=2, validation=samples(9))
    assert [strategies[rank].updates for rank in range(3)] == [2 * (3 * 6 + 2)] * 3
    assert [int(model.optimizer.step.numpy()) for model in found.models] == [2 * (3 * 6 + 2)] * 3
    assert found.histories[0]["val_loss"][-1] == pytest.approx(
        found.models[2].evaluate(samples(9))["loss"], rel=1e-9
    )


def test_one_rank_shares_with_nobody() -> None:
    found = trained(1, plain, hogwild, samples(20))
    assert_close(found, alone(plain, samples(20)), 0)


class StopAt(cd.Callback):
    """Ends a run on one rank's vote."""

    def batch_ends(self, run: cd.Run) -> None:
        if run.step == 2 and run.communicator.rank == 1:
            run.stop("it is late")


def test_a_run_stops_together_and_goes_on_with_another_strategy(tmp_path: Path) -> None:
    how: dict[str, Any] = {"watch": False, "checkpoint": tmp_path, "epochs": 2}
    make = partial(plain, lambda: optim.Adam(0.01))
    first = trained(3, make, hogwild, samples(200), callbacks=[StopAt()], **how)
    assert [each.stopped for each in first.histories] == ["it is late"] * 3
    (step,) = CheckpointFolder(tmp_path).steps()
    assert [model.steps_done for model in first.models] == [step] * 3
    assert [int(model.optimizer.step.numpy()) for model in first.models] == [3 * step] * 3
    saved = CheckpointFolder(tmp_path).latest()
    assert saved is not None
    # The whole state of the optimizer is there.
    for name, value in values(first.models[1]).items():
        found = {k: v for k, v in saved.tensors.items() if k.endswith(f"/{name}")}
        assert any(np.array_equal(value, each) for each in found.values()), name
    second = trained(
        2,
        make,
        lambda comm: ParameterServer(mode="asynchronous", communicator=comm),
        samples(200),
        resume=True,
        **how,
    )
    assert second.histories[1].epochs == [0, 1]
    assert int(second.models[0].optimizer.step.numpy()) == 3 * step + 2 * (40 - step)


def test_a_rank_that_fails_ends_all() -> None:
    class Failing(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1 and run.step == 3:
                raise ValueError("the data of this rank are broken")

    with pytest.raises(ValueError, match="the data of this rank are broken"):
        trained(3, plain, hogwild, samples(100), callbacks=[Failing()])


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a single machine, .* got 2 ranks on 2 machines"):
        run_virtual_ranks(2, hogwild, nodes=[0, 1])
    with pytest.raises(ConfigError, match=r"host memory, .* got device loopback"):
        trained(2, partial(plain, device="loopback"), hogwild, samples(10))
    with pytest.raises(ConfigError, match=r"accumulate=2"):
        trained(2, partial(plain, lambda: optim.SGD(0.1, accumulate=2)), hogwild, samples(10))


# --- the memory


def test_no_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_IN_MEMORY", tmp_path)
    trained(2, plain, hogwild, samples(10))
    assert not list(tmp_path.iterdir())


def test_memory_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_IN_MEMORY", tmp_path / "nowhere")

    def work(comm: Communicator) -> Any:
        wanted = [((), np.dtype("int64")), ((0, 3), np.dtype("float32")), ((3,), np.dtype("f8"))]
        shared = shared_memory.SharedMemory(comm, wanted)
        for _ in range(100):
            with shared.alone():
                shared.arrays[0][...] += 1
        comm.Barrier()
        assert all(array.ctypes.data % 64 == 0 for array in shared.arrays if array.size)
        return [int(shared.arrays[0]), *(array.shape for array in shared.arrays)]

    assert run_virtual_ranks(3, work) == [[300, (), (0, 3), (3,)]] * 3
