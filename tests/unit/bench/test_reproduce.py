"""`caldera reproduce`: the frame, and the experiments that take no time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from caldera.bench import levels
from caldera.bench.reproduce import experiment as frame
from caldera.bench.reproduce.criteria import Claim, Criterion, Quantity
from caldera.bench.reproduce.experiment import (
    Experiment,
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    find_experiments,
)
from caldera.bench.reproduce.experiments.consistency import ReferenceTernGrad, constants
from caldera.bench.reproduce.writing import page_of, read_results, write_results
from caldera.bench.timing import StepClock, best_in_turns, in_turns
from caldera.cli import main
from caldera.cli.commands import reproduce as command
from caldera.errors import CommError, DataError
from tests.cli.conftest import Caldera, Done
from tests.unit.bench.reproduce_samples import HONEST

RUNS: list[str] = []


def _run(context: ExperimentContext) -> Measurement:
    context.tell("running")
    RUNS.append("made")
    plot = Plot("Speed", "ranks", "images/s", {"ours": [(1.0, 2.0), (2.0, 4.0)]})
    return Measurement({"ours": {"GB": [4.0]}}, [plot], ["64 ranks"])


def _quantities(samples: Samples) -> dict[str, dict[str, Quantity]]:
    (gigabytes,) = samples["ours"]["GB"]
    return {
        "speed": {"": Quantity(1.4, 1.3, 1.5, "a | b")},
        "memory": {"16 ranks": Quantity.exact(gigabytes, predicted=True)},
    }


CRITERIA = (
    Criterion("speed", "1.2 to 2", "times as fast", 1.0, math.inf),
    Criterion("memory", "5.27", "GB", -math.inf, math.inf, context="another GPU"),
)
MADE = Experiment(
    Claim("made", "A paper, table 9", "It is faster", "two sizes", CRITERIA, 1.0), _run, _quantities
)


@pytest.fixture
def caldera(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caldera:
    monkeypatch.setattr(command, "find_experiments", lambda: {"made": MADE})
    RUNS.clear()
    return lambda *words: Done(main([str(word) for word in words]), *capsys.readouterr())


def test_a_table_with_paper_criterion_ours_and_verdict(caldera: Caldera, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = caldera("reproduce", "--quick", "--out", tmp_path / "new" / "folder", "--html", page)
    assert done.status == 0, done.err
    assert "made (1 of 1, about 1 s left)" in done.err
    assert "16 ranks: GB   5.27      another GPU  4" in done.out
    assert "left out: 64 ranks" in done.out
    assert "Speed (images/s)" in page.read_text()
    assert "1 experiments in " in done.out
    assert "claims of the papers: " in done.out
    folder = tmp_path / "new" / "folder"
    summary = (folder / "reproduce-all.md").read_text()
    assert "| [made](reproduce-made.md) | A paper, table 9 | It is faster | holds |" in summary
    row = "times as fast | 1.2 to 2 | above 1 | 1.4 [1.3, 1.5] (a \\| b) | holds |"
    assert f"| made | {row}" in summary
    text = (folder / "reproduce-made.md").read_text()
    assert "Written by `caldera reproduce made --quick`" in text
    assert "Judged at: two sizes." in text
    assert f"| {row}" in text
    found = json.loads((folder / "reproduce-made.json").read_text())
    assert found["samples"] == {"ours": {"GB": [4.0]}}
    assert {"code", "machine", "versions", "quick", "rows", "claim"} <= found.keys()


def test_an_interrupted_run_goes_on_with_the_same_code(caldera: Caldera, tmp_path: Path) -> None:
    words = ["reproduce", "--quick", "--out", tmp_path]
    first = caldera(*words)
    again = caldera(*words)
    assert RUNS == ["made"]
    assert f"finished before, in {tmp_path}: 1 of 1" in again.err
    assert again.out.splitlines()[-1] == first.out.splitlines()[-1]
    caldera(*words, "--again")
    caldera("reproduce", "--out", tmp_path)
    caldera("reproduce", "made", "--quick", "--out", tmp_path)
    assert len(RUNS) == 4, "asked for, a full run, and by its name"
    path = tmp_path / "reproduce-made.json"
    path.write_text(path.read_text().replace('"GB"', '"MB"'))
    damaged = caldera(*words)
    assert damaged.status != 0
    assert "remove it to run the experiment again" in damaged.err


def test_an_interruption_says_how_to_continue(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_experiment", stopped)
    done = caldera("reproduce", "--quick", "--out", tmp_path)
    assert done.status == 130
    assert f"are in {tmp_path}: the same command continues" in done.err


@pytest.mark.parametrize("numbers", [[0.0], []])
def test_samples_that_cannot_be_judged_are_a_damaged_file(
    numbers: list[float], tmp_path: Path
) -> None:
    experiment = find_experiments()["many-cards"]
    samples = HONEST["many-cards"]()
    write_results(tmp_path, experiment, experiment.judge(Measurement(samples)), quick=True)
    path = tmp_path / "reproduce-many-cards.json"
    found = json.loads(path.read_text())
    found["samples"]["AlexNet, weak"]["images/s of one"] = numbers
    path.write_text(json.dumps(found))
    with pytest.raises(DataError, match="remove it to run the experiment again"):
        read_results(tmp_path, experiment, quick=True)


def test_a_busy_machine_is_named(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (frame, command):
        monkeypatch.setattr(module, "share_of_others", lambda: 0.9)
    done = caldera("reproduce", "--out", tmp_path)
    assert done.err.startswith("Other programs used the machine: verdicts on speed are undecided")
    assert "verdicts on speed" in (tmp_path / "reproduce-made.md").read_text()
    assert "During `made`: other programs" in (tmp_path / "reproduce-all.md").read_text()


def test_an_experiment_that_fails_leaves_the_others_alone(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(context: ExperimentContext) -> Measurement:
        raise CommError.build("2 ranks", expected="a result", got="none")

    broken = Experiment(find_experiments()["fusion"].claim, fails, _quantities)
    both = {"fusion": broken, "made": MADE}
    monkeypatch.setattr(command, "find_experiments", lambda: both)
    done = caldera("reproduce", "--out", tmp_path)
    assert done.status == 1
    assert "fusion failed: 2 ranks: expected" in done.out
    assert "1 experiments in " in done.out
    summary = (tmp_path / "reproduce-all.md").read_text()
    assert "| fusion | failed to run | 2 ranks: expected" in summary
    assert not (tmp_path / "reproduce-fusion.md").exists()


def test_experiments_on_a_gpu_are_left_out_without_one(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = replace(MADE, claim=replace(MADE.claim, name="made-gpu", device="cuda"))
    both = {"made": MADE, "made-gpu": on_gpu}
    monkeypatch.setattr(command, "find_experiments", lambda: both)
    monkeypatch.setattr(frame, "card_count", lambda: 0)
    assert caldera("reproduce", "--out", tmp_path).status == 0
    assert RUNS == ["made"]
    summary = (tmp_path / "reproduce-all.md").read_text()
    assert "| mixed-precision-gpu | not here | requires a GPU |" in summary
    refused = caldera("reproduce", "made-gpu", "--out", tmp_path)
    assert refused.status != 0
    assert "made-gpu: expected a GPU, got none" in refused.err


def test_an_error_within_a_peer_does_not_end_the_run(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(context: ExperimentContext) -> Measurement:
        raise RuntimeError("out of memory")

    broken = replace(MADE, measure=fails)
    monkeypatch.setattr(command, "find_experiments", lambda: {"broken": broken, "made": MADE})
    done = caldera("reproduce", "--out", tmp_path)
    assert done.status == 1
    assert "made failed: RuntimeError: out of memory" in done.out
    assert RUNS == ["made"]


def test_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    times = in_turns({"a": lambda: None}, 2, least=1e-5, most=0.0, wait=lambda: waits.append(""))
    assert len(times["a"]) == 2
    assert len(waits) >= 3, "once while calls are counted, and at the end of each turn"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mde"], "did you mean 'made'?"),
        (["made", "--out", "/dev/null/x"], "--out: expected a folder that can be created"),
        (["made", "--html", "nowhere/p.html"], "--html: expected a file in a folder that exists"),
    ],
)
def test_bad_arguments(
    caldera: Caldera,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = caldera("reproduce", *words)
    assert done.status != 0
    assert message in done.err
    assert not done.out


def test_the_list_has_what_is_not_reproduced(caldera: Caldera) -> None:
    out = caldera("reproduce", "--list").out
    assert "made" in out
    assert "75.1% top-1 after 200 epochs (requires ImageNet and 64 GPUs)" in out


def test_the_page_has_all_claims_first() -> None:
    page = page_of({MADE: MADE.judge(_run(ExperimentContext()))}, {})
    assert page.index("claims of the papers:") < page.index("A paper, table 9: made")


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
    for name in ("topk-assumption", "factorisations", "half-storage"):
        experiment = find_experiments()[name]
        outcome = frame.run_experiment(experiment, ExperimentContext(quick=True))
        assert outcome.measurement.samples
        assert outcome.measurement.left_out
        for path in write_results(tmp_path, experiment, outcome, quick=True):
            assert path.stat().st_size > 100
