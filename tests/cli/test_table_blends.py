"""`caldera train` on tables: blends, --fast and --time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.cli.recipe import read_recipe
from caldera.cli.table_blend import trains_blend
from caldera.serve.signature import Contract, json_answer

Caldera = Callable[..., Any]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 60 rows, with a class to predict."""
    random = np.random.default_rng(2)
    width = random.normal(size=60)
    rows = [f"{each:.3f},{n % 5},{'ab'[int(each > 0)]}" for n, each in enumerate(width)]
    path = tmp_path / "plants.csv"
    path.write_text("\n".join(["width,plot,kind", *rows]))
    return path


def test_a_table_is_trained_as_a_blend(caldera: Caldera, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = caldera("train", "--data", table, "--time", 2, "--out", out, "--quiet")
    assert done.status == 0, done.err
    assert "a blend of a linear model, a network and an ensemble" in done.out
    assert "48 training rows out of fold" in done.out
    recipe = read_recipe(out / "recipe.toml")
    assert recipe["time"] == 2
    assert "model" not in recipe
    record = json.loads((out / "run.json").read_text())
    assert record["results"]["accuracy"] > 0.7
    assert {"val_loss", "val_network", "val_ensemble"} <= set(
        json.loads((out / "history.json").read_text())["columns"]
    )
    tested = caldera("eval", out / "plants.caldera", "--data", table, "--json")
    assert json.loads(tested.out)["loss"] == pytest.approx(record["results"]["loss"], rel=1e-5)
    said = caldera("predict", out / "plants.caldera", table, "--ignore-columns", "kind")
    assert said.status == 0, said.err
    assert len(said.out.splitlines()) == 61


def test_fast_trains_a_single_network(caldera: Caldera, table: Path, tmp_path: Path) -> None:
    done = caldera("train", "--data", table, "--fast", "--out", tmp_path / "run", "--quiet")
    assert done.status == 0, done.err
    assert "mlp: " in done.out
    assert "blend" not in done.out


def test_intervals_are_measured_and_written(caldera: Caldera, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x, noise = random.uniform(-1, 1, size=400), random.normal(size=400)
    rows = [f"{a},{3 * a + (2 if a > 0 else 0.2) * b}" for a, b in zip(x, noise, strict=True)]
    table = tmp_path / "rain.csv"
    table.write_text("\n".join(["wind,rain", *rows]))
    done = caldera("train", table, "--interval", 0.9, "--time", 1, "--out", tmp_path, "--quiet")
    assert done.status == 0, done.err
    assert "model   intervals of 90%: width " in done.out
    assert "of 80 test values are inside" in done.out
    assert "R\u00b2" in done.out  # the leaderboard
    path = tmp_path / "rain.caldera"
    model = cd.load(path)
    assert model.schema.interval == 0.9
    said = caldera("predict", path, table, "--target-column", "rain", "--explain")
    head, first = (line.split(",") for line in said.out.splitlines()[:2])
    assert head[-4:] == ["rain", "rain low", "rain high", "reason 1"]
    assert float(first[-3]) < float(first[-4]) < float(first[-2])
    answers = json.loads(json_answer(model.predict([{"wind": 0.5}]), Contract.of(model, "rain")))
    assert answers["interval"] == 0.9
    assert list(answers["predictions"][0]) == ["value", "low", "high"]
    record = json.loads((tmp_path / "run.json").read_text())
    tested = json.loads(caldera("eval", path, "--data", table, "--json").out)
    assert tested["loss"] == pytest.approx(record["results"]["loss"], rel=1e-5)
    assert record["values"]["r2"] > 0.4


def test_intervals_need_values_and_rows(caldera: Caldera, tmp_path: Path) -> None:
    table = tmp_path / "rain.csv"
    table.write_text("\n".join(["wind,rain", *(f"{n},{n % 7}.5" for n in range(200))]))
    wrong = caldera("train", table, "--interval", 90)
    assert "write 0.9 for 90%" in wrong.err
    few = caldera("train", table, "--interval", 0.999, "--out", tmp_path / "few")
    assert "expected at least 1,999 rows" in few.err
    part = ("--fast", "--validation-part", 0.1, "--out", tmp_path / "part")
    fewer = caldera("train", table, "--interval", 0.9, *part)
    assert "request a smaller coverage or a larger --validation-part" in fewer.err
    classes = caldera("train", "digits", "--interval", 0.9)
    assert "expected a table with one value to predict, got classes in digits" in classes.err


@pytest.mark.parametrize(
    ("given", "blend"),
    [
        ({}, True),
        ({"time": 5.0, "seed": 3, "target_column": "kind"}, True),
        ({"class_weights": ["balanced"]}, True),
        ({"epochs": 3}, False),
        ({"hidden": [8]}, False),
        ({"optimizer": "sgd"}, False),
        ({"validation_part": 0.2}, False),
        ({"fast": True}, False),
    ],
)
def test_options_of_a_network_train_a_network(
    table: Path, given: dict[str, Any], blend: bool
) -> None:
    assert trains_blend(given, cd.data.table(table)) == blend


def test_images_and_few_rows_train_a_network() -> None:
    assert not trains_blend({}, cd.data.digits())
    rows = [{"a": n, "y": n / 3} for n in range(20)]
    assert not trains_blend({}, cd.data.table(rows, "y"))
