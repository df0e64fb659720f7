"""Texts to classify: from lists, from a column of a table, or from folders of text files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.base.registry import nearest
from caldera.data.datasets.dataset import Dataset, as_targets
from caldera.data.datasets.image_folder import parts_of_folder
from caldera.data.datasets.splits import split_rows
from caldera.data.schema import Schema
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.tables.reading import TableFormat, is_table, read_table
from caldera.data.text.tokenizer import Tokenizer
from caldera.errors import DataError
from caldera.io.files import read_bounded

LARGEST_TEXT = 1 << 24
"""Maximum size of a text file in bytes."""
SUFFIXES = (".txt", ".text", ".md")
_WHERE = "data.texts"


class LabelledTexts(NamedTuple):
    """Texts and their labels."""

    texts: list[str]
    labels: list[Any]


def texts(
    source: Any,
    labels: Sequence[Any] | None = None,
    *,
    text: str | None = None,
    target: str | None = None,
    tokenizer: str | Tokenizer = "words",
    vocabulary: int = 20_000,
    length: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    schema: Schema | None = None,
) -> Dataset:
    """Return texts as rows of integers, with their classes.

    `source` is a list of texts with `labels`, a table (see `data.table`) with the columns `text`
    and `target`, or a folder with a subfolder of .txt files for each class, possibly in train/ and
    test/.

    The tokenizer ("words", "letters" or "byte_pairs") learns at most `vocabulary` tokens from the
    training texts and keeps `length` tokens of each text; see `Tokenizer.fit`. It is stored in the
    model: `model.predict(["a text"])`. New texts for a model are read with its `schema`.

    >>> from caldera import data
    >>> reviews = data.texts(["good", "very good", "bad", "so bad"], ["+", "+", "-", "-"], test=0.5)
    >>> reviews.class_names, reviews.schema.text.transform(["good bad unheard"]).shape
    (('+', '-'), (1, 2))
    """
    if schema is not None and schema.text is not None:
        text = text or schema.text.column or None
    given, apart, name, text = _read(source, labels, text, target)
    both = given.labels + (apart.labels if apart is not None else [])
    values, names = _numbered(both, schema)
    trained = np.arange(len(given.texts))
    tested = np.arange(len(given.texts), len(both))
    if apart is None:
        everything = ArrayData(np.zeros((len(both), 1)), values)
        trained, tested = split_rows(everything, test, seed)
    whole = given.texts + (apart.texts if apart is not None else [])
    fitted = _fitted(tokenizer, [whole[row] for row in trained], vocabulary, length, schema)
    if schema is None:
        fitted = replace(fitted, column=text)
    samples = ArrayData(fitted.transform(whole), values, scale=None)
    samples.schema = Schema(classes=names, text=fitted)
    notes = (f"texts are divided into {fitted}",)
    parts = samples.subset(trained), samples.subset(tested)
    return Dataset(*parts, len(names), names, name, notes=notes)


def _fitted(
    tokenizer: str | Tokenizer,
    training: list[str],
    size: int,
    length: int | None,
    schema: Schema | None,
) -> Tokenizer:
    if schema is not None and schema.text is not None:
        return schema.text
    if isinstance(tokenizer, Tokenizer):
        return tokenizer if length is None else replace(tokenizer, length=length)
    return Tokenizer.fit(training, tokenizer, size=size, length=length)


def _numbered(labels: list[Any], schema: Schema | None) -> tuple[np.ndarray, tuple[str, ...]]:
    if schema is None or not schema.classes:
        targets = as_targets(np.array([str(each) for each in labels]), True, _WHERE)
        return targets.values, targets.class_names
    known = {name: number for number, name in enumerate(schema.classes)}
    for each in labels:
        if str(each) not in known:
            raise DataError.build(
                _WHERE,
                expected="the classes " + ", ".join(known),
                got=repr(each)[:80],
                hint=nearest(str(each), known),
            )
    return np.array([known[str(each)] for each in labels], np.int64), schema.classes


def _read(
    source: Any, labels: Sequence[Any] | None, text: str | None, target: str | None
) -> tuple[LabelledTexts, LabelledTexts | None, str, str]:
    """Return training texts, test texts (None if not separate), a name and the column's name."""
    if not is_table(source):
        return _pairs(source, labels), None, "texts", ""
    require(
        labels is None, _WHERE, "labels in the table, in the column of target=", "separate labels"
    )
    path = Path(source).expanduser() if isinstance(source, str | PathLike) else None
    if path is not None and path.is_dir():
        return *_folder(path), path.resolve().name, ""
    found, column = _table(source, text, target)
    return found, None, "texts" if path is None else path.name.partition(".")[0], column


