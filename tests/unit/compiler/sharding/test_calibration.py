"""What messages and products take: measured now and then, and the same for all ranks."""

from __future__ import annotations

from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.base.config import settings
from caldera.comm import Communicator, autotune, run_virtual_ranks
from caldera.comm.autotune import Link, sweeps_due
from caldera.compiler.sharding import calibration
from caldera.compiler.sharding.calibration import measured_links
from caldera.compiler.sharding.volume import Links
from caldera.dmath import protocol

QUIET = Links(1e-6, 2e9, 3e9, 4e9, 5e9, packing=6e9)
BUSY = Links(3e-6, 1e9, 1e9, 2e9, 2e9, 1e9, 1e-3, 2e-3, 4e-3, packing=3e9)


class Machine:
    """Others compute on it or do not, and its clock stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = QUIET
        self.sweeps = 0

    def sweep(self, comm: Communicator) -> Links:
        self.sweeps += comm.rank == 0
        return self.state


@pytest.fixture
def machine(monkeypatch: Any, tmp_path: Any) -> Any:
    """Threads as if they were processes, on a machine of which all is known."""
    found = Machine()
    monkeypatch.setattr(calibration, "_sweep", found.sweep)
    monkeypatch.setattr(autotune, "_sweep", lambda comm: Link(*astuple(found.state)[:2]))
    monkeypatch.setattr(calibration.time, "time", lambda: found.now)
    with settings.override(cache_dir=tmp_path):
        yield found


def _as_processes(comm: Communicator) -> Links:
    comm.name = "processes"
    return measured_links(comm)


def _links(ranks: int = 2) -> Links:
    first, *others = run_virtual_ranks(ranks, _as_processes)
    assert all(each == first for each in others)
    return first


def test_it_is_measured_and_remembered(machine: Machine) -> None:
    assert _links() == QUIET
    assert machine.sweeps == 3
    assert _links() == QUIET
    assert machine.sweeps == 3
    # Other ranks, another measurement.
    _links(3)
    assert machine.sweeps == 6


def test_what_was_measured_while_others_computed_is_mended(machine: Machine) -> None:
    machine.state = BUSY
    assert _links() == BUSY
    machine.state = QUIET
    for _ in range(4):
        machine.now += 10
        found = _links()
    assert found == QUIET
    assert machine.sweeps == 7
    # And it stays, if they come back for a while.
    machine.state, machine.now = BUSY, machine.now + 60
    assert _links() != BUSY


def test_the_median_of_each_counts(machine: Machine) -> None:
    machine.state = replace(BUSY, flops=QUIET.flops)
    _links()
    # What happens once or twice is no reason to expect it.
    machine.state = replace(QUIET, flops=BUSY.flops)
    for _ in range(2):
        machine.now += 10
        assert _links() == replace(BUSY, flops=QUIET.flops)


def test_a_machine_that_is_slower_for_good_is_believed_in_the_end(machine: Machine) -> None:
    _links()
    machine.state = BUSY
    for _ in range(100):
        machine.now += 3600
        found = _links()
    assert found == BUSY


def test_it_is_measured_less_and_less_often() -> None:
    times = [0.0, 0.0, 0.0]
    for second in range(24 * 3600):
        times += [float(second)] * sweeps_due(times, float(second))
    assert len(times) < 3 + 12 + 24
    # A clock that was set back does not stop it.
    assert sweeps_due([1e9] * 20, 5.0) == 1


def test_what_cannot_be_read_is_measured_again(machine: Machine, monkeypatch: Any) -> None:
    known = {"at": 1000.0, **asdict(BUSY)}
    spoiled: list[Any] = [
        None,
        {},
        [],
        [{"latency": 1}],
        [{**known, "flops": 0}],
        [known, 1],
        known,
        [{**known, "latency": "x"}],
        [{**known, "copying": float("nan")}],
        [asdict(BUSY)],
    ]
    for content in spoiled:
        monkeypatch.setattr(calibration._TABLE.file, "read_json", lambda key, c=content: c)
        machine.sweeps = 0
        assert _links() == QUIET
        assert machine.sweeps == 3, content


def test_choices_stay_the_same_where_that_is_asked_for(machine: Machine) -> None:
    with settings.override(deterministic=True):
        assert _links() == Links()
    assert run_virtual_ranks(2, measured_links) == [Links(), Links()]
    assert not machine.sweeps


def test_it_takes_as_long_as_the_slowest_rank_takes_the_second_time(monkeypatch: Any) -> None:
    class Late:
        """Another rank, which takes 4 seconds."""

        def Barrier(self) -> None:
            pass

        def gather_objects(self, own: float) -> list[float]:
            return [own, 4.0]

    late: Any = Late()
    for second, slowest in (11.0, 4.0), (15.0, 5.0):
        clock = iter([0.0, 9.0, 10.0, second])
        monkeypatch.setattr(calibration.time, "perf_counter", lambda clock=clock: next(clock))
        assert calibration._seconds(late, lambda: None) == slowest


def test_a_session_asks_again_what_explain_needs(monkeypatch: Any) -> None:
    known = [BUSY]
    monkeypatch.setattr(protocol, "measured_links", lambda comm: known[0])
    with dm.connect(threads=2):
        a = dm.array(np.ones((512, 512)))
        slow = (a @ a).explain().seconds
        known[0] = replace(BUSY, flops=1.05 * BUSY.flops)
        assert (a @ a).explain().seconds == slow
        known[0] = QUIET
        assert (a @ a).explain().seconds < 0.7 * slow


def test_ranks_that_run_the_script_ask_again_when_programs_are_made(monkeypatch: Any) -> None:
    known = [BUSY]
    asked = []

    def links(comm: Communicator) -> Links:
        asked.append(comm.rank)
        return known[0]

    monkeypatch.setattr(protocol, "measured_links", links)
    with dm.spmd() as session:
        a = dm.array(np.ones((512, 512)))
        for power in range(9):
            dm.evaluate([a + power])
            known[0] = QUIET
            before = len(asked)
            # One rank alone may print it.
            (a @ a).explain()
            assert len(asked) == before
        assert session.links([]) == QUIET
    # Before the first program, and with the second, third, fifth and ninth.
    assert len(asked) == 5
