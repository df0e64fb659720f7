"""What the system's counters say about other programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caldera.base import noise
from caldera.base.config import settings


class FakeSystem:
    """Clock, processor time and counters that a test advances."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.wall, self.own = folder, 100.0, 10.0
        self.busy, self.waited = 50.0, 0.0
        monkeypatch.setattr(noise, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(noise, "process_time", lambda: self.own)
        monkeypatch.setattr(noise, "busy_seconds", lambda: (self.busy, 2))
        monkeypatch.setattr(noise, "_waited", lambda: self.waited)
        monkeypatch.setattr(noise, "processor_groups", lambda: [folder])
        monkeypatch.setattr(noise, "_past", type(noise._past)(maxlen=8))

    def passes(self, seconds: float, *, own: float = 0.0, others: float = 0.0) -> None:
        self.wall += seconds
        self.own += own * seconds
        self.busy += (own + others) * seconds


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystem:
    return FakeSystem(tmp_path, monkeypatch)


def test_own_work_is_not_noise(system: FakeSystem) -> None:
    with settings.override(threads=2):
        watch = noise.NoiseWatch()
        system.passes(1.0, own=2.0)
        assert noise.others_now() == pytest.approx(0.0)
        assert noise.OthersWatch().share() == 0.0
        assert watch.cores() == pytest.approx(0.0)


def test_a_measurement_has_the_largest_of_all_noises(system: FakeSystem) -> None:
    with settings.override(threads=2):
        watch = noise.NoiseWatch()
        system.passes(0.5, own=1.0, others=0.5)
        assert watch.cores() == pytest.approx(0.5)
        system.waited = 0.4
        assert watch.cores() == pytest.approx(0.8)
        (system.folder / "cpu.stat").write_text("throttled_usec 1000000\n")
        assert watch.cores() == pytest.approx(2.0)
        system.waited = 1e9
        assert watch.cores() == noise.MOST_CORES


def test_other_programs_are_noise_on_the_cores_that_are_needed(system: FakeSystem) -> None:
    noise.others_now()
    system.passes(0.5, own=0.4, others=1.5)
    with settings.override(threads=2):
        assert noise.others_now() == pytest.approx(1.5)
    with settings.override(threads=1):
        assert noise.others_now() == pytest.approx(0.5)


def test_a_moment_is_judged_by_the_time_before_it(system: FakeSystem) -> None:
    with settings.override(threads=2):
        noise.others_now()
        system.passes(0.19, others=1.0)
        noise.others_now()
        system.passes(0.02, others=1.0)
        # Two ticks of the clock alone would say little.
        assert noise.others_now() == pytest.approx(1.0)


def test_no_statement_after_a_moment(system: FakeSystem) -> None:
    with settings.override(threads=2):
        noise.others_now()
        system.passes(0.01, others=2.0)
        assert noise.others_now() == 0.0


def test_a_quota_stops_a_process(system: FakeSystem) -> None:
    stat = system.folder / "cpu.stat"
    stat.write_text("usage_usec 5\nthrottled_usec 1000000\n")
    before = noise._stopped()
    stat.write_text("usage_usec 5\nthrottled_usec 1500000\n")
    assert noise._stopped() - before == pytest.approx(0.5)
    stat.write_text("nr_periods 1\nthrottled_time 2500000000\n")
    assert noise._stopped() == pytest.approx(2.5)
    stat.write_text("no numbers\n")
    assert noise._stopped() == 0.0


def test_without_counters_there_is_no_noise(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "busy_seconds", lambda: (0.0, 0))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5), raising=False)
    with settings.override(threads=2):
        assert noise.others_now() == 0.0
        monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 0.5, 0.5), raising=False)
        assert noise.others_now() == 3.0


def test_real_counters_of_this_machine() -> None:
    busy, cores = noise.busy_seconds()
    assert busy >= 0.0
    assert 0 <= cores <= (os.cpu_count() or 1)
    assert noise._waited() >= -1e9
