"""Columns of every kind: guessed, told, learnt from the training rows alone, and applied again."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
import warnings
from datetime import date, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.cli.build import make_network
from caldera.cli.recipe import complete
from caldera.data import Schema
from caldera.errors import ConfigError, DataError

ROWS: dict[str, list[Any]] = {
    "id": list(range(30)),
    "age": [20.0 + n if n % 7 else None for n in range(30)],
    "city": [["Roma", "Oslo", None][n % 3] for n in range(30)],
    "since": [f"2024-{n % 12 + 1:02}-15" for n in range(30)],
    "member": [n % 2 == 0 for n in range(30)],
    "motto": [f"motto {n}" for n in range(30)],
    "unit": ["kg"] * 30,
    "nothing": [None] * 30,
    "kind": [["a", "b"][n % 2] for n in range(30)],
}


def _kinds(schema: Schema | None) -> dict[str, str]:
    assert schema is not None
    return {column.name: column.kind for column in schema.columns}


def test_kinds_are_guessed_shown_and_told() -> None:
    found = data.table(ROWS, "kind", test=0)
    assert _kinds(found.schema) == {
        "age": "number",
        "city": "category",
        "since": "date",
        "member": "category",
    }
    assert found.schema is not None
    assert found.schema.ignored == ("id", "motto", "unit", "nothing")
    said = found.schema.describe().splitlines()
    assert len(said) == len(ROWS)
    assert any(line.startswith("motto    left out   30 different texts") for line in said)
    assert found.schema.features[:5] == (
        "age",
        "age is missing",
        "city=Oslo",
        "city=Roma",
        "city is missing",
    )
    told = data.table(ROWS, "kind", kinds={"id": "number", "age": "category", "city": "ignore"})
    assert _kinds(told.schema) == {
        "id": "number",
        "age": "category",
        "since": "date",
        "member": "category",
    }
    for wrong, problem in (({"city": "poem"}, "got 'poem'"), ({"town": "date"}, "'town'")):
        with pytest.raises((ConfigError, DataError), match=problem):
            data.table(ROWS, "kind", kinds=wrong)
    with pytest.raises(DataError, match=r"row 0: expected a number in column 2 \('city'\), got 'R"):
        data.table(ROWS, "kind", kinds={"city": "number"})
    with pytest.raises(DataError, match=r"row 0: expected a date such as 2024-05-31"):
        data.table(ROWS, "kind", kinds={"city": "date"})


def test_only_training_rows_are_learnt_from() -> None:
    x = np.arange(50.0)
    rows = {"x": x, "c": [f"c{n}" for n in range(50)], "y": x * 3 + 1}
    found = data.table(rows, "y", kinds={"c": "category"}, test=0.4, seed=3)
    schema = found.schema
    assert schema is not None
    assert schema.target_scale is not None
    train = (found.train.y[:, 0] - 1) / 3  # type: ignore[index]
    assert schema.columns[0].number is not None
    assert schema.columns[0].number.mean == pytest.approx(train.mean())
    assert schema.target_scale.scale == pytest.approx(3 * train.std())
    assert schema.columns[1].category is not None
    seen = {f"c{int(n)}" for n in train}
    # Of many categories, rare ones have no feature: all of these.
    assert seen
    assert schema.columns[1].category.rare == len(seen)
    assert np.abs(found.train.x[:, 0].mean()) < 1e-6
    assert np.abs(found.test.x[:, 0].mean()) > 1e-3


def test_new_rows_in_any_order_with_gaps_and_unknown_categories() -> None:
    schema = data.table(ROWS, "kind", test=0).schema
    usual = {"age": 30, "city": "Oslo", "since": "2024-03-01", "member": True}
    swapped = dict(reversed(usual.items()))
    first = data.table_inputs([usual], schema)
    np.testing.assert_array_equal(first, data.table_inputs([swapped], schema))
    text = {key: [str(value)] for key, value in usual.items()}
    np.testing.assert_array_equal(first, data.table_inputs(text, schema))
    typed = usual | {"since": date(2024, 3, 1), "age": np.float32(30)}
    np.testing.assert_array_equal(first, data.table_inputs([typed], schema))
    with pytest.warns(UserWarning, match=r"column 'city': 1 of unknown categories \('Bern'\)"):
        strange = data.table_inputs([usual | {"city": "Bern"}], schema)
    assert strange[0, 2:5].tolist() == [0, 0, 0]
    with pytest.warns(UserWarning, match="column 'age': 1 missing, taken for the median 35"):
        gap = data.table_inputs([usual | {"age": None}], schema)
    assert gap[0, 1] == 1
    with pytest.raises(DataError, match="no 'member'"):
        data.table_inputs([{"age": 1, "city": "Oslo", "since": "2024-03-01"}], schema)
    with pytest.raises(DataError, match=r"row 0: expected a date .* got 'soon'"):
        data.table_inputs([usual | {"since": "soon"}], schema)
    again = Schema.from_plain(json.loads(json.dumps(schema.to_plain())), "m")  # type: ignore[union-attr]
    assert again == schema


def test_a_regression_is_trained_on_one_scale_and_predicts_in_units(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 64)
    rows = {"x": x, "price": 5_000_000 + 200_000 * x}
    found = data.table(rows, "price", classes=False, test=0.25)
    layers = [nn.Input(found.shape), nn.Dense(found.outputs)]
    model = cd.NeuralNetwork(
        layers, loss="mean_squared", optimizer="sgd", learning_rate=0.1, batch_size=8, epochs=12
    )
    history = model.fit(found.train, verbose=0)
    assert history["loss"][0] < 5
    assert history["mae"][-1] < 5_000
    assert found.test.y is not None
    assert np.abs(model.predict(found.test.x) - found.test.y).mean() < 5_000
    assert model.evaluate(found.test)["mae"] < 5_000
    again = cd.load(model.save(tmp_path / "price.caldera"))
    said = again.schema.decode(again.predict({"x": [0.5]}))  # type: ignore[union-attr]
    assert said["price"][0] == pytest.approx(5_100_000, rel=2e-3)
    # Plans that were made for one scale are not used for another.
    again.schema = None
    assert abs(float(again.predict(np.zeros((1, 1), "float32"))[0, 0])) < 5
    other = data.table({"x": x, "price": x}, "price", classes=False)
    with pytest.raises(DataError, match="encoded as in training"):
        model.fit(other.train, verbose=0)


def test_every_category_seen_five_times_keeps_a_feature() -> None:
    names = [f"item {n}" for n in range(400) for _ in range(5)]
    rows = {"item": [*names, *("rare",) * 4], "y": np.arange(2004.0)}
    schema = data.table(rows, "y", test=0).schema
    assert schema is not None
    assert schema.columns[0].category is not None
    assert sorted(schema.columns[0].category.categories) == sorted(set(names))
    assert schema.columns[0].category.rare == 1


def test_vectors_of_categories_have_a_width_by_rule() -> None:
    x = cd.tensor(np.zeros((2, 883), "float32"))
    layer = nn.ColumnEmbedding([(0, 3), (3, 34), (34, 834)], width=None)
    layer(x)
    assert [each.shape for each in layer.parameters()] == [(3, 2), (31, 14), (800, 32)]
    found = make_network(complete({"model": "mlp"}), (60,), 2, 10, [(0, 20), (20, 60)])
    (embedding,) = [each for _, each in found.children() if isinstance(each, nn.ColumnEmbedding)]
    assert embedding.spans == [[20, 60]]


def test_categories_can_have_vectors(tmp_path: Path) -> None:
    found = data.table(ROWS, "kind", test=0)
    assert found.schema is not None
    assert found.schema.category_spans == [(2, 5), (10, 12)]
    layer = nn.ColumnEmbedding(found.schema.category_spans, width=2)
    model = cd.NeuralNetwork([nn.Input(found.shape), layer, nn.Dense(2)], epochs=1)
    model.fit(found.train, verbose=0)
    weights = [each.numpy() for each in layer.parameters()]
    assert [each.shape for each in weights] == [(3, 2), (2, 1)]
    x = found.train.x
    with nn.trace():
        given = layer(cd.tensor(x)).numpy()
    rest = np.concatenate([x[:, :2], x[:, 5:10]], axis=1)
    expected = np.concatenate([rest, x[:, 2:5] @ weights[0], x[:, 10:12] @ weights[1]], axis=1)
    np.testing.assert_allclose(given, expected, rtol=1e-6)
    again = cd.load(model.save(tmp_path / "m.caldera"))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


# --- files


def _same(found: data.Dataset, wanted: data.Dataset) -> None:
    assert found.schema == wanted.schema
    np.testing.assert_array_equal(found.train.x, wanted.train.x)


def test_every_file_gives_the_same_table(tmp_path: Path) -> None:
    rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    wanted = data.table(ROWS, "kind")
    _same(data.table(rows, "kind"), wanted)
    texts = [["" if each is None else str(each) for each in row.values()] for row in rows]
    lines = "\n".join("\t".join(row) for row in (list(ROWS), *texts))
    tsv, packed = tmp_path / "t.tsv", tmp_path / "t.csv.gz"
    tsv.write_text(lines)
    packed.write_bytes(gzip.compress(lines.replace("\t", ";").encode("utf-16")))
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.json").write_text(json.dumps(rows))
    base = sqlite3.connect(tmp_path / "t.sqlite")
    base.execute("CREATE TABLE people (" + ", ".join(map(repr, ROWS)) + ")")
    marks = ", ".join("?" * len(ROWS))
    base.executemany(
        f"INSERT INTO people VALUES ({marks})",
        [
            ["true" if v is True else "false" if v is False else v for v in row.values()]
            for row in rows
        ],
    )
    base.commit()
    for name in ("t.tsv", "t.csv.gz", "t.jsonl", "t.json", "t.sqlite"):
        _same(data.table(tmp_path / name, "kind"), wanted)
    assert data.table(tmp_path / "t.csv.gz", "kind").name == "t"
    few = data.table(base, "kind", query="SELECT age, kind FROM people WHERE age > 30")
    assert len(few.train) + len(few.test) < 30
    with pytest.raises(DataError, match="a query that works, got no such table"):
        data.table(base, "kind", query="SELECT * FROM animals")
    base.close()
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a whole \.gz file"):
        data.table(packed)


def test_frames_and_files_of_other_packages(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pytest.importorskip("openpyxl")
    wanted = data.table(ROWS, "kind")
    frame = pandas.DataFrame(ROWS)
    _same(data.table(frame, "kind"), wanted)
    frame["city"] = frame["city"].astype("category")
    _same(data.table(frame, "kind"), wanted)
    frame["since"] = pandas.to_datetime(frame["since"])
    _same(data.table(frame, "kind"), wanted)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_excel(tmp_path / "t.xlsx", index=False, sheet_name="people")
    _same(data.table(tmp_path / "t.parquet", "kind"), wanted)
    _same(data.table(tmp_path / "t.xlsx", "kind"), wanted)
    with pytest.raises(DataError, match="a sheet among people"):
        data.table(tmp_path / "t.xlsx", sheet="animals")
    for name in ("t.parquet", "t.xlsx"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not at all")
        with pytest.raises(DataError):
            data.table(tmp_path / name)


def test_packages_that_are_not_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (("pyarrow.parquet", "pyarrow"), ("openpyxl", "openpyxl")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        path = tmp_path / ("t.parquet" if name == "pyarrow" else "t.xlsx")
        path.write_bytes(b"x")
        with pytest.raises(ConfigError, match=f"pip install {name}"):
            data.table(path)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1,5", "2,25", "-3,0"], [1.5, 2.25, -3]),
        (["1.250,5", "3", "1.000.000"], [1250.5, 3, 1e6]),
        (["1,250.5", "3", "1,000,000"], [1250.5, 3, 1e6]),
        (["1 250", "3'000", "12"], [1250, 3000, 12]),
        (["1e3", " 4 ", "+.5"], [1000, 4, 0.5]),
        (["1.5", "-", "n/a"], [1.5, np.nan, np.nan]),
    ],
)
def test_numbers_as_people_write_them(cells: list[str], expected: list[float]) -> None:
    found = data.table({"x": cells, "y": ["a", "b", "a"]}, "y", test=0)
    assert found.schema is not None
    encoder = found.schema.columns[0].number
    assert encoder is not None
    values = found.train.x[:, 0] * encoder.scale + encoder.mean
    known = ~np.isnan(expected)
    np.testing.assert_allclose(values[known], np.array(expected)[known], rtol=1e-5)


def test_dates_as_people_write_them() -> None:
    days = [datetime(2024, month, day) for month, day in ((1, 31), (5, 2), (12, 24))]
    target = ["a", "b", "a"]
    for written in ("%d.%m.%Y", "%d/%m/%Y", "%b %d, %Y", "%Y/%m/%d", "%Y-%m-%d %H:%M"):
        texts = [day.strftime(written) for day in days]
        found = data.table({"when": texts, "y": target}, "y", test=0).schema
        wanted = data.table({"when": days, "y": target}, "y", test=0).schema
        assert found is not None
        assert wanted is not None
        assert found.columns[0].date is not None
        assert wanted.columns[0].date is not None
        assert found.columns[0].date.days == wanted.columns[0].date.days
    both = {"when": ["03/04/2024", "05/06/2024", "01/02/2024"], "y": target}
    said = data.table(both, "y", test=0).notes
    assert "'03/04/2024' is ambiguous" in said[0]
    assert "date:%d/%m/%Y" in said[0]
    for kind, median in (("date", 19786), ("date:%d/%m/%Y", 19816)):
        column = data.table(both, "y", test=0, kinds={"when": kind}).schema.columns[0]  # type: ignore[union-attr]
        assert column.date is not None
        assert column.date.days.median == median


# --- odd tables


def _odd_cell(kind: str, random: Random, row: int) -> str:
    return {
        "huge": f"{random.choice((1, -1))}e{random.randint(250, 307)}",
        "unicode": random.choice(["Ünï", "日本", "😀 x", "\u200bz"]),
        "quotes": random.choice(['say "hi"', "a,b;c|d\te", "two\nlines", "=1+1"]),
        "truth": random.choice(["True", "false"]),
        "dates": random.choice(["2024-01-02", "03.04.2024", "05/13/2024"]),
        "day": f"{random.randint(1, 28)}.{random.randint(1, 12)}.2024",
        "gaps": random.choice(["NA", "?", "null", "", "x", "y"]),
        "grouped": f"{random.randint(0, 10**7):,}.5",
        "comma": f"{random.gauss(0, 100):.3f}".replace(".", ","),
        "mostly": "oops" if row == 3 else str(row * 1.5),
        "one": "same",
        "none": "",
        "number": repr(random.gauss(0, 1)),
        "id": str(row),
    }[kind]


def _read_or_refused(path: Path) -> data.Dataset | None:
    try:
        return data.table(path, "target", test=0)
    except DataError as error:
        said = str(error)
    assert re.search("expected .*, got ", said)
    return None


@pytest.mark.parametrize("seed", range(24))
def test_odd_tables_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Found by thousands of seeds against pandas; what was read is read again as the same."""
    random = Random(seed)
    kinds = [
        "huge",
        "unicode",
        "quotes",
        "truth",
        "dates",
        "day",
        "gaps",
        "grouped",
        "comma",
        "mostly",
        "one",
        "none",
        "number",
        "id",
    ]
    chosen = [random.choice(kinds) for _ in range(random.randint(1, 6))]
    names = [
        random.choice([f"c{place}", f"c{place}", "", "c0", 'q"x']) for place in range(len(chosen))
    ]
    rows = [
        [*(_odd_cell(kind, random, row) for kind in chosen), random.choice("ab")]
        for row in range(random.choice((3, 30)))
    ]
    path = tmp_path / "odd.csv"
    with path.open("w", newline="", encoding=random.choice(["utf-8", "utf-16"])) as file:
        csv.writer(file, delimiter=random.choice(",;\t|")).writerows([[*names, "target"], *rows])
    found = _read_or_refused(path)
    if found is None:
        return
    assert found.schema is not None
    assert np.isfinite(found.train.x).all()
    again = Schema.from_plain(json.loads(json.dumps(found.schema.to_plain())), "m")
    assert again == found.schema
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(data.table_inputs(path, again), found.train.x)
