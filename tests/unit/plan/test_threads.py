"""Threads that use one device take turns."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import caldera as cd
from caldera import op


def test_nobody_launches_into_the_capture_of_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = cd.device("loopback:9")
    x = op.var("x", (3,), fill=np.arange(3.0), device=here)
    doubled = cd.compile([x * 2.0], device=here)
    increased = cd.compile([x + 1.0], device=here)
    found: list[list[float]] = []
    other = threading.Thread(target=lambda: found.append(increased.run()[0].tolist()))
    begin = here.stream.begin_capture

    def begin_and_give_time() -> None:
        begin()
        other.start()
        other.join(0.2)
        assert not found

    monkeypatch.setattr(here.stream, "begin_capture", begin_and_give_time)
    doubled.capture()
    other.join(30)
    assert found == [[1.0, 2.0, 3.0]]
    assert doubled.run()[0].tolist() == [0.0, 2.0, 4.0]
