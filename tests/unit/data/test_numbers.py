"""Numbers as people write them: read as what was written, or refused; never as something else."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.data import Schema
from caldera.data.tables.reading import TableFormat, read_table
from caldera.errors import DataError
from caldera.serve.http import Limits
from caldera.serve.samples import RequestReader
from caldera.serve.signature import Contract


def _written(
    value: Decimal,
    decimal: str,
    group: str = "",
    *,
    sizes: tuple[int, int] = (3, 3),
    around: str = "{}",
    minus: str = "-{}",
    hundred: bool = False,
    exponent: bool = False,
) -> str:
    """A number in a convention: its groups have `sizes` digits, the last one and those before."""
    size = value.copy_abs().scaleb(2 if hundred else 0)
    if exponent:
        text = f"{size:e}".replace(".", decimal)
    else:
        whole, _, fraction = f"{size:f}".partition(".")
        parts = [whole[-sizes[0] :]] if group else [whole]
        whole = whole[: -sizes[0]] if group else ""
        while whole:
            parts.insert(0, whole[-sizes[1] :])
            whole = whole[: -sizes[1]]
        text = group.join(parts) + (decimal + fraction if fraction else "")
    text = around.format(text)
    return minus.format(text) if value < 0 else text


CONVENTIONS: dict[str, dict[str, Any]] = {
    "point": {"decimal": "."},
    "comma": {"decimal": ","},
    "american": {"decimal": ".", "group": ","},
    "german": {"decimal": ",", "group": "."},
    "french": {"decimal": ",", "group": "\u202f"},
    "space": {"decimal": ".", "group": " "},
    "swiss": {"decimal": ".", "group": "'"},
    "indian": {"decimal": ".", "group": ",", "sizes": (3, 2)},
    "exponent": {"decimal": ".", "exponent": True},
    "comma and exponent": {"decimal": ",", "exponent": True},
    "per cent": {"decimal": ",", "around": "{} %", "hundred": True},
    "kilograms": {"decimal": ".", "around": "{} kg"},
    "euro": {"decimal": ",", "group": ".", "around": "{} \u20ac"},
    "dollar": {"decimal": ".", "group": ",", "around": "${}"},
    "minus sign": {"decimal": ".", "minus": "\u2212{}"},
    "parentheses": {"decimal": ".", "group": ",", "minus": "({})"},
    "minus after": {"decimal": ",", "group": ".", "minus": "{}-"},
}


def _drawn(random: Random, count: int, places: int, largest: float) -> list[Decimal]:
    step = Decimal(1).scaleb(-places)
    return [
        Decimal(repr(random.choice((1, 1, -1)) * largest ** random.uniform(-0.5, 1))).quantize(step)
        for _ in range(count)
    ]


def _source(random: Random, texts: list[str], path: Path) -> Any:
    rows = [{"x": text, "y": "ab"[n % 2]} for n, text in enumerate(texts)]
    delimiter = random.choice([",", ";", "\t", ""])
    if not delimiter:
        return rows
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([["x", "y"], *(row.values() for row in rows)])
    return path


def _or_refused(read: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except DataError:
        return None


def _reader(schema: Schema, *, strict: bool = False) -> RequestReader:
    contract = Contract("m", "table", (len(schema.features),), "float32", schema, (), (1,))
    return RequestReader(contract, Limits(strict=strict))


@pytest.mark.parametrize("seed", range(40))
def test_columns_are_read_as_written_or_refused(tmp_path: Path, seed: int) -> None:
    """Found by 42,000 numbers: a column that is trained on, and one of another convention for the
    model, from a file and for a service."""
    random = Random(seed)
    known, other = random.choices(list(CONVENTIONS), k=2)
    places, largest = random.choice([0, 1, 2, 3, 3, 4]), random.choice([10.0, 1e3, 1e6])
    values = [_drawn(random, count, places, largest) for count in (random.choice([2, 9, 30]), 3)]
    path = tmp_path / "t.csv"
    texts = [_written(each, **CONVENTIONS[known]) for each in values[0]]
    trained = _source(random, texts, path)
    found = _or_refused(lambda: data.table(trained, "y", kinds={"x": "number"}, test=0))
    if found is None:
        return
    column = found.schema.columns[0]
    read = column.parse(read_table(trained, "t", TableFormat()), 0)
    np.testing.assert_array_equal(read, [float(each) for each in values[0]])
    wanted = np.array([float(each) for each in values[1]])
    features = ((wanted - column.number.mean) / column.number.scale).astype(np.float32)
    texts = [_written(each, **CONVENTIONS[other]) for each in values[1]]
    given = _source(random, texts, path)
    rows = io.StringIO()
    csv.writer(rows).writerows([["x"], *([text] for text in texts)])
    lists = json.dumps({"samples": [{"x": text} for text in texts]})
    reader = _reader(found.schema)
    for again in (
        _or_refused(lambda: data.table_inputs(given, found.schema)),
        _or_refused(lambda: reader.read("text/csv", rows.getvalue().encode()).x),
        _or_refused(lambda: reader.read("application/json", lists.encode()).x),
    ):
        if again is not None:
            np.testing.assert_allclose(again[:, 0], features, rtol=1e-4, atol=1e-4)


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
    found = _or_refused(lambda: data.table_inputs({"x": given}, schema))
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
    with pytest.raises(DataError, match="in one way"):
        data.table_inputs({"x": ["1.234"]}, schema)
