"""Readers of tables: text files, Parquet, Excel, JSON, databases, and frames in memory."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from sys import getsizeof
from typing import IO, Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.file_access import Demand
from caldera.base.registry import optional_import
from caldera.data.tables.arrow_files import arrow_columns, table_columns
from caldera.data.tables.numbers import POINT, is_plain, read_number
from caldera.data.tables.table import MARKS, Table, Values, objects, table_of
from caldera.data.tables.text_parsing import parse_text
from caldera.errors import CalderaError, ConfigError, DataError
from caldera.io.csv_files import Header
from caldera.io.files import file_size, opened

TEXT = (".csv", ".tsv", ".tab", ".txt", ".data")
COMPRESSED: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}
ARROW = (".parquet", ".pq", ".feather", ".arrow")
EXCEL = (".xlsx", ".xlsm")
JSON_LINES = (".jsonl", ".ndjson", ".json")
DATABASES = (".sqlite", ".sqlite3", ".db")
SUFFIXES = (*TEXT, *ARROW, *EXCEL, *JSON_LINES, *DATABASES)
_BLOCK = 1 << 20
_A_LETTER, _A_CELL = 4, 64
"""Bytes that a workbook takes in memory for each of its XML, and for each cell of its rows."""
_A_BYTE, _A_LINE = 8, 256
"""Bytes of memory for each byte and for each line of text; for cells as above."""
_BETWEEN_CELLS = ",;\t|[{"
"""Characters between the values of compressed text, CSV or JSON."""
_MOST_ROWS = 1 << 20
_LONGEST_VALUE = 1_000_000_000
"""Bytes of a value of SQLite."""


@dataclass(frozen=True)
class TableFormat:
    """Options for reading a table that cannot be derived from the file."""

    delimiter: str | None = None
    header: Header = "auto"
    encoding: str | None = None
    sheet: str | int | None = None
    query: str | None = None
    missing_values: Sequence[str] = ()

    @property
    def marks(self) -> Collection[str]:
        """Texts that say that a value is missing."""
        return MARKS | {str(each).strip().lower() for each in self.missing_values}


def is_table_file(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is a table, judged by its name.

    >>> is_table_file("a.csv.gz"), is_table_file("a.parquet"), is_table_file("a.npz")
    (True, True, False)
    """
    return suffix_of(path) in SUFFIXES


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a file name, without the suffix of its compression."""
    return unpacked_name(path).suffix.lower()


_SCALARS = (str, bytes, int, float, date, np.generic, type(None))


def unpacked_name(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file without the suffix of its compression.

    >>> unpacked_name("a.csv.gz").name, unpacked_name("a.csv").name
    ('a.csv', 'a.csv')
    """
    name = Path(path)
    return name.with_suffix("") if name.suffix.lower() in COMPRESSED else name


def is_table(value: Any) -> bool:
    """Return True for a table in memory, a connection to a database, or the path of a file."""
    are_rows = isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value)
    is_file_or_columns = isinstance(value, str | os.PathLike | Mapping)
    return (
        is_file_or_columns
        or (are_rows and bool(value))
        or _is_frame(value)
        or _is_connection(value)
    )


def read_table(source: Any, where: str, reading: TableFormat) -> Table:
    """Return the table of a file, a frame, a query, columns by name or a list of rows."""
    found = _read_source(source, where, reading)
    numbers = [float(each) for each in reading.marks if is_plain(each)]
    if not np.isfinite(numbers).any():
        return found
    return replace(found, columns=tuple(_without(each, numbers) for each in found.columns))


def _without(column: Values, numbers: Sequence[float]) -> Values:
    """Return a column in which these numbers, however they are written, are missing values."""
    if column.dtype.kind == "f":
        return np.where(np.isin(column, numbers), np.nan, column)
    if column.dtype != object:
        return column
    read = {each: read_number(each, POINT) for each in set(column) - {None}}
    gone = {each for each, number in read.items() if number and float(number.plain) in numbers}
    return objects([None if each in gone else each for each in column])


def _read_source(source: Any, where: str, reading: TableFormat) -> Table:
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source).expanduser(), where, reading)
    if _is_connection(source):
        return _query(source, where, reading)
    if _is_frame(source):
        return table_of(_frame_columns(source), where, reading.marks)
    if isinstance(source, Mapping):
        check_one_part(source, where)
        return table_of(source, where, reading.marks)
    if isinstance(source, list | tuple) and all(isinstance(each, Mapping) for each in source):
        return table_of_rows(source, where, reading.marks)
    raise ConfigError.build(
        where,
        expected="the path of a table, a frame, columns by name, a list of rows or a "
        "connection to a database",
        got=type(source).__name__,
        hint="arrays have no columns with names: use data.arrays(x, y)",
    )


def check_one_part(source: Any, where: str) -> None:
    """Raise an error for a dict of data sets of Hugging Face."""
    if isinstance(source, Mapping) and type(source).__module__.startswith("datasets."):
        raise ConfigError.build(
            where,
            expected="one part of a data set",
            got=f"all sheets: {', '.join(map(str, source))}",
            hint=f"give one, such as dataset[{next(iter(source), 'train')!r}]",
        )


