"""Numbers as people write them: read as what was written, or refused; never as something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.data import Schema
from caldera.errors import DataError
from tests.fuzz import numbers as fuzz


@pytest.mark.parametrize("seed", [*range(30), 54, 91, 115, 224, 274, 486, 517, 608, 613, 7655])
def test_columns_are_read_as_written_or_refused(tmp_path: Path, seed: int) -> None:
    """A column that is trained on, and one of another convention for the model, from a file and for
    a service. The last seeds mix numbers and texts."""
    wrong = [case for case in fuzz.cases(seed, tmp_path) if case.what == "wrong"]
    assert not wrong


def test_numbers_among_texts_with_decimal_commas_are_refused() -> None:
    schema = _trained(["0,5", "1,25", "2,125", "3,0"])
    for given, numbers in (
        ([1.838, "2,5"], None),
        (["n/a", "1,838", 2.5], None),
        ([2, "2,5"], [2, 2.5]),
        ([1.5, "2.5"], [1.5, 2.5]),
    ):
        found = fuzz.or_refused(lambda given=given: data.table_inputs({"x": given}, schema))
        if numbers is None:
            assert found is None
        else:
            assert found[:, 0].tolist() == numbers
    with pytest.raises(DataError, match="all values of the column as numbers, or all as texts"):
        data.table({"x": ["0,5", 1.838, "2,125", "3,0"], "y": list("abab")}, "y", test=0)
    with pytest.raises(DataError, match="all as texts"):
        data.table({"x": [1, 2, 3, 4], "y": ["0,5", 1.838, "2,125", "3,0"]}, "y", test=0)


def _trained(cells: list[str], **more: Any) -> Schema:
    rows = {"x": cells, "y": ["a", "b"] * (len(cells) // 2)}
    schema = data.table(rows, "y", test=0, scale=False, **more).schema
    assert schema is not None
    return schema


@pytest.mark.parametrize(
    ("trained", "given", "expected"),
    [
        # Three decimals look like a group of thousands.
        (["0,5", "1,25", "2,125", "3,0"], ["0.961", "2.5"], [0.961, 2.5]),
        (["0,5", "1,25", "2,125", "3,0"], ["0.961"], [0.961]),
        (["0.5", "1.25", "2.125", "3.0"], ["0,234"], [0.234]),
        (["0.5", "1.25", "2.125", "3.0"], ["1,234"], None),
        (["0,5", "1,25", "2,125", "3,0"], ["1.234"], None),
        (["0.5", "1.25", "2.125", "3.0"], ["1.234"], [1.234]),
        (["1,250.5", "3.5", "12,000", "7"], ["1,250"], [1250]),
        (["1000", "2000", "3500", "9999"], ["1.234"], None),
        (["1000", "2000", "3500", "9999"], ["1.234", "1.250,5"], [1234, 1250.5]),
        (["12%", "0.5%", "7%", "33.25 %"], ["12,5 %"], [0.125]),
        (["12%", "0.5%", "7%", "33.25 %"], ["12.5"], None),
        (["5 kg", "7.5 kg", "80 kg", "9 kg"], ["7 lb"], None),
    ],
)
def test_a_table_of_another_convention(
    trained: list[str], given: list[str], expected: list[float] | None
) -> None:
    schema = Schema.from_plain(json.loads(json.dumps(_trained(trained).to_plain())), "m")
    found = fuzz.or_refused(lambda: data.table_inputs({"x": given}, schema))
    if expected is None:
        assert found is None
    else:
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_what_is_left_open_is_refused_or_said(tmp_path: Path) -> None:
    cells = ["1,234", "5,678", "9,012", "3,456"]
    with pytest.raises(
        DataError, match=r"1234 with a decimal point and 1\.234 with a decimal comma"
    ):
        _trained(cells)
    assert _trained(cells, decimal=",").columns[0].seen[-1] == 9.012
    assert _trained(cells, decimal=".").columns[0].seen[-1] == 9012
    # Another column of the table decides.
    rows = {"x": cells, "z": ["0,5", "1,5", "2,5", "3,75"], "y": list("abab")}
    schema = data.table(rows, "y", test=0).schema
    assert schema is not None
    assert schema.columns[0].seen[-1] == 9.012
    path = tmp_path / "new.csv"
    path.write_text("x;z\n4.321;0.25\n")
    assert data.table_inputs(path, schema, decimal=".").shape == (1, 2)
    # A first line of numbers holds no names, whatever their decimal mark is.
    path.write_text("0,5;a\n1,5;b\n2,5;a\n3,5;b\n")
    assert len(data.table(path, test=0).train) == 4


def test_old_files_have_no_more_than_a_decimal_mark() -> None:
    plain = _trained(["0,5", "1,25", "2,125", "3,0"]).to_plain()
    old = {"mean": 0.0, "scale": 1.0, "median": 0.0, "marks_missing": False, "decimal": ","}
    (column,) = plain["columns"]
    del column["seen"]
    schema = Schema.from_plain(plain | {"columns": [column | {"number": old}]}, "m")
    assert data.table_inputs({"x": ["0.961", "7,5".replace(",", ".")]}, schema)[0, 0] == np.float32(
        0.961
    )
    with pytest.raises(DataError, match="an unambiguous number"):
        data.table_inputs({"x": ["1.234"]}, schema)
