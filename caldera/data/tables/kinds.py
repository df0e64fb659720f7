"""Types of columns, given or guessed: number, category, date, text or ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from caldera.base.registry import nearest
from caldera.data.tables.encoders import ENCODERS, Encoder
from caldera.data.tables.numbers import (
    find_number_format,
    first_code,
    numbers_of,
    says_missing,
    typed_format,
    written_numbers,
)
from caldera.data.tables.table import Table, Values, missing_values
from caldera.data.tables.text_encoder import is_free_text
from caldera.data.tables.text_parsing import ISO, find_format, is_format
from caldera.errors import ConfigError

NUMBER, CATEGORY, DATE, TEXT = ENCODERS
IGNORED = "ignored"
KINDS = (*ENCODERS, IGNORED)
_MOST_CATEGORIES = 20
"""More different texts than this, and than half of the rows, are no categories."""
_MOSTLY = 0.9
"""If more than this fraction of texts are numbers, the remaining texts are errors."""
IDENTIFIER_NAME = re.compile(
    r"(^|[\s_.-])(id|ids|index|uuid|guid|rownames|row)$|[a-z]I[dD]$|^Unnamed: 0$"
)
"""Names of columns that identify rows, or what rows belong to."""


class ColumnKind(NamedTuple):
    """Type of a column; `detail` is the format of numbers or dates.

    `reason` explains the type if it is not obvious.
    """

    name: str
    detail: Any = ""
    reason: str = ""

    def parse(self, table: Table, column: int) -> Values:
        """Return the values of a column of this kind."""
        return ENCODERS[self.name].parse(table, column, *filter(None, [self.detail]))

    def fit(self, values: Values) -> Encoder:
        """Return an encoder that has learnt from values of this kind."""
        return ENCODERS[self.name].fit(values, *filter(None, [self.detail]))


def given_kinds(
    given: Mapping[int | str, str] | None, table: Table, decimal: str | None
) -> dict[int, ColumnKind]:
    """Return the types that the user has specified, by number of column."""
    found = {}
    for wanted, text in (given or {}).items():
        name, _, given_format = str(text).partition(":")
        detail: Any = given_format
        name = "ignored" if name == "ignore" else name
        column = table.column(wanted)
        if name not in KINDS or (detail and not (name == DATE and is_format(detail))):
            raise ConfigError.build(
                f"kinds, column {table.label(column)}",
                expected=f"{', '.join(KINDS)}, or date:FORMAT such as date:%d/%m/%Y",
                got=repr(text),
                hint=nearest(name, KINDS),
            )
        if name == NUMBER:
            detail = find_number_format(table, column, decimal)
        elif name == DATE and not detail and table.columns[column].dtype == object:
            found_format = find_format(_present(table.columns[column]))
            detail = found_format.format if found_format else ISO
        found[column] = ColumnKind(name, detail, "as told" if name == IGNORED else "")
    return found


def guess_kind(table: Table, column: int, decimal: str | None = None) -> ColumnKind:
    """Guess the type of a column from its values.

    >>> from caldera.data.tables.table import table_of
    >>> table = table_of({"a": [1, 2], "b": ["x", "y"], "c": ["2024-01-01", None]}, "t")
    >>> [guess_kind(table, column).name for column in range(3)]
    ['number', 'category', 'date']
    """
    values = table.columns[column]
    missing = missing_values(values)
    name = table.names[column] if table.names else ""
    if missing.all():
        return ColumnKind(IGNORED, reason="no values")
    known = values[~missing]
    if len(known) == len(values) > 1 and all(known == known[0]):
        return ColumnKind(IGNORED, reason=f"the same value in each row, {str(known[0])[:40]!r}")
    if values.dtype.kind == "M":
        return ColumnKind(DATE, ISO)
    if values.dtype.kind == "f":
        return _unless_identifier(
            ColumnKind(NUMBER, typed_format(values)), name, known, len(values)
        )
    return _text_kind(table, column, name, decimal)


def _text_kind(table: Table, column: int, name: str, decimal: str | None) -> ColumnKind:
    values = table.columns[column]
    texts = _present(values)
    words = written_numbers(values)
    form = find_number_format(table, column, decimal)
    numbers = numbers_of(np.array(words, object), form)
    share = float((~np.isnan(numbers)).mean()) if words else 0.0
    code = first_code(words)
    if share == 1.0 and not code:
        return _unless_identifier(ColumnKind(NUMBER, form), name, numbers, len(values))
    dates = find_format(texts)
    if dates is not None:
        how = f"kinds= (--kinds) date:{dates.other}"
        doubt = f"{texts[0]!r} is ambiguous; set {how} to decide" if dates.other else ""
        return ColumnKind(DATE, dates.format, doubt)
    if share >= _MOSTLY and len(words) > _MOST_CATEGORIES and not code:
        row = next(
            row
            for row, each in enumerate(values)
            if each is not None
            and not says_missing(each)
            and np.isnan(numbers_of(np.array([each], object), form))[0]
        )
        shown = table.names[column] if table.names else column
        raise table.refused(
            row,
            column,
            f"a number{f' with the unit {form.unit!r}' if form.unit else ''}, as most rows have it",
            "correct it; or treat such texts as missing values with missing_values= "
            f"(--missing-values), or all as categories with kinds={{{shown!r}: 'category'}} "
            f"(--kinds {shown}=category)",
        )
    if is_free_text(texts):
        return ColumnKind(TEXT)
    different = len(set(texts))
    if different > max(_MOST_CATEGORIES, len(texts) // 2):
        return ColumnKind(IGNORED, reason=f"{different} different texts in {len(texts)} rows")
    reason = f"{code!r} has a leading zero, so these are codes; kinds= (--kinds) changes this"
    return ColumnKind(CATEGORY, reason=reason if code else "")


def _present(values: Values) -> list[str]:
    return [each for each in values if each is not None]


def _unless_identifier(kind: ColumnKind, name: str, numbers: Values, rows: int) -> ColumnKind:
    """Return the kind, unless the numbers only count or name the rows."""
    if (
        IDENTIFIER_NAME.search(name) is not None
        and len(numbers) == rows > _MOST_CATEGORIES
        and (numbers == np.floor(numbers)).all()
        and len(np.unique(numbers)) == rows
    ):
        return ColumnKind(IGNORED, reason="another number in each row: an identifier")
    return kind


class Chosen(NamedTuple):
    """The kinds of the columns to learn from, and why others are left out, by their numbers."""

    kinds: dict[int, ColumnKind]
    left_out: dict[int, str]


def choose_columns(
    table: Table, wanted: Sequence[int], kinds: Mapping[int, ColumnKind], decimal: str | None
) -> Chosen:
    """Return the types of the columns, as given or else as guessed."""
    found = {each: kinds.get(each) or guess_kind(table, each, decimal) for each in wanted}
    left_out = {column: kind.reason for column, kind in found.items() if kind.name == IGNORED}
    return Chosen({each: found[each] for each in found if each not in left_out}, left_out)
