"""Metrics, what they see, what they cost; trainings as lines for MLPerf and on the page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.bench import levels
from caldera.bench.frameworks import FRAMEWORKS
from caldera.bench.honesty import check
from caldera.bench.levels import instrumentation, metrics, reference
from caldera.bench.levels.instrumentation import SCHEMES, Watch, learned, watch_task
from caldera.bench.levels.metrics import Measure, Watched
from caldera.bench.report import log_text, page
from caldera.bench.results import ResultEntry
from caldera.bench.workloads import WORKLOADS, LearningCase, ProductCase
from caldera.comm import SingleProcess
from caldera.draw.charts import heat_map
from caldera.errors import ConfigError
from tests.unit.bench.reports import report


def _watch(*given: Measure, **more: object) -> Watched:
    watched = Watched("training", **more)  # type: ignore[arg-type]
    for each in given:
        each.begin(watched)
    return watched


def test_time_rates_and_shares_of_the_roofline() -> None:
    wall, rate, share = metrics.WallTime(), metrics.FlopRate(), metrics.Roofline()
    moved = metrics.BytesMoved()
    watched = _watch(wall, rate, share, moved, flops=1e6, nbytes=1e3)
    for seconds in (0.5, 1.0, 2.0):
        watched.step_seconds = seconds
        for each in (wall, rate, share, moved):
            each.step(watched)
    assert wall.result() == [0.5, 1.0, 2.0]
    assert rate.result() == [2e6, 1e6, 5e5]
    assert 0.0 < share.result() < 1.0  # type: ignore[operator]
    assert moved.result() == 3e3
    found = wall.summary([[1.0, 1.1], [1.0, 0.9]])
    assert found is not None
    assert found.low <= 1.0 <= found.high
    uncounted = metrics.FlopRate()
    uncounted.begin(Watched("network"))
    uncounted.step(Watched("network", step_seconds=1.0))
    assert uncounted.result() is None


def test_accuracy_and_its_time() -> None:
    reached, missed, last = (
        metrics.TimeToAccuracy(0.9),
        metrics.TimeToAccuracy(0.99),
        metrics.AccuracyMeasure(),
    )
    watched = _watch(reached, missed, last)
    for seconds, accuracy in ((1.0, 0.8), (2.0, 0.91), (3.0, 0.95)):
        watched.seconds, watched.accuracy = seconds, accuracy
        for each in (reached, missed, last):
            each.epoch(watched)
    assert reached.result() == 2.0
    assert missed.result() == math.inf
    assert last.result() == 0.95
    assert missed.summary([math.inf]) is None


def test_bias_finds_what_is_biased() -> None:
    values = np.array([0.3, -0.7, 0.1])
    fair, unfair = metrics.Bias(values), metrics.Bias(values)
    watched = _watch(fair, unfair)
    compression = reference.Quantized(4)
    for _ in range(400):
        drawn = compression.decode(compression.encode(values), 3)
        watched.results = [drawn]
        fair.step(watched)
        watched.results = [drawn * 1.1]
        unfair.step(watched)
    assert fair.result() < 5.0  # type: ignore[operator]
    assert unfair.result() > 5.0  # type: ignore[operator]


def test_traffic_and_energy(tmp_path: Path) -> None:
    ranks = SingleProcess()
    sent, messages = metrics.Communication(), metrics.MessageCount()
    watched = _watch(sent, messages, communicator=ranks)
    ranks.Allreduce(np.ones(3), np.empty(3))
    assert sent.result() == ranks.traffic.total.bytes_sent
    assert messages.result() == ranks.traffic.total.messages
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "max_energy_range_uj").write_text("9999999\n")
    (zone / "energy_uj").write_text("9000000\n")
    energy = metrics.Energy(tmp_path)
    energy.begin(watched)
    (zone / "energy_uj").write_text("500000\n")
    assert energy.result() == 1.5


def test_a_difference_has_a_place_and_a_map() -> None:
    expected = np.zeros((40, 30))
    expected[0, 0] = 2.0
    found = expected.copy()
    found[39, 29] = 1.0
    apart = levels.Difference.of([found], [expected])
    assert (apart.largest, apart.l2, apart.where) == (0.5, 0.5, "array 0 at (39, 29)")
    assert len(apart.heat) == len(apart.heat[0]) == 16
    assert apart.heat[15][15] == 1.0
    assert "at most 1" in heat_map(apart.heat, "differences")
    assert levels.Difference.of([found], [found.T]).largest == math.inf
    nothing = levels.Difference.of([np.full(2, np.nan)], [np.ones(2)])
    assert nothing.largest == math.inf


def test_what_metrics_take_is_not_the_time_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(instrumentation.time, "perf_counter", lambda: clock[0])

    def takes(seconds: float) -> None:
        clock[0] += seconds

    class Slow(Measure):
        name = "slow"
        unit = ""

        def step(self, watched: Watched) -> None:
            takes(0.25)

        def result(self) -> float:
            return 0.0

    watch = Watch(Watched("training"), [metrics.WallTime(), Slow()])
    for _ in range(3):
        watch.timed(lambda: takes(0.75))
        assert watch.watched.step_seconds == 0.75
    assert (watch.watched.seconds, watch.watching_s, watch.overhead) == (2.25, 0.75, 0.25)


def test_operators_are_watched_as_trainings_are() -> None:
    case = ProductCase("small", m=8, n=8, k=8)
    with settings.override(threads=1, accuracy="strict"):
        task = FRAMEWORKS["caldera"]({"accuracy": "strict"}, 1).product(case)
        a, b = case.arrays().values()
        metric = metrics.EqualityMeasure([a @ b])
        watch = watch_task(
            task, [metrics.WallTime(), metric], level="operator", calls=3, results=True
        )
    assert watch.watched.step == 3
    assert metric.result() < 1e-5  # type: ignore[operator]
    assert watch.results()["difference"]["value"] == metric.result()


@pytest.fixture(scope="module")
def trained() -> ResultEntry:
    """One training as one of two ranks."""
    case = WORKLOADS["distributed"].case("allreduce, 2 ranks")
    assert isinstance(case, LearningCase)
    with settings.override(threads=1, accuracy="strict"):
        framework = FRAMEWORKS["caldera"]({"accuracy": "strict"}, 1)
        reply = json.loads(json.dumps(learned(framework, case, seed=3, epochs=2)))
    return ResultEntry(
        "distributed",
        case.name,
        "caldera",
        "strict",
        level=case.level,
        ranks=2,
        batch=48,
        scheme=case.scheme,
        target=0.5,
        shape=[64],
        seeds=[3],
        rounds=[[reply["seconds"]]],
        accuracies=[reply["accuracy"]],
        trainings=[reply],
        first_cold_s=0.1,
    )


def test_a_distributed_training_is_measured(trained: ResultEntry) -> None:
    (reply,) = trained.trainings
    assert reply["epochs"] == 2
    assert reply["steps"] == 2 * 30
    assert reply["accuracy"] > 0.5
    assert reply["metrics"]["ranks apart"]["value"] == 0.0
    assert len(reply["metrics"]["wall time"]["value"]) == 60
    # A ring of two sends as many bytes as a gradient has, from each rank in each step.
    weights = 64 * 128 + 128 + 128 * 10 + 10
    assert reply["metrics"]["bytes sent"]["value"] == 60 * 2 * weights * 4
    assert 0 < reply["overhead"] < 1


def test_every_scheme_of_a_case_is_known() -> None:
    for work in ("training", "distributed", "weak-scaling"):
        for case in WORKLOADS[work].cases:
            assert isinstance(case, LearningCase)
            assert not case.scheme or case.scheme in SCHEMES


def test_a_file_of_strong_and_weak_scaling_is_honest(trained: ResultEntry) -> None:
    made = report()
    for work, per_rank in (("distributed", False), ("weak-scaling", True)):
        for ranks in (1, 2):
            batch = 48 * ranks if per_rank else 48
            made.entries.append(
                replace(
                    trained,
                    work=work,
                    ranks=ranks,
                    batch=batch,
                    seeds=[3, 4],
                    accuracies=[0.955, 0.957],
                    target=0.95,
                )
            )
    found = check(json.loads(json.dumps(made.to_json())))
    assert found["scaling"].passes
    assert "strong and weak" in found["scaling"].why
    for each in made.entries:
        each.batch = 48
    assert not check(json.loads(json.dumps(made.to_json())))["scaling"].passes


def test_a_training_becomes_lines_for_mlperf(trained: ResultEntry) -> None:
    lines = log_text(report(trained)).splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    keys = [each["key"] for each in events]
    for once in ("submission_benchmark", "submission_org", "init_stop", "run_start", "run_stop"):
        assert keys.count(once) == 1
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("eval_accuracy")
    assert keys.count("eval_accuracy") == keys.count("epoch_stop") == 2
    times = [each["time_ms"] for each in events]
    assert times == sorted(times)
    assert events[-1]["metadata"] == {"status": "success"}
    with pytest.raises(ConfigError, match="expected a training to an accuracy"):
        log_text(report())


def test_a_training_is_on_the_page_and_passes_the_check(trained: ResultEntry) -> None:
    text = page(report(trained))
    assert "Level 3: distributed" in text
    assert "allreduce, 2 ranks: test accuracy" in text
    found = check(report(trained).to_json())
    broken = [each.rule for each in found.verdicts if not each.passes]
    assert broken == ["peers", "seeds"], "one seed, and no peer took part"
