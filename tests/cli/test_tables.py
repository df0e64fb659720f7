"""A model that was trained on a table knows its columns and classes, wherever its file goes."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from caldera.cli import main
from caldera.cli.recipe import read_recipe
from caldera.train.neural_network import load_model
from tests.cli.conftest import Caldera

NAMES = ["width", "length", "weight", "name"]


def _write(path: Path, columns: list[str], count: int = 60) -> Path:
    """A table of flowers with these columns: roses are much wider than long."""
    x = np.random.default_rng(0).normal(size=(count, 3))
    x[:, 0] *= 10
    values = {name: [f"{v:.4f}" for v in x[:, place]] for place, name in enumerate(NAMES[:3])}
    values["name"] = list(np.where(x[:, 0] > 0, "rose", "iris"))
    values["age"] = ["1"] * count
    rows = zip(*(values[name] for name in columns), strict=True)
    path.write_text("\n".join([",".join(columns), *map(",".join, rows)]) + "\n")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model alone, without the folder of its run."""
    folder = tmp_path_factory.mktemp("tables")
    table = _write(folder / "flowers.csv", NAMES)
    words = f"train --data {table} --target-column name --hidden 8 --epochs 8 --dropout 0 --quiet"
    assert main([*words.split(), "--batch-size", "8", "--out", str(folder / "run")]) == 0
    alone = folder / "alone"
    alone.mkdir()
    return Path(shutil.copy(folder / "run" / "flowers.caldera", alone))


def _classes(text: str) -> list[str]:
    return [row["name"] for row in csv.DictReader(io.StringIO(text))]


def test_columns_are_found_by_name_and_classes_have_theirs(
    caldera: Caldera, model: Path, tmp_path: Path
) -> None:
    usual = caldera("predict", model, _write(tmp_path / "a.csv", NAMES[:3]))
    assert usual.status == 0, usual.err
    assert set(_classes(usual.out)) == {"iris", "rose"}
    for columns in (["length", "weight", "width"], ["name", "weight", "length", "width"]):
        other = caldera("predict", model, _write(tmp_path / "b.csv", columns))
        assert other.out == usual.out
    extra = _write(tmp_path / "c.csv", ["age", "length", "weight", "width"])
    assert caldera("predict", model, extra, "--ignore-columns", "age").out == usual.out


def test_eval_finds_them_too(caldera: Caldera, model: Path, tmp_path: Path) -> None:
    words = ("eval", model, "--part", "all", "--json", "--data")
    usual = json.loads(caldera(*words, _write(tmp_path / "a.csv", NAMES)).out)
    assert usual["accuracy"] > 0.8
    swapped = _write(tmp_path / "b.csv", ["name", "length", "weight", "width"])
    other = json.loads(caldera(*words, swapped).out)
    assert other == pytest.approx(usual)


@pytest.mark.parametrize("command", ["predict", "eval"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("width,weight,name\n1,2,rose\n", "got no 'length'"),
        ("width,lenght,weight,name\n1,2,3,rose\n", "is 'lenght' the column 'length'?"),
        ("width,length,weight,age,name\n1,2,3,4,rose\n", "'age', which it was not trained on"),
        ("1,2,3,4,5\n", "expected 3 columns, or the 4"),
        ("width,length,weight,name\n1,inf,3,rose\n", "line 2: expected a finite number"),
    ],
)
def test_other_tables_are_refused(
    caldera: Caldera, model: Path, tmp_path: Path, command: str, text: str, said: str
) -> None:
    path = tmp_path / "new.csv"
    path.write_text(text)
    done = (
        caldera("predict", model, path)
        if command == "predict"
        else caldera("eval", model, "--data", path)
    )
    assert done.status == 1
    assert said in done.err
    assert done.out == ""


def test_names_beside_an_older_file_are_still_read(
    caldera: Caldera, model: Path, tmp_path: Path
) -> None:
    old = load_model(model)
    old.schema = None
    path = old.save(tmp_path / "old.caldera")
    (tmp_path / "old.classes.txt").write_text("Iris\nRose\n")
    table = _write(tmp_path / "a.csv", NAMES[:3])
    said = csv.DictReader(io.StringIO(caldera("predict", path, table).out))
    assert {row["class"] for row in said} == {"Iris", "Rose"}


