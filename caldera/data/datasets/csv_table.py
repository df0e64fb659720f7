"""The rows of a CSV file as numbers and labels; whatever is neither is named with its line.

A table to learn from has a finite number in every column of its inputs and a label or a number in
that of its target. What is missing or cannot be held is refused, or left out where asked to: it is
never taken for something else.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from csv import Error as CsvError
from csv import reader as csv_reader
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from caldera.data.sources.base import Array
from caldera.errors import ConfigError, DataError
from caldera.io.csv_files import Header, as_float, check_delimiter, column_number, way_out
from caldera.io.files import PathLike, opened

Missing = Literal["refuse", "drop"]
MISSING = ("refuse", "drop")
"""What can be done about lines that lack a value."""
_MARKS = frozenset({"", "nan", "na", "n/a", "#n/a", "<na>", "null", "?"})
"""How people and programs write that there is no value."""
_DELIMITERS = (";", "\t", "|", ",")


def is_missing(text: str) -> bool:
    """Whether a field says that there is no value.

    >>> is_missing(" NaN"), is_missing("0"), is_missing("none of these")
    (True, False, False)
    """
    return text.strip().lower() in _MARKS


class CsvFile:
    """A CSV file: the names of its columns, and its rows with the numbers of their lines.

    `header` says whether the first line holds names; "auto" takes it for names if nothing on it is
    a number.
    """

    def __init__(self, path: PathLike, delimiter: str, header: Header, where: str) -> None:
        check_delimiter(delimiter)
        self._path = path
        self._delimiter = delimiter
        self._where = where
        first_rows = list(islice(self._all_rows(), 2))
        if not first_rows:
            raise DataError.build(where, expected="lines of numbers", got="an empty file")
        _, first = first_rows[0]
        self.width = len(first)
        self.has_names = header is True or (
            header == "auto" and not any(as_float(text) is not None for text in first)
        )
        self.names = [text.strip() for text in first] if self.has_names else []
        following = [len(row) for _, row in first_rows[1:]] if self.has_names else [self.width]
        if following != [self.width]:
            raise DataError.build(
                where, expected=f"{self.width} columns after the line of names",
                got=str(following[0] if following else 0), hint=self._other_delimiter(first[0]),
            )  # fmt: skip
        if self.width == 1 and self._other_delimiter(first[0]):
            raise DataError.build(
                where, expected=f"columns with {delimiter!r} between them", got="one column",
                hint=self._other_delimiter(first[0]),
            )  # fmt: skip

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Every row of data with the number of its line; all have as many columns."""
        for line, row in islice(self._all_rows(), 1 if self.has_names else 0, None):
            if len(row) != self.width:
                raise self.error(line, f"{self.width} columns", f"{len(row)}")
            yield line, row

    def column(self, wanted: int | str) -> int:
        """The number of a column, from its number or its name."""
        found = column_number(wanted, self.names, self.width, self._where)
        if isinstance(wanted, str):
            self.check_names([found])
        return found

    def check_names(self, columns: Sequence[int]) -> None:
        """Refuse columns that a name cannot tell apart from others, where there are names."""
        for column in columns if self.has_names else ():
            name = self.names[column]
            if is_missing(name):
                is_last = column == self.width - 1 and self.width > 1
                hint = f"does each line end with {self._delimiter!r}? Or " if is_last else ""
                raise DataError.build(
                    self._where, expected=f"a name for column {column}", got=repr(name),
                    hint=f"{hint}leave it out with ignore=[{column}] (--ignore-columns {column})",
                )  # fmt: skip
            if self.names.count(name) > 1:
                places = [str(place) for place, each in enumerate(self.names) if each == name]
                raise DataError.build(
                    self._where, expected="a name of its own for each column",
                    got=f"{name!r} for columns {' and '.join(places)}",
                    hint="rename them, or leave some out by number with ignore= (--ignore-columns)",
                )  # fmt: skip

    def label(self, column: int) -> str:
        """What a message calls a column."""
        return f"{column} ({self.names[column]!r})" if self.names else str(column)

    def refused(self, line: int, column: int, expected: str, text: str, hint: str) -> DataError:
        """The error about one field."""
        return self.error(line, f"{expected} in column {self.label(column)}", repr(text), hint)

    def error(self, line: int, expected: str, got: str, hint: str = "") -> DataError:
        """The error about one line."""
        return DataError.build(f"{self._where}, line {line}", expected=expected, got=got, hint=hint)

    def text_at(self, line: int, column: int) -> str:
        """What stands there; only errors ask for it."""
        return next(row[column] for number, row in self.rows() if number == line)

    def _all_rows(self) -> Iterator[tuple[int, list[str]]]:
        try:
            with opened(self._path, "r", self._where, encoding="utf-8-sig", newline="") as file:
                reader = csv_reader(file, delimiter=self._delimiter, strict=True)
                for row in reader:
                    if row:
                        yield reader.line_num, row
        except UnicodeDecodeError as error:
            raise DataError.build(
                self._where, expected="UTF-8 text", got=f"other bytes at {error.start}",
                hint="save the file as CSV in UTF-8",
            ) from None  # fmt: skip
        except CsvError as error:
            raise DataError.build(self._where, expected="a CSV file", got=str(error)) from None

    def _other_delimiter(self, text: str) -> str:
        """The hint for a file whose columns are divided by something else."""
        found = [each for each in _DELIMITERS if each != self._delimiter and each in text]
        return f"are they divided by {found[0]!r}? Pass it as the delimiter" if found else ""


