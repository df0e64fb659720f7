"""Tables: data sets from files and frames with columns of any kind."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from caldera.data.column import Column
from caldera.data.datasets.dataset import Dataset
from caldera.data.datasets.splits import split_keys, split_rows
from caldera.data.schema import Schema
from caldera.data.sources.base import Array
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.tables.column_checks import TableFinding
from caldera.data.tables.doctor import Doctor, check_findings
from caldera.data.tables.encoders import NumberEncoder
from caldera.data.tables.kinds import Chosen, choose_columns, given_kinds
from caldera.data.tables.numbers import NumberFormat, is_number
from caldera.data.tables.reading import TableFormat, read_table, unpacked_name
from caldera.data.tables.table import Table, TableRows, is_missing
from caldera.data.tables.targets import Labels, known_labels, read_labels
from caldera.errors import ConfigError, DataError
from caldera.io.csv_files import Header
from caldera.io.files import file_name_of, named

Missing = Literal["fill", "drop", "refuse"]
MISSING = ("fill", "drop", "refuse")
"""Strategies for rows that lack a value."""
Kinds = Mapping[int | str, str]


def table(
    source: Any,
    target: int | str | None = None,
    *,
    columns: Sequence[int | str] | None = None,
    ignore: Sequence[int | str] = (),
    kinds: Kinds | None = None,
    classes: bool | None = None,
    missing: Missing = "fill",
    missing_values: Sequence[str] = (),
    test: float = 0.2,
    seed: int = 0,
    scale: bool = True,
    delimiter: str | None = None,
    header: Header = "auto",
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | int | None = None,
    query: str | None = None,
    schema: Schema | None = None,
    strict: bool = False,
    group: int | str | None = None,
    time: int | str | None = None,
) -> Dataset:
    """Return a data set from a table with one sample per row.

    `target` is the column to predict, by default the last one.

    `source` is a path, a frame of pandas, polars or Arrow, a dict of columns, a list of rows, or a
    connection to a database with a `query`. Files are CSV, TSV, Parquet, Feather, Excel, JSON lines
    or SQLite; text may be compressed.

    Column types are guessed. Numbers are scaled to mean 0 and deviation 1 (unless `scale=False`),
    and categories are one-hot. Dates become day numbers and positions in year, week and day.
    Frequent words of free text are features. Identifiers and constant columns are ignored.
    `schema.describe()` reports each column, and `kinds` overrides the type by name: "number",
    "category", "date", "date:%d/%m/%Y", "text" or "ignored". Encoders are fitted to the training
    rows only and saved with the model; pass its `schema` to read a table in the same way.

    Missing numbers become the median, with a feature that marks them; `missing="drop"` drops such
    rows, "refuse" raises an error that names the first. Rows without a target are counted in
    `dropped`. A target of text or of at most 20 different integers is a class, others are values;
    `classes` overrides this.

    Rows with the same value in the column `group`, such as a patient, stay in one part of the
    split. With the column `time` the latest rows are the test rows.

    The `findings` of the data set list faults that training would not notice. Examples are numbers
    such as -999 that mark missing values, columns that give the target away, copies of training
    rows among the test rows, and far outliers. With `strict`, faults are an error.

    >>> from caldera import data
    >>> rows = [{"height": 3.1, "kind": "iris"}, {"height": None, "kind": "rose"}] * 5
    >>> flowers = data.table(rows, "kind")
    >>> flowers
    Dataset(table: 8 samples to train, 2 to test, shape (2,), 2 classes)
    >>> print(flowers.schema.describe())
    height  number     mean 3.1, deviation 1; missing: 3.1, with an indicator
    kind    predicted  class: iris, rose
    """
    where = _where("data.table", source)
    if missing not in MISSING:
        raise ConfigError.build("missing", expected=" or ".join(MISSING), got=repr(missing))
    reading = TableFormat(delimiter, header, encoding, sheet, query, missing_values)
    found = read_table(source, where, reading)
    selection = (target, columns, ignore, kinds, classes, missing, decimal, header)
    request = _Request(where, *selection, schema, scale, test, seed, strict, group, time)
    return request.dataset(found, _title(source))


def table_inputs(
    source: Any,
    schema: Schema | None = None,
    *,
    ignore: Sequence[int | str] = (),
    missing_values: Sequence[str] = (),
    delimiter: str | None = None,
    header: Header = "auto",
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | int | None = None,
    query: str | None = None,
    strict: bool = False,
) -> Array:
    """Return the rows of a table as model inputs, encoded by a schema, for `predict`.

    `model.predict(source)` does the same.

    Columns are found by name, or by position if the table or the schema has no names. A missing or
    unknown column is an error; the columns in `ignore` and the target are left out. Missing values,
    unknown categories and values far outside the training range are encoded as such, and a warning
    reports them; with `strict` they are an error.

    >>> from caldera import data
    >>> rows = [{"width": 1.0, "kind": "iris"}, {"width": 3.0, "kind": "rose"}] * 5
    >>> schema = data.table(rows, "kind", scale=False).schema
    >>> data.table_inputs({"width": [10, 20]}, schema).tolist()
    [[10.0], [20.0]]
    """
    reading = TableFormat(delimiter, header, encoding, sheet, query, missing_values)
    found = table_rows(source, schema, reading, ignore=ignore, decimal=decimal, strict=strict)
    for each in found.notes:
        warnings.warn(each, stacklevel=3)
    return found.x


def table_rows(
    source: Any,
    schema: Schema | None,
    reading: TableFormat = TableFormat(),  # noqa: B008 - it is frozen
    *,
    ignore: Sequence[int | str] = (),
    decimal: str | None = None,
    strict: bool = False,
) -> TableRows:
    """Return the inputs of a table, notes about filled values, and the table."""
    where = _where("data.table_inputs", source)
    found = read_table(source, where, reading)
    left_out = {found.column(each) for each in ignore}
    if schema is None or not schema.columns:
        places = [column for column in range(found.width) if column not in left_out]
        titles = found.names or ("",) * found.width
        raw = [Column(titles[place], "number", place) for place in places]
        schema = Schema(tuple(raw), width=found.width)
    else:
        places = schema.place(found.names, found.width, where, left_out).inputs
    x, notes = schema.encode(found, places, decimal)
    name = file_name_of(source) if _is_path(source) else "table"
    notes = [f"{name}: {each}" for each in notes]
    if strict and notes:
        raise DataError.build(
            where,
            expected="rows like the training rows of the model",
            got="; ".join(notes),
            hint="without strict= (--strict) they are accepted with a warning",
        )
    return TableRows(x, notes, found, places, left_out)


csv = table
csv_inputs = table_inputs
"""Former names, from when only text tables were supported."""


# --- parts of it


@dataclass(frozen=True)
class _Request:
    """Arguments of `table` that select columns and rows."""

    where: str
    target: int | str | None
    columns: Sequence[int | str] | None
    ignore: Sequence[int | str]
    kinds: Kinds | None
    classes: bool | None
    missing: Missing
    decimal: str | None
    header: Header
    schema: Schema | None
    scale: bool
    test: float
    seed: int
    strict: bool
    group: int | str | None
    time: int | str | None

    def dataset(self, found: Table, name: str) -> Dataset:
        """Return the encoded table, split into rows to train with and rows to test with."""
        is_known = self.schema is not None and bool(self.schema.columns)
        chosen, places, column = self._known(found) if is_known else self._chosen(found)
        found = found.with_words(column) if self.classes else found
        found, dropped, left_out = _usable(found, places, column, self.missing, self.where)
        if self.schema is not None and is_known:
            labels = _known_labels(found, column, self.classes, self.schema, self.decimal)
        else:
            labels = read_labels(found, column, self.classes, self.decimal)
        if self.header == "auto":
            _check_first_row(found, column)
        rows = ArrayData(np.zeros((len(found), 1), np.float32), labels.values)
        rows.keys = split_keys(found, self.group, self.time, self.decimal)
        train, apart = split_rows(rows, self.test, self.seed)
        notes, schema = found.notes + left_out, self.schema
        findings: tuple[TableFinding, ...] = ()
        if chosen is not None:
            notes += tuple(
                f"column {found.label(place)}: {kind.reason}"
                for place, kind in chosen.kinds.items()
                if kind.reason
            )
            doctor = Doctor(found, column, labels, train)
            schema = _fitted(found, chosen, column, labels, doctor, self.scale)
            findings = doctor.findings(chosen, apart)
            if self.strict:
                check_findings(findings, self.where)
        assert schema is not None
        if not schema.features:
            raise DataError.build(
                self.where,
                expected="columns with information about the target",
                got=schema.describe().replace("\n", "; ")[:200],
                hint="set kinds= (--kinds) for columns whose kind is guessed wrong",
            )
        x, said = schema.encode(found, places, self.decimal, is_new=is_known)
        notes += tuple(said) if is_known else ()
        samples = ArrayData(x, labels.values)
        samples.schema, samples.keys = schema, rows.keys
        parts = samples.subset(train), samples.subset(apart)
        parts[1].table = found.subset(apart)
        names = labels.class_names
        return Dataset(*parts, len(names), names, name, dropped, notes=notes, findings=findings)

    def _known(self, found: Table) -> tuple[None, list[int], int]:
        """Return the columns of a schema, and the target's."""
        if self.columns is not None or self.kinds:
            raise ConfigError.build(
                self.where, expected="columns= or schema=, kinds= or schema=", got="both"
            )
        assert self.schema is not None
        left_out = [found.column(each) for each in self.ignore]
        return None, *_known_places(found, self.target, left_out, self.schema, self.where)

    def _chosen(self, found: Table) -> tuple[Chosen, list[int], int]:
        """Return the types of the columns to read, the columns, and the target's."""
        left_out = [found.column(each) for each in self.ignore]
        left_out += [] if self.group is None else [found.column(self.group)]
        column = found.column(-1 if self.target is None else self.target)
        wanted = _inputs(found, column, self.columns, left_out, self.kinds)
        chosen = choose_columns(
            found, wanted, given_kinds(self.kinds, found, self.decimal), self.decimal
        )
        places = list(chosen.kinds)
        if not places:
            raise DataError.build(
                self.where, expected="columns in addition to the target", got=_none(chosen)
            )
        found.check_names([*places, column])
        return chosen, places, column