def test_mixed_columns_from_training_to_prediction(caldera: Caldera, tmp_path: Path) -> None:
    """Categories, dates, decimal commas, gaps: shown, kept in the model file, found again."""
    rng = np.random.default_rng(0)
    area, city = rng.uniform(30, 150, 80), rng.choice(["Roma", "Oslo", "K\u00f6ln"], 80)
    price = 2000 * area + np.where(city == "Oslo", 90_000, 0)
    rows = [
        f"{n};{a:.1f}".replace(".", ",") + f";{c if n % 9 else ''};{n % 28 + 1:02}.05.2024;{p:.0f}"
        for n, (a, c, p) in enumerate(zip(area, city, price, strict=True))
    ]
    table = tmp_path / "homes.csv"
    table.write_text("\n".join(["id;area;city;sold;price", *rows]), encoding="cp1252")
    words = "--hidden 16 --epochs 12 --dropout 0 --batch-size 8 --quiet --target-column price"
    done = caldera("train", "--data", table, *words.split(), "--out", tmp_path / "run")
    assert done.status == 0, done.err
    lines = [line.removeprefix("columns").split()[:2] for line in done.out.splitlines()]
    assert ["area", "number"] in lines
    assert ["city", "category"] in lines
    assert ["sold", "date"] in lines
    assert ["id", "left"] in lines
    assert "cp1252" in done.out
    new = tmp_path / "new.csv"
    new.write_text('city,sold,area\nOslo,01.05.2024,"100,5"\nBern,02.05.2024,\n')
    said = caldera("predict", tmp_path / "run" / "homes.caldera", new)
    assert said.status == 0, said.err
    assert "column 'area': 1 missing" in said.err
    assert "1 of unknown categories ('Bern')" in said.err
    prices = [float(row["price"]) for row in csv.DictReader(io.StringIO(said.out))]
    assert prices[0] == pytest.approx(2000 * 100.5 + 90_000, rel=0.3)
    wrong = caldera("predict", tmp_path / "run" / "homes.caldera", table, "--target-column", "id")
    assert wrong.status == 0, wrong.err
    told = caldera(
        "train",
        "--data",
        table,
        *words.split(),
        "--out",
        tmp_path / "told",
        "--kinds",
        "id=number,city=ignored",
        "--missing",
        "drop",
    )
    assert "deviation" in told.out
    assert "city   left out" in told.out
    refused = caldera("train", "--data", table, "--kinds", "city=poem")
    assert refused.status == 2
    assert "number, category, date, text, ignored" in refused.err


# --- the test data choose nothing


def test_what_chooses_looks_at_a_part_that_is_held_out(caldera: Caldera, tmp_path: Path) -> None:
    table = _write(tmp_path / "flowers.csv", NAMES)
    words = ("train", "--data", table, "--hidden", "8", "--epochs", "2", "--quiet", "--keep-best")
    words = (*words, "--batch-size", "8", "--out", tmp_path / "run")
    done = caldera(*words)
    assert done.status == 0, done.err
    assert "38 samples to train, 10 to choose by, 12 to test" in done.out
    assert "chosen by val_loss on 21% held out of the training data (10 samples)" in done.out
    assert read_recipe(tmp_path / "run" / "recipe.toml")["validation_part"] == 0.2
    tested = caldera("eval", tmp_path / "run" / "flowers.caldera", "--data", table, "--json")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert json.loads(tested.out)["loss"] == pytest.approx(record["results"]["loss"], rel=1e-5)
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert record["results"]["loss"] not in history["columns"]["val_loss"]
    refused = caldera(*words, "--validation-part", "0")
    assert refused.status == 2
    assert "validation_part: expected above 0 with keep_best" in refused.err


def test_free_text_and_rare_classes(caldera: Caldera, tmp_path: Path) -> None:
    said = ["the engine is quiet and cold", "smoke and a loud knock in the engine"]
    rows = [
        f"{n},{said[n % 8 == 0]} at step {n},{'faulty' if n % 8 == 0 else 'good'}"
        for n in range(80)
    ]
    table = tmp_path / "engines.csv"
    table.write_text("\n".join(["heat,notes,state", *rows]))
    words = "--hidden 8 --epochs 6 --dropout 0 --batch-size 8 --quiet --target-column state"
    for weights in ("balanced", "faulty=7"):
        done = caldera(
            "train",
            "--data",
            table,
            *words.split(),
            "--class-weights",
            weights,
            "--out",
            tmp_path / "run",
        )
        assert done.status == 0, done.err
    assert "notes  text" in done.out
    new = tmp_path / "new.csv"
    path = tmp_path / "run" / "engines.caldera"
    new.write_text('heat,notes\n40,"a loud knock, and smoke"\n41,quiet and cold\n')
    said = csv.DictReader(io.StringIO(caldera("predict", path, new).out))
    assert [row["state"] for row in said] == ["faulty", "good"]
    refused = caldera("train", "--data", table, "--class-weights", "faulty")
    assert refused.status == 2
    assert "faulty=10" in refused.err


