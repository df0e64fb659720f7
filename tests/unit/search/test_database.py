"""Studies in a database: kept, gone on with, and shared by several programs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from caldera import search
from caldera.errors import ConfigError
from caldera.search.objective import as_objective
from caldera.search.record import TrialRecord
from caldera.search.trial import RUNNING, WAITING, Trial

SPACE = {"x": search.integer(0, 3), "y": search.integer(0, 2)}


def _sum(x: int, y: int) -> float:
    return float(x + y)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all: making its tables takes a moment."""
    return f"sqlite:///{tmp_path_factory.mktemp('database') / 'studies.db'}"


def test_a_study_in_a_database_goes_on_and_optuna_reads_it(address: str) -> None:
    import optuna

    how: dict[str, Any] = {"storage": address, "name": "goes on", "verbose": 0, "seed": 2}
    first = search.run(_sum, SPACE, trials=3, **how)
    again = search.run(_sum, SPACE, trials=5, **how)
    assert [trial.point for trial in again.trials[:3]] == [trial.point for trial in first.trials]
    assert [trial.point for trial in again.trials] == [
        trial.point for trial in search.run(_sum, SPACE, trials=5, seed=2, verbose=0).trials
    ]
    assert str(search.load(storage=address, name="goes on")) == str(again)
    read = optuna.load_study(study_name="goes on", storage=address)
    assert [trial.value for trial in read.trials] == [trial.value for trial in again.trials]
    with pytest.raises(ConfigError, match="give this study another name="):
        search.run(lambda x: x, {"x": search.integer(0, 1)}, trials=1, **how)


def test_programs_share_a_grid_and_visit_each_point_once(address: str) -> None:
    visited: Counter[tuple[int, int]] = Counter()
    studies = []

    def visit(x: int, y: int) -> float:
        visited[x, y] += 1
        time.sleep(0.001)
        return _sum(x, y)

    def work() -> None:
        studies.append(
            search.run(visit, SPACE, method="grid", storage=address, name="grid", verbose=0)
        )

    # Each call has an owner and locks of its own, as programs have.
    programs = [threading.Thread(target=work) for _ in range(2)]
    for each in programs:
        each.start()
    for each in programs:
        each.join()
    assert len(visited) == 12
    assert set(visited.values()) == {1}
    whole = search.load(storage=address, name="grid")
    assert whole.counts()["done"] == 12
    # All of them heard of all trials in the same order.
    assert sorted(trial.told or 0 for trial in whole.trials) == list(range(12))
    for study in studies:
        heard = [trial for trial in study.trials if trial.is_over]
        assert all(trial.told == whole.trials[trial.number].told for trial in heard)


def test_the_trial_of_a_program_that_died_is_run_by_another(address: str) -> None:
    space, goal = search.Space(SPACE), as_objective(None, "value")
    dying = TrialRecord(None, address, "dies")
    dying.begin(space, goal, {})
    dying.add(Trial(0, {"x": 3, "y": 2}, {"x": 3, "y": 2}, seed=1), space)
    how: dict[str, Any] = {"storage": address, "name": "dies", "method": "random", "verbose": 0}
    # As long as it lives, its trial is its own.
    beside = search.run(_sum, SPACE, trials=3, **how)
    assert [trial.state for trial in beside.trials] == [RUNNING, "done", "done"]
    dying.close()
    assert search.load(storage=address, name="dies").trials[0].state == WAITING
    after = search.run(_sum, SPACE, trials=3, **how)
    assert [trial.value for trial in after.trials[:1]] == [5.0]
    assert after.counts()["done"] == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nonsense", "such as sqlite"),
        ("sqlite://", "in memory"),
        ("sqlite:////no/such/folder/study.db", "no folder /no/such/folder"),
        ("mssql+pyodbc://me:secret@host/base", "pyodbc|kind 'mssql'"),
        ("postgresql+nodriver://me:secret@host/base", "such as sqlite"),
    ],
)
def test_an_address_that_cannot_be_opened_says_so(wrong: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        search.run(_sum, SPACE, trials=1, storage=wrong, verbose=0)
    assert "secret" not in str(error.value)


def test_load_wants_a_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder= or storage="):
        search.load()
    with pytest.raises(ConfigError, match="none, or an empty one"):
        search.load(storage=f"sqlite:///{tmp_path / 'new.db'}", name="other")