def _fitted(
    found: Table,
    chosen: Chosen,
    target: int,
    labels: Labels,
    doctor: Doctor,
    scale: bool,
) -> Schema:
    """Return the schema fitted to the training rows; the doctor examines each column."""
    train = doctor.train
    titles = found.names or ("",) * found.width
    columns = []
    for place, kind in chosen.kinds.items():
        values = kind.parse(found, place)
        doctor.column(place, kind.name, values, kind.detail)
        values = values[train]
        column = Column(titles[place], kind.name, place)
        if kind.name != "number" or scale:
            column = Column.encoded(titles[place], place, kind.fit(values))
        form = kind.detail if isinstance(kind.detail, NumberFormat) else None
        columns.append(replace(column, form=form).trained_on(values))
    answer = Column(titles[target], "class" if labels.class_names else "number", target)
    answer = answer if labels.class_names else replace(answer, form=labels.form)
    if scale and not labels.class_names:
        numbers = labels.values[train, 0].astype(np.float64)
        answer = replace(answer, number=NumberEncoder.fit(numbers, labels.form))
    unused = [
        number
        for number in range(found.width)
        if titles[number] and number not in (*chosen.kinds, target)
    ]
    return Schema(
        columns=tuple(columns),
        target=answer,
        classes=labels.class_names,
        ignored=tuple(titles[number] for number in unused),
        width=found.width,
        reasons=tuple(chosen.left_out.get(number, "as told") for number in unused),
    )


