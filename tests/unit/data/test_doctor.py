"""The data doctor names planted faults with column and count, and is silent on healthy tables."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.errors import DataError

ROWS = 600


def healthy(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    heat, humid = random.normal(1300, 40, ROWS), random.uniform(2, 9, ROWS)
    return {
        "heat": heat,
        "humidity": humid,
        "income": random.lognormal(3, 2, ROWS),
        "noise": random.standard_t(2, ROWS),
        "pieces": random.poisson(3, ROWS),
        "site": random.choice(["Roma", "Oslo", "Köln"], ROWS),
        "made": [str(date(2020, 1, 1) + timedelta(int(n))) for n in random.integers(0, 1500, ROWS)],
        "strength": heat / 40 + humid + random.normal(0, 1, ROWS),
    }


def faults(columns: dict[str, Any], target: str = "strength", seed: int = 0) -> dict[str, Any]:
    """Return the number of rows of each fault by kind and column."""
    found = data.table(columns, target, seed=seed).findings
    return {(each.kind, each.column): each.rows for each in found if each.is_fault}


@pytest.mark.parametrize("seed", range(3))
def test_planted_faults_are_named_with_column_and_count(seed: int) -> None:
    random, rows = np.random.default_rng(seed), healthy(seed)
    assert faults(rows) == {}
    rows["humidity"] = np.where(np.arange(ROWS) % 5 == 0, -999.0, rows["humidity"])
    rows["heat"] = [f"{each:.0f} °C" for each in rows["heat"]]
    rows["noise"][17] = 1e9
    rows["made"][3:6] = ["2999-01-01"] * 3
    rows["site"][:4] = "oslo"
    rows["weight"] = random.uniform(40, 90, ROWS) * np.where(np.arange(ROWS) % 50 == 0, 1000, 1)
    rows["grade"] = rows["strength"] * 3 + random.normal(0, 0.05, ROWS)
    rows["plant"] = ["works"] * ROWS
    rows["sample_id"] = np.arange(ROWS) + 4000
    rows["patient_id"] = np.arange(ROWS) // 6
    rows = {name: [*column, *column[:120]] for name, column in rows.items()}
    found = data.table(rows, "strength", seed=seed).findings
    by_kind = {(each.kind, each.column): each for each in found}
    many = {key: each.rows for key, each in by_kind.items()}
    assert many == {
        ("sentinel", "humidity"): 120 + 24,
        ("unit", "heat"): 720,
        ("outliers", "noise"): 2,
        ("future", "made"): 6,
        ("conventions", "site"): sum(each == "oslo" for each in rows["site"]),
        ("conventions", "weight"): 12 + 3,
        ("giveaway", "grade"): 576,
        ("constant", "plant"): 720,
        ("identifier", "sample_id"): 720,
        ("identifier", "patient_id"): 720,
        ("duplicates", ""): by_kind["duplicates", ""].rows,
    }
    assert 20 < by_kind["duplicates", ""].rows < 70
    assert "-999 in 144 rows" in str(by_kind["sentinel", "humidity"])
    assert [each.is_fault for each in found] == sorted(each.is_fault for each in found)[::-1]


def test_a_column_that_tells_the_class_is_named_in_either_order() -> None:
    rows = healthy(0)
    rows["state"] = np.where(rows["strength"] > np.quantile(rows["strength"], 0.8), "bad", "good")
    del rows["strength"]
    assert faults(rows, "state") == {}
    for told in (
        np.where(rows["state"] == "bad", -3.0, 2.0) + np.linspace(0, 1, ROWS),
        np.where(rows["state"] == "bad", "x7", "y2"),
        np.where(rows["state"] == "bad", rows["heat"], np.nan),
    ):
        assert faults(rows | {"outcome": told}, "state") == {("giveaway", "outcome"): 480}
    shuffled = np.random.default_rng(0).permutation(rows["state"])
    assert faults(rows | {"outcome": shuffled}, "state") == {}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["5 kg"] * 80 + ["500 g"] * 20, "'g' in 20"),
        (["2024-05-31", "2024-06-30"] * 45 + ["31.05.2024"] * 10, "as in '31.05.2024' in 10"),
        (["2024-05-31", "2024-06-30"] * 45 + ["unknown day"] * 10, "as in 'unknown day' in 10"),
        (["12", "13.5"] * 30 + ["broken"] * 40, "text in 40 ('broken')"),
        (["12", "13.5"] * 30 + ["<1"] * 40, "--missing-values='<1' (missing_values=) reads this"),
        (["yes", "no"] * 45 + ["y"] * 10, "'y' in 10 rows next to 'yes' in 45"),
        (["New York"] * 90 + ["new_york"] * 10, "'new_york' in 10 rows"),
    ],
)
def test_mixed_conventions_are_shown_with_an_example(texts: list[str], said: str) -> None:
    rows = {"mixed": texts, "x": np.random.default_rng(0).normal(size=100), "y": np.arange(100.0)}
    (found,) = [each for each in data.table(rows, "y").findings if each.is_fault]
    assert said in found.text
    rarest = texts.count(texts[-1])
    assert (found.kind, found.column, found.rows) == ("conventions", "mixed", rarest)


def test_strict_stops_at_faults_alone() -> None:
    rows = healthy(1) | {"plant": ["works"] * ROWS}
    data.table(rows, "strength", strict=True)
    rows["humidity"][:5] = -999
    with pytest.raises(DataError, match=r"column 'humidity': -999 in 5 rows.*--strict"):
        data.table(rows, "strength", strict=True)


def test_tables_of_few_categories_have_copies_by_chance() -> None:
    random = np.random.default_rng(0)
    rows = {name: random.choice(list("abc"), 500) for name in ("p", "q", "r", "kind")}
    assert faults(rows, "kind") == {}


def test_rare_classes_are_told_but_are_no_fault() -> None:
    rows = healthy(2) | {"state": ["good"] * 580 + ["bad"] * 20}
    del rows["strength"]
    (found,) = data.table(rows, "state").findings
    assert (found.kind, found.rows, found.is_fault) == ("imbalance", 20, False)
    assert "3.3%" in str(found)


@pytest.mark.parametrize("seed", range(4))
def test_any_table_is_examined(seed: int) -> None:
    """Random columns of any kind, many of them missing, infinite or all equal."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 60))
    kinds = [
        lambda: random.normal(size=count),
        lambda: np.where(random.random(count) < 0.5, np.nan, random.normal(size=count)),
        lambda: random.choice([0.0, -1.0, 1.7e308, -1.7e308, 1e-300], count),
        lambda: random.choice(["", "a", "B", "b ", "1,5", "2.5 kg", "-"], count),
        lambda: random.choice(["2024-01-01", "01.02.2023", "", "x"], count),
        lambda: np.full(count, 7),
        lambda: random.integers(-(2**40), 2**40, count),
    ]
    rows = {f"c{n}": random.choice(kinds)() for n in range(8)} | {"a": np.arange(count) / 7}
    for target in (random.normal(size=count), random.choice(["p", "q"], count)):
        with np.errstate(all="raise", under="ignore"):
            found = data.table(rows | {"y": target}, "y", test=0.3).findings
        assert all(0 < each.rows <= count and each.text for each in found)


def test_values_below_a_limit_become_missing_values_as_the_finding_says() -> None:
    texts = [f"{n % 30 / 7:.1f}" if n % 5 else "<1" for n in range(100)]
    rows = {"crp": texts, "x": np.random.default_rng(0).normal(size=100), "y": np.arange(100.0)}
    (found,) = [each for each in data.table(rows, "y").findings if each.is_fault]
    assert "--missing-values='<1'" in found.text
    column, _ = data.table(rows, "y", missing_values=["<1"]).schema.columns
    assert column.number is not None
    assert column.number.marks_missing
