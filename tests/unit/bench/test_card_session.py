"""In which order contestants are measured on a card, and which processes live at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caldera.base.machine import CardState, card_state, card_state_from
from caldera.bench import case_runner
from caldera.bench.case_runner import CardSession, CaseOptions, CaseRunner
from caldera.bench.contestants import Contestant
from caldera.bench.results import ResultEntry
from caldera.bench.session import BenchSession
from caldera.bench.worker_process import WorkerError, WorkerHandle
from caldera.bench.workloads import WORKLOADS, TrainingCase

GIB = 1 << 30


class FakeCard:
    """A card, and the contestants who hold memory of it."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.log: list[str] = []
        self.most = 0

    def state(self) -> CardState:
        return CardState("fake", "1", "9.0", 100 * GIB, sum(self.held.values()))


class FakeWorkerHandle(WorkerHandle):
    """Answers at once; it holds memory from its first answer until it is closed."""

    def __init__(self, card: FakeCard, contestant: Contestant, nbytes: int, fails: str) -> None:
        super().__init__(contestant, Path(), 1)
        self._card = card
        self._nbytes = nbytes
        self._fails = fails

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        label = self.contestant.label
        self._card.log.append(f"{do} {label}")
        if do == self._fails:
            raise WorkerError.build(label, got="nothing good")
        self._card.held[label] = self._nbytes
        self._card.most = max(self._card.most, len(self._card.held))
        return {
            "prepare": {"first s": 1.0, "card peak": 5},
            "check": {"first loss": 1.0, "curve": [1.0], "steps": 1, "loss": 1.0},
            "measure": {"times": [0.5], "peak": 1, "growth": 1},
        }[do]

    def close(self) -> None:
        self._card.held.pop(self.contestant.label, None)


def _run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    quick: bool,
    nbytes: int = GIB,
    others: int = 3,
    is_measured: bool = True,
    fails: str = "",
) -> tuple[FakeCard, list[ResultEntry]]:
    card = FakeCard()
    monkeypatch.setattr(case_runner, "card_state", card.state)
    case = WORKLOADS["mlp"].cases[0]
    assert isinstance(case, TrainingCase)
    names = [Contestant("torch", "eager", {}, "float32", is_measured)]
    names += [Contestant("jax", str(number), {}, "tf32") for number in range(others)]
    entries: dict[WorkerHandle, ResultEntry] = {}
    for each in names:
        failing = fails if each.label == "jax 0, tf32" else ""
        handle = FakeWorkerHandle(card, each, nbytes, failing)
        entries[handle] = ResultEntry(
            "mlp", "mlp", each.framework, each.setting, precision=each.precision
        )
    options = CaseOptions(["mlp"], quick=quick, repeats=2, device="cuda")
    runner = CaseRunner(options, WORKLOADS["mlp"], lambda line: None, compares=True)
    CardSession(runner, case.on("cuda"), entries, tmp_path / "arrays").run()
    assert not card.held
    return card, list(entries.values())


def test_a_quick_run_keeps_the_process_of_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card, entries = _run(monkeypatch, tmp_path, quick=True, others=2)
    # The reference, which has computed in float64 too, is started once more.
    assert card.log[:3] == [f"{do} torch eager, float32" for do in ("prepare", "check", "prepare")]
    assert card.log.count("prepare jax 0, tf32") == 1
    assert [len(entry.rounds) for entry in entries] == [2, 2, 2]
    assert entries[1].first_cold_s == 1.0
    assert entries[1].first_warm_s == []
    assert (entries[1].card_peak_bytes, entries[1].card_bytes) == (5, GIB)


def test_a_whole_run_measures_in_a_second_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card, entries = _run(monkeypatch, tmp_path, quick=False)
    assert card.log.count("prepare jax 0, tf32") == 2
    assert all(entry.first_cold_s and entry.first_warm_s for entry in entries)
    turns = [line for line in card.log if line.startswith("measure")]
    assert [line.split()[2].strip(",") for line in turns] == [
        *("eager", "0", "1", "2"),
        *("1", "0", "eager", "2"),
    ]


@pytest.mark.parametrize("quick", [False, True])
def test_processes_that_do_not_fit_together_are_not_alive_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: bool
) -> None:
    card, entries = _run(monkeypatch, tmp_path, quick=quick, nbytes=30 * GIB, others=5)
    assert card.most == 2
    assert all(len(entry.rounds) == 2 for entry in entries)


@pytest.mark.parametrize("quick", [False, True])
def test_a_reference_that_is_not_measured_is_only_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: bool
) -> None:
    card, entries = _run(monkeypatch, tmp_path, quick=quick, is_measured=False)
    of_reference = [line for line in card.log if "eager" in line]
    assert of_reference == ["prepare torch eager, float32", "check torch eager, float32"]
    assert not entries[0].rounds
    assert entries[1].equality.holds


@pytest.mark.parametrize("fails", ["prepare", "check", "measure"])
def test_who_fails_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    _, entries = _run(monkeypatch, tmp_path, quick=True, fails=fails)
    assert "nothing good" in entries[1].error
    assert all(len(entry.rounds) == 2 for entry in entries if entry is not entries[1])


def test_the_driver_describes_the_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.159.04, 9.0, 143771, 4'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = card_state()
    assert found == CardState("NVIDIA H200", "580.159.04", "9.0", 143771 << 20, 4 << 20)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert card_state() is None
    assert card_state_from("No devices were found") is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert card_state() is None


@pytest.mark.usefixtures("compiled_before")
def test_a_device_with_memory_of_its_own_is_measured_as_a_card_is() -> None:
    told: list[str] = []
    options = CaseOptions(
        ["mlp"],
        device="loopback",
        precisions=["float32"],
        settings=["step"],
        quick=True,
        repeats=2,
        limit=300.0,
    )
    report = BenchSession(options, told.append).run()
    (entry,) = report.entries
    assert not entry.error
    assert entry.label == "caldera step, float32"
    assert [len(times) >= 3 for times in entry.rounds] == [True, True]
    assert entry.card_peak_bytes > 0
    assert entry.loss_steps == 16
    assert report.machine["device"] == "loopback"
    assert any("mlp: float32" in line for line in told)
