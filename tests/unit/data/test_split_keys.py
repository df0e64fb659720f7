"""Splits by group and by time, and the folds of cross-validation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data
from caldera.data.sources.split_keys import SplitKeys
from caldera.errors import ConfigError, DataError
from tests.cli.conftest import Caldera
from tests.cli.conftest import caldera as caldera  # the fixture


def visits(count: int = 200) -> dict[str, list]:
    random = np.random.default_rng(0)
    patient = random.integers(0, 25, count)
    x = random.normal(size=count) + patient / 10
    days = np.datetime64("2024-01-01") + random.permutation(count) // 2
    return {
        "patient_id": [f"p{each:02}" for each in patient],
        "day": list(map(str, days)),
        "x": x.tolist(),
        "y": (2 * x + random.normal(0, 0.3, count)).tolist(),
    }


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together_in_splits_and_folds(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = random.integers(0, int(random.integers(3, 40)), int(random.integers(30, 200)))
    keys = SplitKeys(groups)
    train, test = keys.split(len(groups) // 5, seed)
    assert not set(groups[train]) & set(groups[test])
    assert 0 < len(test) < len(groups) / 2 + np.bincount(groups).max()
    assert sorted([*train, *test]) == list(range(len(groups)))
    folds = keys.folds(3, seed)
    assert set(folds) == {0, 1, 2}
    assert all(len(set(folds[groups == each])) == 1 for each in set(groups))
    sizes = np.bincount(folds)
    assert sizes.max() - sizes.min() <= np.bincount(groups).max()


def test_tables_are_split_by_group_and_every_later_split_too() -> None:
    rows = visits()
    found = data.table(rows, "y", group="patient_id")
    assert [each.name for each in found.schema.columns] == ["day", "x"]
    assert found.findings == ()
    held = found.hold_out(0.25)
    parts = [set(held.train.keys.values), set(held.validation.keys.values)]
    assert not parts[0] & parts[1]
    tested = {rows["patient_id"][row] for row in found.test.table.rows}
    assert 2 < len(tested) < 10
    # The same table is split at random otherwise, and the doctor says so.
    assert data.table(rows, "y").findings[0].kind == "identifier"
    pipeline = data.Pipeline(found.train)
    assert pipeline.keys is found.train.keys


def test_the_latest_rows_are_the_test_rows() -> None:
    rows = visits()
    found = data.table(rows, "y", time="day", test=0.2)
    limit = sorted(rows["day"])[-40]
    assert {rows["day"][row] >= limit for row in found.test.table.rows} == {True}
    assert 40 <= len(found.test) <= 41
    held = found.hold_out(0.25)
    assert held.train.keys.values.max() < held.validation.keys.values.min()
    folds = found.train.keys.folds(4)
    assert set(folds) == {-1, 0}
    assert found.train.keys.values[folds == 0].min() > found.train.keys.values[folds == -1].max()
    with pytest.raises(ConfigError, match="group= or time="):
        data.table(rows, "y", time="day", group="patient_id")
    with pytest.raises(DataError, match="a date or a number"):
        data.table(rows, "y", time="patient_id")
    with pytest.raises(DataError, match="at least two groups"):
        data.table(rows | {"patient_id": ["p"] * 200}, "y", group="patient_id")


@pytest.mark.parametrize("seed", range(8))
def test_no_fold_learns_from_later_rows_than_it_tests(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 7))
    times = random.integers(0, int(random.integers(count + 1, 60)), 200) ** 3
    times = np.concatenate([times, np.arange(count + 1)])
    parts = SplitKeys(times, is_time=True).parts(count)
    assert len(parts) == count
    for train, test in parts:
        assert len(test)
        assert times[train].max() < times[test].min()
    # Together they test everything after the first period, each sample once.
    first = parts[0].train
    tested = np.concatenate([each.test for each in parts])
    assert sorted([*first, *tested]) == list(range(len(times)))
    distinct = SplitKeys(np.arange(120), is_time=True).parts(5)
    assert [len(each.test) for each in distinct] == [20] * 5
    with pytest.raises(DataError, match="at least 4 times for 3 folds, got 2"):
        SplitKeys(np.array([1, 2, 2, 2]), is_time=True).parts(3)


def test_blends_validate_on_other_groups_and_on_later_rows() -> None:
    rows = visits(80)
    found = data.table(rows, "y", group="patient_id", test=0)
    run = cd.train_table(found, seconds=0.5)
    groups = found.train.keys.values
    assert all(len(set(run.folds[groups == each])) == 1 for each in set(groups))
    assert len(run.rows) == 80
    found = data.table(rows, "y", time="day", test=0)
    run = cd.train_table(found, seconds=0.5)
    times = np.sort(found.train.keys.values)
    assert found.train.keys.values[run.rows].min() > times[len(times) // 2]
    assert len(run.rows) < 20


def test_the_command_line_cross_validates(caldera: Caldera, tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    rows = visits(60)
    lines = [",".join(map(str, row)) for row in zip(*rows.values(), strict=True)]
    table.write_text("\n".join([",".join(rows), *lines]))
    words = ["train", "--data", table, "--group-column", "patient_id", "--quiet", "--out"]
    done = caldera(*words, tmp_path / "a", "--folds", 2, "--time", 0.3)
    assert done.status == 0, done.err
    assert "training rows out of fold)" in done.out
    done = caldera(*words, tmp_path / "c", "--folds", 90, "--fast")
    assert (done.status, "at least 90 groups" in done.err) == (1, True)
    words[3:5] = ["--time-column", "day"]
    done = caldera(*words, tmp_path / "b", "--folds", 2, "--time", 0.3)
    assert "(2 trained on earlier rows only)" in done.out, done.err
    done = caldera(*words, tmp_path / "b", "--folds", 2, "--hidden", 4, "--epochs", 1)
    (line,) = [each for each in done.out.splitlines() if each.startswith("folds ")]
    assert "loss 0." in line or "loss 1." in line
    assert "\u00b1" in line
    assert "(2 trained on earlier rows only)" in line
