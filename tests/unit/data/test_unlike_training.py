"""What training saw of each column is kept in the model, and inputs far outside are told of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.data import Schema
from caldera.errors import DataError
from caldera.serve.http import Limits, Refusal
from caldera.serve.samples import RequestReader
from caldera.serve.signature import Contract
from tests.cli.conftest import Caldera
from tests.cli.conftest import caldera as caldera  # the fixture

ROWS = {
    "area": np.linspace(30, 150, 60),
    "sold": np.datetime64("2024-01-01") + np.arange(60),
    "said": [f"a quiet flat number {n} near the river" for n in range(60)],
    "city": ["Roma", "Oslo"] * 30,
    "price": np.linspace(1000, 2000, 60),
}
USUAL = {"area": 170.0, "sold": "2024-04-01", "said": "a flat", "city": "Oslo"}
FAR = USUAL | {"area": 1e5, "sold": "2044-04-01", "said": "flat " * 400}
PARTS = (
    "far outside the training data, of 3 rows: ",
    "column 'area' in 2 (30 to 150)",
    "column 'sold' in 2 (2024-01-01 to 2024-02-29)",
    "column 'said' in 2 (8 words to 8 words)",
)


@pytest.fixture(scope="module")
def schema() -> Schema:
    found = data.table(ROWS, "price", classes=False, test=0).schema
    assert found is not None
    return Schema.from_plain(json.loads(json.dumps(found.to_plain())), "m")


def test_what_is_far_is_said_in_one_line_and_refused_if_wanted(schema: Schema) -> None:
    data.table_inputs([USUAL], schema, strict=True)
    with pytest.warns(UserWarning, match="far outside") as said:
        data.table_inputs([USUAL, FAR, FAR], schema)
    (message,) = [str(each.message) for each in said]
    assert all(part in message for part in PARTS)
    with pytest.raises(DataError, match="rows like the training rows of the model"):
        data.table_inputs([USUAL, FAR], schema, strict=True)
    with pytest.raises(DataError, match="unknown categories"):
        data.table_inputs([USUAL | {"city": "Bern"}], schema, strict=True)
    # A table that is tested with says so among its notes.
    new = {name: list(column) for name, column in ROWS.items()}
    new["area"][0] = 1e5
    notes = data.table(new, schema=schema, test=0).notes
    assert "of 60 rows: column 'area' in 1 (30 to 150)" in notes[0]


def test_a_service_notes_and_refuses_it(schema: Schema) -> None:
    contract = Contract("m", "table", (len(schema.features),), "float32", schema, (), (1,))
    body = json.dumps({"samples": [USUAL, FAR, FAR]}).encode()
    (note,) = RequestReader(contract, Limits()).read("application/json", body).notes
    assert all(part in note for part in PARTS)
    strict = RequestReader(contract, Limits(strict=True))
    with pytest.raises(Refusal, match="column 'area' in 2") as refused:
        strict.read("application/json", body)
    assert refused.value.status == 422
    # An empty field is no value: the median is, and the answer says so.
    usual = json.dumps({"samples": [USUAL | {"area": ""}]}).encode()
    (note,) = RequestReader(contract, Limits()).read("application/json", usual).notes
    assert note == "column 'area': 1 missing, taken for the median 90"
    with pytest.raises(Refusal, match="1 missing"):
        strict.read("application/json", usual)
    (note,) = (
        RequestReader(contract, Limits()).read("text/csv", b"area,sold,said,city\n1,,a,Oslo").notes
    )
    assert "column 'sold': 1 missing" in note


def test_models_keep_it_and_answers_have_notes(tmp_path: Path) -> None:
    found = data.table({"x": np.arange(40.0), "y": np.arange(40.0)}, "y", classes=False, test=0)
    model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mean_squared", epochs=1)
    model.fit(found.train, verbose=0)
    again = cd.load(model.save(tmp_path / "m.caldera"))
    with pytest.warns(UserWarning, match="far outside"):
        answer = again.predict({"x": [5, 5000]})
    (note,) = answer.notes
    assert note == "table: far outside the training data, of 2 rows: column 'x' in 1 (0 to 39)"
    assert answer[1:].notes == answer.notes
    assert type(answer + 1) is np.ndarray
    assert isinstance(answer.mean(), np.floating)
    assert repr(answer) == repr(np.asarray(answer))
    assert again.predict({"x": [5]}).notes == ()
    assert type(again.predict(np.zeros((1, 1), "float32"))) is np.ndarray


def test_what_a_damaged_file_says_is_refused(schema: Schema) -> None:
    plain = schema.to_plain()
    for wrong in ([1.0], [2.0, 1.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0, "inf"]):
        columns = [plain["columns"][0] | {"seen": wrong}, *plain["columns"][1:]]
        with pytest.raises(DataError, match="the range"):
            Schema.from_plain(plain | {"columns": columns}, "m")


def test_numbers_as_they_are_are_watched_too() -> None:
    schema = data.table({"x": np.arange(40.0), "y": list("ab") * 20}, "y", scale=False).schema
    with pytest.warns(UserWarning, match=r"column 'x' in 1 \("):
        data.table_inputs({"x": [-500]}, schema)


def test_the_command_line_says_it_and_refuses_it(caldera: Caldera, tmp_path: Path) -> None:
    table, new = tmp_path / "t.csv", tmp_path / "new.csv"
    rows = [f"{n / 8},{n % 5}.5,{'ab'[n % 2]}" for n in range(60)]
    table.write_text("\n".join(["x,z,y", *rows]))
    words = "--hidden 4 --epochs 1 --dropout 0 --quiet --out"
    assert caldera("train", "--data", table, *words.split(), tmp_path / "out").status == 0
    new.write_text("x,z\n1.5,2.5\n900.5,\n")
    model = tmp_path / "out" / "t.caldera"
    done = caldera("predict", model, new)
    assert (done.status, len(done.out.splitlines())) == (0, 3)
    notes = [line for line in done.err.splitlines() if "far outside" in line]
    assert len(notes) == 1
    assert notes[0].startswith(
        "note    new.csv: far outside the training data, of 2 rows: column 'x'"
    )
    assert "column 'z': 1 missing" in done.err
    refused = caldera("predict", model, new, "--strict")
    assert (refused.status, refused.out) == (1, "")
    assert "expected rows like the training rows of the model" in refused.err
    assert "--strict" in refused.err
    new.write_text("x,z,y\n1.5,2.5,a\n9000.5,3.5,b\n")
    assert "note    " in caldera("eval", model, "--data", new, "--part", "all").err


def test_the_drift_of_a_column_is_told_of_enough_rows() -> None:
    random = np.random.default_rng(0)
    rows = {"x": random.normal(size=500), "z": random.uniform(size=500), "y": np.arange(500.0)}
    schema = data.table(rows, "y").schema
    new = {"x": random.normal(size=40), "z": random.uniform(size=40)}
    assert data.table_inputs(new, schema).shape == (40, 2)  # warnings are errors
    new["x"] += 1
    with pytest.warns(UserWarning, match=r"drift.* of 40 rows: column 'x' in [12]\d%$"):
        data.table_inputs(new, schema)
    data.table_inputs({name: each[:19] for name, each in new.items()}, schema)