def _pairs(source: Any, labels: Sequence[Any] | None) -> LabelledTexts:
    are_pairs = labels is None and isinstance(source, Sequence) and bool(source)
    if are_pairs and all(isinstance(each, tuple) and len(each) == 2 for each in source):
        source, labels = zip(*source, strict=True)
    found = [] if labels is None or not np.iterable(labels) else list(labels)
    is_list = isinstance(source, Sequence) or (isinstance(source, np.ndarray) and source.ndim)
    given = list(source) if is_list else []
    require(
        given and len(found) == len(given) and all(isinstance(each, str) for each in given),
        _WHERE,
        "equally long lists of texts and labels, a CSV file or a folder",
        f"{len(given)} texts and {len(found)} labels",
        hint="for example data.texts(['good', 'bad'], ['+', '-'])",
        error=DataError,
    )
    return LabelledTexts(given, found)


# --- files


def _folder(root: Path) -> tuple[LabelledTexts, LabelledTexts | None]:
    train, test = parts_of_folder(root)
    return _classes(train), None if test is None else _classes(test)


def text_files(folder: Path) -> list[Path]:
    """Return the text files of a folder, in the order of their names."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def is_text_folder(root: Path) -> bool:
    """Return True if a folder has subfolders of text files, one for each class."""
    train, _ = parts_of_folder(root)
    return any(text_files(each) for each in sorted(train.iterdir()) if each.is_dir())


def _classes(folder: Path) -> LabelledTexts:
    found = LabelledTexts([], [])
    for label in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in text_files(label):
            found.texts.append(read_text(path))
            found.labels.append(label.name)
    require(
        found.texts,
        _WHERE,
        f"text files in {folder}/<class>/",
        hint="make one folder for each class; known names end in " + ", ".join(SUFFIXES),
        error=DataError,
    )
    return found


def read_text(path: Path) -> str:
    """Return the text of a file, in UTF-8."""
    try:
        return read_bounded(path, LARGEST_TEXT, _WHERE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError.build(
            f"{_WHERE} {path.name}",
            expected="a text in UTF-8",
            got=str(error)[:100],
            hint="convert it, as in: iconv -f latin1 -t utf8",
        ) from None


def _table(source: Any, text: str | None, target: str | None) -> tuple[LabelledTexts, str]:
    columns = text_columns(source)
    names = list(columns)
    target = names[-1] if target is None else _column(target, names, "target")
    if text is None:
        others = [name for name in names if name != target]
        require(others, _WHERE, "two columns", "one", error=DataError)
        # The column with the most characters contains the texts.
        text = max(others, key=lambda name: sum(map(len, columns[name])))
    text = _column(text, names, "text")
    if "" in columns[target]:
        raise DataError.build(
            _WHERE,
            expected=f"a class for each text, in the column {target!r}",
            got=f"none in row {columns[target].index('')}",
        )
    return LabelledTexts(columns[text], list(columns[target])), text


def _column(name: str, names: list[str], what: str) -> str:
    if name not in names:
        raise DataError.build(
            _WHERE,
            expected=f"{what}= one of the columns",
            got=repr(name),
            hint=nearest(name, names),
        )
    return name


def text_columns(source: Any) -> dict[str, list[str]]:
    """Return the columns of a table by name, as texts; a missing one is empty."""
    table = read_table(source, _WHERE, TableFormat())
    require(
        table.names and len(table),
        table.where,
        "a line of names, and rows",
        f"{len(table)} rows" if table.names else "columns without names",
        hint="quote texts that contain commas or line breaks",
        error=DataError,
    )
    table.check_names(range(table.width))
    return {
        # A text may say "null", and a class may be called NA.
        name: ["" if each is None else each for each in table.with_words(number).texts(number)]
        for number, name in enumerate(table.names)
    }
