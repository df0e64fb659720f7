"""The end of all ranks."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from caldera.comm import supervision


def test_who_ends_all_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH's Abort comes back: what it has asked for happens a little later."""
    done: list[object] = []

    def leave(status: int) -> None:
        done.append(status)
        raise SystemExit

    world: Any = SimpleNamespace(_abort=lambda status: done.append("abort"))
    monkeypatch.setattr(supervision.time, "sleep", done.append)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        supervision.end_all(world)
    # What was printed is read first.
    assert done == [
        supervision.READ_WITHIN_S,
        "abort",
        supervision.ENDED_WITHIN_S,
        supervision.FAILED,
    ]