def scalar_columns(value: Any) -> list[str]:
    """Return the columns of a table in memory whose first row has no arrays, images or lists.

    >>> scalar_columns([{"a": 1, "b": "x"}]), scalar_columns([{"image": [[0.0]], "y": 1}])
    (['a', 'b'], [])
    """
    is_named = isinstance(value, str | os.PathLike | Mapping) or not is_table(value)
    if is_named or not isinstance(value, Sized) or not len(value):
        return []
    table: Any = value
    row = table[0] if isinstance(table, list | tuple) or hasattr(table, "features") else None
    if row is not None and any(not isinstance(each, _SCALARS) for each in row.values()):
        return []
    return [str(each) for each in row or getattr(table, "column_names", None) or table.columns]


def table_of_rows(
    rows: Sequence[Mapping[str, Any]], where: str, marks: Collection[str] = MARKS
) -> Table:
    """Return a table from rows that map column names to values; absent values are missing.

    >>> table_of_rows([{"a": 1}, {"b": "x"}], "rows").names
    ('a', 'b')
    """
    require(rows, where, "rows of a table", error=DataError)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return table_of({name: [row.get(name) for row in rows] for name in names}, where, marks)


# --- files


def _read_file(path: Path, where: str, reading: TableFormat) -> Table:
    suffix = suffix_of(path)
    if suffix in DATABASES:
        return _database(path, where, reading)
    if suffix not in SUFFIXES:
        # Unknown suffix: read as text, so that the error describes the contents.
        suffix = ".csv"
    content = _content(path, where, reading)
    if suffix in ARROW:
        return table_of(arrow_columns(content, suffix, where), where, reading.marks)
    if suffix in EXCEL:
        return _workbook(content, where, reading)
    if suffix in JSON_LINES:
        return _json(content, where, reading)
    delimiter = "\t" if suffix in (".tsv", ".tab") else None
    return parse_text(
        content,
        where,
        reading.marks,
        delimiter=reading.delimiter or delimiter,
        header=reading.header,
        encoding=reading.encoding,
    )


def _content(path: Path, where: str, reading: TableFormat) -> bytes:
    """Return the bytes of a file, decompressed while its values take a permitted size in memory."""
    marks = [each.encode() for each in {*_BETWEEN_CELLS, reading.delimiter or ","}]
    with opened(path, "rb", where) as file:
        unpack = COMPRESSED.get(path.suffix.lower())
        if unpack is None:
            return file.read()
        demand, parts = Demand(where, file_size(file)), []
        try:
            with unpack(file) as stream:
                while part := stream.read(_BLOCK):
                    lines = max(part.count(b"\n"), part.count(b"\r"))
                    demand.add(_A_BYTE * len(part) + _A_LINE * lines)
                    demand.add(_A_CELL * sum(map(part.count, marks)))
                    parts.append(part)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise DataError.build(
                where, expected=f"a whole {path.suffix} file", got=str(error)[:120]
            ) from None
        return b"".join(parts)


def _workbook(content: bytes, where: str, reading: TableFormat) -> Table:
    try:
        rows = _sheet_rows(content, where, reading)
    except CalderaError:
        raise
    except Exception as error:  # zipfile, its XML parser or openpyxl raise exceptions of many types
        raise DataError.build(
            where,
            expected="an Excel workbook (.xlsx)",
            got=str(error)[:120] or type(error).__name__,
        ) from None
    require(rows, where, "rows of a table", "an empty sheet", error=DataError)
    # Sheets often have entirely empty columns and rows of different lengths.
    columns = list(zip_longest(*rows))
    used = [place for place, each in enumerate(columns) if any(x is not None for x in each)]
    if reading.header is False:
        names, first = [str(place) for place in used], 0
    else:
        names = ["" if columns[p][0] is None else str(columns[p][0]) for p in used]
        first = 1
    return _of_lists(names, [list(columns[place][first:]) for place in used], where, reading)


def _sheet_rows(content: bytes, where: str, reading: TableFormat) -> list[tuple[Any, ...]]:
    """Return the rows of a sheet that are not empty."""
    openpyxl = optional_import("openpyxl", "openpyxl", where)
    demand = Demand(where, len(content))
    with zipfile.ZipFile(BytesIO(content)) as archive:
        demand.add(sum(_A_LETTER * member.file_size for member in archive.infolist()))
    book = openpyxl.load_workbook(BytesIO(content), read_only=True, data_only=True)
    sheets = book.sheetnames
    wanted = 0 if reading.sheet is None else reading.sheet
    if wanted not in sheets and not (isinstance(wanted, int) and 0 <= wanted < len(sheets)):
        raise DataError.build(
            where, expected="a sheet among " + ", ".join(sheets[:20]), got=repr(wanted)
        )
    sheet = book[sheets[wanted] if isinstance(wanted, int) else wanted]
    rows: list[tuple[Any, ...]] = []
    width = 0
    for number, row in enumerate(sheet.iter_rows(values_only=True)):
        if number >= _MOST_ROWS:
            expected = f"a sheet of at most {_MOST_ROWS} rows, as Excel has them"
            raise DataError.build(where, expected=expected, got="more")
        if any(x is not None for x in row):
            # A row that is wider than all before it makes these wider.
            demand.add(_A_CELL * (len(row) + max(len(row) - width, 0) * len(rows)))
            width = max(width, len(row))
            rows.append(row)
    book.close()
    return rows


