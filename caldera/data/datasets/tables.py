"""Tables: data sets from CSV and npz files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from csv import Error as CsvError
from csv import reader as csv_reader
from itertools import islice
from pathlib import Path

import numpy as np

from caldera import io
from caldera.data.datasets.dataset import Dataset, arrays
from caldera.data.sources.base import SCALE, Array
from caldera.errors import DataError, DtypeError, ShapeError
from caldera.io.csv_files import column_number
from caldera.io.files import PathLike, named, opened

# More different whole numbers than this are amounts rather than classes.
_MOST_CLASSES = 20
_DELIMITERS = (";", "\t", "|", ",")


def csv(
    path: PathLike,
    target: int | str = -1,
    *,
    columns: Sequence[int | str] | None = None,
    test: float = 0.2,
    seed: int = 0,
    classes: bool | None = None,
    delimiter: str = ",",
) -> Dataset:
    """A data set from a table with one sample a line; the column `target` is to be predicted.

    The other columns, or those that `columns` names, are numbers. A target whose first value is no
    number, or which has at most 20 different whole numbers, is a class; other numbers are values,
    of shape (samples, 1). `classes` says which, where that is wrong. A first line without numbers
    holds the names of the columns.

    >>> import pathlib, tempfile
    >>> from caldera import data
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("width,length,name\\n" + "1.5,2,iris\\n3,4,rose\\n" * 5)
    >>> flowers = data.csv(path, target="name")
    >>> flowers
    Dataset(flowers: 8 samples to train, 2 to test, shape (2,), 2 classes)
    >>> flowers.class_names
    ('iris', 'rose')
    """
    where = named("data.csv", path)
    table = _Table(path, delimiter, where)
    column = table.column(target)
    wanted = range(table.width) if columns is None else map(table.column, columns)
    others = [number for number in wanted if number != column]
    if not others:
        raise DataError.build(where, expected="columns beside the target", got="none")
    x: Array
    y: Array
    if _is_number(table.first_row[column]):
        # float64 holds every whole number that can be the name of a class.
        both = [*others, column]
        whole = io.read_csv(path, delimiter, table.has_names, columns=both, dtype="float64").numpy()
        x, y = whole[:, :-1].astype(np.float32), whole[:, -1]
        are_whole = bool((y == np.round(y)).all())
        if classes is None:
            classes = are_whole and len(np.unique(y)) <= _MOST_CLASSES
        y = y.astype(np.int64) if classes and are_whole else y
    else:
        x = io.read_csv(path, delimiter, table.has_names, columns=others).numpy()
        y = np.array(table.texts(column))
    if classes is False:
        y = y[:, None]
    return arrays(x, y, test=test, seed=seed, classes=classes, name=Path(path).stem)


def npz(
    path: PathLike,
    *,
    test: float = 0.2,
    seed: int = 0,
    classes: bool | None = None,
    scale: float | None = SCALE,
) -> Dataset:
    """A data set from an npz file with the arrays x and y, or x_train, y_train, x_test, y_test.

    `test` is the part of x and y to set aside; for the rest see `arrays`.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from caldera import data
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "points.npz"
    >>> np.savez(path, x=np.zeros((10, 3)), y=np.arange(10) % 2)
    >>> data.npz(path)
    Dataset(points: 8 samples to train, 2 to test, shape (3,), 2 classes)
    """
    where = named("data.npz", path)
    found = {name: tensor.numpy() for name, tensor in io.load_npz(path).items()}
    stem = Path(path).stem
    held_out: float | tuple[Array, Array]
    if set(found) == {"x", "y"}:
        x, y, held_out = found["x"], found["y"], test
    elif set(found) == {"x_train", "y_train", "x_test", "y_test"}:
        x, y = found["x_train"], found["y_train"]
        held_out = (found["x_test"], found["y_test"])
    else:
        raise DataError.build(
            where,
            expected="the arrays x and y, or x_train, y_train, x_test and y_test",
            got=", ".join(sorted(found)) or "none",
        )
    try:
        return arrays(x, y, test=held_out, seed=seed, classes=classes, scale=scale, name=stem)
    except (ShapeError, DtypeError) as error:
        raise DataError.build(
            where, expected="arrays that belong together", got=str(error)
        ) from None


class _Table:
    """The names and the texts of a CSV file; the numbers are read by `io.read_csv`."""

    def __init__(self, path: PathLike, delimiter: str, where: str) -> None:
        self._path = path
        self._delimiter = delimiter
        self._where = where
        first_rows = list(islice(self._rows(), 2))
        if not first_rows:
            raise DataError.build(where, expected="lines of numbers", got="an empty file")
        self.width = len(first_rows[0])
        self.has_names = not any(_is_number(text) for text in first_rows[0])
        self._names = [text.strip() for text in first_rows[0]] if self.has_names else []
        rows = first_rows[1:] if self.has_names else first_rows
        self.first_row = rows[0] if rows else []
        if len(self.first_row) != self.width:
            raise DataError.build(
                where, expected=f"{self.width} columns after the line of names",
                got=str(len(self.first_row)), hint=self._other_delimiter(first_rows[0]),
            )  # fmt: skip
        if self.width == 1 and self._other_delimiter(first_rows[0]):
            raise DataError.build(
                where, expected=f"columns with {delimiter!r} between them", got="one column",
                hint=self._other_delimiter(first_rows[0]),
            )  # fmt: skip

    def _other_delimiter(self, first_row: list[str]) -> str:
        """The hint for a file whose columns are divided by something else."""
        found = [each for each in _DELIMITERS if each != self._delimiter and each in first_row[0]]
        return f"are they divided by {found[0]!r}? Pass it as the delimiter" if found else ""

    def column(self, wanted: int | str) -> int:
        """The number of a column."""
        return column_number(wanted, self._names, self.width, self._where)

    def texts(self, column: int) -> list[str]:
        """What stands in a column of a file whose rows all have it."""
        rows = islice(self._rows(), 1 if self.has_names else 0, None)
        return [row[column].strip() for row in rows]

    def _rows(self) -> Iterator[list[str]]:
        try:
            with opened(self._path, "r", self._where, encoding="utf-8-sig", newline="") as file:
                for row in csv_reader(file, delimiter=self._delimiter, strict=True):
                    if row:
                        yield row
        except (CsvError, UnicodeDecodeError, TypeError) as error:
            raise DataError.build(self._where, expected="a CSV file", got=str(error)) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
