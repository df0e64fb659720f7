"""Codes are not numbers: texts that differ are different classes and categories, and classes are
those that occur; rows that are left out are counted by column and value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.data import Dataset
from caldera.errors import DataError
from tests.cli.conftest import Caldera
from tests.cli.conftest import caldera as caldera  # the fixture


def _table(path: Path, cells: list[str], name: str = "y") -> Path:
    rows = [f"{n / 7:.4f},{cell}" for n, cell in enumerate(cells)]
    path.write_text("\n".join([f"x,{name}", *rows]) + "\n")
    return path


def _classes(found: Dataset) -> list[str]:
    assert found.train.y is not None
    return [found.class_names[each] for each in found.train.y.tolist()]


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["01", "1", "2"], ("01", "1", "2")),
        (["007", "008", "007"], ("007", "008")),
        (["1", "2", "3"], ("1", "2", "3")),
        (["0", "2", "5"], ("0", "2", "5")),
        (["1", "1.0", "2"], ("1", "1.0", "2")),
        # One way to write a number is its name, whichever it is.
        (["1.0", "2.0", "10.0"], ("1", "2", "10")),
        (["-1", "1", "-1"], ("-1", "1")),
    ],
)
def test_classes_are_those_that_occur(tmp_path: Path, cells: list[str], names: Any) -> None:
    found = data.table(_table(tmp_path / "t.csv", cells * 4), test=0)
    assert found.class_names == names
    wanted = [each if each in names else each.removesuffix(".0") for each in cells * 4]
    assert _classes(found) == wanted
    again = data.table(tmp_path / "t.csv", schema=found.schema, test=0)
    assert _classes(again) == wanted


def test_labels_of_arrays_that_begin_with_one_have_no_class_zero() -> None:
    found = data.arrays(np.zeros((6, 1)), [1, 2, 3] * 2, test=0)
    assert found.class_names == ("1", "2", "3")
    assert found.train.y is not None
    assert found.train.y.tolist() == [0, 1, 2] * 2


def test_a_class_that_is_a_code_is_no_other(tmp_path: Path) -> None:
    schema = data.table(_table(tmp_path / "t.csv", ["1", "2", "3"] * 4), test=0).schema
    for strange in ("01", "4"):
        with pytest.raises(DataError, match=f"one of the classes 1, 2, 3 .* got '{strange}'"):
            data.table(_table(tmp_path / "new.csv", ["1", strange]), schema=schema, test=0)
    same = data.table(_table(tmp_path / "new.csv", ["1.0", "3"]), schema=schema, test=0)
    assert _classes(same) == ["1", "3"]


def test_leading_zeros_make_a_category() -> None:
    rows = {"zip": ["01234", "1234", "5678", "01234"] * 5, "y": ["a", "b", "a", "b"] * 5}
    found = data.table(rows, "y", test=0)
    assert found.schema is not None
    assert found.schema.features == ("zip=01234", "zip=1234", "zip=5678")
    assert "'01234' has a leading zero, so these are codes" in found.notes[0]
    new = data.table_inputs({"zip": ["1234", "01234"]}, found.schema)
    assert new.tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.warns(UserWarning, match=r"unknown categories \('05678'\)"):
        assert not data.table_inputs({"zip": ["05678"]}, found.schema).any()
    many = data.table({"zip": [f"{n:05}" for n in range(60)], "x": range(60), "y": list("ab") * 30})
    assert many.schema is not None
    assert many.schema.ignored == ("zip",)
    told = data.table(rows, "y", kinds={"zip": "number"}, test=0, scale=False)
    assert told.train.x[:2, 0].tolist() == [1234, 1234]


def test_rows_that_are_left_out_are_counted_by_column_and_value(tmp_path: Path) -> None:
    cells = ["EU", "NA", "SA", "", "NA", "EU"] * 5
    path = _table(tmp_path / "t.csv", cells, "region")
    found = data.table(path, test=0)
    assert found.class_names == ("EU", "SA")
    assert found.dropped == 15
    (note,) = found.notes
    assert note.startswith("15 rows left out for missing values: column 1 ('region'): ")
    assert "'NA' in 10" in note
    assert "nothing in 5" in note
    assert "classes=True (--targets classes)" in note
    kept = data.table(path, classes=True, test=0)
    assert kept.class_names == ("EU", "NA", "SA")
    assert _classes(kept) == [each for each in cells if each]
    assert kept.notes == ("5 rows left out for missing values: column 1 ('region'): nothing in 5",)
    for source in ([{"x": n, "y": each} for n, each in enumerate(cells)], {"y": cells, "x": cells}):
        assert "'NA' in 10" in data.table(source, "y", kinds={"x": "category"}, test=0).notes[0]
    both = {"a": ["1", "?", "3", None] * 3, "b": ["5", "6", "n/a", "8"] * 3, "y": list("pq") * 6}
    (note,) = data.table(both, "y", missing="drop", test=0).notes
    assert note == (
        "9 rows left out for missing values: column 0 ('a'): '?' in 3 and nothing in 3, "
        "column 1 ('b'): 'n/a' in 3"
    )
    reviews = {"text": ["NA", "good thing", "bad", "null"], "kind": ["NA", "EU", "NA", "EU"]}
    words = data.texts(reviews, text="text", target="kind", test=0)
    assert words.class_names == ("EU", "NA")


def test_train_tells_and_predict_names_classes(caldera: Caldera, tmp_path: Path) -> None:
    path = _table(tmp_path / "t.csv", (["01"] * 9 + ["1"] * 9 + ["NA"] * 3 + ["3"] * 9) * 2)
    words = "--hidden 8 --epochs 2 --dropout 0 --batch-size 8 --quiet --out"
    done = caldera("train", "--data", path, *words.split(), tmp_path / "out")
    assert done.status == 0, done.err
    assert "3 classes (6 rows without all values dropped)" in done.out
    assert "note    6 rows left out for missing values: column 1 ('y'): 'NA' in 6" in done.out
    new = tmp_path / "new.csv"
    new.write_text("x\n0.1\n4.0\n")
    said = caldera("predict", tmp_path / "out" / "t.caldera", new)
    place = said.out.splitlines()[0].split(",").index("y")
    assert {line.split(",")[place] for line in said.out.splitlines()[1:]} <= {"01", "1", "3"}
    done = caldera("train", "--data", path, "--targets", "classes", *words.split(), tmp_path / "na")
    assert "4 classes" in done.out
