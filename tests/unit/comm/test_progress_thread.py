"""Waiting behind those who compute: seldom, but then with a good look."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caldera.comm import mpi_library
from caldera.comm.requests import ProgressThread


class Socket:
    """A request whose message is there, but which only one call in eight looks for."""

    def __init__(self) -> None:
        self.calls = 0

    def Test(self, status: object) -> bool:
        self.calls += 1
        return self.calls % 8 == 0


@pytest.fixture
def fake_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(Status=lambda: None, Exception=ArithmeticError)
    monkeypatch.setattr(mpi_library, "mpi", lambda: fake)
    monkeypatch.setattr(mpi_library, "shares_cores", lambda: False)


def waiting(socket: Any, size: int) -> tuple[Any, list[float]]:
    """Wait for a message in the background; its owner, and the naps that it took."""
    naps: list[float] = []
    backoff = SimpleNamespace(is_interrupted=False, sleep=naps.append)
    owner: Any = SimpleNamespace(backoff=backoff, pace=1e-3 / size, blocked=None)
    mpi_library.MpiRequest(owner, socket, np.zeros(size, np.int8), -1, peer=0).wait()
    return owner, naps


@pytest.mark.usefixtures("fake_mpi")
def test_a_message_that_has_arrived_is_seen_at_the_first_look() -> None:
    owner, naps = waiting(Socket(), 10**6)
    assert not naps
    assert owner.pace < 1e-9


@pytest.mark.usefixtures("fake_mpi")
def test_naps_become_as_long_as_a_message_of_that_size_takes() -> None:
    calls = count()
    late = SimpleNamespace(Test=lambda status: next(calls) >= 16)
    owner, naps = waiting(late, 10**6)
    assert naps == [1e-3, 2e-3]
    assert 1e-9 < owner.pace < 2e-9


@pytest.mark.usefixtures("fake_mpi")
def test_nobody_sleeps_while_somebody_waits() -> None:
    waited: list[object] = []
    never = SimpleNamespace(Test=lambda status: False, Wait=lambda: waited.append(None))
    thread = ProgressThread("example")
    owner: Any = SimpleNamespace(backoff=thread.backoff, pace=1.0, blocked=None)
    request = mpi_library.MpiRequest(owner, never, np.zeros(10**6, np.int8), -1, peer=0)
    # Without that, this would take its naps for ever.
    thread.start(request.wait).wait()
    assert waited


@pytest.mark.usefixtures("fake_mpi")
def test_ranks_that_share_cores_sleep_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, naps = count(), []
    # It has no Wait, which would keep a core busy.
    late = SimpleNamespace(Test=lambda status: next(calls) >= 30)
    monkeypatch.setattr(mpi_library, "shares_cores", lambda: True)
    monkeypatch.setattr(mpi_library.time, "sleep", naps.append)
    owner: Any = SimpleNamespace(backoff=None, blocked=None)
    mpi_library.MpiRequest(owner, late, np.zeros(8, np.int8), -1, peer=0).wait()
    assert naps == [mpi_library.SHORTEST_NAP_S * 2**i for i in range(3)]


@pytest.mark.parametrize(("told", "shared"), [("5", True), ("4", False), ("", False)])
def test_cores_are_shared_by_more_ranks_than_there_are(
    told: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_library, "loaded", lambda: SimpleNamespace(tells_local="RANKS_HERE"))
    monkeypatch.setattr(mpi_library.os, "cpu_count", lambda: 4)
    monkeypatch.setenv("RANKS_HERE", told)
    assert mpi_library.shares_cores.__wrapped__() is shared
