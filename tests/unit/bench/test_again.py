"""`caldera bench --again`: equal runs are called equal, a slower one slower, 19 times of 20."""

from __future__ import annotations

import json
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from caldera.bench.case_runner import CaseOptions, CaseRunner
from caldera.bench.contestants import Contestant
from caldera.bench.previous_run import (
    FASTER,
    MISSING,
    ROUNDS_OF_PROCESS,
    SLOWER,
    TURNS,
    UNDECIDED,
    WITHIN,
    compare,
    compare_in_turns,
    compare_reports,
    is_clear,
    options_of,
    paired_round,
    previous_sources,
    read_report,
)
from caldera.bench.results import sources_digest
from caldera.bench.session import BenchSession
from caldera.bench.worker_process import WorkerHandle
from caldera.bench.workloads import WORKLOADS
from caldera.errors import DataError
from tests.unit.bench.reports import entry, report


def _rounds(random: np.random.Generator, seconds: float, rounds: int, noise: float) -> list:
    """Times as a machine gives them: rounds differ, times in a round less, and some are late."""
    found = []
    for _ in range(rounds):
        level = seconds * np.exp(noise * random.standard_normal())
        times = level * np.exp(0.01 * random.standard_normal(20))
        times[random.random(20) < 0.05] *= 1.5
        found.append(times.tolist())
    return found


@pytest.mark.parametrize(("rounds", "noise"), [(3, 0.005), (7, 0.01), (7, 0.02), (15, 0.03)])
def test_equal_runs_are_equal_and_slower_ones_slower(rounds: int, noise: float) -> None:
    random = np.random.default_rng(rounds)
    verdicts: dict[float, list[str]] = {1.0: [], 1.1: [], 0.9: []}
    for _ in range(60):
        before = _rounds(random, 1.0, rounds, noise)
        for factor, found in verdicts.items():
            after = _rounds(random, factor, rounds, noise)
            found.append(compare("a", before, after).verdict)
    assert verdicts[1.0].count(WITHIN) >= 57
    assert verdicts[1.1].count(SLOWER) >= 57
    assert verdicts[0.9].count(FASTER) >= 57


def test_what_cannot_be_told_is_within_noise() -> None:
    assert compare("one round", [[1.0]], [[2.0]]).verdict == WITHIN
    assert compare("no spread", [[1.0], [1.0]], [[1.0], [1.0]]).verdict == WITHIN
    assert compare("no spread", [[1.0], [1.0]], [[2.0], [2.0]]).verdict == SLOWER
    assert compare("nothing", [], [[2.0]]).verdict == MISSING
    assert "missing" in str(compare("nothing", [], [[2.0]]))


def test_two_reports_are_compared_by_name() -> None:
    before = report(entry("caldera", "strict", 1.0), entry("torch", "eager", 1.0)).to_json()
    after = report(entry("caldera", "strict", 1.2), entry("jax", "jit", 1.0)).to_json()
    found = {each.name: each.verdict for each in compare_reports(before, after)}
    assert found == {
        "mlp net, caldera strict": SLOWER,
        "mlp net, torch eager": MISSING,
        "mlp net, jax jit": MISSING,
    }


def test_options_come_back_and_other_files_are_refused(tmp_path: Path) -> None:
    made = report(entry("caldera", "strict", 1.0))
    made.options = {"works": ["mlp"], "peers": [], "quick": True, "threads": 1}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made.to_json()))
    assert options_of(read_report(path)) == CaseOptions(["mlp"], [], quick=True, threads=1)
    for text in ("{", "[]", "{}", '{"entries": [], "options": 3}'):
        path.write_text(text)
        with pytest.raises(DataError, match="expected a file of caldera bench --json"):
            read_report(path)
    with pytest.raises(DataError, match="No such file"):
        read_report(tmp_path / "none")


def _in_turns(random: np.random.Generator, factor: float, late: float = 0.1) -> str:
    """The verdict on two codes on a busy machine: a load that both meet, a round in ten that is
    lost, the luck of each round's memory, times that are `late`, and rounds until it is clear."""
    before, after = entry("caldera", "strict", 1.0), entry("caldera", "strict", 1.0)
    before.rounds, after.rounds = [], []
    found = UNDECIDED
    while found == UNDECIDED and len(before.rounds) < 150:
        load = np.exp(0.5 * random.standard_normal())
        for side, seconds in ((before, 1.0), (after, factor)):
            level = seconds * np.exp(0.05 * random.standard_normal())
            lost = 50.0 if random.random() < 0.1 else 1.0
            wall = lost * load * level * (1.0 + random.exponential(late, 5))
            side.add_times(wall.tolist(), [level] * 5, late)
        if len(before.rounds) % 6 == 0:
            found = compare_in_turns("a", before, after).verdict
    return found


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, WITHIN), (1.1, SLOWER), (1 / 1.1, FASTER)])
def test_codes_that_take_turns_are_told_apart_on_a_busy_machine(
    factor: float, verdict: str
) -> None:
    random = np.random.default_rng(1)
    for late in (0.1, 5.0):
        verdicts = [_in_turns(random, factor, late) for _ in range(40)]
        assert verdicts.count(verdict) >= 38


