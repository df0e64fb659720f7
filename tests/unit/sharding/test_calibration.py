"""What messages and products take: measured once, and the same for all ranks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.config import settings
from caldera.sharding import calibration
from caldera.sharding.calibration import measured_links
from caldera.sharding.volume import Links

KNOWN = Links(1e-6, 2e9, 3e9, 4e9, 5e9)


@pytest.fixture
def measured(monkeypatch: Any, tmp_path: Any) -> list[int]:
    """Threads as if they were processes, and a measurement that is noted."""
    seen: list[int] = []

    def measure(comm: Communicator) -> Links:
        seen.append(comm.rank)
        return KNOWN

    monkeypatch.setattr(calibration, "measure", measure)
    return seen


def _as_processes(comm: Communicator) -> Links:
    comm.name = "processes"
    return measured_links(comm)


def test_it_is_measured_once_and_remembered(measured: list[int], tmp_path: Any) -> None:
    with settings.override(cache_dir=tmp_path):
        assert run_virtual_ranks(2, _as_processes) == [KNOWN, KNOWN]
        assert sorted(measured) == [0, 1]
        assert run_virtual_ranks(2, _as_processes) == [KNOWN, KNOWN]
        assert len(measured) == 2
        # Other ranks, another measurement.
        run_virtual_ranks(3, _as_processes)
        assert len(measured) == 5


def test_what_cannot_be_read_is_measured_again(
    measured: list[int], tmp_path: Any, monkeypatch: Any
) -> None:
    spoiled: list[Any] = [
        None, {}, [], {"latency": 1}, {**asdict(KNOWN), "flops": 0},
        {**asdict(KNOWN), "latency": "x"}, {**asdict(KNOWN), "copying": float("nan")},
    ]  # fmt: skip
    with settings.override(cache_dir=tmp_path):
        for content in spoiled:
            monkeypatch.setattr(calibration._LINKS, "read_json", lambda key, c=content: c)
            measured.clear()
            assert run_virtual_ranks(2, _as_processes) == [KNOWN, KNOWN]
            assert len(measured) == 2, content


def test_choices_stay_the_same_where_that_is_asked_for(measured: list[int]) -> None:
    with settings.override(deterministic=True):
        assert run_virtual_ranks(2, _as_processes) == [Links(), Links()]
    assert run_virtual_ranks(2, measured_links) == [Links(), Links()]
    assert not measured