def _usable(
    found: Table, inputs: Sequence[int], target: int, missing: Missing, where: str
) -> tuple[Table, int, tuple[str, ...]]:
    """Return the complete rows, the number of incomplete rows, and notes on their gaps."""
    needed = [target] if missing == "fill" else [*inputs, target]
    gone = np.any([found.missing(column) for column in needed], axis=0)
    if gone.any() and missing == "refuse":
        row = int(gone.argmax())
        column = next(each for each in (*inputs, target) if found.missing(each)[row])
        hint = 'missing="drop" (--missing drop) leaves such rows out'
        raise found.refused(row, column, "a value", f"fill it in, or {hint}")
    if gone.all():
        raise DataError.build(
            where,
            expected="rows with all values",
            got=f"none among {len(found)}",
            hint="check the target column, and set it with target= (--target-column)",
        )
    if not gone.any():
        return found, 0, ()
    lacks = [f"column {found.label(each)}: {_lack(found, each)}" for each in needed]
    hint = ""
    if any(found.missing_by_text(target)):
        hint = "; classes=True (--targets classes) treats such target texts as classes"
    said = ", ".join(
        each for each, column in zip(lacks, needed, strict=True) if found.missing(column).any()
    )
    rows = f"{int(gone.sum())} row{'s' if gone.sum() > 1 else ''}"
    return (
        found.subset(~gone),
        int(gone.sum()),
        (f"{rows} left out for missing values: {said}{hint}",),
    )


