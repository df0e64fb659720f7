"""Verdicts on the claims of the papers: each criterion can fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from caldera.bench.reproduce.criteria import (
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    UNDECIDED,
    Criterion,
    Quantity,
    claims,
    figures,
)
from caldera.bench.reproduce.experiment import ExperimentResult, Measurement, find_experiments
from caldera.bench.reproduce.writing import FIGURE_HEAD, figure_rows
from tests.unit.bench.reproduce_samples import CONTRADICTING, HONEST, contradicted

RESULTS_FOLDER = Path(__file__).parents[3] / "benchmarks" / "results"

MUTANTS = [(name, change) for name, changes in CONTRADICTING.items() for change in changes]
AGAINST = {FAILS, UNDECIDED, f"{FAILS} (predicted)", f"{UNDECIDED} (predicted)"}


def test_every_claim_has_an_experiment_and_samples_that_contradict_it() -> None:
    assert set(find_experiments()) == set(claims()) == set(HONEST) == set(CONTRADICTING)
    for claim in claims().values():
        assert claim.text
        assert claim.scale
        assert any(not each.context for each in claim.criteria)


@pytest.mark.parametrize("name", HONEST)
def test_supporting_samples_are_found_to_hold(name: str) -> None:
    experiment = find_experiments()[name]
    outcome = experiment.judge(Measurement(HONEST[name]()))
    against = [row.cells for row in outcome.rows if row.verdict in AGAINST]
    assert not against
    assert outcome.verdict in (HOLDS, f"{HOLDS} (predicted)")


@pytest.mark.parametrize(("name", "change"), MUTANTS)
def test_no_contradicting_samples_are_found_to_hold(name: str, change: str) -> None:
    outcome = find_experiments()[name].judge(Measurement(contradicted(name, change)))
    assert outcome.verdict in AGAINST, outcome.rows


@pytest.mark.parametrize("name", HONEST)
def test_every_criterion_of_a_claim_can_fail(name: str) -> None:
    experiment = find_experiments()[name]
    findings = experiment.evaluate(HONEST[name]())
    for criterion in experiment.claim.criteria:
        if criterion.context:
            continue
        for value in (criterion.low - 1.0, criterion.high + 1.0, criterion.low, criterion.high):
            if math.isinf(value):
                continue
            changed = {case: Quantity.exact(value) for case in findings[criterion.name]}
            outcome = ExperimentResult(experiment.claim, {**findings, criterion.name: changed})
            assert outcome.verdict == FAILS, (criterion.name, value)
        for absent in ({}, {"": Quantity.missing("the peer crashed")}):
            outcome = ExperimentResult(experiment.claim, {**findings, criterion.name: absent})
            assert outcome.verdict in AGAINST, criterion.name


def test_every_contradiction_is_of_another_kind_than_the_bound() -> None:
    """At least one change of each experiment is judged as a failure, not as undecided."""
    for name, changes in CONTRADICTING.items():
        experiment = find_experiments()[name]
        verdicts = [
            experiment.judge(Measurement(contradicted(name, each))).verdict for each in changes
        ]
        assert any(each.startswith(FAILS) for each in verdicts), name


@pytest.mark.parametrize("name", HONEST)
def test_every_criterion_follows_from_samples(name: str) -> None:
    experiment = find_experiments()[name]
    against = {
        row.criterion.name
        for change in CONTRADICTING[name]
        for row in experiment.judge(Measurement(contradicted(name, change))).rows
        if row.verdict in AGAINST
    }
    assert against == {each.name for each in experiment.claim.criteria if not each.context}


def test_intervals_decide() -> None:
    above = Criterion("speed", "", "", 1.0, math.inf, speed=True)
    inside, across = Quantity(1.5, 1.2, 1.8), Quantity(1.5, 0.9, 1.8)
    assert above.judge(inside) == HOLDS
    assert above.judge(across) == UNDECIDED
    assert above.judge(Quantity(0.8, 0.7, 1.0)) == FAILS
    assert above.judge(inside, busy=True) == UNDECIDED
    assert above.judge(replace(inside, predicted=True), busy=True) == HOLDS
    assert replace(above, speed=False).judge(inside, busy=True) == HOLDS
    assert above.judge(Quantity.missing("crashed")) == UNDECIDED
    assert above.judge(Quantity.exact(math.inf)) == UNDECIDED
    assert replace(above, context="another machine").judge(inside) == NOT_COMPARABLE
    assert Quantity.speedup([1.0] * 3, [2.0] * 3).high == math.inf, "three turns say nothing"
    assert math.isnan(Quantity.speedup([1.0, -1.0], [2.0, 2.0]).value)


def test_consecutive_turns_count_once() -> None:
    """Ten turns that a slow second affects together are not ten pieces of evidence."""
    drifting = [2.0] * 30 + [0.8] * 30
    found = Quantity.speedup(drifting, [1.0] * 60)
    assert found.turns == 60
    assert found.low < 1.0 < found.high
    assert Quantity.speedup(drifting[::-1], [1.0] * 70).text.endswith("(60 turns)")
    assert Quantity.exact(2.0).text == "2"


def test_predictions_are_marked() -> None:
    claim = claims()["sparcml"]
    measured = {"bytes": {"": Quantity.exact(31.0)}}
    guess = Quantity.exact(3.0, predicted=True)
    found = {**measured, "communication": dict.fromkeys("abcd", guess)}
    found["training"] = dict.fromkeys("abcd", Quantity.exact(1.0, predicted=True))
    outcome = ExperimentResult(claim, found)
    assert outcome.verdict == f"{FAILS} (predicted)"
    wrong = ExperimentResult(claim, {**found, "bytes": {"": Quantity.exact(1.0)}})
    assert wrong.verdict == FAILS


def test_every_figure_of_the_papers_is_reproduced_or_has_a_reason() -> None:
    experiments = find_experiments()
    for each in figures():
        assert (each.experiment in experiments) != bool(each.reason), each
        if not each.experiment:
            assert each.nearest or each.recorded
        if each.recorded:
            text = (RESULTS_FOLDER / each.file).read_text()
            assert each.evidence
            assert all(line in text for line in each.evidence), each.place
    assert {each.experiment for each in figures()} - {""} == set(experiments)
    rows = figure_rows({}, {"fusion": "no compiler"})
    assert len(rows) == len(figures())
    assert all(len(row) == len(FIGURE_HEAD) for row in rows)
    assert rows[0][3] == FAILS, "what does not hold stands first"
    assert next(row for row in rows if row[2] == "fusion")[3:] == ("failed to run", "no compiler")
