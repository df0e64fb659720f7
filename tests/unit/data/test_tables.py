"""Data sets from CSV and npz files."""

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
        found = data.csv(path, target, test=0)
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
    found = data.csv(path, "the kind", delimiter=";", test=0)
    assert found.class_names == ("a; b", "c")
    assert found.train.x.tolist() == [[1.5], [2.0]]


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("", -1, "an empty file"),
        ("a,b\n", -1, "2 columns after the line of names"),
        ("1\n2\n", -1, "columns beside the target"),
        ("1,2\n3,x\n", -1, "line 2: expected a number in column 1"),
        ("1,a\nx,b\n", -1, "line 2: expected a number in column 0"),
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
    found = data.csv(path, "price", columns=["area", 1], classes=False, test=0)
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
        ("a;b;name\n1;2;x\n", r"divided by ';'\? Pass it as the delimiter"),
        ("a;b;name\n1,5;2;x\n", r"divided by ';'"),
        ("a\tb\n1\t2\n", r"divided by '\\t'"),
        ("a,b,name\n1,2,x\n,4,y\n", "line 3: .*'a'.* got ''; fill it in, or leave the line out"),
        ("city,b,price\nRome,2,3.5\nOslo,1,2.5\n", "got 'Rome'; leave the column out"),
        ("a,b,kind\n1,2,x\n", "did you mean 'kind'"),
    ],
)
def test_what_is_wrong_comes_with_a_way_out(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    target = "kinds" if "kind" in text else -1
    with pytest.raises(DataError, match=said):
        data.csv(path, target)
