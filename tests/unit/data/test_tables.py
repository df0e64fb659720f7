"""Data sets from text files and npz files; test_mixed_tables.py has the other kinds of columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caldera import data
from caldera.errors import DataError
from tests.unit.data.files import survives_damage


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return write


def test_texts_are_classes(table) -> None:
    path = table("a,kind,b\n" + "1,rose,2\n3,iris,4\n" * 4)
    for target in ("kind", 1, -2):
        found = data.csv(path, target, test=0, scale=False)
        assert found.name == "table"
        assert found.shape == (2,)
        assert found.class_names == ("iris", "rose")
        assert found.train.x.tolist() == [[1, 2], [3, 4]] * 4
        assert found.train.y is not None
        assert found.train.y.tolist() == [1, 0] * 4


def test_few_whole_numbers_are_classes_and_many_are_values(table) -> None:
    digits = data.csv(table("\n".join(f"{n / 2},{n % 3}" for n in range(30))), test=0.5)
    assert digits.classes == 3
    assert (len(digits.train), len(digits.test)) == (15, 15)
    path = table("\n".join(f"{n},{n * 10}" for n in range(30)))
    prices = data.csv(path, test=0)
    assert prices.classes == 0
    assert prices.train.y is not None
    assert prices.train.y.shape == (30, 1)
    assert prices.train.y.dtype == np.float32
    assert prices.train.y[:, 0].tolist() == [n * 10 for n in range(30)]
    assert data.csv(path, test=0, classes=True).classes == 30


def test_fractions_are_values_unless_classes_are_asked_for(table) -> None:
    path = table("1,0.5\n2,1.5\n3,0.5\n")
    assert data.csv(path, test=0).classes == 0
    forced = data.csv(path, test=0, classes=True)
    assert forced.class_names == ("0.5", "1.5")
    whole = data.csv(table("1,1\n2,2\n"), test=0, classes=False)
    assert whole.train.y is not None
    assert whole.train.y.tolist() == [[1.0], [2.0]]


def test_large_numbers_stay_apart_as_classes(table) -> None:
    found = data.csv(table("1,900000001\n2,900000002\n"), test=0, classes=True)
    assert found.class_names == ("900000001", "900000002")


def test_quotes_delimiters_and_empty_lines(table) -> None:
    path = table('x;"the kind"\n\n1.5;"a; b"\n2;c\n\n')
    found = data.csv(path, "the kind", test=0, scale=False)
    assert found.class_names == ("a; b", "c")
    assert found.train.x.tolist() == [[1.5], [2.0]]


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("", -1, "an empty file"),
        ("a,b\n", -1, "columns in addition to the target"),
        ("1\n2\n", -1, "columns in addition to the target"),
        ("1,2\n3,x\n", -1, "line 2: expected a number in column 1"),
        ("1,a\n2\n", -1, "line 2: expected 2 columns"),
        ("a,b\n1,2,3\n", -1, "2 columns after the line of names, got 3"),
        ("a,b\n1,2\n", "c", "a column named 'c', got a, b"),
        ("1,2\n", "c", "no line of names"),
        ("1,2\n", 2, "column 2, got 2 columns"),
        ('1,"open\n', -1, "a CSV file"),
    ],
)
def test_wrong_tables_are_refused(table, text: str, target: int | str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.csv(table(text), target)


def test_texts_cannot_be_values(table) -> None:
    with pytest.raises(DataError, match="numbers to predict"):
        data.csv(table("1,a\n2,b\n"), classes=False)


def test_damaged_tables_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    content = b'a,"b c",kind\n1,2.5,x\n-3,4e2,"y"\n'
    survives_damage(content, path, lambda: data.csv(path), must_refuse=False)


def test_npz_of_x_and_y(tmp_path: Path) -> None:
    path = tmp_path / "points.npz"
    x = np.random.default_rng(0).random((10, 3))
    np.savez(path, x=x, y=np.arange(10) % 2)
    found = data.npz(path, test=3, seed=2)
    assert (found.name, len(found.train), len(found.test)) == ("points", 7, 3)
    assert found.train.dtype == np.float32
    rows = np.sort(np.concatenate([found.train.x, found.test.x])[:, 0])
    np.testing.assert_array_equal(rows, np.sort(x[:, 0].astype(np.float32)))


def test_npz_that_is_divided(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    x = np.full((4, 2, 2), 255, np.uint8)
    np.savez_compressed(path, x_train=x, y_train=[0, 1, 2, 2], x_test=x[:2], y_test=[3, 0])
    found = data.npz(path)
    assert (len(found.train), len(found.test), found.classes) == (4, 2, 4)
    assert found.train.x.max() == 1
    assert data.npz(path, scale=None).train.dtype == np.uint8


def test_npz_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(DataError, match="x_train, y_train, x_test and y_test, got a"):
        data.npz(path)
    np.savez(path, x=np.zeros(3), y=np.array([{}, {}, {}], object))
    with pytest.raises(DataError):
        data.npz(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": np.zeros((3, 2)), "y": np.arange(4)},
        {"x": np.zeros((3, 2)), "y": np.array(1)},
        {"x": np.array(1.0), "y": np.array(1)},
        {"x_test": np.zeros((2, 3))},
        {"y_test": np.zeros((2, 1), int)},
        {"y_test": np.array(1)},
        {"y_train": np.array(1)},
        {"x_test": np.array(0.0)},
    ],
    ids=lambda each: ", ".join(f"{name} {array.shape}" for name, array in each.items()),
)
def test_npz_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, wrong: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "wrong.npz"
    right = {
        "x_train": np.zeros((4, 2)),
        "y_train": np.arange(4),
        "x_test": np.zeros((2, 2)),
        "y_test": np.arange(2),
    }
    np.savez(path, **(wrong if "x" in wrong else {**right, **wrong}))
    with pytest.raises(DataError, match="arrays that belong together"):
        data.npz(path)


def test_damaged_npz_files_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "points.npz"
    np.savez_compressed(path, x=np.zeros((4, 1)), y=np.arange(4) % 2)
    content = path.read_bytes()
    survives_damage(content, path, lambda: data.npz(path), every=5)


# --- files as people have them


def test_only_the_columns_that_are_named(tmp_path: Path) -> None:
    path = tmp_path / "houses.csv"
    path.write_text("city,rooms,area,price\n" + "Rome,3,70.5,900\nOslo,2,55,700\n" * 5)
    found = data.csv(path, "price", columns=["area", 1], classes=False, test=0, scale=False)
    assert found.train.x[:2].tolist() == [[70.5, 3.0], [55.0, 2.0]]
    assert found.train.y is not None
    assert found.train.y[:2].tolist() == [[900.0], [700.0]]
    # Also where the target is among them.
    assert data.csv(path, "price", columns=["area", "price"], test=0).shape == (1,)
    with pytest.raises(DataError, match="did you mean 'area'"):
        data.csv(path, "price", columns=["aera"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a;b\n1;2\n3;4;5\n", r"divided by ';'\? Pass it as the delimiter"),
        ("a,b,kind\n1,2,x\n", "did you mean 'kind'"),
    ],
)
def test_what_is_wrong_comes_with_a_way_out(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    target = "kinds" if "kind" in text else -1
    with pytest.raises(DataError, match=said):
        data.csv(path, target)


# --- never silently wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # What is infinite is no number to learn from.
        ("x,y\n1,0\ninf,1\n", r"line 3: expected a finite number .*column 0 \('x'\), got 'inf'"),
        ("x,y\n1,0\n1e400,1\n", "line 3: expected a finite number in the range of float32"),
        ("x,y\n1,0.5\n2,1e400\n", r"line 3: .*column 1 \('y'\), got '1e400'"),
        ("x,y\n1,0.5\n2,1e39\n", "line 3: expected a finite number"),
        # What only looks like names of classes.
        ("x,y\n1,a\n2,3\n3,b\n", "line 2: expected a number .*classes=True"),
        ("x,y\n" + "".join(f"{n},id{n}\n" for n in range(50)), "50 different texts in 50 rows"),
        ("2019,2020,kind\n1,2,a\n3,4,b\n5,6,a\n3,4,b\n", "header=True"),
        # Names that tell nothing.
        ("a,b,a\n1,2,3\n2,3,4\n", "a distinct name for each column, got 'a' for columns 0 and"),
        ("a,b,\n1,2,0\n2,3,1\n", "a name for column 2, got ''; does each line end with"),
        # The usual accidents.
        ("x,y\n1,0\n2\n", "line 3: expected 2 columns, got 1"),
        ("x,y\n1,0\n2,1,\n", "line 3: expected 2 columns, got 3"),
        ("1,2,\n3,4,\n", "expected rows with all values, got none among 2"),
        ("x,y\n1,a\0\n2,a\n", "the file is damaged"),
        ("y\n1\n", "columns in addition to the target"),
        ("x,y\n" + "1,0\n2,1\n" * 15 + "abc,1\n", "line 32: expected a number, as most .*'abc'"),
    ],
)
def test_what_could_be_taken_for_something_else_is_refused(table, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        data.csv(table(text), test=0)
    assert "\n" not in str(caught.value)


def test_rows_without_all_values_are_filled_dropped_or_refused(table) -> None:
    text = "x,y\n1,0\n2,nan\n,1\n3,1\nNA,0\n4,2\n"
    dropped = data.csv(table(text), test=0, missing="drop", scale=False)
    assert dropped.train.x.tolist() == [[1], [3], [4]]
    assert dropped.train.y is not None
    assert dropped.train.y.tolist() == [0, 1, 2]
    assert (dropped.classes, dropped.dropped) == (3, 3)
    assert "3 rows dropped" in repr(dropped)
    with pytest.raises(DataError, match=r"line 3: .*column 1 \('y'\), got ''.*missing=\"drop\""):
        data.csv(table(text), test=0, missing="refuse")
    with pytest.raises(DataError, match="rows with all values, got none among 1"):
        data.csv(table("x,y\n1,nan\n"))
    filled = data.csv(table(text), test=0)
    assert filled.dropped == 1
    # The median of 1, 3 and 4, and a feature that says what is missing.
    mean, deviation = np.mean([1, 3, 4]), np.std([1, 3, 4])
    expected = [[1, 0], [3, 1], [3, 0], [3, 1], [4, 0]]
    np.testing.assert_allclose(
        filled.train.x, [[(x - mean) / deviation, gone] for x, gone in expected], rtol=1e-6
    )


def test_large_labels_stay_apart_to_the_last_digit(table) -> None:
    labels = ["9007199254740992", "9007199254740993", "18446744073709551617"]
    for given in (labels[:2], labels):
        found = data.csv(table("x,y\n" + "".join(f"1,{y}\n2,{y}\n" for y in given)), test=0)
        assert found.class_names == tuple(given)
    close = data.csv(table("1,0.1234567\n2,0.1234568\n3,2.0\n"), test=0, classes=True)
    assert close.class_names == ("0.1234567", "0.1234568", "2")
    assert data.arrays(np.zeros((2, 1)), [0.1234567, 0.1234568], classes=True).class_names == (
        "0.1234567",
        "0.1234568",
    )


def test_a_header_and_classes_can_be_said(table) -> None:
    named = data.csv(table("2019,2020,kind\n1,2,a\n3,4,b\n"), test=0, header=True)
    assert named.schema is not None
    assert named.schema.names == ("2019", "2020")
    assert len(data.csv(table("1,2,a\n3,4,b\n"), test=0, header=False).train) == 2
    mixed = data.csv(table("x,y\n1,a\n2,3\n"), test=0, classes=True)
    assert mixed.class_names == ("3", "a")
    # A column without a name, such as the numbers of rows that pandas writes, is left out.
    index = data.csv(table(",x,y\n0,5,1\n1,6,0\n"), test=0, scale=False)
    assert index.train.x.tolist() == [[5], [6]]


def test_comments_at_the_start_of_a_file_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "machines.csv"
    body = "load\theat\tfault\n" + "".join(f"{n}\t{n % 9}.5 C\t{n % 2}\n" for n in range(40))
    path.write_text("# exported by hand\n# second line\n" + body)
    found = data.table(path, "fault")
    assert found.schema.names == ("load", "heat")
    assert "2 lines of comments left out at the start" in found.notes[0]
    path.write_text("#" + body)
    assert data.table(path, "fault").schema.names == ("#load", "heat")
    path.write_text(f"# by hand\n{body}7\t9999\t1\n")
    with pytest.raises(DataError, match=r"line 43: expected a number with the unit 'C'.*'9999'"):
        data.table(path, "fault")
