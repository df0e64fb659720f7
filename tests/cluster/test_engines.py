"""Searches and sessions on a real Dask cluster and a real Ray, with workers that are killed."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera import search
from caldera.dmath.master import Master
from caldera.errors import CalderaError, CommError

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
NAMED_WITHIN_S = 40.0
"""Less than the time after which a rank that waits reports, however busy the machine is."""
WITHOUT_DASK = "Dask is not installed (pip install 'dask[distributed]')"


@pytest.fixture(scope="module")
def dask_client() -> Iterator[Any]:
    dask = pytest.importorskip(
        "dask", reason="Dask is not installed (pip install 'dask[distributed]')"
    )
    distributed = pytest.importorskip("distributed", reason=WITHOUT_DASK)
    given = {
        # On a busy machine a worker takes longer to start than Dask waits for it.
        "distributed.deploy.lost-worker-timeout": "10 minutes",
        "distributed.nanny.environ.PYTHONPATH": str(ROOT),
    }
    with (
        dask.config.set(given),
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield "ray"
    ray.shutdown()


@pytest.fixture(params=["dask_client", "ray_cluster"])
def cluster(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_every_trial_is_run_once_while_workers_are_killed(cluster: Any, tmp_path: Path) -> None:
    log = tmp_path / "begun"

    def steps(x: int) -> Iterator[float]:
        with log.open("a") as file:
            file.write(f"{x} {os.getpid()}\n")
        for step in range(3):
            time.sleep(0.2)
            yield (x - 5) ** 2 + 1 / (step + 1)

    over, killed = threading.Event(), []

    def kill() -> None:
        while len(killed) < 2 and not over.wait(2.0):
            if log.exists():
                process = int(log.read_text().split()[-1])
                if process not in killed:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    killer = threading.Thread(target=kill)
    killer.start()
    space = {"x": search.integer(0, 29)}
    study = search.run(steps, space, method="grid", workers=cluster, retries=5, verbose=0)
    over.set()
    killer.join()
    assert killed
    assert sorted(trial.parameters["x"] for trial in study.trials) == list(range(30))
    for trial in study.trials:
        x = trial.parameters["x"]
        assert trial.state == "done"
        assert [row["value"] for row in trial.curve] == [
            (x - 5) ** 2 + 1 / (step + 1) for step in range(3)
        ]
    assert len(log.read_text().splitlines()) <= 30 + len(killed)


def test_sessions_compute_name_a_killed_worker_and_are_made_again(cluster: Any) -> None:
    random = np.random.default_rng(1)
    dm.disconnect()
    for _ in range(2):
        session = dm.connect(3, on=cluster)
        assert isinstance(session, Master)
        for _ in range(5):
            a, b = random.normal(size=(31, 20)), random.normal(size=(20, 17))
            found = dm.array(a, layout=dm.Columns()) @ dm.array(b, layout=dm.Rows())
            np.testing.assert_allclose(found.numpy(), a @ b, rtol=1e-10, atol=1e-12)
        name = session.call("process_name")[1]
        began = time.monotonic()
        os.kill(int(re.findall(r"process (\d+) on", name)[0]), signal.SIGKILL)
        with pytest.raises(CommError, match=rf"worker 1 of 3 \({re.escape(name)}\)"):
            _compute_for(60)
        assert time.monotonic() - began < NAMED_WITHIN_S


def _compute_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        dm.ones((8, 8)).sum().item()


def test_a_scheduler_is_named_by_its_address(dask_client: Any) -> None:
    address = f"dask:{dask_client.scheduler.address}"
    study = search.run(
        lambda x: float(x), {"x": search.integer(0, 5)}, method="grid", workers=address, verbose=0
    )
    assert [trial.value for trial in study.trials] == [0, 1, 2, 3, 4, 5]
    dm.disconnect()
    with dm.connect(2, on=address):
        assert dm.ones((8, 8)).sum().item() == 64


def test_dask_in_this_process_works_too(dask_client: Any) -> None:
    distributed = pytest.importorskip("distributed", reason=WITHOUT_DASK)
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=2) as client:
        study = search.run(
            lambda x: float(x),
            {"x": search.integer(0, 5)},
            method="grid",
            workers=client,
            verbose=0,
        )
        assert len(study.trials) == 6
        dm.disconnect()
        with dm.connect(2, on=client):
            assert dm.ones((8, 8)).sum().item() == 64


def test_a_scheduler_that_is_not_there_is_an_error() -> None:
    dask = pytest.importorskip(
        "dask", reason="Dask is not installed (pip install 'dask[distributed]')"
    )
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(CalderaError, match="expected the address of a Dask scheduler"),
    ):
        dm.connect(2, on="dask:tcp://127.0.0.1:1")
