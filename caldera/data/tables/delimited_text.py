"""Delimited text: CSV, TSV and their kin, in any usual encoding and with any usual delimiter."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from csv import Error as CsvError
from csv import reader as csv_reader
from io import StringIO
from itertools import islice

import numpy as np

from caldera.data.tables.table import Table, text_column
from caldera.errors import ConfigError, DataError
from caldera.io.csv_files import Header, as_float, check_delimiter

DELIMITERS = (",", ";", "\t", "|")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WINDOWS = "cp1252"
_LOOKED_AT = 50
"""Lines by which the delimiter is told."""


def parse_text(
    content: bytes,
    where: str,
    marks: Collection[str],
    *,
    delimiter: str | None = None,
    header: Header = "auto",
    encoding: str | None = None,
) -> Table:
    """A table from text with one row a line.

    >>> from caldera.data.tables.table import MARKS
    >>> table = parse_text(b"a;b\\n1,5;x\\n2,5;\\n", "t.csv", MARKS)
    >>> table.names, [each.tolist() for each in table.columns]
    (('a', 'b'), [['1,5', '2,5'], ['x', None]])
    """
    if delimiter is not None:
        check_delimiter(delimiter)
    text, notes = _decoded(content, encoding, where)
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError.build(
            f"{where}, line {line}", expected="text", got="a byte 0", hint="the file is damaged"
        )
    divider = delimiter or _delimiter(text)
    rows, lines = _rows(text, divider, where)
    if not rows:
        raise DataError.build(where, expected="lines of a table", got="an empty file")
    first = rows[0]
    named = header is True or (
        header == "auto" and not any(as_float(each) is not None for each in first)
    )
    if named and len(rows) > 1 and len(rows[1]) != len(first):
        raise DataError.build(
            where,
            expected=f"{len(first)} columns after the line of names",
            got=f"{len(rows[1])}",
            hint=_other_delimiter(divider, first[0], delimiter),
        )
    if len(first) == 1 and _other_delimiter(divider, first[0], delimiter):
        raise DataError.build(
            where,
            expected=f"columns with {divider!r} between them",
            got="one column",
            hint=_other_delimiter(divider, first[0], delimiter),
        )
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(first):
            raise DataError.build(
                f"{where}, line {line}", expected=f"{len(first)} columns", got=f"{len(row)}"
            )
    body = rows[1:] if named else rows
    columns = list(zip(*body, strict=True)) or [()] * len(first)
    return Table(
        names=tuple(each.strip() for each in first) if named else (),
        columns=tuple(text_column(each, marks) for each in columns),
        rows=np.array(lines[1:] if named else lines, np.int64),
        where=where,
        row_word="line",
        notes=notes,
        comma=divider == ";",
    )


def _rows(text: str, delimiter: str, where: str) -> tuple[list[list[str]], list[int]]:
    reader = csv_reader(
        StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    rows, lines = [], []
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except CsvError as error:
        raise DataError.build(
            f"{where}, line {reader.line_num}",
            expected="a CSV file",
            got=str(error),
            hint="is a quote left open?",
        ) from None
    return rows, lines


def _decoded(content: bytes, encoding: str | None, where: str) -> tuple[str, tuple[str, ...]]:
    """The text, and what was guessed about its encoding."""
    if encoding is not None:
        try:
            codecs.lookup(encoding)
            return str(content, encoding).removeprefix("\ufeff"), ()
        except LookupError:
            raise ConfigError.build(
                "encoding",
                expected="the name of an encoding",
                got=repr(encoding),
                hint="such as utf-8, cp1252, latin-1, utf-16 or shift_jis",
            ) from None
        except (UnicodeDecodeError, ValueError, TypeError) as error:
            raise DataError.build(
                where, expected=f"text in {encoding}", got=str(error)[:120]
            ) from None
    found = next((name for bom, name in _BOMS if content.startswith(bom)), "utf-8")
    try:
        return content.decode(found), ()
    except UnicodeDecodeError as error:
        problem = DataError.build(
            where,
            expected="UTF-8 text",
            got=f"other bytes at {error.start}",
            hint="say which encoding it has with encoding= (--encoding), such as cp1252",
        )
    if found != "utf-8":
        raise problem
    try:
        text = content.decode(_WINDOWS)
    except UnicodeDecodeError:
        raise problem from None
    note = f"not UTF-8, so read as {_WINDOWS} (Windows); encoding= (--encoding) says another"
    return text, (note,)


def _delimiter(text: str) -> str:
    """The character that divides the first lines into the most columns, as many in each."""
    best, most = ",", 1
    for each in DELIMITERS:
        reader = csv_reader(StringIO(text, newline=""), delimiter=each, skipinitialspace=True)
        try:
            widths = [len(row) for row in islice(reader, _LOOKED_AT) if row]
        except CsvError:
            continue
        if widths and min(widths) == max(widths) > most:
            best, most = each, widths[0]
    return best


def _other_delimiter(used: str, text: str, given: str | None) -> str:
    """The hint for a file whose columns are divided by something else."""
    found = [each for each in (";", "\t", "|", ",") if each != used and each in text]
    if not found:
        return ""
    return f"are they divided by {found[0]!r}? Pass it as the delimiter" + (
        "" if given is None else ", or none for a guess"
    )