def test_cpu_time_decides_only_where_others_had_the_cores() -> None:
    now, before = entry("caldera", "strict", 1.1), entry("caldera", "strict", 1.0)
    before.rounds = [[1.0], [5.0]] * 6
    now.rounds = [[5.0], [1.1]] * 6
    now.cpu_rounds, before.cpu_rounds = [[0.55]] * 12, [[0.5]] * 12
    assert compare_in_turns("a", before, now).verdict == UNDECIDED
    now.lost = before.lost = [0.3] * 12
    found = compare_in_turns("a", before, now)
    assert (found.verdict, found.clock) == (SLOWER, "CPU time")
    assert "slower by CPU time (+10.0%" in str(found)
    assert str(found).endswith("; others had 30% of the cores)")
    before.cpu_rounds = []
    assert compare_in_turns("a", before, now).verdict == UNDECIDED, "a code that knows no CPU time"
    before.rounds, now.rounds = [[1.0]] * 12, [[1.0]] * 12
    assert compare_in_turns("a", before, now).clock == "wall time", "the clock is asked first"


def test_a_round_is_a_task_of_its_own_on_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(self: WorkerHandle, do: str, **more: object) -> dict[str, object]:
        asked.append((self.contestant.setting, do))
        return {
            "first s": 0.1,
            "times": [1.0, 2.0],
            "cpu": [1.0, 1.0],
            "lost": 0.1,
            "peak": 1,
            "growth": 1,
        }

    monkeypatch.setattr(WorkerHandle, "ask", ask)
    closed: list[str] = []
    monkeypatch.setattr(WorkerHandle, "close", lambda self: closed.append(self.contestant.setting))
    entries = {
        WorkerHandle(Contestant("caldera", name), Path(), 1): entry("caldera", name, 1.0, rounds=[])
        for name in ("now", "before")
    }
    case = WORKLOADS["input"].quick[0]
    runner = CaseRunner(CaseOptions(["input"]), WORKLOADS["input"], print, compares=False)
    for number in range(ROUNDS_OF_PROCESS + 1):
        paired_round(runner, case, entries, number)
    for each in entries.values():
        assert [len(times) for times in each.rounds] == [2 * TURNS] * (ROUNDS_OF_PROCESS + 1)
        assert [len(times) for times in each.cpu_rounds] == [len(times) for times in each.rounds]
    per_round = 2 * (1 + TURNS)
    rounds = [asked[i : i + per_round] for i in range(0, len(asked), per_round)]
    assert all({do for _, do in each[:2]} == {"prepare"} for each in rounds)
    assert len({tuple(each) for each in rounds}) > 2, "another order"
    assert sorted(closed) == sorted(["now", "before"] * 2), "new processes, for the first and ninth"


def test_turns_go_on_until_the_difference_is_clear(tmp_path: Path) -> None:
    now, before = entry("caldera", "strict", 1.1), entry("caldera", "strict before", 1.0)
    now.rounds, before.rounds = [[1.1]] * 4, [[1.0]] * 4
    options = CaseOptions(["mlp"], quick=True)
    assert not is_clear([now, before])
    session = BenchSession(options, before=tmp_path)
    assert list(islice(session._turns([now, before]), 9)) == list(range(9))
    now.rounds, before.rounds = [[1.1]] * 8, [[1.0]] * 8
    assert is_clear([now, before])
    assert list(session._turns([now, before])) == [0, 1, 2]
    assert list(BenchSession(options)._turns([now])) == [0, 1, 2], "nobody to take turns with"
    (found,) = compare_reports(report(now).to_json(), report(now, before).to_json())
    assert str(found) == (
        "mlp net, caldera strict: slower by wall time (+10.0%, +10.0% to +10.0%, in turns with the "
        "code of before; +0.0% to the file)"
    )


def test_the_code_of_before_comes_from_the_history_alone(tmp_path: Path) -> None:
    package = tmp_path / "clone" / "made"
    package.mkdir(parents=True)

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet", "..")
    (package / "old.py").write_text("old = 1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "old")
    code = {"commit": git("rev-parse", "HEAD"), "sources": sources_digest(package)}
    (package / "old.py").write_text("old = 2\n")
    git("commit", "--quiet", "-a", "-m", "new")
    found = previous_sources(code, tmp_path / "a", package)
    assert found is not None
    assert (found / "made" / "old.py").read_text() == "old = 1\n"
    other = git("commit-tree", "HEAD^{tree}", "-m", "beside the history")
    for wrong in (
        {**code, "sources": "another"},
        {**code, "commit": other, "sources": sources_digest(package)},
        {**code, "commit": "HEAD"},
        {},
    ):
        assert previous_sources(wrong, tmp_path / "b", package) is None
