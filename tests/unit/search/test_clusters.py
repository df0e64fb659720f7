"""Trials on a Dask client and on Ray, which processes of this machine play."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, search
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.places import shared_folder
from caldera.errors import CommError, ConfigError
from caldera.search import workers as search_workers
from caldera.search.workers import places, ranks
from tests.unit.comm.fake_places import Client, Ray

GRID = {"x": search.integer(0, 23)}


@pytest.fixture(params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What `workers=` takes, and a function that kills one worker."""
    if request.param == "dask":
        client = Client(3)
        yield client, client.kill_one
        client.close()
        return
    ray = Ray(3)
    ray.is_initialized = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]

    def kill_one() -> bool:
        there = [child for child in ray.children if child.returncode is None]
        for child in there[:1]:
            os.kill(child.pid, 9)
        return bool(there)

    yield "ray", kill_one
    assert all(child.wait(30.0) is not None for child in ray.children)


def squared(x: int) -> float:
    return float((x - 5) ** 2)


def test_a_grid_is_visited_once_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    def counted(x: int) -> float:
        (tmp_path / f"{x}-{time.monotonic_ns()}").touch()
        return squared(x)

    study = search.run(counted, GRID, method="grid", workers=cluster[0], verbose=0)
    assert sorted(trial.parameters["x"] for trial in study.trials) == list(range(24))
    assert study.best.parameters == {"x": 5}
    assert len(list(tmp_path.iterdir())) == 24


def test_killed_workers_change_no_result(cluster: Any) -> None:
    def slow(x: int) -> Iterator[float]:
        for step in range(3):
            time.sleep(0.02)
            yield squared(x) + step

    kills, over = 0, threading.Event()

    def kill() -> None:
        nonlocal kills
        while kills < 4 and not over.wait(0.15):
            kills += cluster[1]()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        study = search.run(slow, GRID, method="grid", workers=cluster[0], retries=9, verbose=0)
    finally:
        over.set()
        killer.join()
    assert kills > 0
    alone = search.run(slow, GRID, method="grid", verbose=0)
    found, known = ({t.parameters["x"]: t.value for t in each.trials} for each in (study, alone))
    assert found == known
    assert [trial.state for trial in study.trials] == ["done"] * 24


def test_a_trial_that_kills_its_workers_fails_and_the_others_go_on(cluster: Any) -> None:
    def deadly(x: int) -> float:
        if x == 2:
            os._exit(0)
        return squared(x)

    study = search.run(
        deadly, {"x": search.integer(0, 5)}, method="grid", workers=cluster[0], retries=1, verbose=0
    )
    assert [trial.state for trial in study.trials] == ["done"] * 2 + ["failed"] + ["done"] * 3
    assert "begun 2 times" in study.trials[2].reason


def test_workers_that_cannot_start_are_an_error_with_the_reason(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        os._exit(3)

    monkeypatch.setattr(places, "serve_trials", fails)
    with pytest.raises(CommError, match=r"died before they ran anything, .* status 3"):
        search.run(squared, GRID, method="grid", workers=cluster[0], verbose=0)


def build(rate: float) -> cd.Model:
    layers = [nn.Input((1,)), nn.Dense(1)]
    return cd.NeuralNetwork(layers, loss="mse", optimizer="sgd", learning_rate=rate, batch_size=10)


def test_models_are_saved_in_a_folder_that_workers_see(cluster: Any, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 40, dtype="float32")[:, None]
    how: dict[str, Any] = {"space": {"rate": search.choice([0.01, 0.1, 0.3])}, "data": (x, 2 * x)}
    how |= {"method": "grid", "epochs": 2, "verbose": 0}
    alone = search.run(build, **how)
    study = search.run(build, workers=cluster[0], folder=tmp_path, **how)
    assert [trial.value for trial in study.trials] == [trial.value for trial in alone.trials]
    assert list((tmp_path / "models").iterdir())
    assert not list(tmp_path.glob(".caldera-*"))


def test_a_folder_that_workers_do_not_see_is_an_error(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(offered: dict[str, str]) -> str:
        return shared_folder.unseen({**offered, "path": str(tmp_path / "elsewhere" / "file")})

    monkeypatch.setattr(places, "unseen", blind)
    x = np.zeros((20, 1), "float32")
    with pytest.raises(ConfigError, match=r"expected a folder that .* see: .*no such folder"):
        search.run(
            build,
            {"rate": search.choice([0.1])},
            (x, x),
            method="grid",
            epochs=1,
            folder=tmp_path / "study",
            workers=cluster[0],
            verbose=0,
        )
    # A plain function saves nothing there.
    study = search.run(squared, GRID, method="grid", folder=tmp_path / "s", workers=cluster[0])
    assert len(study.trials) == 24


def test_workers_join_and_leave() -> None:
    client = Client(4)
    client.threads = 0

    def later() -> None:
        time.sleep(0.3)
        client.threads = 4

    joining = threading.Thread(target=later)
    joining.start()
    study = search.run(squared, GRID, method="grid", workers=client, verbose=0)
    joining.join()
    client.close()
    assert len(study.trials) == 24
    # Before any worker had come there were as many tasks as one worker runs.
    assert len(client.futures) > 8


def test_a_cluster_and_ranks_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        size = 2
        rank = 0

    monkeypatch.setattr(search_workers, "world", lambda: Two)
    with pytest.raises(ConfigError, match="expected workers on ranks or on a cluster, got 2 ranks"):
        search.run(squared, GRID, method="grid", workers="ray", verbose=0)


def test_a_pool_beside_ranks_that_run_the_program_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = type("MPIPoolExecutor", (), {"__module__": "mpi4py.futures.pool"})()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"got 3 ranks that run the program.*mpi4py\.futures"):
        search.run(squared, GRID, method="grid", workers=pool, verbose=0)


@pytest.mark.parametrize("kind", ["LocalCluster", "Other"])
def test_what_is_no_client_has_a_hint(kind: str) -> None:
    made: Callable[[], object] = type(kind, (), {"__module__": "distributed.deploy.local"})
    with pytest.raises(ConfigError, match=r"a Dask client.*pass a client of the cluster"):
        search.run(squared, GRID, method="grid", workers=made(), verbose=0)


def test_ranks_on_several_machines_must_see_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = np.zeros((20, 1), "float32")
    here = threading.local()
    monkeypatch.setattr(search_workers, "world", lambda: here.communicator)

    def work(communicator: Communicator) -> int:
        here.communicator = communicator
        communicator.nodes = list(range(communicator.size))
        space = {"rate": search.choice([0.1])}
        how: dict[str, Any] = {"method": "grid", "epochs": 1, "folder": tmp_path, "verbose": 0}
        return len(search.run(build, space, (x, x), **how).trials)

    assert run_virtual_ranks(2, work) == [1, 1]
    assert not list(tmp_path.glob(".caldera-*"))
    monkeypatch.setattr(ranks, "unseen", lambda offered: "no such folder")
    with pytest.raises(ConfigError, match=r"all ranks see: .*, got no such folder, for rank 1"):
        run_virtual_ranks(2, work)
