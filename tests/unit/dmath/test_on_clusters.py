"""Sessions whose workers a cluster runs, which processes of this machine play."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.dmath import place_team
from caldera.dmath.master import Master
from caldera.dmath.session import Handle
from caldera.errors import CommError, ConfigError
from tests.unit.comm.fake_places import Client, Ray
from tests.unit.dmath.programs import computed, everywhere, leaf

NAMED_WITHIN_S = 40.0
"""Less than the time after which a rank that waits reports, however busy the machine is."""


@pytest.fixture(params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "dask":
        return Client(2)
    ray = Ray(2)
    ray.is_initialized = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    return "ray"


def _compute_for(seconds: float, session: Master, x: Handle) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        computed(session, leaf(x) * 3.0)


def test_workers_on_a_cluster_compute_and_a_killed_one_is_named(cluster: Any) -> None:
    dm.disconnect()
    array = np.arange(50_000.0)
    for _ in range(2):
        session = dm.connect(2, on=cluster)
        assert isinstance(session, Master)
        assert session.ranks == 2
        assert dm.connect(2, on=cluster) is session
        x = everywhere(session, array)
        np.testing.assert_array_equal(computed(session, leaf(x) * 2.0), array * 2)
        (name,) = session.call("process_name")[1:]
        process = int(re.findall(r"process (\d+) on", name)[0])
        began = time.monotonic()
        os.kill(process, 9)
        with pytest.raises(CommError, match=rf"worker 1 of 2 \({re.escape(name)}\)"):
            _compute_for(60, session, x)
        assert time.monotonic() - began < NAMED_WITHIN_S
        assert not session.is_open


def test_as_many_workers_as_there_is_room_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dm.disconnect()
    with dm.connect(on=cluster) as session:
        assert session.ranks == 2
        assert session.processes == []
        with pytest.raises(ConfigError, match="no open session"):
            dm.connect(2)
    monkeypatch.setattr(place_team, "ROOM_S", 0.1)
    expected = r"expected capacity for 3 workers: .*, got capacity for 2"
    with pytest.raises(ConfigError, match=expected):
        dm.connect(3, on=cluster)


def test_workers_that_fail_at_once_are_named_with_the_reason(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dm.disconnect()
    monkeypatch.setattr(place_team, "serve", lambda *given: os._exit(3))
    with pytest.raises(CommError, match=r"2 workers to start, got worker \d .*status 3"):
        dm.connect(2, on=cluster)


def test_contradictions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dm.disconnect()
    with pytest.raises(ConfigError, match=r"expected interface= with on="):
        dm.connect(2, interface="lo")
    with pytest.raises(ConfigError, match="expected workers on= one place, got threads=2"):
        dm.connect(on=Client(), threads=2)
    with pytest.raises(ConfigError, match="expected a network interface"):
        dm.connect(2, on=Client(), interface="no such")
    with pytest.raises(ConfigError, match=r"expected a dask\.distributed\.Client"):
        dm.connect(2, on=8)
    monkeypatch.setattr(sys.modules[dm.connect.__module__], "started_ranks", lambda: 3)
    with pytest.raises(ConfigError, match="got 3 ranks of MPI"):
        dm.connect(2, on=Client())


def test_an_interface_carries_all_messages() -> None:
    dm.disconnect()
    with dm.connect(2, on=Client(2, "tcp://192.0.2.1:8786"), interface="lo") as session:
        x = everywhere(session, np.arange(8.0))
        np.testing.assert_array_equal(computed(session, leaf(x) + 1.0), np.arange(8.0) + 1)
