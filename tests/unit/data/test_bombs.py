"""Small tables that unpack to a great deal are refused before memory is taken."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
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
    for rows, said in (
        (wide, "requires"),
        (tall, "1048576 rows"),
        (many, "requires"),
        (growing, "requires"),
    ):
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
    with pytest.raises(DataError, match=r"requires at most 64|got lists"):
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


# Members of gzip one after the other are one text, and so are streams of bzip2 and xz.
_TEXTS: dict[str, tuple[str, bytes, int]] = {
    "two columns": ("csv.gz", b"0,1\n", 7),
    "one column": ("csv.bz2", b"1\n", 7),
    "empty lines": ("csv.xz", b"\n", 7),
    "old lines": ("csv.gz", b"1\r", 7),
    "other delimiter": ("csv.gz", b"1:" * 30 + b"1\n", 10),
    "one cell": ("csv.gz", b"x", 9),
    "objects": ("jsonl.gz", b"{}\n", 7),
    "lists": ("json.gz", b"[],", 8),
}


@pytest.mark.parametrize("kind", list(_TEXTS))
def test_packed_text_is_counted_by_its_cells(tmp_path: Path, kind: str) -> None:
    suffix, piece, blocks = _TEXTS[kind]
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[suffix[-3:].strip(".")]
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(pack(piece * ((1 << 20) // len(piece))) * blocks)
    assert path.stat().st_size < 60_000
    with pytest.raises(DataError, match="requires at most 64"):
        _read(path, delimiter=":" if kind == "other delimiter" else None)


def test_honest_packed_text_is_read(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((2_000, 10)).round(3)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert len(_read(tmp_path / "a.csv.gz")) == 2_000


def test_a_batch_that_the_footer_names_many_times(tmp_path: Path) -> None:
    file = BytesIO()
    batch = pa.record_batch({"a": np.zeros(100_000)})
    with pa.ipc.new_file(
        file, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        for number in range(200):
            writer.write_batch(batch if not number else batch.slice(0, 1))
    raw = bytearray(file.getvalue())
    size = int.from_bytes(raw[-10:-6], "little")
    start = len(raw) - 10 - size
    block = struct.Struct("<qi4xq")
    for at in range(start, len(raw) - 24, 4):
        (place, head, body), (following, *_) = (block.unpack_from(raw, at + n) for n in (0, 24))
        if 0 < place < 4096 and head > 0 and following == place + head + body:
            raw[at : at + 200 * 24] = raw[at : at + 24] * 200
            break
    path = tmp_path / "a.feather"
    path.write_bytes(raw)
    with pytest.raises(DataError, match="requires at most 64"):
        _read(path)


def test_offsets_that_lead_out_of_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.feather"
    feather.write_feather(pa.table({"a": ["x", "yy", "zzz"]}), path, compression="uncompressed")
    offsets = np.array([0, 1, 3, 6], "<i4").tobytes()
    wrong = np.array([0, 1, 1 << 30, 6], "<i4").tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, wrong))
    with pytest.raises(DataError, match=r"expected a \.feather file"):
        _read(path)
    path.write_bytes(b"FEA1" + content[4:])
    with pytest.raises(DataError, match="Feather 2"):
        _read(path)


def _varint(value: int, length: int = 0) -> bytes:
    digits = max(length, -(-value.bit_length() // 7))
    parts = [value >> 7 * i & 127 for i in range(digits)]
    return bytes(each | 128 for each in parts[:-1]) + bytes(parts[-1:])


def test_pages_are_counted_by_their_own_headers(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({f"c{i}": pa.array(["x" * (12 << 20)]) for i in range(6)})
    parquet.write_table(
        table, path, compression="zstd", write_statistics=False, dictionary_pagesize_limit=1 << 30
    )
    group = parquet.ParquetFile(path).metadata.row_group(0)
    stated = {group.total_byte_size, *[group.column(i).total_uncompressed_size for i in range(6)]}
    raw = path.read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    foot = raw[start:]
    for each in stated:
        wanted = _varint(2 * each)
        foot = foot.replace(wanted, _varint(2 * 1000, len(wanted)))
    path.write_bytes(raw[:start] + foot)
    assert parquet.ParquetFile(path).metadata.row_group(0).total_byte_size == 1000
    with pytest.raises(DataError, match="requires at most 64"):
        _read(path)


def test_databases_that_compute(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    long = "b AS (zeroblob(200000000)) VIRTUAL"
    for name, command in (
        ("view", f"CREATE VIEW v AS {endless}"),
        ("long", f"CREATE TABLE t (a, {long})"),
    ):
        base = sqlite3.connect(tmp_path / f"{name}.db")
        base.execute(command)
        if name == "long":
            base.execute("INSERT INTO t (a) VALUES (1)")
        base.commit()
        base.close()
    with pytest.raises(DataError, match="got 0 tables"):
        _read(tmp_path / "view.db")
    with pytest.raises(DataError, match="too big"):
        _read(tmp_path / "long.db")
    with pytest.raises(DataError, match="requires at most 64"):
        _read(tmp_path / "view.db", query="SELECT * FROM v")


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
