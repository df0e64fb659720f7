"""Statistics and loss scales of ranks that take their steps without waiting for each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.comm import Communicator
from caldera.parallel import Hogwild, ParameterServer
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    alone,
    assert_close,
    network,
    samples,
    trained,
)

STRATEGIES: dict[str, Any] = {
    "asynchronous": lambda comm: ParameterServer(mode="asynchronous", communicator=comm),
    "stale": lambda comm: ParameterServer(mode="stale", bound=1, communicator=comm),
    "hogwild": lambda comm: Hogwild(communicator=comm),
}


def still() -> cd.NeuralNetwork:
    """Learns nothing but statistics."""
    return network(lambda: optim.SGD(1e-30), batch_size=6)


def statistics(model: cd.Model) -> list[np.ndarray]:
    return [each.numpy() for each in model.states()]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_running_statistics_are_the_mean_of_those_of_all_ranks(name: str) -> None:
    """Each rank normalises its half of every batch, and resumes from the mean after an epoch."""
    x, y = samples(24)
    found = trained(2, still, STRATEGIES[name], (x, y), watch=False, shuffle=False, epochs=2)
    assert found.same_on_all_ranks()
    halves = [partial(network, lambda: optim.SGD(1e-30), batch_size=3)() for _ in range(2)]
    for _ in range(2):
        for rank, model in enumerate(halves):
            own = np.arange(24).reshape(-1, 2, 3)[:, rank].reshape(-1)
            model.fit((x[own], y[own]), verbose=0, shuffle=False)
        means = [np.mean(each, axis=0) for each in zip(*map(statistics, halves), strict=True)]
        for model in halves:
            for variable, mean in zip(model.states(), means, strict=True):
                variable.assign(mean)
    for here, there in zip(statistics(found.models[0]), means, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_rank_without_samples_has_no_new_statistics(name: str) -> None:
    """The last batch has one sample for two ranks, and one sample has no variance."""
    found = trained(3, partial(network, batch_size=6), STRATEGIES[name], samples(14), watch=False)
    assert found.same_on_all_ranks()
    for each in statistics(found.models[0]):
        assert np.isfinite(each).all()


def test_a_checkpoint_in_the_middle_of_an_epoch_has_the_mean(tmp_path: Path) -> None:
    class StopAt(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.batch == 2:
                run.stop("it is late")

    how: dict[str, Any] = {"checkpoint": tmp_path, "watch": False}
    strategy = STRATEGIES["asynchronous"]
    before = trained(2, still, strategy, samples(48), callbacks=[StopAt()], **how)
    model = still()
    model.fit(samples(48), epochs=0, verbose=0, checkpoint=tmp_path, resume=True)
    for here, there in zip(statistics(model), statistics(before.models[1]), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-12)


def wide(**more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(8, activation="relu"), nn.Dense(CLASSES)]
    return network(layers=layers, dtype="float32", precision="float16", **more)


def test_in_step_half_precision_equals_one_process() -> None:
    def strategy(comm: Communicator) -> ParameterServer:
        return ParameterServer(communicator=comm)

    found = trained(3, wide, strategy, samples(40, "float32"), watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(wide, samples(40, "float32")), 2e-2)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_rank_whose_gradients_overflow_leaves_out_its_step(name: str) -> None:
    x, y = samples(40, "float32")
    # Samples of the second rank, in the second batch: their gradients are infinite in halves.
    x[15:20] = 1000.0
    strategies: list[Any] = []

    def strategy(comm: Communicator) -> Any:
        strategies.append(STRATEGIES[name](comm))
        return strategies[-1]

    make = partial(wide, optimizer=lambda: optim.SGD(1e-3), loss="mse")
    data = (x, np.eye(CLASSES, dtype="float32")[y])
    found = trained(2, make, strategy, data, watch=False, shuffle=False)
    assert found.same_on_all_ranks()
    for each in found.models[0].parameters():
        assert np.isfinite(each.numpy()).all()
    if name == "hogwild":
        assert strategies[0].updates == 7
    elif name == "asynchronous":
        assert strategies[0].record.sent == strategies[0].record.applied == 7
    else:
        assert strategies[0].record.applied == 3
        assert max(strategies[0].record.gaps) <= 1
