"""Table as read: columns of numbers, dates or texts, each with its missing values.

Independently of the source, a column is one of three arrays: float64 (NaN is missing), datetime64
in microseconds (NaT is missing), or objects that are texts (None is missing). The meaning of a
column is decided later, by its type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require, shown
from caldera.core.tensor.dtype import refuse_masked
from caldera.errors import DataError
from caldera.io.csv_files import column_number

MARKS = frozenset({"", "nan", "na", "n/a", "#n/a", "<na>", "null", "?"})
"""Common texts for a missing value."""
Values = NDArray[Any]
"""A column: float64, datetime64 or texts."""
_EXACT = 1 << 53
"""Whole numbers up to which float64 keeps every digit."""


def is_missing(text: str, marks: Collection[str] = MARKS) -> bool:
    """Return True if a field marks a missing value.

    >>> is_missing(" NaN"), is_missing("0"), is_missing("none of these")
    (True, False, False)
    """
    return text.strip().lower() in marks


class TypedNumber(str):
    """A number that stood among texts without being one: its decimal mark is a point, whichever
    mark the texts have."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Names and columns; `rows` contains the row numbers in the source, for messages."""

    names: tuple[str, ...]
    """Empty where the table has none."""
    columns: tuple[Values, ...]
    rows: NDArray[np.int64]
    where: str
    row_word: str = "row"
    """Unit of `rows`: rows of a frame, or lines of a file."""
    notes: tuple[str, ...] = ()
    """Guesses about the file as a whole that the user should see."""
    delimiter: str = ""
    """Delimiter of the columns of a text file."""
    gaps: tuple[Mapping[int, str], ...] = ()
    """Texts of missing values by row number, for each column."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.columns)

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, rows: NDArray[Any]) -> Table:
        """Return a table of some rows, selected by a mask or by indices."""
        return replace(
            self, columns=tuple(each[rows] for each in self.columns), rows=self.rows[rows]
        )

    # --- columns

    def column(self, wanted: int | str) -> int:
        """Return the number of a column, from its number or its name."""
        found = column_number(wanted, self.names, self.width, self.where)
        if isinstance(wanted, str):
            self.check_names([found])
        return found

    def check_names(self, columns: Sequence[int]) -> None:
        """Raise an error if the name of a column is missing or ambiguous in a table with names."""
        for column in columns if self.names else ():
            name = self.names[column]
            if is_missing(name):
                is_last = column == self.width - 1 and self.width > 1
                hint = "does each line end with a delimiter? Or " if is_last else ""
                raise DataError.build(
                    self.where,
                    expected=f"a name for column {column}",
                    got=repr(name),
                    hint=f"{hint}leave it out with ignore=[{column}] (--ignore-columns {column})",
                )
            if self.names.count(name) > 1:
                places = [str(place) for place, each in enumerate(self.names) if each == name]
                raise DataError.build(
                    self.where,
                    expected="a distinct name for each column",
                    got=f"{name!r} for columns {' and '.join(places)}",
                    hint="rename them, or leave some out by number with ignore= (--ignore-columns)",
                )

    def label(self, column: int) -> str:
        """Return the label of a column for messages."""
        return f"{column} ({self.names[column]!r})" if self.names else str(column)

    def missing(self, column: int) -> NDArray[np.bool_]:
        """Return a mask of the rows without a value in a column."""
        return missing_values(self.columns[column])

    def texts(self, column: int) -> Values:
        """Return the values of a column as texts; None for missing values."""
        values = self.columns[column]
        listed = values.tolist() if values.dtype.kind == "f" else values
        missing = missing_values(values)
        return objects(
            [None if gone else value_text(v) for v, gone in zip(listed, missing, strict=True)]
        )

    def with_words(self, column: int) -> Table:
        """Return the table with a column's marks of missing values ("n/a") as ordinary texts."""
        said = self.gaps[column] if self.gaps else {}
        if not said:
            return self
        values = [
            said.get(row) if value is None else value
            for row, value in zip(self.rows.tolist(), self.columns[column], strict=True)
        ]
        columns = (*self.columns[:column], objects(values), *self.columns[column + 1 :])
        return replace(self, columns=columns)

    def missing_by_text(self, column: int) -> Counter[str]:
        """Return the count of each text of a missing value; "" counts empty fields."""
        said = self.gaps[column] if self.gaps else {}
        return Counter(said.get(row, "") for row in self.rows[self.missing(column)].tolist())

    # --- errors

    def refused(self, row: int, column: int, expected: str, hint: str = "") -> DataError:
        """Return the error about a field."""
        value = self.columns[column][row]
        text = "" if value is None else value if isinstance(value, str) else str(value)
        return DataError.build(
            f"{self.where}, {self.row_word} {self.rows[row]}",
            expected=f"{expected} in column {self.label(column)}",
            got=repr(text if len(text) <= 80 else text[:80] + "..."),
            hint=hint,
        )


def missing_values(column: Values) -> NDArray[np.bool_]:
    """Return a mask of the missing values of a column.

    >>> missing_values(np.array(["a", None], object)).tolist()
    [False, True]
    """
    if column.dtype == object:
        return np.fromiter((each is None for each in column), bool, len(column))
    return np.isnat(column) if column.dtype.kind == "M" else np.isnan(column)


# --- from values of Python and NumPy


def text_column(texts: Iterable[str], marks: Collection[str] = MARKS) -> Values:
    """Return a column of stripped texts; texts in `marks` are missing."""
    stripped = [each.strip() for each in texts]
    kept = [None if each.lower() in marks else each for each in stripped]
    return objects(kept)


