"""The tuner in front of a machine that is only played: it comes near the best, and soon."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

import caldera as cd
from caldera.base import machine
from caldera.data.loading.prefetch import prefetch_memory
from caldera.data.loading.tuner import MOST_WORKERS, BatchTime, LoaderSetting, Tuner


@dataclass
class Machine:
    """Batches that wait (a disk) and compute, `cores` for the computing, and steps of training."""

    waits: float = 0.0
    computes: float = 0.0
    step: float = 0.002
    cores: int = 2
    noise: float = 0.05
    handing_over: float = 2e-5
    nbytes: int = 0

    def interval(self, setting: LoaderSetting) -> float:
        """The mean time from one batch to the next."""
        seconds = self.waits + self.computes
        if not setting.workers:
            return seconds + self.step
        busy = min(setting.workers, setting.prefetch)
        crowding = 1 + 0.01 * max(0, setting.workers - self.cores)
        by_cores = self.computes * crowding / self.cores
        return self.handing_over + max(self.step, seconds / busy, by_cores)

    def best(self) -> float:
        every = [LoaderSetting(workers, workers + 2) for workers in range(MOST_WORKERS + 1)]
        return min(self.interval(setting) for setting in every)

    def run(self, tuner: Tuner, batches: int, seed: int = 0) -> list[float]:
        """What each batch took."""
        chance = random.Random(seed)
        found = []
        for _ in range(batches):
            setting = tuner.setting
            total = self.interval(setting) * chance.gauss(1, self.noise)
            seconds = self.waits + self.computes
            inline = not setting.workers
            waiting = seconds if inline else max(total - self.step, 0.0)
            step = total - seconds if inline else min(self.step, total)
            tuner.observe(BatchTime(seconds, self.computes, waiting, max(step, 0.0), self.nbytes))
            found.append(total)
        return found


MACHINES = {
    "slow to decode": Machine(computes=0.01),
    "slow to decode, many cores": Machine(computes=0.03, cores=16),
    "slow disk": Machine(waits=0.03, computes=0.0005),
    "slow disk and fast training": Machine(waits=0.03, computes=0.0002, step=0.0005),
    "cheap": Machine(computes=0.0001),
    "cheap beside slow training": Machine(computes=0.004, step=0.2),
    "as slow as training": Machine(computes=0.005, step=0.005),
    "disk and decoding": Machine(waits=0.02, computes=0.004),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nine_tenths_of_the_best_are_reached_in_a_tenth_of_an_epoch(name: str, seed: int) -> None:
    machine = MACHINES[name]
    times = machine.run(Tuner(machine.cores), 500, seed)
    rest = times[50:]
    assert sum(rest) / len(rest) < machine.best() / 0.9


def test_cheap_batches_need_no_thread() -> None:
    machine = MACHINES["cheap"]
    tuner = Tuner(machine.cores)
    machine.run(tuner, 300)
    assert tuner.setting.workers == 0


def test_training_that_never_waits_gets_no_more_threads_than_it_needs() -> None:
    machine = Machine(computes=0.010, step=0.020, cores=16)
    tuner = Tuner(machine.cores)
    machine.run(tuner, 500)
    assert tuner.setting.workers in (1, 2)


def test_what_changes_is_tuned_again() -> None:
    machine = Machine(computes=0.0001)
    tuner = Tuner(machine.cores)
    machine.run(tuner, 300)
    machine.waits = 0.03
    times = machine.run(tuner, 2000)
    rest = times[1000:]
    assert sum(rest) / len(rest) < machine.best() / 0.8


@pytest.mark.parametrize("name", MACHINES)
def test_what_was_set_stays(name: str) -> None:
    machine = MACHINES[name]
    tuner = Tuner(machine.cores, workers=3, prefetch=7)
    machine.run(tuner, 300)
    assert tuner.setting == LoaderSetting(3, 7)
    tuner = Tuner(machine.cores, workers=0)
    machine.run(tuner, 300)
    assert tuner.setting.workers == 0
    tuner = Tuner(machine.cores, workers=2)
    machine.run(tuner, 300)
    assert tuner.setting.workers == 2
    tuner = Tuner(machine.cores, prefetch=4)
    machine.run(tuner, 300)
    assert tuner.setting.workers <= tuner.setting.prefetch == 4


def test_batches_made_ahead_fit_into_memory() -> None:
    machine = Machine(waits=0.03, nbytes=1 << 20)
    tuner = Tuner(machine.cores, memory=6 << 20)
    machine.run(tuner, 500)
    assert 1 <= tuner.setting.workers <= tuner.setting.prefetch <= 6


def test_a_container_has_less_memory_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CONTAINER_LIMITS", (str(tmp_path / "none"), str(limit)))
    everything = prefetch_memory()
    limit.write_text("max\n")
    assert prefetch_memory() == everything
    limit.write_text("8000000\n")
    assert prefetch_memory() == 1_000_000
    with cd.settings.override(memory_limit=16_000_000):
        assert prefetch_memory() == 2_000_000


def test_stages_move_to_where_they_are_faster() -> None:
    here, there = Machine(computes=0.004, step=0.002), Machine(computes=0.0001, step=0.0025)
    for splits, better, worse in [((0, None), here, there), ((0, None), there, here)]:
        tuner = Tuner(1, splits=splits)
        for _ in range(400):
            machine = better if tuner.setting.host_stages is None else worse
            machine.run(tuner, 1)
        wanted = None if better.interval(tuner.setting) < worse.interval(tuner.setting) else 0
        assert tuner.setting.host_stages == wanted
