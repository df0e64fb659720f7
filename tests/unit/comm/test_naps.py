"""Waiting behind those who compute: seldom, but then with a good look."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from caldera.comm import mpi as subject


class Socket:
    """A request whose message is there, but which only one call in eight looks for."""

    def __init__(self) -> None:
        self.calls = 0

    def Test(self, status: object) -> bool:
        self.calls += 1
        return self.calls % 8 == 0


def test_a_message_that_has_arrived_is_seen_at_the_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    fake = SimpleNamespace(Status=lambda: None, Exception=ArithmeticError)
    monkeypatch.setattr(subject, "mpi", lambda: fake)
    monkeypatch.setattr(subject.time, "sleep", naps.append)
    owner = SimpleNamespace(naps=True, nap=1e-3, blocked=None)
    request = subject._MpiRequest(owner, Socket(), np.zeros(1), -1)  # type: ignore[arg-type]
    request.wait()
    assert not naps
    assert owner.nap == 5e-4
