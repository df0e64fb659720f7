"""Studies that plain Optuna made are read by `search.load`."""

from __future__ import annotations

from pathlib import Path

import pytest

from caldera import search
from caldera.errors import ConfigError

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)


def _objective(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 1e-3, 1, log=True)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    trial.report(rate, 0)
    trial.report(rate / 2, 1)
    if trial.number == 3:
        raise optuna.TrialPruned
    if trial.number == 4:
        raise ValueError
    return rate + (kind == "a")


def _run(storage: object, **settings: object) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler(seed=0)
    return optuna.create_study(storage=storage, sampler=sampler, **settings)


def test_a_database_and_a_journal_of_optuna(tmp_path: Path) -> None:
    journal = tmp_path / "optuna.log"
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    address = f"sqlite:///{tmp_path}/optuna.db"
    places = {address: address, journal: optuna.storages.JournalStorage(backend)}
    for place, storage in places.items():
        theirs = _run(storage, study_name="plain")
        theirs.optimize(_objective, n_trials=8, catch=(ValueError,))
        before = len(theirs.trials)
        ours = search.load(place)
        assert len(ours.trials) == before
        assert ours.best.number == theirs.best_trial.number
        assert ours.best.parameters == theirs.best_params
        assert ours.best.value == pytest.approx(theirs.best_value)
        assert ours.counts() == {"done": 6, "stopped": 1, "failed": 1, "running": 0, "waiting": 0}
        assert [row["value"] for row in ours.trials[0].curve] == list(
            theirs.trials[0].intermediate_values.values()
        )
        assert ours.page(tmp_path / "page.html").is_file()
        assert "rate" in ours.table()
        assert len(_run_again(storage).trials) == before


def _run_again(storage: object) -> optuna.Study:
    return optuna.load_study(study_name="plain", storage=storage)


def test_several_objectives_and_several_studies(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/optuna.db"
    theirs = _run(address, study_name="two", directions=["minimize", "maximize"])
    theirs.set_metric_names(["seconds", "accuracy"])
    theirs.optimize(lambda t: (t.suggest_float("x", 0, 1), -t.params["x"]), n_trials=5)
    ours = search.load(storage=address)
    assert {each.number for each in ours.front} == {each.number for each in theirs.best_trials}
    assert ours.objective.names() == ("seconds", "accuracy")
    _run(address, study_name="empty")
    with pytest.raises(ConfigError, match="choose one with name=: two, empty"):
        search.load(storage=address)
    assert len(search.load(storage=address, name="two").trials) == 5
