"""TPE as we use it beside Optuna's own, and what a trial costs to write down."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from caldera import search
from caldera.search import record
from caldera.search.trial import Trial

optuna_5 = pytest.mark.skipif(
    int(optuna.__version__.split(".")[0]) != 5,
    reason="what is proposed is what Optuna 5 proposes",
)
SPACE = {
    "x": search.uniform(-5, 5),
    "rate": search.log(1e-4, 1.0),
    "units": search.integer(1, 9),
    "kind": search.choice(["a", "b", "c"]),
    "same": search.choice(["one"]),
}


def _value(x: float, rate: float, units: int, kind: str, same: str) -> float:
    return x * x + abs(np.log10(rate) + 2) + (units - 4) ** 2 + (kind != "b")


@optuna_5
def test_trials_are_those_of_optunas_own_sampler() -> None:
    study = search.run(_value, SPACE, method="tpe", trials=30, seed=3, verbose=0)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    theirs = optuna.create_study()
    for number in range(30):
        seed = int(np.random.SeedSequence([3, number]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.sampler = optuna.samplers.TPESampler(
                multivariate=True, constant_liar=True, seed=seed, n_startup_trials=10
            )
        trial = theirs.ask()
        point = {
            "x": trial.suggest_float("x", -5, 5),
            "rate": trial.suggest_float("rate", 1e-4, 1.0, log=True),
            "units": trial.suggest_int("units", 1, 9),
            "kind": trial.suggest_categorical("kind", ["a", "b", "c"]),
            "same": trial.suggest_categorical("same", ["one"]),
        }
        theirs.tell(trial, _value(**point))
        assert study.trials[number].parameters == _nearly(point)


def _nearly(point: dict[str, Any]) -> dict[str, Any]:
    """Sums of ours and Optuna's differ in their last digits."""
    return {
        name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
        for name, value in point.items()
    }


@optuna_5
@pytest.mark.parametrize("seed", range(4))
def test_what_runs_was_stopped_or_breaks_constraints_counts_as_with_optuna(seed: int) -> None:
    random = np.random.default_rng(seed)
    mode = str(random.choice(["min", "max"]))
    method = search.TPE(startup=5)
    trials: list[Trial] = []
    method.begin(search.Space(SPACE), search.metric("loss", mode=mode), seed, trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _side_by_side(method, optuna.create_study(direction=f"{mode}imize"), random, trials)


def _side_by_side(
    method: search.TPE, theirs: optuna.Study, random: np.random.Generator, trials: list[Trial]
) -> None:
    kinds = {name: each.distribution(optuna) for name, each in method.space.dimensions().items()}
    running: list[tuple[Trial, optuna.Trial]] = []
    for number in range(60):
        if len(running) == 3:
            trial, asked = running.pop(random.integers(3))
            # Some of them equal.
            loss = round(_value(**trial.point), 1)  # type: ignore[arg-type]
            trial.violations = ["size"] * int(random.choice([0, 0, 0, 0, 1, 2]))
            asked.set_user_attr("constraint", [float(len(trial.violations))])
            trial.state = str(random.choice(["done", "done", "stopped", "failed"]))
            if trial.state == "done":
                trial.values = (loss,)
                theirs.tell(asked, loss)
            elif trial.state == "stopped":
                trial.curve = [{"loss": loss}] * int(random.integers(1, 4))
                asked.report(loss, len(trial.curve))
                theirs.tell(asked, state=optuna.trial.TrialState.PRUNED)
            else:
                theirs.tell(asked, state=optuna.trial.TrialState.FAIL)
            method.tell(trial)
        point = method.ask(number)
        assert point is not None
        theirs.sampler = optuna.samplers.TPESampler(
            multivariate=True,
            constant_liar=True,
            n_startup_trials=5,
            seed=int(np.random.SeedSequence([method.seed, number]).generate_state(1)[0]),
            constraints_func=lambda frozen: frozen.user_attrs["constraint"],
        )
        asked = theirs.ask(kinds)
        assert point == _nearly(asked.params)
        trials.append(Trial(number, point, dict(point), seed=0))
        running.append((trials[-1], asked))


def test_a_resumed_search_knows_what_runs() -> None:
    def asked(*, resumed: bool) -> Any:
        method = search.TPE(startup=2)
        trials: list[Trial] = []
        method.begin(search.Space(SPACE), search.metric("loss"), 0, trials)
        for number in range(8):
            point = method.ask(number)
            assert point is not None
            trials.append(Trial(number, point, dict(point), seed=0))
        for told, trial in enumerate(trials[:5]):
            trial.state, trial.values, trial.told = "done", (float(told),), told
            method.tell(trial)
        if resumed:
            method = search.TPE(startup=2)
            method.begin(search.Space(SPACE), search.metric("loss"), 0, trials)
            method.restore()
        return method.ask(8)

    assert asked(resumed=True) == asked(resumed=False)


def test_lists_of_varying_length_are_searched_as_groups() -> None:
    space = {"sizes": search.repeat(search.uniform(0, 1), 1, 2)}

    def far(sizes: list[float]) -> float:
        return 1.0 / len(sizes) + abs(sizes[-1] - 0.7)

    study = search.run(far, space, method="tpe", trials=60, seed=1, verbose=0)
    # What only some trials have is proposed as well as what all have.
    late = [trial.parameters["sizes"] for trial in study.trials[40:]]
    longest = [sizes[-1] for sizes in late if len(sizes) == 2]
    assert len(longest) > 10
    assert np.median(np.abs(np.array(longest) - 0.7)) < 0.1


def _lines(folder: Path) -> int:
    return (folder / "journal.log").read_bytes().count(b"\n")


def test_a_quick_trial_is_three_lines_of_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_REPORT_EVERY_S", 1e9)  # However slow the machine is.

    def steps(x: float) -> Any:
        yield from (x, x / 2)

    study = search.run(steps, {"x": search.uniform(0, 1)}, trials=5, folder=tmp_path, verbose=0)
    before = _lines(tmp_path)
    again = search.run(steps, {"x": search.uniform(0, 1)}, trials=8, folder=tmp_path, verbose=0)
    lines = _lines(tmp_path) - before
    # Asked for, its outcome, its state; and once for all that eight trials are planned.
    assert (len(study.trials), len(again.trials), lines) == (5, 8, 3 * 3 + 1)
    assert [len(trial.curve) for trial in search.load(tmp_path).trials] == [2] * 8
