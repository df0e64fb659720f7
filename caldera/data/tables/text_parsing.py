"""Parsing of delimited text (CSV, TSV and similar) and of dates."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from csv import Error as CsvError
from csv import reader as csv_reader
from datetime import UTC, datetime
from io import StringIO
from itertools import islice
from typing import NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.data.tables.numbers import is_number
from caldera.data.tables.table import Table, Values, text_column, texts_of_gaps
from caldera.errors import ConfigError, DataError
from caldera.io.csv_files import Header, check_delimiter

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
"""Number of lines that determine the delimiter."""


def parse_text(
    content: bytes,
    where: str,
    marks: Collection[str],
    *,
    delimiter: str | None = None,
    header: Header = "auto",
    encoding: str | None = None,
) -> Table:
    """Parse a table from text with one row per line.

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
    text, comments = _without_comments(text, delimiter)
    if comments:
        notes = (*notes, f"{comments} line{'s' * (comments > 1)} of comments left out at the start")
    divider = delimiter or _delimiter(text)
    rows, lines = _rows(text, divider, where)
    require(rows, where, "lines of a table", "an empty file", error=DataError)
    first = rows[0]
    named = header is True or (header == "auto" and not any(is_number(each) for each in first))
    _check_widths(rows, lines, named=named, divider=divider, delimiter=delimiter, where=where)
    body = rows[1:] if named else rows
    columns = list(zip(*body, strict=True)) or [()] * len(first)
    numbers = np.array(lines[1:] if named else lines, np.int64)
    found = [text_column(each, marks) for each in columns]
    given = zip(columns, found, strict=True)
    return Table(
        names=tuple(each.strip() for each in first) if named else (),
        columns=tuple(found),
        rows=numbers,
        where=where,
        row_word="line",
        notes=notes,
        delimiter=divider,
        gaps=tuple(texts_of_gaps(texts, column, numbers) for texts, column in given),
    )


def _without_comments(text: str, delimiter: str | None) -> tuple[str, int]:
    """Return a text with empty lines for the comments at its start, and their number.

    Comments begin with #, and have fewer columns than the line after them.

    >>> _without_comments("# made by hand\\na;b\\n1;2\\n", None)
    ('\\na;b\\n1;2\\n', 1)
    >>> _without_comments("#a;b\\n1;2\\n", None)[1]
    0
    """
    *first, rest = text.split("\n", _LOOKED_AT)
    count = next((place for place, line in enumerate(first) if not line.startswith("#")), 0)
    if not count:
        return text, 0
    table = "\n".join([*first[count:], rest])
    divider = delimiter or _delimiter(table)
    columns = first[count].count(divider)
    if any(line.count(divider) >= columns for line in first[:count]):
        return text, 0
    return "\n" * count + table, count


def _check_widths(
    rows: list[list[str]],
    lines: list[int],
    *,
    named: bool,
    divider: str,
    delimiter: str | None,
    where: str,
) -> None:
    """Raise an error if rows have different numbers of columns, or only one by mistake."""
    first = rows[0]
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
        require(
            len(row) == len(first),
            f"{where}, line {line}",
            f"{len(first)} columns",
            f"{len(row)}",
            error=DataError,
        )


def _rows(text: str, delimiter: str, where: str) -> tuple[list[list[str]], list[int]]:
    reader = csv_reader(
        StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    try:
        found = [(row, reader.line_num) for row in reader if row]
    except CsvError as error:
        raise DataError.build(
            f"{where}, line {reader.line_num}",
            expected="a CSV file",
            got=str(error),
            hint="is a quote left open?",
        ) from None
    return [row for row, _ in found], [line for _, line in found]


def _decoded(content: bytes, encoding: str | None, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the text, and notes on its guessed encoding."""
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
            hint="set it with encoding= (--encoding), such as cp1252",
        )
    if found != "utf-8":
        raise problem
    try:
        text = content.decode(_WINDOWS)
    except UnicodeDecodeError:
        raise problem from None
    note = (
        f"not UTF-8, so read as {_WINDOWS} (Windows); encoding= (--encoding) sets another encoding"
    )
    return text, (note,)


def _delimiter(text: str) -> str:
    """Return the delimiter that splits the first lines into the most columns.

    All lines must have the same number of columns.
    """
    best, most = ",", 1
    for each in DELIMITERS:
        reader = csv_reader(StringIO(text, newline=""), delimiter=each, skipinitialspace=True)
        with suppress(CsvError):
            widths = {len(row) for row in islice(reader, _LOOKED_AT) if row}
            if len(widths) == 1 and max(widths) > most:
                best, most = each, max(widths)
    return best


def _other_delimiter(used: str, text: str, given: str | None) -> str:
    """Return the hint for a file whose columns are divided by something else."""
    found = [each for each in (";", "\t", "|", ",") if each != used and each in text]
    if not found:
        return ""
    return f"are they divided by {found[0]!r}? Pass it as the delimiter" + (
        "" if given is None else ", or none for a guess"
    )


ISO = "iso"
_DAYS = (
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%d.%m.%y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%B %d %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%b %Y",
    "%B %Y",
    "%Y-%m",
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
FORMATS = (ISO, *(day + time for day in _DAYS for time in _TIMES))
_SAFE = re.compile(r"(%[dmYyHMSfpIbBj]|[ ./:,T-])+")
_LONGEST = 40


class Found(NamedTuple):
    """The format of a column, and another one that would do as well, if there is one."""

    format: str
    other: str = ""


def is_format(text: str) -> bool:
    """Return True if a text is a date format of `strptime`.

    >>> is_format("%d/%m/%Y"), is_format("%Q"), is_format("iso")
    (True, False, True)
    """
    return text == ISO or (len(text) <= _LONGEST and _SAFE.fullmatch(text) is not None)


def find_format(texts: Sequence[str]) -> Found | None:
    """Return the first format in which all texts are dates.

    >>> find_format(["31/12/2024", "01/02/2025"])
    Found(format='%d/%m/%Y', other='')
    >>> find_format(["03/04/2024"]).other
    '%d/%m/%Y'
    """
    if not texts or not any(each.isdigit() for each in texts[0]):
        return None
    fitting = [each for each in FORMATS if parse_date(texts[0], each) is not None]
    different = list(dict.fromkeys(texts))
    fitting = [
        each for each in fitting if all(parse_date(text, each) is not None for text in different)
    ]
    if not fitting:
        return None
    swapped = fitting[0].translate(str.maketrans("dm", "md"))
    return Found(fitting[0], swapped if swapped in fitting[1:] else "")


def parse_date(text: str, format_: str) -> np.datetime64 | None:
    """Return a text as a date in a format; None if it is not a date.

    Times with a known zone are converted to UTC.

    >>> str(parse_date("2024-05-01T12:00:00+02:00", "iso"))
    '2024-05-01T10:00:00.000000'
    """
    if format_ == ISO and "-" not in text:
        # It is rather a number.
        return None
    try:
        is_iso = format_ == ISO
        found = datetime.fromisoformat(text) if is_iso else datetime.strptime(text, format_)
        if found.tzinfo is not None:
            found = found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return np.datetime64(found, "us")


def parse_dates(texts: Values, format_: str) -> tuple[Values, np.ndarray]:
    """Return the dates of a column of texts, and a mask of texts that are not dates."""
    known = {text: parse_date(text, format_) for text in set(texts) - {None}}
    nothing = np.datetime64("NaT")
    found = np.array(
        [nothing if (date := known.get(text)) is None else date for text in texts], "datetime64[us]"
    )
    wrong = np.array([text is not None and known[text] is None for text in texts], bool)
    return found, wrong
