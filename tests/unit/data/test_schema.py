"""Schemas: columns are found by name, classes by theirs; nothing is taken for another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.data import Column, Schema
from caldera.errors import ConfigError, DataError

TEXT = "width,length,id,kind\n" + "1,10,7,rose\n2,20,8,iris\n3,30,9,rose\n"


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def schema(table) -> Schema:
    found = data.csv(table(TEXT), "kind", ignore=["id"], test=0, scale=False).schema
    assert found is not None
    return found


def test_a_table_says_what_its_columns_are(schema: Schema) -> None:
    assert schema == Schema(
        columns=(Column("width", "number", 0), Column("length", "number", 1)),
        target=Column("kind", "class", 3),
        classes=("iris", "rose"),
        ignored=("id",),
        width=4,
        reasons=("as told",),
    )


def test_it_goes_through_json(schema: Schema) -> None:
    again = Schema.from_plain(json.loads(json.dumps(schema.to_plain())), "a.caldera")
    assert again == schema


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "a newer Caldera"),
        ({"version": None}, "a schema of version 1 or 2"),
        ({"columns": 3}, "expected"),
        ({"columns": [{"name": "a", "kind": "poem", "position": 0}]}, "a newer Caldera"),
        ({"columns": [{"name": "a", "kind": "date", "position": 0}]}, "a date without an encoder"),
        ({"reasons": ["a", "b"]}, "2 reasons for 1 columns"),
        ({"columns": [{"name": "a", "kind": "number", "position": 9}]}, "damaged"),
        ({"columns": [{"name": "a", "kind": "number", "position": True}]}, "expected int"),
        ({"columns": [{"name": "kind", "kind": "number", "position": 0}]}, "damaged"),
        ({"classes": ["a", 1]}, "expected str, got 1"),
        ({"more": 1}, "another set of keys: more"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Schema, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Schema.from_plain(schema.to_plain() | change, "a.caldera")
    with pytest.raises(DataError, match="a schema of version"):
        Schema.from_plain([1], "a.caldera")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("length,width\n20,2\n", [[2, 20]]),
        ("kind,length,width\nrose,20,2\n", [[2, 20]]),
        ("id,length,kind,width\n5,20,,2\n", [[2, 20]]),
        # Without names, by position: inputs alone, or a table as it was.
        ("2,20\n", [[2, 20]]),
        ("2,20,5,rose\n", [[2, 20]]),
    ],
)
def test_columns_are_found(table, schema: Schema, text: str, expected: list[list[float]]) -> None:
    assert data.csv_inputs(table(text), schema).tolist() == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("width,kind\n1,rose\n", "the columns 'width', 'length', got no 'length'; the model"),
        (
            "width,lenght\n1,2\n",
            "got no 'length' and 'lenght', which .*; is 'lenght' the column 'length'",
        ),
        ("Width,length\n1,2\n", "is 'Width' the column 'width'"),
        ("width,length,age\n1,2,3\n", "got 'age', which it was not trained on; .*ignore="),
        ("width,length,width\n1,2,3\n", "'width' twice"),
        ("1,2,3\n", "expected 2 columns, or the 4 of the table .*, got 3"),
        (
            "width,length\nNA,1\n",
            "line 2: expected a value in column 0 .*, or leave the line",
        ),
    ],
)
def test_other_columns_are_refused(table, schema: Schema, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        data.csv_inputs(table(text), schema)


def test_unknown_columns_can_be_left_out(table, schema: Schema) -> None:
    path = table("age,length,width\n5,20,2\n")
    assert data.csv_inputs(path, schema, ignore=["age"]).tolist() == [[2, 20]]
    assert data.csv_inputs(table("5,2,20\n"), schema, ignore=[0]).tolist() == [[2, 20]]


def test_a_table_is_read_as_the_one_before(table, schema: Schema) -> None:
    path = table("kind,length,width\nrose,20,2\n rose ,30,3\n")
    found = data.csv(path, schema=schema, test=0)
    assert found.train.x.tolist() == [[2, 20], [3, 30]]
    assert found.train.y is not None
    # Alone, the table would call its only class 0.
    assert found.train.y.tolist() == [1, 1]
    assert (found.class_names, found.schema) == (schema.classes, schema)
    with pytest.raises(ConfigError, match="columns= or schema="):
        data.csv(path, schema=schema, columns=["width"])
    with pytest.raises(ConfigError, match="as in the schema"):
        data.csv(path, schema=schema, classes=False)
    renamed = table("answer,length,width\niris,20,2\n")
    answers = data.csv(renamed, "answer", schema=schema, test=0).train.y
    assert answers is not None
    assert answers.tolist() == [0]
    with pytest.raises(DataError, match=r"line 2: .*the classes iris, rose in .*'rosa'.*'rose'"):
        data.csv(table("width,length,kind\n1,2,rosa\n"), schema=schema)
    with pytest.raises(DataError, match="expected the column 'kind', which is predicted"):
        data.csv(table("width,length\n1,2\n"), schema=schema)


def test_whole_numbers_as_classes_and_values(table) -> None:
    first = data.csv(table("x,y\n1,0\n2,1\n3,2\n"), test=0, scale=False)
    again = data.csv(table("y,x\n2.0,5\n1,6\n"), schema=first.schema, test=0)
    assert again.train.y is not None
    assert (again.train.y.tolist(), again.train.x.tolist()) == ([2, 1], [[5], [6]])
    values = data.csv(table("x,y\n1,0\n2,1\n3,2\n"), test=0, classes=False)
    again = data.csv(table("y,x\n3,5\n1,6\n"), schema=values.schema, test=0)
    assert again.train.y is not None
    assert (again.classes, again.train.y.tolist()) == (0, [[3], [1]])


def test_it_stays_with_the_samples(table) -> None:
    found = data.csv(table(TEXT), "kind", ignore=["id"], test=1)
    pipeline = data.Pipeline(found.train, [lambda x, draw: x * 2])
    parts = (found.train, found.test, found.train.subset([0]), pipeline, pipeline.subset([1]))
    assert all(part.schema == found.schema for part in parts)
    assert found.transformed(train=[lambda x, draw: x]).schema == found.schema
    assert data.split(pipeline, test=0.5)[0].schema == found.schema
    named = data.arrays(np.eye(4), ["b", "a", "b", "a"], test=0)
    assert named.schema == Schema(classes=("a", "b"))
    assert replace(named, class_names=("x", "y")).test.schema == Schema(classes=("x", "y"))


@pytest.mark.parametrize("shape", [(0, 1), (0, 2), (0, 2, 3)])
def test_predictions_of_no_rows_are_decoded(shape: tuple[int, ...]) -> None:
    width = int(np.prod(shape[1:]))
    found = Schema((Column("x", "number", 0),), Column("y", "number", 1), (), width=1)
    values = found.decode(np.zeros(shape, np.float32))
    assert len(values) == width
    assert all(len(each) == 0 for each in values.values())


def test_percent_columns_are_described_in_per_cent() -> None:
    rows = [{"share": f"{n}%", "mass": f"{n} kg", "y": n / 7} for n in range(1, 30)]
    said = data.table(rows, "y", test=0).schema.describe()
    assert "mean 15%, deviation 8.367%\n" in said
    assert "mean 15, deviation 8.367, in kg\n" in said
