"""Targets of a table: classes or values, determined from texts or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from caldera.base.registry import nearest
from caldera.data.datasets.dataset import as_targets
from caldera.data.sources.base import Array
from caldera.data.tables.numbers import (
    NumberFormat,
    check_typed,
    find_number_format,
    first_code,
    is_code,
    numbers_of,
    plain_number,
    typed_format,
)
from caldera.data.tables.table import Table, Values, category_name, number_name, value_text
from caldera.errors import DataError

MOST_CLASSES = 20
"""More different whole numbers than this are amounts rather than classes."""
_ARE_CLASSES = "classes=True (--targets classes) takes them for the names of classes"


class Labels(NamedTuple):
    """Targets as they are trained with."""

    values: Array
    """The numbers of classes; or values, of shape (samples, 1)."""
    class_names: tuple[str, ...] = ()
    """Empty where values are predicted."""
    form: NumberFormat = NumberFormat()


def read_labels(
    table: Table,
    column: int,
    classes: bool | None,
    decimal: str | None = None,
    known: NumberFormat | None = None,
) -> Labels:
    """Return the targets of a table without missing targets.

    `classes` selects classes (True) or values (False); None guesses. Numbers are classes if at most
    20 are different and all are integers. Texts are classes if they are not all different and none
    is a number; digits with a leading zero are codes, which are texts. Only classes that occur are
    numbered.
    """
    values = table.columns[column]
    if values.dtype.kind == "M":
        hint = "turn them into numbers first, such as days since a day of your choice"
        raise table.refused(0, column, "classes or numbers", hint)
    if values.dtype.kind == "f":
        return _numbers(
            table,
            column,
            values,
            [Decimal(repr(each)) for each in values.tolist()],
            classes,
            typed_format(values),
        )
    form = known or find_number_format(table, column, decimal)
    plain = [plain_number(each, form.decimal) for each in values]
    exact = [Decimal(each) for each in plain if each is not None]
    if None not in plain and classes is not False and _are_codes(values, exact, classes):
        plain = [None] * len(values)
    if None in plain:
        _check_texts(table, column, values, plain, classes)
        return Labels(*as_targets(np.array([category_name(each) for each in values]), True, ""))
    check_typed(table, column, form)
    return _numbers(table, column, numbers_of(values, form), exact, classes, form)


def _are_codes(values: Values, exact: Sequence[Decimal], classes: bool | None) -> bool:
    """Return True if some texts differ while their numbers are equal, as 01 and 1 do."""
    if first_code(values):
        return True
    different = len(set(exact))
    are_classes = classes or (different <= MOST_CLASSES and _are_whole(exact))
    return are_classes and different < len(set(values))


def _are_whole(exact: Sequence[Decimal]) -> bool:
    # To the last digit, which a float of 64 bits would not keep.
    return all(number == number.to_integral_value() for number in exact)


def _numbers(
    table: Table,
    column: int,
    numbers: Values,
    exact: Sequence[Decimal],
    classes: bool | None,
    form: NumberFormat,
) -> Labels:
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise table.refused(int(wrong.argmax()), column, "a finite number")
    if classes is None:
        classes = _are_whole(exact) and len(set(exact)) <= MOST_CLASSES
    if not classes:
        if not np.isfinite(single).all():
            row = int((~np.isfinite(single)).argmax())
            raise table.refused(row, column, "a finite number in the range of float32")
        return Labels(single[:, None], (), form)
    numbered = {number: place for place, number in enumerate(sorted(set(exact)))}
    places = np.array([numbered[number] for number in exact], np.int64)
    return Labels(places, tuple(map(number_name, numbered)))


def known_labels(table: Table, column: int, class_names: tuple[str, ...]) -> Labels:
    """Return the targets of a table as the numbers of classes that are known.

    Any other is refused.
    """
    known = {name: number for number, name in enumerate(class_names)}
    values = np.empty(len(table), np.int64)
    for row, value in enumerate(table.columns[column].tolist()):
        text = category_name(value_text(value))
        found = known.get(text)
        if found is None and not is_code(text) and (plain := plain_number(text, ".")) is not None:
            found = known.get(number_name(Decimal(plain)))
        if found is None:
            raise table.refused(
                row,
                column,
                "one of the classes " + ", ".join(class_names[:20]),
                nearest(text, class_names[:20]),
            )
        values[row] = found
    return Labels(values, class_names)


def _check_texts(
    table: Table,
    column: int,
    values: Values,
    numbers: Sequence[str | None],
    classes: bool | None,
) -> None:
    """Raise an error for texts that are not classes, unless the user specified classes."""
    if classes:
        return
    row = next(place for place, number in enumerate(numbers) if number is None)
    if classes is False:
        raise table.refused(row, column, "numbers to predict")
    if any(number is not None for number in numbers):
        hint = f"other rows have one there: correct it, or {_ARE_CLASSES}"
        raise table.refused(row, column, "a number", hint)
    different = len(set(values))
    if different > max(MOST_CLASSES, len(values) // 2):
        raise DataError.build(
            f"column {table.label(column)}",
            expected="the classes of samples, or numbers",
            got=f"{different} different texts in {len(values)} rows, such as {values[row]!r}",
            hint=f"name the column to predict with target= (--target-column), or {_ARE_CLASSES}",
        )
