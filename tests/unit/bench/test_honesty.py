"""`caldera check`: a dishonest report for each of the twelve is caught, honest ones pass."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import bench
from caldera.base.plain_data import to_plain
from caldera.bench.honesty import FINE, NOT_SHOWN, VIOLATED, Claims, Hardware, Run, Tuning, check
from caldera.bench.honesty.check import RULES
from caldera.bench.results import Report
from caldera.errors import ConfigError, DataError
from tests.unit.bench.reports import entry, report

CPU = Hardware("Xeon 8480", 2023)
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "honest-results.md"


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


LOSSY: dict[str, Any] = {"options": {"precision": "bfloat16"}}
DISHONEST: dict[str, tuple[dict[str, Any], ...]] = {
    "scaled accuracy": ({"test_accuracy": (0.85,)}, {"test_accuracy": ()}),
    "test accuracy": ({"test_accuracy": (), "train_accuracy": (0.99,)},),
    "tuning": ({"attempts": 12},),
    "hardware": (
        {"hardware": Hardware("a chip for networks", 2023, special=True)},
        {"hardware": Hardware("K20", 2012)},
    ),
    "whole": ({"part": "kernel"}, {"part": "subset"}),
    "input": ({"reads": "memory"}, {"reads": "synthetic"}),
    "time": (
        {"seconds": (), "rate": 3.0e12, "rate_unit": "FLOP/s"},
        {"rate": 1.0, "rate_unit": "exaops"},
    ),
    "options": ({"accuracy_options": {"precision": "float64"}},),
    "inputs' size": ({"input_shape": (3, 256, 256)},),
    "end": (
        {"stopped_by": "wall time"},
        {"seconds": (801.0,), "samples": 40_000_000, "stopped_by": "steps"},
    ),
    "scaling": ({"batch": 1024},),
    "both": ({"test_accuracy": (0.88,), "seconds": (10.0,)},),
}


def test_there_are_twelve_and_each_has_a_dishonest_report() -> None:
    assert len(RULES) == 12
    assert DISHONEST.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_a_dishonest_report_is_caught(rule: str) -> None:
    assert check(honest()).passes, check(honest())
    for change in DISHONEST[rule]:
        found = check(with_last(honest(), 1, **change))
        assert found[rule].status == VIOLATED, f"{change}\n{found}"
        assert found[rule].sentence
        assert not found.passes
    # What the numbers themselves contradict is not mended by a sentence.
    if rule not in ("whole", "input"):
        claims = with_last(honest(), 1, **DISHONEST[rule][0])
        assert check(replace(claims, statements={rule: "Trust us."}))[rule].status == VIOLATED


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