def _json(content: bytes, where: str, reading: TableFormat) -> Table:
    """Return a list of objects, an object of lists, or an object a line."""
    try:
        text = content.decode(reading.encoding or "utf-8-sig")
        start = text.lstrip()[:1]
        try:
            found = json.loads(text)
        except ValueError:
            if start != "{":
                raise
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError, LookupError) as error:
        raise DataError.build(
            where, expected="JSON: a list of objects, or an object a line", got=str(error)[:120]
        ) from None
    if isinstance(found, dict) and found and all(isinstance(v, list) for v in found.values()):
        return table_of(found, where, reading.marks)
    rows = [found] if isinstance(found, dict) else found
    require(
        isinstance(rows, list) and all(isinstance(each, dict) for each in rows),
        where,
        "objects with a value a column",
        "other JSON",
        error=DataError,
    )
    return table_of_rows(rows, where, reading.marks)


# --- databases


def _database(path: Path, where: str, reading: TableFormat) -> Table:
    require(path.is_file(), where, f"a file at {path}", "no such file", error=DataError)
    # Read-only: reading must not change the database.
    address = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        # A column may be computed, and then be of any length.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(settings.file_limit, _LONGEST_VALUE))
        return _query(connection, where, reading, Demand(where, path.stat().st_size))


def _query(
    connection: Any, where: str, reading: TableFormat, demand: Demand | None = None
) -> Table:
    """Return the result of a query over any DB-API 2 connection."""
    cursor = connection.cursor()
    try:
        query = reading.query or _only_table(connection, cursor, where)
        cursor.execute(query)
        names = [str(each[0]) for each in cursor.description or ()]
        rows = []
        for row in cursor.fetchall() if demand is None else cursor:
            if demand is not None:
                demand.add(sum(map(getsizeof, row), _A_LINE))
            rows.append(row)
    except DataError:
        raise
    except Exception as error:  # each database raises its own exceptions
        raise DataError.build(where, expected="a query that works", got=str(error)[:160]) from None
    finally:
        cursor.close()
    if not names:
        raise DataError.build(where, expected="a query that returns rows", got=repr(query)[:120])
    return _of_lists(
        names, [[row[place] for row in rows] for place in range(len(names))], where, reading
    )


def _only_table(connection: Any, cursor: Any, where: str) -> str:
    require(isinstance(connection, sqlite3.Connection), where, "query= with a connection")
    # No views: one may compute without end.
    cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    tables = [str(row[0]) for row in cursor.fetchall()]
    if len(tables) != 1:
        raise DataError.build(
            where,
            expected="query= (--query), such as SELECT * FROM name",
            got=f"{len(tables)} tables: {', '.join(tables[:10])}",
        )
    quoted = tables[0].replace('"', '""')
    return f'SELECT * FROM "{quoted}"'


def _of_lists(
    names: list[str], columns: list[list[Any]], where: str, reading: TableFormat
) -> Table:
    """Return a table of columns with possibly repeated names, which raise an error when used."""
    numbered = {str(place): each for place, each in enumerate(columns)}
    found = table_of(numbered, where, reading.marks)
    return replace(found, names=tuple(name.strip() for name in names))


# --- frames


def _is_connection(value: Any) -> bool:
    return callable(getattr(value, "cursor", None)) and callable(getattr(value, "commit", None))


def _is_frame(value: Any) -> bool:
    """True for a frame of pandas or polars, a table of Arrow, or a data set of Hugging Face; none
    of these packages is imported."""
    room = type(value).__module__.partition(".")[0]
    if room == "datasets":
        return hasattr(value, "to_dict")
    return room in ("pandas", "polars", "pyarrow") and hasattr(type(value), "columns")


def _frame_columns(frame: Any) -> dict[str, Any]:
    room = type(frame).__module__.partition(".")[0]
    if room == "pyarrow":
        return table_columns(frame)
    if room == "datasets":
        return _hugging_face_columns(frame)
    if room == "polars":
        if not hasattr(frame, "height"):
            frame = frame.collect()
        return {name: frame[name].to_list() for name in frame.columns}
    return {
        str(name): _pandas_values(frame.iloc[:, place]) for place, name in enumerate(frame.columns)
    }


def _hugging_face_columns(dataset: Any) -> dict[str, Any]:
    """Return the columns of a data set of Hugging Face, with the names of its classes."""
    columns = dataset.with_format(None).to_dict()
    for name, feature in dataset.features.items():
        if hasattr(feature, "int2str"):
            known = [
                None if each in (None, -1) else feature.int2str(each) for each in columns[name]
            ]
            columns[name] = known
    return columns


def _pandas_values(series: Any) -> Any:
    dtype = series.dtype
    if getattr(dtype, "kind", "") in "fiuM" and type(dtype).__module__.startswith("numpy"):
        return series.to_numpy()
    return series.tolist()
