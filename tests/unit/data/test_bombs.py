"""Small tables that unpack to a great deal are refused before memory is taken."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.data.tables.reading import TableFormat, read_table
from caldera.data.tables.table import Table
from caldera.errors import CalderaError, DataError

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")
openpyxl = pytest.importorskip("openpyxl")

_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


@pytest.fixture(autouse=True)
def small_limit() -> Any:
    """64 MiB, so that what would break it is quickly made."""
    before = cd.settings.file_limit
    cd.settings.file_limit = 64 << 20
    yield
    cd.settings.file_limit = before


def _read(path: Path, **how: Any) -> Table:
    return read_table(path, "data.table", TableFormat(**how))


def _workbook(path: Path, rows: str) -> Path:
    """A workbook whose only sheet has these rows."""
    openpyxl.Workbook().save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    text = f'<worksheet xmlns="{_SHEET}"><sheetData>{rows}</sheetData></worksheet>'
    parts["xl/worksheets/sheet1.xml"] = text.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return path


def test_sheets_of_many_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    wide = "".join(f'<row r="{i}"><c r="XFD{i}"><v>1</v></c></row>' for i in range(1, 100))
    tall = "".join(f'<row r="{i}"><c r="A{i}"><v>1</v></c></row>' for i in (1, 2_000_000))
    many = "<row><c><v>1</v></c></row>" * 800_000
    growing = "<row><c><v>1</v></c></row>" * 2000 + '<row><c r="XFD2001"><v>1</v></c></row>'
    for rows, said in ((wide, "asks"), (tall, "1048576 rows"), (many, "asks"), (growing, "asks")):
        with pytest.raises(DataError, match=said):
            _read(_workbook(path, rows))


def test_rows_of_a_sheet_may_have_any_lengths(tmp_path: Path) -> None:
    rows = [["a", "b"], ["1"], ["2", "3", "4"]]
    text = "".join(
        "<row>" + "".join(f'<c t="inlineStr"><is><t>{x}</t></is></c>' for x in row) + "</row>"
        for row in rows
    )
    found = _read(_workbook(tmp_path / "a.xlsx", text), header=True)
    assert (found.names, len(found), found.width) == (("a", "b", ""), 2, 3)


_BOMBS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: pa.table({"a": pa.array(np.zeros(8_000_000))}),
    "lists": lambda: pa.table({"a": pa.array([[0] * 10_000] * 400)}),
    "dates": lambda: pa.table({"a": pa.array(np.zeros(2_000_000, "datetime64[s]"))}),
    "texts": lambda: pa.table({"a": pa.array([""] * 4_000_000)}),
}


@pytest.mark.parametrize("kind", list(_BOMBS))
@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_columns_of_equal_values(tmp_path: Path, kind: str, suffix: str) -> None:
    path, table = tmp_path / f"a.{suffix}", _BOMBS[kind]()
    if suffix == "parquet":
        parquet.write_table(table, path, compression="zstd")
    else:
        feather.write_feather(table, path, compression="zstd")
    assert path.stat().st_size < 500_000
    with pytest.raises(DataError, match=r"asks for at most 64|got lists"):
        _read(path)


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_a_long_text_in_each_row_is_in_memory_once(tmp_path: Path, suffix: str) -> None:
    path, long = tmp_path / f"a.{suffix}", "x" * 100_000
    places = pa.array(np.zeros(2000, np.int32))
    table = pa.table({"a": pa.DictionaryArray.from_arrays(places, pa.array([long]))})
    (parquet.write_table if suffix == "parquet" else feather.write_feather)(table, path)
    columns = read_table(path, "data.table", TableFormat()).columns
    assert columns[0][0] == columns[0][-1] == long


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_honest_columns_are_read(tmp_path: Path, compression: str) -> None:
    columns = {
        "number": [0.5, -1.25, 3.0],
        "whole": [1, 2, None],
        "text": ["a", None, "b"],
        "truth": [True, False, True],
    }
    table = pa.table(columns)
    coded = table.set_column(2, "text", table["text"].dictionary_encode())
    feather.write_feather(coded, tmp_path / "a.feather", compression=compression)
    parquet.write_table(coded, tmp_path / "a.parquet")
    for name in ("a.feather", "a.parquet"):
        found = _read(tmp_path / name)
        assert (found.names, len(found)) == (tuple(columns), 3)


def _damaged(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    if draw.random() < 0.3:
        return bytes(changed[: draw.randrange(len(changed))])
    for _ in range(draw.choice((1, 1, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("suffix", ["xlsx", "parquet", "feather"])
def test_damaged_tables_are_read_or_refused_in_words(tmp_path: Path, suffix: str) -> None:
    path, draw = tmp_path / f"a.{suffix}", random.Random(7)
    table = pa.table({"a": [1.5, 2.5, 3.5] * 5, "b": ["x", "y", "z"] * 5})
    if suffix == "parquet":
        parquet.write_table(table, path)
    elif suffix == "feather":
        feather.write_feather(table, path, compression="zstd")
    else:
        book = openpyxl.Workbook()
        for row in zip(*table.to_pydict().values(), strict=True):
            book.active.append(row)
        book.save(path)
    whole = path.read_bytes()
    for _ in range(150):
        path.write_bytes(_damaged(whole, draw))
        try:
            _read(path)
        except CalderaError:
            continue