@dataclass(frozen=True)
class Table:
    """What was read: inputs, the texts of the target, and where each row stands in the file."""

    inputs: Array
    targets: list[str]
    """Without spaces around them; none where no target was asked for."""
    lines: NDArray[np.int64]
    dropped: int
    """How many lines were left out, because a value was missing."""

    def without(self, rows: NDArray[np.bool_]) -> Table:
        """The table without these rows."""
        if not rows.any():
            return self
        kept = np.flatnonzero(~rows)
        targets = [self.targets[row] for row in kept] if self.targets else []
        dropped = self.dropped + int(rows.sum())
        return Table(self.inputs[kept], targets, self.lines[kept], dropped)


def read_table(
    file: CsvFile,
    inputs: Sequence[int],
    target: int | None = None,
    missing: Missing | None = None,
) -> Table:
    """The columns `inputs` as float32, and the texts of the column `target`.

    Without `missing` every line counts, and errors do not speak of dropping some.
    """
    if missing not in (*MISSING, None):
        raise ConfigError.build("missing", expected=" or ".join(MISSING), got=repr(missing))
    pick = _picker(inputs)
    numbers, lines = array("d"), array("q")
    targets: list[str] = []
    total = 0
    for line, row in file.rows():
        total += 1
        texts = pick(row)
        try:
            found = list(map(float, texts))
            if "_" in "".join(texts):
                raise ValueError
        except ValueError:
            _check_numbers(file, line, row, inputs, missing)
            continue
        if target is not None:
            text = row[target].strip()
            if is_missing(text):
                _refuse_missing(file, line, target, row[target], missing)
                continue
            if "\0" in text:
                # NumPy ends a text there, and two classes could become one.
                raise file.refused(line, target, "text", text, "the file is damaged")
            targets.append(text)
        numbers.extend(found)
        lines.append(line)
    exact = np.frombuffer(numbers, np.float64).reshape(-1, len(inputs))
    table = Table(exact, targets, np.frombuffer(lines, np.int64), total - len(lines))
    return _as_float32(file, table, inputs, missing)


def _picker(columns: Sequence[int]) -> Any:
    if len(columns) == 1:
        only = columns[0]
        return lambda row: (row[only],)
    return itemgetter(*columns)


def _check_numbers(
    file: CsvFile, line: int, row: list[str], inputs: Sequence[int], missing: Missing | None
) -> None:
    """Refuse a row in which not every input is a number, unless all that lack may be missing."""
    for column in inputs:
        if is_missing(row[column]):
            _refuse_missing(file, line, column, row[column], missing)
        elif as_float(row[column]) is None:
            hint = way_out(row[column], "ignore= (--ignore-columns)")
            raise file.refused(line, column, "a number", row[column], hint)


def _refuse_missing(
    file: CsvFile, line: int, column: int, text: str, missing: Missing | None
) -> None:
    if missing != "drop":
        hint = f"fill it in, or {_way_to_drop(missing)}"
        raise file.refused(line, column, "a value", text, hint)


def _way_to_drop(missing: Missing | None) -> str:
    if missing is None:
        return "leave the line out"
    return 'missing="drop" (--missing drop) leaves such lines out'


def _as_float32(
    file: CsvFile, table: Table, inputs: Sequence[int], missing: Missing | None
) -> Table:
    """The table in the dtype that is trained with, without what that cannot hold."""
    exact = table.inputs
    with np.errstate(over="ignore"):
        single = exact.astype(np.float32)
    table = replace(table, inputs=single).without(
        unusable_rows(file, table, ~np.isfinite(single), inputs, missing)
    )
    for place, column in enumerate(inputs):
        if len(table.inputs) and np.ptp(table.inputs[:, place]) == 0:
            values = exact[np.isfinite(exact[:, place]), place]
            if values.min() < values.max():
                raise DataError.build(
                    f"column {file.label(column)}",
                    expected="numbers that float32 can tell apart",
                    got=f"{values.min():.17g} to {values.max():.17g}",
                    hint="subtract the smallest from all of them first",
                )
    return table


def unusable_rows(
    file: CsvFile, table: Table, unusable: Array, columns: Sequence[int], missing: Missing | None
) -> NDArray[np.bool_]:
    """The rows in which a number of these columns is none that can be used; refused, or to drop."""
    rows = np.asarray(unusable.any(axis=1))
    if rows.any() and missing != "drop":
        row = int(rows.argmax())
        line, column = int(table.lines[row]), columns[int(unusable[row].argmax())]
        raise file.refused(
            line, column, "a finite number in the range of float32", file.text_at(line, column),
            f"correct it, or {_way_to_drop(missing)}",
        )  # fmt: skip
    return rows
