"""The allreduce that was measured to be the fastest: agreed, remembered, and not counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import caldera as cd
from caldera.base.file_cache import FileCache
from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.autotune import AllreduceTuner, candidates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def choose(comm: Communicator, nbytes: int) -> tuple[str, bool]:
    """What is chosen, and whether it was measured for that."""
    name = AllreduceTuner().for_bytes(comm, nbytes)
    return name, comm.traffic.mark()["tuning"].bytes_sent > 1000


def test_ranks_agree_and_the_next_run_need_not_measure(folder: Path) -> None:
    with cd.settings.override(cache_dir=folder):
        first = run_virtual_ranks(3, lambda comm: choose(comm, 5000))
        again = run_virtual_ranks(3, lambda comm: choose(comm, 6000))
    assert len({name for name, _ in first}) == 1
    assert all(measured for _, measured in first)
    # Both sizes are of one class.
    assert again == [(first[0][0], False)] * 3


def test_what_was_measured_decides(folder: Path) -> None:
    with cd.settings.override(cache_dir=folder):
        run_virtual_ranks(2, lambda comm: choose(comm, 1000))
        cache = FileCache("allreduce")
        (key,) = cache
        times = cache.read_json(key)
        assert set(times["1024"]) <= set(run_virtual_ranks(2, lambda c: candidates(c, 1024))[0])
        cache.write_json(key, {"1024": {"ring": 2.0, "master": 1.0}})
        assert run_virtual_ranks(2, lambda comm: choose(comm, 1000)) == [("master", False)] * 2
        cache.write_json(key, {"1024": "spoiled"})
        assert run_virtual_ranks(2, lambda comm: choose(comm, 1000))[0][1]
        cache.path(key).write_text("spoiled")
        assert run_virtual_ranks(2, lambda comm: choose(comm, 1000))[0][1]


def test_a_deterministic_run_measures_nothing(folder: Path) -> None:
    with cd.settings.override(cache_dir=folder, deterministic=True):
        assert run_virtual_ranks(2, lambda comm: choose(comm, 1000)) == [("doubling", False)] * 2
        assert run_virtual_ranks(2, lambda comm: choose(comm, 10**6)) == [("ring", False)] * 2
    assert not list(folder.iterdir())


def test_measuring_is_no_part_of_the_operation_it_happens_in(folder: Path) -> None:
    def work(comm: Communicator) -> int:
        with comm.traffic.operation("Allreduce"):
            AllreduceTuner().for_bytes(comm, 1000)
            comm.traffic.sent(10)
        return comm.traffic.mark()["Allreduce"].bytes_sent

    with cd.settings.override(cache_dir=folder):
        assert run_virtual_ranks(2, work) == [10, 10]


def test_algorithms_that_cannot_win_are_not_tried() -> None:
    of_three = run_virtual_ranks(3, lambda comm: candidates(comm, 1 << 22))[0]
    assert "torus" not in of_three
    assert "master" not in of_three
    of_two_nodes = run_virtual_ranks(4, lambda comm: candidates(comm, 1 << 22), [0, 0, 1, 1])[0]
    assert "hierarchical" in of_two_nodes
