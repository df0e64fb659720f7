"""What the column to predict holds: classes or values, told from its texts."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from caldera.data.datasets.csv_table import CsvFile, Missing, Table, unusable_rows
from caldera.data.datasets.dataset import as_targets
from caldera.data.sources.base import Array
from caldera.errors import DataError
from caldera.io.csv_files import as_float, has_grouped_digits, way_out
from caldera.registry import nearest

_MOST_CLASSES = 20
"""More different whole numbers than this are amounts rather than classes."""
_ARE_CLASSES = "classes=True (--targets classes) takes them for the names of classes"
_WORD = np.iinfo(np.int64)


class Labels(NamedTuple):
    """A table whose targets can all be used, and what they are."""

    table: Table
    values: Array
    """The numbers of classes; or values, of shape (samples, 1)."""
    class_names: tuple[str, ...]
    """Empty where values are predicted."""


def read_labels(
    file: CsvFile, table: Table, column: int, classes: bool | None, missing: Missing
) -> Labels:
    """The targets of a table; `classes` says what they are, where that should not be guessed.

    Numbers are classes if there are at most 20 different ones and all are whole. Texts are classes
    if they are not all different, and none of them is a number.
    """
    numbers = [as_float(text) for text in table.targets]
    if None in numbers:
        _check_texts(file, table, column, numbers, classes)
        return Labels(table, *as_targets(np.array(table.targets), True, ""))
    table = _without(file, table, np.array(numbers, np.float64), column, missing)
    # To the last digit, which a float of 64 bits would not keep.
    exact = [Decimal(text) for text in table.targets]
    are_whole = all(number == number.to_integral_value() for number in exact)
    if classes is None:
        classes = are_whole and len(set(exact)) <= _MOST_CLASSES
    if not classes:
        with np.errstate(over="ignore"):
            values = np.array(exact, np.float64).astype(np.float32)
        table = _without(file, table, values, column, missing)
        return Labels(table, values[np.isfinite(values)][:, None], ())
    if are_whole and all(_WORD.min <= number <= _WORD.max for number in exact):
        return Labels(table, *as_targets(np.array(exact, np.int64), True, ""))
    numbered = {number: place for place, number in enumerate(sorted(set(exact)))}
    values = np.array([numbered[number] for number in exact], np.int64)
    return Labels(table, values, tuple(map(_name, numbered)))


def numbered_labels(
    file: CsvFile, table: Table, column: int, class_names: tuple[str, ...]
) -> Labels:
    """The targets of a table as the numbers of classes that are known; any other is refused."""
    known = {name: number for number, name in enumerate(class_names)}
    values = np.empty(len(table.targets), np.int64)
    for row, text in enumerate(table.targets):
        found = known.get(text)
        if found is None and as_float(text) is not None:
            found = known.get(_name(Decimal(text)))
        if found is None:
            raise file.refused(
                int(table.lines[row]), column, "one of the classes " + ", ".join(class_names[:20]),
                text, nearest(text, class_names[:20]),
            )  # fmt: skip
        values[row] = found
    return Labels(table, values, class_names)


def _without(file: CsvFile, table: Table, values: Array, column: int, missing: Missing) -> Table:
    """The table without the rows whose target is no finite number."""
    unusable = ~np.isfinite(values)[:, None]
    return table.without(unusable_rows(file, table, unusable, [column], missing))


def _name(number: Decimal) -> str:
    """What a class is called that is a number: the same for 1, 1.0 and 1e0.

    >>> _name(Decimal("1.50")), _name(Decimal("2e1")), _name(Decimal("9007199254740993"))
    ('1.5', '20', '9007199254740993')
    """
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check_texts(
    file: CsvFile,
    table: Table,
    column: int,
    numbers: Sequence[float | None],
    classes: bool | None,
) -> None:
    """Refuse texts that are no classes; those that somebody has said to be classes are."""
    if classes:
        return
    row = next(place for place, number in enumerate(numbers) if number is None)
    line, text = int(table.lines[row]), table.targets[row]
    if classes is False:
        raise file.refused(line, column, "numbers to predict", text, way_out(text))
    if any(number is not None for number in numbers):
        hint = f"other lines have one there: correct it, or {_ARE_CLASSES}"
        raise file.refused(line, column, "a number", text, hint)
    if all(map(has_grouped_digits, table.targets)):
        raise file.refused(line, column, "a number", text, f"{way_out(text)}; or {_ARE_CLASSES}")
    different = len(set(table.targets))
    if different > max(_MOST_CLASSES, len(table.targets) // 2):
        raise DataError.build(
            f"column {file.label(column)}", expected="the classes of samples, or numbers",
            got=f"{different} different texts in {len(table.targets)} lines, such as {text!r}",
            hint=f"name the column to predict with target= (--target-column), or {_ARE_CLASSES}",
        )  # fmt: skip