# --- predictions carry their rows


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on a table with identifiers."""
    folder = tmp_path_factory.mktemp("patients")
    ages = np.random.default_rng(0).normal(50, 9, 60)
    rows = [
        f"P-{n:03},{n},{age:.1f},{('no', 'yes')[n % 2]},{('well', 'ill')[n % 2]}"
        for n, age in enumerate(ages)
    ]
    (folder / "table.csv").write_text("\n".join(["patient,id,age,smokes,state", *rows]))
    words = "--target-column state --hidden 8 --epochs 4 --dropout 0 --batch-size 8 --quiet"
    assert (
        main(["train", "--data", f"{folder}/table.csv", *words.split(), "--out", str(folder)]) == 0
    )
    return folder


def test_predictions_come_with_identifiers_lines_and_reasons(
    caldera: Caldera, patients: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    new.write_text("id,smokes,age,patient\n7,yes,51.25,=P-1\n8,no,,P-2\n")
    model = patients / "table.caldera"
    done = caldera("predict", model, new, "--probabilities", "--explain")
    assert done.status == 0, done.err
    first, second = csv.DictReader(io.StringIO(done.out))
    assert (first["line"], first["id"], first["patient"]) == ("2", "7", "'=P-1")
    assert (second["line"], second["id"], second["patient"]) == ("3", "8", "P-2")
    assert (first["state"], second["state"]) == ("ill", "well")
    both = float(first["probability of ill"]) + float(first["probability of well"])
    assert both == pytest.approx(1, abs=2e-6)
    assert first["probability"] == first["probability of ill"]
    assert len(first["probability"].replace(".", "").lstrip("0")) <= 6
    reasons = [first["reason 1"], first["reason 2"]]
    assert sorted(each.partition("=")[0] for each in reasons) == ["age", "smokes"]
    assert any(each.startswith("age=51.25: ") for each in reasons)
    assert "age=missing: +0" in (second["reason 1"], second["reason 2"])
    without = caldera("predict", model, new, "--ignore-columns", "patient").out
    assert without.startswith("sample,line,id,state,probability\n")


def test_identifiers_called_as_reasons_stay(caldera: Caldera, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"R-{n},{n % 9},{('well', 'ill')[n % 2]}" for n in range(40)]
    table.write_text("\n".join(["reason 1,age,state", *rows]))
    words = "--target-column state --hidden 4 --epochs 1 --quiet --ignore-columns"
    trained = caldera("train", "--data", table, "--out", tmp_path, *words.split(), "reason 1")
    assert trained.status == 0, trained.err
    done = caldera("predict", tmp_path / "table.caldera", table, "--explain")
    first = next(csv.DictReader(io.StringIO(done.out)))
    assert first["reason 1"] == "R-0"
    assert first["predicted reason 1"].startswith("age=0: ")


def test_what_cannot_be_explained_is_refused(
    caldera: Caldera, patients: Path, trained: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 2), "float32"))
    for model in (patients / "table.caldera", trained / "digits.caldera"):
        x = np.zeros((1, 64 if model.stem == "digits" else len(load_model(model).schema.features)))
        np.save(tmp_path / "x.npy", x.astype("float32"))
        done = caldera("predict", model, tmp_path / "x.npy", "--explain")
        assert done.status == 2
        assert "--explain: expected a table, and a model that was trained on one" in done.err
    for name in ("--explain", "--probabilities"):
        words = [patients / "table.csv", name, "--out", tmp_path / "y.npy"]
        done = caldera("predict", patients / "table.caldera", *words)
        assert done.status == 2
        assert "expected a .csv file, got " in done.err


def test_mistakes_in_the_record_have_their_rows(caldera: Caldera, tmp_path: Path) -> None:
    """Where nothing can be learnt there are mistakes: each is found again in the file."""
    random = np.random.default_rng(3)
    rows = [f"P-{n},{random.normal():.3f},{n % 3},{'ab'[random.integers(2)]}" for n in range(120)]
    lines = ["patient,age,dose,state", *rows[:50], "", *rows[50:]]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    words = "--target-column state --hidden 8 --epochs 2 --dropout 0 --batch-size 8 --quiet"
    done = caldera(
        "train", "--data", tmp_path / "table.csv", *words.split(), "--out", tmp_path / "run"
    )
    assert done.status == 0, done.err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    mistakes = record["classes"]["mistakes"]
    assert mistakes
    for each in mistakes:
        line = lines[int(each["row"]["line"]) - 1].split(",")
        assert each["row"]["patient"] == line[0]
        assert float(each["row"]["age"]) == float(line[1])
        assert record["data"]["class_names"][each["true"]] == line[3]
    assert caldera("report", tmp_path / "run").status == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert mistakes[0]["row"]["patient"] in page


def test_faults_are_shown_before_training_and_on_the_page(caldera: Caldera, tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out"
    rows = [f"{-999 if n % 9 == 0 else n / 8},{n % 5 + 0.5},7,{'ab'[n % 2]}" for n in range(90)]
    table.write_text("\n".join(["x,z,same,y", *rows]))
    done = caldera("doctor", table)
    assert (done.status, done.out.splitlines()[-1][-13:]) == (0, "1 fault found")
    said = "fault   column 'x': -999 in 10 rows looks like a mark of missing values"
    words = "--hidden 4 --epochs 1 --dropout 0 --quiet --out"
    stopped = caldera("train", "--data", table, *words.split(), out, "--strict")
    assert (stopped.status, out.exists(), said in stopped.out) == (1, False, True)
    assert "expected no faults, got 1, listed above" in stopped.err
    done = caldera("train", "--data", table, *words.split(), out)
    assert done.out.startswith(said)
    assert "left out: the same value in each row" in done.out
    assert caldera("report", out).status == 0
    page = (out / "report.html").read_text()
    assert "-999 in 10 rows" in page
    assert "the same value in each row" in page
    done = caldera("doctor", table, "--missing-values=-999", "--strict")
    assert (done.status, "no faults found" in done.out) == (0, True)
