"""CSV files: tables of numbers, with or without a line of names.

A good file is read at NumPy's speed. Only when that fails is the file scanned row by row, to say
which line is wrong and why.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from math import isinf
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.registry import nearest
from caldera.core.tensor import (
    HALVES,
    DType,
    Tensor,
    bool_,
    canonical,
    float32,
    is_complex,
    is_float,
    uint8,
)
from caldera.errors import DataError, DtypeError, ShapeError
from caldera.io.files import PathLike, array_to_save, created, named, opened

# Where a spreadsheet may begin a field: it may also divide fields by semicolons or tabs.
_FORMULA = re.compile(
    r"(?:(?<=[;\t\r\n|,])|(?<=[;\t\r\n|,] )|^)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])"
)
Header = bool | Literal["auto"]
Row = list[str]

_PART_OF_NUMBERS = re.compile(r'[\w.+\-"\r\n]')
INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
# Digits in groups, or with a comma for the fraction: 1,250.5 and 1 250,5 and 1'250.
_GROUPED = re.compile(r"\s*[+-]?\d+([.,' \u00a0\u2009\u202f]\d+)+\s*")


def read_csv(
    path: PathLike,
    delimiter: str = ",",
    header: Header = "auto",
    dtype: object = "float32",
    columns: Sequence[int | str] | None = None,
) -> Tensor:
    """Read a matrix from a file with one row per line.

    `header` is True if the first line contains names; "auto" assumes names if the line contains no
    number. `columns` selects columns by name or number, in that order; only selected columns must
    be numbers. Empty lines are skipped, and fields may be enclosed in double quotes.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "iris.csv"
    >>> _ = path.write_text("width,length,name\\n1.5,2,iris\\n3,4,rose\\n")
    >>> cd.io.read_csv(path, columns=["length", "width"]).tolist()
    [[2.0, 1.5], [4.0, 3.0]]
    """
    where = named("read_csv", path)
    check_delimiter(delimiter)
    wanted = canonical(dtype)
    _refuse_complex(wanted, "read_csv")
    with opened(path, "r", where, encoding="utf-8-sig") as file:
        try:
            return Tensor.from_numpy(_Table(file, delimiter, header, columns, where).read(wanted))
        except UnicodeDecodeError as error:
            raise DataError.build(
                where, expected="UTF-8 text", got=f"other bytes at {error.start}"
            ) from None
        except csv.Error as error:
            raise DataError.build(where, expected="a CSV file", got=str(error)) from None


def write_csv(
    path: PathLike,
    tensor: Tensor | NDArray[Any],
    header: Sequence[str] | None = None,
    delimiter: str = ",",
) -> None:
    """Write a matrix with one row per line; a vector is written as one column.

    Floats are written with enough digits to restore the same bits; bools are 0 and 1.

    >>> import tempfile, pathlib
    >>> import caldera as cd
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.csv"
    >>> cd.io.write_csv(path, cd.tensor([[0.1, 2.0], [3.0, 4.0]]), header=["a", "b"])
    >>> print(path.read_text())
    a,b
    0.1,2.0
    3.0,4.0
    <BLANKLINE>
    """
    where = named("write_csv", path)
    check_delimiter(delimiter)
    array = array_to_save(tensor, where)
    require(
        array.ndim in (1, 2),
        where,
        "a vector or a matrix",
        f"shape {array.shape}",
        hint="reshape it to one row a line",
        error=ShapeError,
    )
    width = array.shape[1] if array.ndim == 2 else 1
    if header is not None and len(header) != width:
        raise ShapeError.build(where, expected=f"{width} names", got=f"{len(header)}")
    _refuse_complex(array.dtype, where)
    texts = _numbers_as_text(array.reshape(-1))
    with created(path, "w", where, encoding="utf-8") as file:
        if header is not None:
            csv.writer(file, delimiter=delimiter, lineterminator="\n").writerow(header)
        file.writelines(
            delimiter.join(texts[start : start + width]) + "\n"
            for start in range(0, array.size, width)
        )


class _Table:
    """Open CSV file: the contents of its first line, and the parser of the rest."""

    def __init__(
        self,
        file: IO[str],
        delimiter: str,
        header: Header,
        columns: Sequence[int | str] | None,
        where: str,
    ) -> None:
        self._file = file
        self._delimiter = delimiter
        self._where = where
        rows = self._rows()
        _, first = next(rows, (0, None))
        if first is None:
            raise DataError.build(where, expected="lines of numbers", got="an empty file")
        self._has_header = header is True or (
            header == "auto" and not any(as_float(text) is not None for text in first)
        )
        require(
            not self._has_header or next(rows, None) is not None,
            where,
            "lines of numbers after the names",
            error=DataError,
        )
        self._names = [name.strip() for name in first] if self._has_header else []
        self._width = len(first)
        self._columns = (
            None
            if columns is None
            else [column_number(each, self._names, self._width, self._where) for each in columns]
        )

    def read(self, dtype: DType) -> NDArray[Any]:
        """Return the numbers of the requested columns."""
        if self._columns is not None:
            # NumPy does not count the columns that it skips.
            self._check_widths()
        try:
            parsed = self._parse(uint8 if dtype == bool_ else float32 if dtype in HALVES else dtype)
        except ValueError as error:
            self._check(dtype)
            raise DataError.build(self._where, expected="numbers", got=str(error)) from None
        if self._columns is None and parsed.shape[1] != self._width:
            # All rows agree with each other, but not with the names.
            self._check_widths()
        with np.errstate(over="ignore"):
            result = parsed.astype(dtype, copy=False)
        # Infinity may be in the file, or come from an overflow; a bool may be a 2.
        if (is_float(dtype) and np.isinf(result).any()) or (dtype == bool_ and parsed.max() > 1):
            self._check(dtype)
        return result

    def _parse(self, dtype: DType) -> NDArray[Any]:
        self._file.seek(0)
        if self._has_header:
            # The names can take several lines, inside quotes.
            next(row for row in self._reader() if row)
        return np.loadtxt(
            self._file,
            dtype,
            comments=None,
            delimiter=self._delimiter,
            quotechar='"',
            usecols=self._columns,
            ndmin=2,
        )

    def _reader(self) -> Any:
        return csv.reader(self._file, delimiter=self._delimiter, strict=True)

    def _rows(self) -> Iterator[tuple[int, Row]]:
        """Return every row that is not empty, from the first on, with the number of its line."""
        self._file.seek(0)
        reader = self._reader()
        return ((reader.line_num, row) for row in reader if row)

    def _check_widths(self) -> None:
        for line, row in self._rows():
            if len(row) != self._width:
                raise self._error(line, f"{self._width} columns", f"{len(row)}")

    def _check(self, dtype: DType) -> None:
        """Raise an error that names the first wrong line, if any."""
        self._check_widths()
        rows = self._rows()
        if self._has_header:
            next(rows)
        columns = range(self._width) if self._columns is None else self._columns
        for position, (line, row) in enumerate(rows):
            for column in columns:
                if expected := _problem(row[column], dtype):
                    may_be_names = position == 0 and not self._has_header
                    hint = "pass header=True if this line contains names" if may_be_names else ""
                    label = f"{column} ({self._names[column]!r})" if self._names else str(column)
                    raise self._error(
                        line,
                        f"{expected} in column {label}",
                        repr(row[column]),
                        hint or way_out(row[column]),
                    )

    def _error(self, line: int, expected: str, got: str, hint: str = "") -> DataError:
        return DataError.build(f"{self._where}, line {line}", expected=expected, got=got, hint=hint)


def column_number(wanted: int | str, names: Sequence[str], width: int, where: str) -> int:
    """Return the number of a column, from its name or a number that may count from the end.

    >>> column_number("b", ["a", "b"], 2, "read_csv"), column_number(-1, [], 2, "read_csv")
    (1, 1)
    """
    if isinstance(wanted, str):
        if wanted in names:
            return names.index(wanted)
        raise DataError.build(
            where,
            expected=f"a column named {wanted!r}",
            got=", ".join(names) or "no line of names",
            hint=nearest(wanted, names) if names else "",
        )
    require(
        -width <= wanted < width, where, f"column {wanted}", f"{width} columns", error=DataError
    )
    return wanted % width


def way_out(text: str, leave_out: str = "columns=") -> str:
    """Return a hint for a field without a number; `leave_out` is the option to skip columns.

    >>> way_out("1,250.5")
    'write numbers with a decimal point and without thousands separators'
    """
    if not text.strip():
        return "fill it in, or leave the line out"
    if has_grouped_digits(text):
        return "write numbers with a decimal point and without thousands separators"
    return f"leave the column out with {leave_out}, or turn it into numbers first"


def has_grouped_digits(text: str) -> bool:
    """Return True if a text is a number with a comma or with groups of digits.

    >>> [has_grouped_digits(text) for text in ("1,5", "1'250", "1.5 kg")]
    [True, True, False]
    """
    return _GROUPED.fullmatch(text) is not None


def _refuse_complex(dtype: DType, where: str) -> None:
    require(
        not is_complex(dtype),
        where,
        "real numbers in a CSV file",
        dtype,
        hint="store the two parts in separate columns, or use save_npy and load_npy",
        error=DtypeError,
    )


def _problem(text: str, dtype: DType) -> str:
    """Return a description of the expected value; "" if this text is a value of the dtype."""
    if is_float(dtype):
        number = as_float(text)
        if number is None:
            return "a number"
        with np.errstate(over="ignore"):
            too_large = np.isinf(np.asarray(number).astype(dtype)) and not isinf(number)
        return f"a number in the range of {dtype}" if too_large else ""
    if not INTEGER.fullmatch(text):
        return "0 or 1" if dtype == bool_ else "an integer"
    if dtype == bool_:
        return "" if int(text) in (0, 1) else "0 or 1"
    limits = np.iinfo(dtype)
    return "" if limits.min <= int(text) <= limits.max else f"a number in the range of {dtype}"


def as_float(text: str) -> float | None:
    """Return the number that a field holds, if it does; Python's 1_000 is none.

    >>> as_float(" 1e3"), as_float("1_000"), as_float("")
    (1000.0, None, None)
    """
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _numbers_as_text(flat: NDArray[Any]) -> list[str]:
    """Return the shortest text of each number that is read back as the same bits."""
    if not is_float(flat.dtype):
        return [str(int(value)) for value in flat.tolist()]
    if flat.dtype in HALVES:
        flat = flat.astype(float32)
    texts = [str(value) for value in flat]
    # Readers parse a float64 first, and that rounding can tip a float32 to its neighbour.
    read_back = np.array([float(text) for text in texts]).astype(flat.dtype)
    for position in np.flatnonzero((read_back != flat) & ~np.isnan(flat)):
        texts[position] = repr(float(flat[position]))
    return texts


class TableWriter:
    """Writes rows of any fields as CSV, formulas as texts unless `keep_formulas`.

    >>> import sys
    >>> TableWriter(sys.stdout).writerow(["=A1", 1.5])
    '=A1,1.5
    """

    def __init__(self, file: IO[str], *, keep_formulas: bool = False) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._convert = (lambda field: field) if keep_formulas else without_formulas

    def writerow(self, row: Iterable[Any]) -> None:
        """Write a row."""
        self._writer.writerow(list(map(self._convert, row)))

    def writerows(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write some rows."""
        for row in rows:
            self.writerow(row)


def without_formulas(value: Any) -> Any:
    """Escape a CSV field that spreadsheets would read as a formula, by an apostrophe.

    Numbers stay as they are, also as texts.

    >>> [without_formulas(field) for field in ("=1+1", "-1.5", "a;@b", -2)]
    ["'=1+1", '-1.5', "a;'@b", -2]
    """
    if not isinstance(value, str) or as_float(value) is not None:
        return value
    return _FORMULA.sub("'", value)


def check_delimiter(delimiter: str) -> None:
    """Refuse what cannot divide the columns of numbers."""
    require(
        len(delimiter) == 1 and not _PART_OF_NUMBERS.match(delimiter),
        "delimiter",
        "one character that no number contains",
        repr(delimiter),
    )
