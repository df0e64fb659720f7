"""The end of all ranks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from caldera.comm import abort


def test_who_ends_all_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH's Abort comes back: what it has asked for happens a little later."""
    done: list[object] = []

    def leave(status: int) -> None:
        done.append(status)
        raise SystemExit

    world = SimpleNamespace(Abort=lambda status: done.append("abort"))
    monkeypatch.setattr(abort, "mpi", lambda: SimpleNamespace(COMM_WORLD=world))
    monkeypatch.setattr(abort.time, "sleep", done.append)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        abort.end_all()
    # What was printed is read first.
    assert done == [abort.READ_WITHIN_S, "abort", abort.ENDED_WITHIN_S, abort.FAILED]
