"""Experiments that are undecided for want of turns are measured once more, without a bias."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from caldera.bench.reproduce.criteria import (
    FAILS,
    HOLDS,
    LEAST_TURNS,
    UNDECIDED,
    Claim,
    Criterion,
    Findings,
    Quantity,
)
from caldera.bench.reproduce.experiment import (
    SECOND_LOOK,
    Experiment,
    ExperimentContext,
    Measurement,
    Samples,
    run_experiment,
)
from caldera.bench.reproduce.writing import AGAIN_TEXT, read_results, summary_of, write_results

BOUND = 1.2
FASTER = Criterion("faster", "1.2", "times as fast", BOUND, math.inf, speed=True)


def _findings(samples: Samples) -> Findings:
    return {
        "faster": {
            case: Quantity.speedup(found["before"], found["after"])
            for case, found in samples.items()
        }
    }


def _turns(
    random: np.random.Generator, speedup: float, count: int, drift: float = 0.0, lost: float = 0.1
) -> Samples:
    """Return times as of a machine in use: a load that both meet, and a share of `lost` turns.

    `drift` is the correlation of the ratios of consecutive turns.
    """
    load = np.exp(0.5 * random.standard_normal(count))
    noise = random.standard_normal(count)
    for place in range(1, count):
        noise[place] = drift * noise[place - 1] + math.sqrt(1 - drift**2) * noise[place]
    before, after = speedup * load, load * np.exp(0.05 * noise)
    for each in (before, after):
        each[random.random(count) < lost] *= random.uniform(1.0, 50.0)
    return {"": {"before": before.tolist(), "after": after.tolist()}}


def _experiment(
    random: np.random.Generator,
    speedup: float,
    counts: list[int],
    criteria: tuple[Criterion, ...] = (FASTER,),
) -> Experiment:
    def measure(context: ExperimentContext) -> Measurement:
        counts.append(context.turns())
        return Measurement(_turns(random, speedup, context.turns()))

    claim = Claim("made", "A paper", "It is faster", "one size", criteria, 1.0)
    return Experiment(claim, measure, _findings)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caldera.bench.reproduce.experiment.share_of_others", lambda: 0.0)


def test_a_ratio_at_the_bound_is_found_to_hold_less_often_than_nominal() -> None:
    counts: list[int] = []
    experiment = _experiment(np.random.default_rng(0), BOUND, counts)
    runs = 2000
    verdicts = [run_experiment(experiment, ExperimentContext()).verdict for _ in range(runs)]
    assert verdicts.count(HOLDS) <= 0.025 * runs
    assert verdicts.count(FAILS) <= 0.025 * runs
    assert counts.count(SECOND_LOOK * LEAST_TURNS) >= 0.9 * runs, "nearly all look twice"


def test_looking_until_it_holds_would_exceed_the_nominal_rate() -> None:
    """The samples above can show a bias."""
    random, found, runs = np.random.default_rng(0), 0, 200
    for _ in range(runs):
        times = _turns(random, BOUND, 120)[""]
        looks = range(LEAST_TURNS, 120, 6)
        given = (Quantity.speedup(times["before"][:n], times["after"][:n]) for n in looks)
        found += any(FASTER.judge(each) == HOLDS for each in given)
    assert found > 0.025 * runs


def test_turns_of_the_same_second_are_not_independent_evidence() -> None:
    """A slow drift of the ratio makes the interval wider than as many independent turns do."""
    random = np.random.default_rng(0)
    width = dict.fromkeys((0.0, 0.9), 0.0)
    for drift in width:
        for _ in range(200):
            found = _findings(_turns(random, BOUND, 96, drift, 0.0))["faster"][""]
            width[drift] += math.log(found.high / found.low)
    assert width[0.9] > 1.3 * width[0.0]


def test_more_turns_decide() -> None:
    verdicts = {}
    for quick in (True, False):
        random, counts = np.random.default_rng(1), list[int]()
        experiment = _experiment(random, 1.05 * BOUND, counts)
        context = ExperimentContext(quick)
        verdicts[quick] = [run_experiment(experiment, context).verdict for _ in range(100)]
        assert (max(counts) == LEAST_TURNS) == quick, "a quick run looks once"
    assert verdicts[True].count(HOLDS) < 40
    assert verdicts[False].count(HOLDS) > 60
    assert FAILS not in verdicts[False]


def _judged(found: Findings, criteria: tuple[Criterion, ...], busy: bool = False) -> list[int]:
    counts: list[int] = []
    random = np.random.default_rng(0)
    made = replace(_experiment(random, 1.0, counts, criteria), evaluate=lambda samples: found)
    with pytest.MonkeyPatch.context() as patch:
        load = 0.9 if busy else 0.0
        patch.setattr("caldera.bench.reproduce.experiment.share_of_others", lambda: load)
        run_experiment(made, ExperimentContext())
    return counts


def test_other_reasons_are_no_reason_to_look_again() -> None:
    across = Quantity(BOUND, 1.1, 1.3, turns=9)
    range_of_seeds = Quantity.over_seeds([1.1, 1.3])
    accuracy = replace(FASTER, name="accuracy", speed=False)
    judged = partial(_judged, criteria=(FASTER,))
    twice, once = [LEAST_TURNS, SECOND_LOOK * LEAST_TURNS], [LEAST_TURNS]
    assert judged({"faster": {"": across}}) == twice
    assert judged({"faster": {"": across}}, busy=True) == once
    assert judged({"faster": {"": across, "other": range_of_seeds}}) == once
    assert judged({"faster": {"": across, "peer": Quantity.missing("crashed")}}) == once
    assert judged({"faster": {"": across, "slow": Quantity(0.5, 0.4, 0.6, turns=9)}}) == once
    assert judged({"faster": {"": Quantity(2.0, 1.9, 2.1, turns=9)}}) == once
    assert judged({"faster": {}}) == once, "not measured"
    both = {"faster": {"": across}, "accuracy": {"": range_of_seeds}}
    assert _judged(both, (FASTER, accuracy)) == once


def test_the_page_states_the_turns_and_the_first_look(tmp_path: Path) -> None:
    experiment = _experiment(np.random.default_rng(1), BOUND, [])
    outcome = run_experiment(experiment, ExperimentContext())
    assert outcome.verdict == UNDECIDED
    assert outcome.rows[0].cells[3].endswith("(36 turns)")
    paths = write_results(tmp_path, experiment, outcome, quick=False)
    text, found = paths[0].read_text(), json.loads(paths[1].read_text())
    assert AGAIN_TEXT in text
    assert len(found["samples"][""]["before"]) == 36
    assert len(found["samples of an undecided first look"][""]["before"]) == 9
    again = read_results(tmp_path, experiment, quick=False)
    assert again is not None
    assert (again.rows, again.measurement) == (outcome.rows, outcome.measurement)
    assert "`made`: the first look was undecided. The second" in summary_of(
        {experiment: again}, {}, quick=False
    )
