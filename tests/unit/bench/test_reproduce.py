"""`caldera reproduce`: the frame, and the experiments that take no time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from caldera.bench import levels
from caldera.bench.reproduce import experiment as frame
from caldera.bench.reproduce.experiment import (
    BESIDE,
    FAILS,
    HOLDS,
    UNDECIDED,
    ComparisonRow,
    Experiment,
    ExperimentContext,
    ExperimentResult,
    Plot,
    faster,
    find_experiments,
)
from caldera.bench.reproduce.experiments.consistency import ReferenceTernGrad, constants
from caldera.bench.reproduce.writing import markdown_of, page_of, text_of, write_results
from caldera.bench.timing import StepClock, best_in_turns, in_turns
from caldera.cli import main
from caldera.cli.commands import reproduce as command
from caldera.errors import CommError
from tests.cli.conftest import Caldera, Done


def _run(context: ExperimentContext) -> ExperimentResult:
    context.tell("running")
    rows = [
        ComparisonRow("speed", "1.2 to 2", "1.4 | 1.5", HOLDS),
        ComparisonRow("memory", "5.27", "4", BESIDE, True),
    ]
    plot = Plot("Speed", "ranks", "images/s", {"ours": [(1.0, 2.0), (2.0, 4.0)]})
    return ExperimentResult(rows, [plot], {"ours": [2.0, float("inf")]}, ["64 ranks"])


MADE = Experiment("made", "A paper, table 9", "It is faster", _run)
OTHER = Experiment("other", "A paper", "On 96 cards", reason="no cards", nearest="one card")


@pytest.fixture
def caldera(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caldera:
    made = {each.name: each for each in (MADE, OTHER)}
    monkeypatch.setattr(command, "find_experiments", lambda: made)
    return lambda *words: Done(main([str(word) for word in words]), *capsys.readouterr())


def test_a_table_with_seed_ours_and_verdict(caldera: Caldera, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = caldera("reproduce", "--quick", "--out", tmp_path, "--html", page)
    assert done.status == 0, done.err
    assert "memory  5.27      4          beside (predicted)" in done.out
    assert "left out: 64 ranks" in done.out
    assert "not run: On 96 cards (A paper): no cards; nearest: one card" in done.out
    assert "Speed (images/s)" in page.read_text()
    assert "1 experiments in " in done.out
    summary = (tmp_path / "reproduce-all.md").read_text()
    assert "| [made](reproduce-made.md) | A paper, table 9 | It is faster | holds |" in summary
    assert "| made | speed | 1.2 to 2 | 1.4 \\| 1.5 | holds |" in summary
    assert "| other | A paper | On 96 cards | no cards | one card |" in summary
    text = (tmp_path / "reproduce-made.md").read_text()
    assert "Written by `caldera reproduce made --quick`" in text
    assert "| speed | 1.2 to 2 | 1.4 \\| 1.5 | holds |" in text
    found = json.loads((tmp_path / "reproduce-made.json").read_text())
    assert found["samples"] == {"ours": [2.0, "inf"]}
    assert {"code", "machine", "versions", "quick", "rows"} <= found.keys()


def test_an_experiment_that_fails_leaves_the_others_alone(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(context: ExperimentContext) -> ExperimentResult:
        raise CommError.build("2 ranks", expected="a result", got="none")

    broken = Experiment("broken", "A paper, table 1", "It scales", fails)
    monkeypatch.setattr(command, "find_experiments", lambda: {"broken": broken, "made": MADE})
    done = caldera("reproduce", "--out", tmp_path)
    assert done.status == 1
    assert "not run: It scales (A paper, table 1): it failed: 2 ranks: expected" in done.out
    assert "1 experiments in " in done.out
    assert "it failed: 2 ranks" in (tmp_path / "reproduce-all.md").read_text()
    assert not (tmp_path / "reproduce-broken.md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mde"], "did you mean 'made'?"),
        (["made", "--out", "nowhere"], "--out: expected a folder that exists"),
        (["made", "--html", "nowhere/p.html"], "--html: expected a file in a folder that exists"),
    ],
)
def test_bad_arguments(caldera: Caldera, words: list[str], message: str) -> None:
    done = caldera("reproduce", *words)
    assert done.status != 0
    assert message in done.err
    assert not done.out


def test_the_list_says_what_there_is(caldera: Caldera) -> None:
    out = caldera("reproduce", "--list").out
    assert "made" in out
    assert "(not run: no cards)" in out


def test_every_experiment_says_what_it_is() -> None:
    found = find_experiments()
    assert len(found) >= 10
    for each in found.values():
        assert each.source
        assert each.claim
        assert each.can_run or (each.reason and each.nearest)


def test_verdicts() -> None:
    rows = [ComparisonRow("a", "", "", BESIDE), ComparisonRow("b", "", "", HOLDS)]
    assert ExperimentResult(rows[:1]).verdict == BESIDE
    assert ExperimentResult(rows).verdict == HOLDS
    noisy = ComparisonRow("e", "", "", UNDECIDED)
    assert ExperimentResult([*rows, noisy]).verdict == UNDECIDED
    assert ExperimentResult([*rows, noisy, ComparisonRow("c", "", "", FAILS)]).verdict == FAILS
    assert faster([1.0] * 9, [1.1] * 9) == ("1.10 [1.10, 1.10]", HOLDS)
    assert faster([1.1] * 9, [1.0] * 9)[1] == FAILS
    assert faster([1.0] * 3, [2.0] * 3)[1] == UNDECIDED, "three turns say nothing"
    assert faster([1.0, -1.0] * 5, [2.0] * 10)[1] == UNDECIDED, "a slope below nought"
    guess = ComparisonRow("d", "", "", FAILS, predicted=True)
    assert ExperimentResult([*rows, guess]).verdict == HOLDS, "a prediction outvotes no measurement"
    assert ExperimentResult([guess]).verdict == "does not hold (predicted)"
    assert text_of(MADE, ExperimentResult(rows)).count("\n") == 5
    assert "side by side" in markdown_of(MADE, ExperimentResult(rows), quick=False)
    assert "Not run" in page_of({}, [OTHER])


def test_times_of_short_calls_are_taken_together_and_in_turns() -> None:
    calls: list[str] = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = in_turns(ways, 2, least=1e-4, most=0.0)
    assert [len(each) for each in times.values()] == [2, 2], "after `most` two turns are enough"
    changes = sum(one != other for one, other in pairwise(calls))
    assert len(calls) > 8
    assert changes == 5, "both are counted first; then a, b, a, b"
    assert best_in_turns(ways, 1, least=1e-5)["a"] < 1e-3


def test_a_clock_of_steps_gives_times_after_the_untimed_ones() -> None:
    clock = StepClock()
    clock.steps = [1.0, 3.0, 4.0, 6.0, 9.0]
    assert clock.seconds(untimed=1) == [2.0, 1.0, 2.0, 3.0]
    assert clock.seconds(untimed=2, every=2) == [3.0]


def test_the_constant_of_topk_is_small_and_nought_for_everything() -> None:
    assert max(constants(1.0, 3)) < 1e-12
    assert 0.0 < max(constants(0.2, 10)) < 8.0


def test_terngrad_is_unbiased() -> None:
    levels.validate_compression(ReferenceTernGrad).require()


def test_quick_experiments_run(tmp_path: Path) -> None:
    for name in ("topk-assumption", "factorisations"):
        experiment = find_experiments()[name]
        outcome = frame.run_experiment(experiment, ExperimentContext(quick=True))
        assert outcome.samples
        assert outcome.left_out
        for path in write_results(tmp_path, experiment, outcome, quick=True):
            assert path.stat().st_size > 100
