"""Tables: data sets from CSV and npz files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caldera import io
from caldera.data.datasets.csv_table import CsvFile, Missing, Table, read_table
from caldera.data.datasets.csv_targets import Labels, numbered_labels, read_labels
from caldera.data.datasets.dataset import Dataset, arrays, split
from caldera.data.schema import Column, Schema
from caldera.data.sources.array_data import ArrayData
from caldera.data.sources.base import SCALE, Array
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError
from caldera.io.csv_files import Header, as_float
from caldera.io.files import PathLike, named


def csv(
    path: PathLike,
    target: int | str | None = None,
    *,
    columns: Sequence[int | str] | None = None,
    ignore: Sequence[int | str] = (),
    test: float = 0.2,
    seed: int = 0,
    classes: bool | None = None,
    delimiter: str = ",",
    header: Header = "auto",
    missing: Missing = "refuse",
    schema: Schema | None = None,
) -> Dataset:
    """A data set from a table with one sample a line; the column `target` is to be predicted, or
    else the last one.

    The other columns, or those that `columns` names, without those of `ignore`, are finite numbers.
    A target is a class if it is a text, or a whole number of which there are at most 20 different
    ones; other numbers are values, of shape (samples, 1). `classes` says which, where that is
    wrong. A first line without numbers holds the names of the columns; `header` says so where it
    has numbers.

    A line that lacks a value, or has one that is infinite or too large, is an error that names it;
    `missing="drop"` leaves such lines out, and `dropped` of the data set counts them.

    `schema` is that of a model (`model.schema`): the table is read as the one the model was trained
    on, with columns found by name and classes numbered in the same way.

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
    file = CsvFile(path, delimiter, header, where)
    left_out = [file.column(each) for each in ignore]
    if schema is None or not schema.columns:
        column = file.column(-1 if target is None else target)
        inputs = _inputs(file, column, columns, left_out, where)
    else:
        if columns is not None:
            raise ConfigError.build(where, expected="columns= or schema=", got="both")
        inputs, column = _places(file, target, left_out, schema, where)
    table = read_table(file, inputs, column, missing)
    labels = _labels(file, table, column, classes, missing, schema)
    if not labels.table.targets:
        raise DataError.build(
            where, expected="lines with all values", got=f"none among {labels.table.dropped}"
        )
    if header == "auto":
        _check_first_line(file, table, column)
    samples = ArrayData(labels.table.inputs, labels.values)
    samples.schema = schema if schema else _schema(file, inputs, column, labels.class_names)
    train_data, test_data = split(samples, test=test, seed=seed)
    names = labels.class_names
    return Dataset(
        train_data, test_data, len(names), names, Path(path).stem, dropped=labels.table.dropped
    )


def csv_inputs(
    path: PathLike,
    schema: Schema | None = None,
    *,
    ignore: Sequence[int | str] = (),
    delimiter: str = ",",
    header: Header = "auto",
) -> Array:
    """The inputs of a table, one sample a line, in the order of a schema: what `predict` takes.

    Columns are found by name, or by position where there are no names. One that is missing or
    unknown is an error; those of `ignore`, and the one that is to be predicted, are left out.

    >>> import pathlib, tempfile
    >>> from caldera import data
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("width,length,name\\n1,2,iris\\n3,4,iris\\n")
    >>> schema = data.csv(path, target="name").schema
    >>> _ = path.write_text("length,width\\n20,10\\n")
    >>> data.csv_inputs(path, schema).tolist()
    [[10.0, 20.0]]
    """
    where = named("data.csv_inputs", path)
    file = CsvFile(path, delimiter, header, where)
    left_out = {file.column(each) for each in ignore}
    if schema is None or not schema.columns:
        inputs = [column for column in range(file.width) if column not in left_out]
    else:
        inputs = schema.place(file.names, file.width, where, left_out).inputs
    return read_table(file, inputs).inputs


def _labels(
    file: CsvFile,
    table: Table,
    column: int,
    classes: bool | None,
    missing: Missing,
    schema: Schema | None,
) -> Labels:
    """What is to be predicted; where a schema says what that is, as it says."""
    if schema is None:
        return read_labels(file, table, column, classes, missing)
    if classes is not None and classes != bool(schema.classes):
        raise ConfigError.build(
            "classes", expected=f"{bool(schema.classes)}, as the schema says", got=f"{classes}"
        )
    if schema.classes:
        return numbered_labels(file, table, column, schema.classes)
    return read_labels(file, table, column, False, missing)


def _places(
    file: CsvFile, target: int | str | None, left_out: list[int], schema: Schema, where: str
) -> tuple[list[int], int]:
    """Where the inputs and the target of a schema are."""
    if target is not None:
        column = file.column(target)
        return schema.place(file.names, file.width, where, {*left_out, column}).inputs, column
    places = schema.place(file.names, file.width, where, left_out)
    if places.target is None:
        name = schema.target.name if schema.target else ""
        raise DataError.build(
            where, expected=f"the column {name!r}, which is predicted" if name else "a target",
            got="none", hint="say which it is with target= (--target-column)",
        )  # fmt: skip
    return places.inputs, places.target


def _schema(
    file: CsvFile, inputs: Sequence[int], target: int, class_names: tuple[str, ...]
) -> Schema:
    names = file.names or [""] * file.width
    unused = [name for number, name in enumerate(names) if number not in (*inputs, target)]
    return Schema(
        columns=tuple(Column(names[number], "number", number) for number in inputs),
        target=Column(names[target], "class" if class_names else "number", target),
        classes=class_names,
        ignored=tuple(name for name in unused if name),
        width=file.width,
    )


def _inputs(
    file: CsvFile,
    target: int,
    columns: Sequence[int | str] | None,
    left_out: Sequence[int],
    where: str,
) -> list[int]:
    """The numbers of the columns to learn from."""
    wanted = range(file.width) if columns is None else map(file.column, columns)
    found = [column for column in wanted if column not in (target, *left_out)]
    if not found:
        raise DataError.build(where, expected="columns beside the target", got="none")
    twice = [file.label(column) for column in found if found.count(column) > 1]
    if twice:
        raise DataError.build(where, expected="each column once", got=f"column {twice[0]} again")
    file.check_names([*found, target])
    return found


def _check_first_line(file: CsvFile, table: Table, column: int) -> None:
    """Refuse a first line with numbers that may be names all the same, as in 2019,2020,kind."""
    first = table.targets[0]
    if file.has_names or as_float(first) is not None or table.targets.count(first) > 1:
        return
    raise file.refused(
        int(table.lines[0]), column, "a class that other lines have too", first,
        "pass header=True (--header) if this line holds names, or header=False (--no-header)",
    )  # fmt: skip


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