def _lack(found: Table, column: int) -> str:
    """Return the texts that mark missing values in a column, with their counts."""
    counts = found.missing_by_text(column)
    return " and ".join(f"{repr(text) if text else 'nothing'} in {n}" for text, n in counts.items())


def _known_labels(
    found: Table, column: int, classes: bool | None, schema: Schema, decimal: str | None
) -> Labels:
    """Return the targets of a table, as classes or values according to a schema."""
    if classes is not None and classes != bool(schema.classes):
        raise ConfigError.build(
            "classes", expected=f"{bool(schema.classes)}, as in the schema", got=f"{classes}"
        )
    if schema.classes:
        return known_labels(found, column, schema.classes)
    known = schema.target or Column("", "number", column)
    return read_labels(found, column, False, known=known.number_format(found, column, decimal))


def _known_places(
    found: Table, target: int | str | None, left_out: list[int], schema: Schema, where: str
) -> tuple[list[int], int]:
    """Return the positions of the inputs and of the target of a schema."""
    if target is not None:
        column = found.column(target)
        return schema.place(found.names, found.width, where, {*left_out, column}).inputs, column
    places = schema.place(found.names, found.width, where, left_out)
    if places.target is None:
        name = schema.target.name if schema.target else ""
        raise DataError.build(
            where,
            expected=f"the column {name!r}, which is predicted" if name else "a target",
            got="none",
            hint="set it with target= (--target-column)",
        )
    return places.inputs, places.target


def _inputs(
    found: Table,
    target: int,
    columns: Sequence[int | str] | None,
    left_out: Sequence[int],
    kinds: Kinds | None,
) -> list[int]:
    """Return the numbers of the columns to learn from, if they hold something."""
    if columns is None:
        # One without a name cannot be found again; it is mostly the numbers of rows.
        told = {found.column(each) for each in kinds or ()}
        wanted = [
            column
            for column in range(found.width)
            if not found.names or not is_missing(found.names[column]) or column in told
        ]
    else:
        wanted = [found.column(each) for each in columns]
    chosen = [column for column in wanted if column not in (target, *left_out)]
    twice = [found.label(column) for column in chosen if chosen.count(column) > 1]
    if twice:
        raise DataError.build(
            found.where, expected="each column once", got=f"column {twice[0]} again"
        )
    return chosen


def _none(chosen: Chosen) -> str:
    said = "; ".join(f"column {place}: {why}" for place, why in list(chosen.left_out.items())[:3])
    return f"none with information ({said})" if said else "none"


def _check_first_row(found: Table, column: int) -> None:
    """Refuse a first line with numbers that may be names all the same, as in 2019,2020,kind."""
    values = found.columns[column].tolist()
    if found.names or found.row_word != "line" or not isinstance(values[0], str):
        return
    if not is_number(values[0]) and values.count(values[0]) == 1:
        raise found.refused(
            0,
            column,
            "a class that also occurs in other lines",
            "pass header=True (--header) if this line contains names, or header=False "
            "(--no-header)",
        )


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def _where(function: str, source: Any) -> str:
    return named(function, source) if _is_path(source) else function


def _title(source: Any) -> str:
    """Return the name of the data set: the file name without its suffix."""
    return unpacked_name(source).stem if _is_path(source) else "table"
