"""The link between ranks: one measurement, and everything that chooses by it sees the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import compress, nn, parallel
from caldera.base.config import settings
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm import autotune as module
from caldera.comm.autotune import Link, measured_link
from caldera.compiler.sharding.calibration import measured_links
from caldera.compiler.sharding.volume import Links
from caldera.parallel.planner import measured_wire

KNOWN = Link(latency=3e-6, bandwidth=7e9)
X = np.linspace(-1, 1, 12, dtype="float32")[:, None]


@pytest.fixture
def sweeps(monkeypatch: Any, tmp_path: Path) -> Any:
    """The number of measurements of a link of which all is known."""
    found: list[int] = []

    def sweep(comm: Communicator) -> Link:
        if comm.rank == 0:
            found.append(comm.size)
        return KNOWN

    monkeypatch.setattr(module, "_sweep", sweep)
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    with settings.override(cache_dir=tmp_path):
        yield found


def _as_processes(comm: Communicator) -> Communicator:
    comm.name = "processes"
    return comm


def test_planner_sharding_and_compression_see_one_measurement(sweeps: list[int]) -> None:
    def work(comm: Communicator) -> list[tuple[float, float]]:
        topk = compress.TopK(2)
        topk.exchange("w", np.ones(8, np.float32), _as_processes(comm))
        assert topk.link is not None
        links = [measured_wire(comm), measured_links(comm), Links.between(comm), topk.link]
        return [(each.latency, each.bandwidth) for each in [*links, Link.measured(comm)]]

    assert run_virtual_ranks(2, work) == [[(KNOWN.latency, KNOWN.bandwidth)] * 5] * 2
    assert sweeps == [2, 2, 2]


@pytest.mark.parametrize(
    "strategy",
    [
        lambda comm: parallel.TensorParallel({"hidden": "auto"}, communicator=comm),
        lambda comm: parallel.Layouts({"hidden": "columns"}, communicator=comm),
        lambda comm: parallel.PipelineParallel(1, model=2, communicator=comm),
    ],
)
def test_split_layers_are_planned_by_the_measured_link(
    strategy: Any, sweeps: list[int], monkeypatch: Any
) -> None:
    split = Communicator.Split
    monkeypatch.setattr(
        Communicator,
        "Split",
        lambda self, *given: (made := split(self, *given)) and _as_processes(made),
    )

    def work(comm: Communicator) -> tuple[Links, float]:
        made = strategy(_as_processes(comm))
        layers = [nn.Input((1,)), nn.Dense(8, activation="tanh", name="hidden"), nn.Dense(1)]
        model = cd.NeuralNetwork(layers, loss="mse", batch_size=4, seed=0)
        loss = model.fit((X, 2 * X), parallel=made, verbose=0)["loss"]
        return made._layers.links, loss

    first, second = run_virtual_ranks(2, work)
    assert first[0] == second[0] == Links(KNOWN.latency, KNOWN.bandwidth)
    assert first[1] == second[1]
    assert set(sweeps) == {2}


def test_choices_of_threads_and_of_deterministic_runs_follow_from_no_measurement(
    sweeps: list[int],
) -> None:
    assert run_virtual_ranks(2, Links.between) == [Links(), Links()]
    with settings.override(deterministic=True):
        assert run_virtual_ranks(2, lambda comm: Links.between(_as_processes(comm)))[0] == Links()
    assert not sweeps


def test_the_link_is_half_a_round_trip_and_the_bytes_of_a_long_message(
    monkeypatch: Any, tmp_path: Path
) -> None:
    with settings.override(cache_dir=tmp_path):
        found = run_virtual_ranks(3, measured_link)
    assert found[0] == found[1] == found[2]
    assert 0 < found[0].latency < found[0].seconds(module.LONG_BYTES)
    assert measured_link(cd.comm.SingleProcess()) == Link()