def texts_of_gaps(given: Sequence[Any], column: Values, rows: NDArray[np.int64]) -> dict[int, str]:
    """Return the texts that became missing values of a column, by the numbers of rows."""
    if column.dtype != object:
        return {}
    words = ((place, given[place]) for place, each in enumerate(column) if each is None)
    return {
        int(rows[n]): text.strip() for n, text in words if isinstance(text, str) and text.strip()
    }


def column_of(values: Any, where: str, marks: Collection[str] = MARKS) -> Values:
    """Convert values to a column: numbers, dates, texts, truth values, and None for missing.

    >>> column_of([1, None, 2.5], "age").tolist()
    [1.0, nan, 2.5]
    >>> column_of(["a", True, None], "kind").tolist()
    ['a', 'true', None]
    """
    refuse_masked(values, where)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        if values.dtype.kind == "f" or (values.dtype.kind in "iu" and _fits(values)):
            return values.astype(np.float64)
        if values.dtype.kind == "M":
            return values.astype("datetime64[us]")
    require(np.iterable(values), where, "a list or an array of values", shown(values))
    given = values.tolist() if isinstance(values, np.ndarray) else list(values)
    plain = [_plain(each, where) for each in given]
    kinds = {type(each) for each in plain} - {type(None)}
    if kinds <= {float, int} and all(
        type(each) is not int or abs(each) <= _EXACT for each in plain
    ):
        return np.array([np.nan if each is None else each for each in plain], np.float64)
    if kinds == {np.datetime64}:
        return np.array(
            [np.datetime64("NaT") if each is None else each for each in plain], "datetime64[us]"
        )
    column = text_column(["" if each is None else value_text(each) for each in plain], marks)
    for place, each in enumerate(plain):
        if type(each) is float and column[place] is not None:
            column[place] = TypedNumber(column[place])
    return column


def table_of(columns: Mapping[str, Any], where: str, marks: Collection[str] = MARKS) -> Table:
    """Return a table of named columns, each an array or a list of values."""
    found = {
        str(name): column_of(each, f"{where}, column {str(name)!r}", marks)
        for name, each in columns.items()
    }
    lengths = {len(each) for each in found.values()}
    if len(lengths) != 1:
        raise DataError.build(
            where,
            expected="columns of equal length",
            got=", ".join(map(str, sorted(lengths))) or "no columns",
        )
    rows = np.arange(lengths.pop(), dtype=np.int64)
    given = zip(columns.values(), found.values(), strict=True)
    return Table(
        tuple(name.strip() for name in found),
        tuple(found.values()),
        rows,
        where,
        gaps=tuple(texts_of_gaps(each, column, rows) for each, column in given),
    )


def value_text(value: Any) -> str:
    """Return a value as a category is called: the same for 1 and 1.0.

    >>> value_text(1.0), value_text(0.1), value_text(np.datetime64("2024-05-01"))
    ('1', '0.1', '2024-05-01')
    """
    if isinstance(value, np.datetime64):
        text = str(value.astype("datetime64[s]")) if value == value else ""
        return text.removesuffix("T00:00:00")
    if isinstance(value, float):
        return number_name(Decimal(repr(value))) if np.isfinite(value) else str(value)
    return str(value)


def number_name(number: Decimal) -> str:
    """Return the category name of a number: the same for 1, 1.0 and 1e0.

    >>> number_name(Decimal("1.50")), number_name(Decimal("2e1")), number_name(Decimal("-0"))
    ('1.5', '20', '0')
    """
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _fits(values: Values) -> bool:
    return not values.size or max(abs(int(values.max())), abs(int(values.min()))) <= _EXACT


def _plain(value: Any, where: str) -> Any:
    """Return a value as a float, an int, a text, a date or None."""
    if value is None or type(value) in (str, float, int):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return np.datetime64(value.replace(fold=0), "us")
    if isinstance(value, date):
        return np.datetime64(value, "us")
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]")
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    raise DataError.build(
        where,
        expected="numbers, texts, dates and booleans",
        got=type(value).__name__,
        hint="leave the column out, or split it into several columns first",
    )


def category_name(text: str) -> str:
    """Return the name of a category; truth values have the same name from every source."""
    return text.lower() if text.lower() in ("true", "false") else text


def objects(values: list[str | None]) -> Values:
    """Return a column of texts."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


MISSING = "missing"
"""Text for a missing value in messages about a row."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a table as a network takes them, and the rows themselves.

    - `x`: features, one row each.
    - `notes`: values that were filled in, and values far outside the training range.
    - `table`: the table.
    - `places`: the number of each input column in the table.
    - `left_out`: the numbers of columns that the caller excluded.
    """

    x: Values
    notes: list[str]
    table: Table
    places: Sequence[int]
    left_out: Collection[int] = ()

    def texts(self, column: int) -> list[str]:
        """Return the texts of an input column, by its number among the inputs, for messages."""
        return [MISSING if each is None else each for each in self.table.texts(self.places[column])]


def carried_columns(
    table: Table, ignored: Collection[str], left_out: Collection[int] = ()
) -> dict[str, list[str]]:
    """Return the columns that a model does not read, such as identifiers, as texts by name.

    >>> carried_columns(table_of({"id": [7, None], "width": [1.5, 2.0]}, "new.csv"), ("id",))
    {'id': ['7', '']}
    """
    return {
        name: ["" if each is None else each for each in table.texts(place)]
        for place, name in enumerate(table.names)
        if name in ignored and place not in left_out
    }
