"""CSV files are read and written exactly, and a bad line is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import caldera as cd
from caldera import io as files
from caldera.core.tensor import dtype as dtypes
from caldera.errors import ConfigError, DataError, ShapeError


@pytest.fixture
def file(tmp_path):
    """A function that writes a text to a file and gives back its path."""

    def write(text: str):
        path = tmp_path / "table.csv"
        path.write_bytes(text.encode())
        return path

    return write


def test_plain_numbers(file):
    t = files.read_csv(file("1,2,3\n4,5.5,-6e-1\n"))
    assert t.dtype == dtypes.float32
    assert t.tolist() == [[1, 2, 3], [4, 5.5, np.float32(-0.6)]]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n3,4\n",
        "a,b\n1,2\n3,4",
        "a,b\r\n1,2\r\n3,4\r\n",
        "\ufeffa,b\n1,2\n3,4\n",
        "\na,b\n\n1,2\n\n3,4\n\n",
        '"first\nname","second, quoted"\n"1","2"\n3,4\n',
        "a,\n 1 , 2 \n3,4\n",
    ],
)
def test_a_line_of_names_is_found(file, text):
    assert files.read_csv(file(text)).tolist() == [[1, 2], [3, 4]]


def test_the_header_can_be_forced(file):
    path = file("2019,2020\n1,2\n")
    assert files.read_csv(path).shape == (2, 2)
    assert files.read_csv(path, header=True).tolist() == [[1, 2]]
    with pytest.raises(DataError, match="line 1: expected a number in column 0, got 'a'"):
        files.read_csv(file("a,b\n1,2\n"), header=False)


def test_one_column_and_one_row_are_matrices(file):
    assert files.read_csv(file("1\n2\n3\n")).shape == (3, 1)
    assert files.read_csv(file("1;2;3\n"), delimiter=";").shape == (1, 3)


def test_tabs_and_semicolons(file):
    assert files.read_csv(file("1\t2\n3\t4\n"), delimiter="\t").tolist() == [[1, 2], [3, 4]]
    assert files.read_csv(file("1;2\n3;4\n"), delimiter=";").tolist() == [[1, 2], [3, 4]]


def test_columns_by_name_and_number(file):
    path = file("name,width,length\niris,1,2\nrose,3,4\n")
    assert files.read_csv(path, columns=["length", 1]).tolist() == [[2, 1], [4, 3]]
    assert files.read_csv(path, columns=[-1]).tolist() == [[2], [4]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["lenght"], "a column named 'lenght', got name, width, length; did you mean 'length'?"),
        ([3], "expected column 3, got 3 columns"),
        (["name"], "line 2: expected a number in column 0 \\('name'\\), got 'iris'"),
    ],
)
def test_wrong_columns_are_refused(file, columns, message):
    with pytest.raises(DataError, match=message.replace("?", r"\?")):
        files.read_csv(file("name,width,length\niris,1,2\n"), columns=columns)


def test_names_need_a_line_of_names(file):
    with pytest.raises(DataError, match="a column named 'a', got no line of names"):
        files.read_csv(file("1,2\n"), columns=["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,4,5\n", "table.csv, line 2: expected 2 columns, got 3"),
        ("a,b\n1,2\n\n3\n", "table.csv, line 4: expected 2 columns, got 1"),
        ("a,b,c\n1,2\n", "line 2: expected 3 columns, got 2"),
        ("1,2\n3,x\n", "line 2: expected a number in column 1, got 'x'"),
        ("1,2\n3,\n", "line 2: expected a number in column 1, got ''"),
        ("1,2\n3,1_000\n", "line 2: expected a number in column 1, got '1_000'"),
        ("w,l\n1,2\n3,NA\n", r"line 3: expected a number in column 1 \('l'\), got 'NA'"),
        ('w,l\n"1\n",2\n3,y\n', "line 4: expected a number in column 1"),
        ("1,2\n3,1e39\n", "line 2: expected a number in the range of float32 in column 1"),
        ("1,x\n3,4\n", "line 1: .*; pass header=True if this line contains names"),
        ("", "expected lines of numbers, got an empty file"),
        ("\n\n", "expected lines of numbers, got an empty file"),
        ("a,b\n", "expected lines of numbers after the names, got none"),
        ('1,"2\n', "expected a CSV file"),
    ],
)
def test_bad_files_are_refused_with_the_line(file, text, message):
    with pytest.raises(DataError, match=message) as caught:
        files.read_csv(file(text))
    assert "\n" not in str(caught.value)


def test_the_count_of_columns_is_checked_among_those_not_wanted(file):
    with pytest.raises(DataError, match="line 3: expected 3 columns, got 4"):
        files.read_csv(file("a,b,c\n1,2,3\n4,5,6,7\n"), columns=["a"])


def test_infinities_and_nan_are_numbers(file):
    values = files.read_csv(file("inf,-inf\nnan,1\n")).numpy()
    assert np.isposinf(values[0, 0])
    assert np.isneginf(values[0, 1])
    assert np.isnan(values[1, 0])


@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("1,2.5\n", "int32", "an integer in column 1, got '2.5'"),
        ("1,300\n", "int8", "a number in the range of int8 in column 1, got '300'"),
        ("1,-1\n", "uint8", "a number in the range of uint8 in column 1, got '-1'"),
        ("1,2\n", "bool", "0 or 1 in column 1, got '2'"),
        ("1,70000\n", "float16", "a number in the range of float16 in column 1"),
    ],
)
def test_numbers_must_fit_the_dtype(file, text, dtype, message):
    with pytest.raises(DataError, match=message):
        files.read_csv(file(text), dtype=dtype)


def test_not_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"1,2\n\xff\xfe\n")
    with pytest.raises(DataError, match="expected UTF-8 text"):
        files.read_csv(path)
    path.write_bytes(b"1,2\n3,\x00\n")
    with pytest.raises(DataError, match=r"table\.csv"):
        files.read_csv(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(DataError, match=r"expected a file at .*none\.csv, got no such file"):
        files.read_csv(tmp_path / "none.csv")
    with pytest.raises(DataError, match="got no folder"):
        files.write_csv(tmp_path / "none" / "t.csv", cd.tensor([1]))
    with pytest.raises(DataError, match="got a folder"):
        files.read_csv(tmp_path)


@pytest.mark.parametrize("delimiter", ["", ",,", "1", ".", "e", '"', "\n"])
def test_delimiters_are_checked(file, delimiter):
    with pytest.raises(ConfigError, match="one character that no number contains"):
        files.read_csv(file("1,2\n"), delimiter=delimiter)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not dtypes.is_complex(d)], ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_every_value_comes_back_as_it_was(tmp_path_factory, dtype, data):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=4))
    as_bits = np.dtype(f"u{dtype.itemsize}")
    array = data.draw(hnp.arrays(bool if dtype == dtypes.bool_ else as_bits, shape)).view(dtype)
    files.write_csv(path, cd.tensor(array))
    result = files.read_csv(path, dtype=dtype).numpy()
    same_bits = result.view(as_bits) == array.view(as_bits)
    both_nan = (result != result) & (array != array)
    assert (same_bits | both_nan).all()


def test_names_are_written_and_found(tmp_path):
    path = tmp_path / "t.csv"
    files.write_csv(path, cd.tensor([[1.0, 2.0]]), header=["a;b", 'say "c"'], delimiter=";")
    assert path.read_text() == '"a;b";"say ""c"""\n1.0;2.0\n'
    assert files.read_csv(path, delimiter=";", columns=['say "c"']).tolist() == [[2]]


def test_a_vector_is_a_column_and_views_are_written_in_order(tmp_path):
    path = tmp_path / "t.csv"
    files.write_csv(path, cd.tensor([1, 2, 3])[::-1])
    assert path.read_text() == "3\n2\n1\n"
    files.write_csv(path, cd.tensor([[1, 2], [3, 4]], device="loopback", kind=cd.DEVICE).T)
    assert path.read_text() == "1,3\n2,4\n"


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ShapeError, match="expected a vector or a matrix, got shape"):
        files.write_csv(tmp_path / "t.csv", cd.Tensor((2, 2, 2)))
    with pytest.raises(ShapeError, match="expected 2 names, got 1"):
        files.write_csv(tmp_path / "t.csv", cd.Tensor((2, 2)), header=["a"])
    assert not (tmp_path / "t.csv").exists()
