"""`caldera check`: dishonest reports of each kind are caught, and honest ones pass."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import NeuralNetwork, bench
from caldera.base.plain_data import to_plain
from caldera.bench.honesty import FINE, NOT_SHOWN, VIOLATED, Claims, Hardware, Run, Tuning, check
from caldera.bench.honesty.check import RULES
from caldera.bench.honesty.literature import published_weights, weights_apart, weights_by_shape
from caldera.bench.results import Report
from caldera.bench.workloads import WORKLOADS
from caldera.errors import ConfigError, DataError
from tests.unit.bench.lies import CPU, LIES, REPORTS, dishonest, table
from tests.unit.bench.lies import honest as drawn_report
from tests.unit.bench.reports import entry, report

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "honest-results.md"
RESULTS = ROOT / "benchmarks" / "results"


def run(name: str, system: str = "ours", ranks: int = 1, **more: Any) -> Run:
    """A training that says everything."""
    said = Run(
        name,
        system,
        "ResNet-20 on CIFAR-10",
        "distributed",
        part="whole",
        ranks=ranks,
        batch=128,
        samples=5_000_000,
        hardware=CPU,
        options={"precision": "float32"},
        seconds=(800.0 / ranks, 810.0 / ranks),
        seconds_of="training",
        test_accuracy=(0.913, 0.915),
        reads="storage",
        input_shape=(3, 32, 32),
        usual_shape=(3, 32, 32),
        stopped_by="accuracy",
        weights=published_weights("ResNet-20")[1],
    )
    return replace(said, **more)


def honest() -> Claims:
    runs = [run("ours 1"), run("ours 8", ranks=8), run("theirs 1", "theirs", seconds=(900.0,))]
    tuning = {"ours": Tuning(20, 9000.0), "theirs": Tuning(20, 9500.0)}
    return Claims("training", tuple(runs), scaling="strong", tuning=tuning)


def with_last(claims: Claims, place: int, **more: Any) -> Claims:
    runs = list(claims.runs)
    runs[place] = replace(runs[place], **more)
    return replace(claims, runs=tuple(runs))


def test_sixty_dishonest_reports_are_caught_or_known_not_to_be() -> None:
    found = dishonest()
    assert len(found) == REPORTS
    for lie, each in found:
        broken = [verdict.rule for verdict in each.verdicts if not verdict.passes]
        assert lie.rule in broken if lie.rule else not broken, f"{lie.says}\n{each}"
        assert all(each[rule].sentence for rule in broken)
    assert {lie.rule for lie in LIES if lie.rule} == RULES.keys()
    assert table(found) in (RESULTS / "dishonest-reports.md").read_text()
    guide = GUIDE.read_text()
    assert all(f"{lie.says}: {lie.reason}" in guide for lie in LIES if not lie.rule)


def test_reports_without_the_lie_pass() -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        found = check(drawn_report(draw))
        assert found.passes, found


@pytest.mark.parametrize("lie", [each for each in LIES if each.rule], ids=lambda each: each.says)
def test_a_sentence_does_not_mend_what_numbers_contradict(lie: Any) -> None:
    draw = np.random.default_rng(2)
    claims = lie.change(drawn_report(draw), draw)
    status = check(claims)[lie.rule].status
    found = check(replace(claims, statements={lie.rule: "Trust us."}))[lie.rule]
    excusable = status == NOT_SHOWN or lie.rule in ("whole", "input")
    assert found.status == (FINE if excusable else VIOLATED)


def test_dishonest_files_of_the_bench_are_caught() -> None:
    content = json.loads((RESULTS / "levels-x86_64.json").read_text())
    assert check(content).passes
    peers = [n for n, each in enumerate(content["entries"]) if each["framework"] != "caldera"]
    for place in peers:
        lies: tuple[dict[str, Any] | None, ...] = ({"error": "crash"}, {"rounds": []}, None)
        for lie in lies:
            entries = list(content["entries"])
            entries[place : place + 1] = [] if lie is None else [{**entries[place], **lie}]
            assert check({**content, "entries": entries})["peers"].status == VIOLATED
        one = {"accuracies": [0.96], "seeds": [0]}
        entries = list(content["entries"])
        entries[place] = {**entries[place], **one}
        assert check({**content, "entries": entries})["seeds"].status == VIOLATED
    alone = [each for each in content["entries"] if each["framework"] == "caldera"]
    assert "left out" in check({**content, "entries": alone})["peers"].why
    assert (
        "not installed"
        in check({**content, "entries": alone, "missing": {"torch": "", "jax": ""}})["peers"].why
    )


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet20", "lstm", "gpt"])
def test_the_table_has_the_networks_of_the_zoo(name: str) -> None:
    (case,) = WORKLOADS[name].cases
    model = NeuralNetwork(case.layers())  # type: ignore[attr-defined]
    expected = published_weights(f"{name} {name}")[1]
    assert weights_by_shape(each.shape for each in model.parameters()) == expected


def test_more_dishonest_reports() -> None:
    claims = honest()
    unequal = replace(claims, tuning={"ours": Tuning(200), "theirs": Tuning(2)})
    assert check(unequal)["tuning"].status == VIOLATED
    weak = replace(claims, scaling="weak")
    assert check(weak)["scaling"].status == VIOLATED
    grown = replace(with_last(claims, 1, batch=1024, seconds_of="epoch"), scaling="weak")
    assert check(grown)["scaling"].status == VIOLATED
    assert check(replace(with_last(claims, 1, batch=1024), scaling="weak"))["scaling"].passes
    both = (
        run("w 1", system="weak", scaling="weak"),
        run(
            "w 8", "weak", 8, scaling="weak", batch=1024, samples=9_000_000, seconds=(800.0, 810.0)
        ),
    )
    mixed = replace(claims, runs=(*claims.runs, *both))
    assert check(mixed)["scaling"].passes
    assert check(mixed)["end"].passes, "more samples, to the same accuracy"
    assert check(with_last(mixed, -1, stopped_by="epochs"))["end"].status == VIOLATED
    assert check(with_last(mixed, -1, batch=128))["scaling"].status == VIOLATED
    alone = with_last(claims, 2, seconds=())
    assert check(alone)["both"].status == VIOLATED
    wrong = Run("a", "ours", "mlp", "network", equal_results=False)
    assert check(Claims("step", (wrong,)))["test accuracy"].status == VIOLATED


LEFT_OUT: dict[str, dict[str, Any]] = {
    "test accuracy": {"test_accuracy": ()},
    "hardware": {"hardware": None},
    "whole": {"part": ""},
    "input": {"reads": ""},
    "time": {"seconds_of": "epoch"},
    "options": {"options": None},
    "inputs' size": {"usual_shape": ()},
    "end": {"stopped_by": ""},
    "scaling": {"batch": 0},
}


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_what_is_left_out_is_not_shown_until_a_sentence_says_it(rule: str) -> None:
    claims = replace(honest(), runs=tuple(replace(r, **LEFT_OUT[rule]) for r in honest().runs))
    assert check(claims)[rule].status == NOT_SHOWN
    assert check(claims)[rule].sentence
    said = check(replace(claims, statements={rule: "It was so and so."}))[rule]
    assert said.status == FINE
    assert "It was so and so." in said.why


def test_reports_without_tuning_or_accuracy_at_scale_do_not_show_it() -> None:
    assert check(replace(honest(), tuning=None))["tuning"].status == NOT_SHOWN
    unsourced = {"ours": Tuning(0), "theirs": Tuning(0, source="their paper")}
    assert check(replace(honest(), tuning=unsourced))["tuning"].status == NOT_SHOWN
    silent = replace(honest(), runs=tuple(replace(r, test_accuracy=()) for r in honest().runs))
    found = check(silent)
    assert found["scaled accuracy"].status == found["both"].status == NOT_SHOWN
    years = with_last(honest(), 1, hardware=Hardware("another"))
    assert check(years)["hardware"].status == NOT_SHOWN


def test_honest_reports_pass() -> None:
    """Of many sizes, seeds and systems, at all four levels."""
    random = np.random.default_rng(0)
    for _ in range(200):
        level = str(random.choice(["operator", "network", "training", "distributed"]))
        ranks = [1, *(int(2**n) for n in range(1, random.integers(1, 5)))]
        accuracies = random.normal(0.9, 0.002, (len(ranks), 3)).clip(0, 1)
        trains = level in ("training", "distributed")
        runs = [
            run(
                f"{system} {count}",
                system,
                count if trains else 1,
                level=level,
                test_accuracy=tuple(accuracies[n]) if trains else (),
                seconds=tuple(random.normal(100, 2, 4) / count),
                seconds_of="training" if trains else "step",
                equal_results=None if trains else True,
            )
            for n, count in enumerate(ranks)
            for system in ("a", "b")
        ]
        tuning = {"a": Tuning(5), "b": Tuning(7)}
        found = check(Claims("t", tuple(runs), scaling="strong", tuning=tuning))
        assert found.passes, found


def test_a_file_of_the_bench_is_read(tmp_path: Path) -> None:
    made: Report = report(entry("caldera", "strict", 1.0))
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(made.to_json()))
    found = bench.check(path)
    assert found["hardware"].status == found["time"].status == FINE
    assert {each.status for each in found.verdicts} <= {FINE, NOT_SHOWN}


def test_bad_values_are_refused(tmp_path: Path) -> None:
    plain = to_plain(honest())
    for field, value, message in [
        ("level", "netwrok", "did you mean 'network'?"),
        ("test_accuracy", [91.0], "write 0.91, not 91"),
        ("seconds", [-1.0], "times above 0"),
        ("ranks", 0, "at least 1"),
        ("reads", 3, "expected str"),
    ]:
        runs = [{**plain["runs"][0], field: value}]
        with pytest.raises(DataError, match=re.escape(message)):
            check({"title": "t", "runs": runs})
    with pytest.raises(DataError, match="did you mean 'tuning'"):
        check({**plain, "statements": {"tunign": "x"}})
    with pytest.raises(ConfigError, match="expected a file, a dict or Claims, got int"):
        check(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="No such file"):
        check(tmp_path / "none.json")


def test_the_guide_has_every_field_and_rule() -> None:
    text = GUIDE.read_text()
    for kind in (Claims, Run, Hardware, Tuning):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in text, field.name
    assert all(f"`{name}`" in text and way in text for name, (way, _) in RULES.items())


def _changed(**values: Any) -> Claims:
    drawn = drawn_report(np.random.default_rng(0))
    return replace(drawn, runs=tuple(replace(each, **values) for each in drawn.runs))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"error": "crashed"}, "at least one run with a result"),
        ({"seconds": (math.nan,) * 3}, "times above 0"),
        ({"usual_shape": (3, 0, 32)}, "lengths above 0"),
    ],
)
def test_claims_without_results_are_not_judged(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check(_changed(**values))
    with pytest.raises(DataError, match=message):
        check(to_plain(_changed(**values)))


def test_channels_may_be_the_last_axis() -> None:
    runs = [
        replace(each, input_shape=each.input_shape[::-1], usual_shape=each.usual_shape[::-1])
        for each in _changed().runs
    ]
    assert check(replace(_changed(), runs=tuple(runs))).passes


@pytest.mark.parametrize(
    ("name", "reported", "passes"),
    [
        ("8x A100 80GB", "NVIDIA A100-SXM4-80GB", True),
        ("4 NVIDIA V100 GPUs", "Tesla V100-SXM2-32GB", True),
        ("16-core AMD EPYC 7763, 128 GB", "AMD EPYC 7763 64-Core Processor", True),
        ("8x H200", "NVIDIA H100", False),
        ("Intel 7763", "AMD EPYC 7763 64-Core Processor", False),
    ],
)
def test_hardware_is_compared_by_model_and_maker(name: str, reported: str, passes: bool) -> None:
    findings = check(_changed(hardware=Hardware(name, reported=reported)))
    assert findings.passes == passes


def test_another_matrix_than_the_last_is_another_network() -> None:
    expected = published_weights("VGG-16")[1]
    found = {**expected, "512x4096": 1}
    del found["4096x25088"]
    assert weights_apart(found, expected)
    assert not weights_apart({**expected, "1000x4096": 0, "10x4096": 1}, expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("framework", []),
        ("batch", 1e308),
        ("shape", "x"),
        ("shape", [None]),
        ("seeds", [[None]]),
        ("accuracies", [91.0]),
    ],
)
def test_a_damaged_file_of_the_bench_is_an_error(name: str, value: Any) -> None:
    file = "levels-operators-x86_64.json" if name == "framework" else "levels-x86_64.json"
    content = json.loads((RESULTS / file).read_text())
    content["entries"][0][name] = value
    with pytest.raises(DataError):
        check(content)
