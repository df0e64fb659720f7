"""A column of a table: its type, and its conversion to features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.data.tables.encoders import (
    CYCLES,
    CategoryEncoder,
    DateEncoder,
    Encoder,
    NumberEncoder,
)
from caldera.data.tables.table import Table, Values
from caldera.data.tables.text_encoder import TextEncoder
from caldera.data.tables.text_parsing import is_format

KINDS = ("number", "category", "date", "text", "class")
"""What a column can hold; a class has a name, and is what is predicted."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, empty where a file has none, what it holds, and its place.

    >>> from caldera import data
    >>> data.Column("width", "number", 0).name
    'width'
    """

    name: str
    kind: str
    position: int
    number: NumberEncoder | None = None
    category: CategoryEncoder | None = None
    date: DateEncoder | None = None
    text: TextEncoder | None = None

    @classmethod
    def encoded(cls, name: str, position: int, encoder: Encoder) -> Column:
        """A column with the encoder that was fitted to it."""
        if isinstance(encoder, NumberEncoder):
            return cls(name, "number", position, number=encoder)
        if isinstance(encoder, CategoryEncoder):
            return cls(name, "category", position, category=encoder)
        if isinstance(encoder, TextEncoder):
            return cls(name, "text", position, text=encoder)
        return cls(name, "date", position, date=encoder)

    @property
    def encoder(self) -> Encoder | None:
        """What makes features of its values; None where numbers are taken as they are."""
        return self.number or self.category or self.date or self.text

    @property
    def width(self) -> int:
        """How many features a value becomes.

        >>> from caldera import data
        >>> data.Column("width", "number", 0).width
        1
        """
        return 1 if self.encoder is None else self.encoder.width

    def features(self) -> list[str]:
        """What these are called."""
        name = self.name or f"column {self.position}"
        return [name] if self.encoder is None else self.encoder.features(name)

    def parse(self, table: Table, place: int) -> Values:
        """The values of the column at this place of a table, as this column has them."""
        if self.category is not None:
            return CategoryEncoder.parse(table, place)
        if self.date is not None:
            return DateEncoder.parse(table, place, self.date.format)
        if self.text is not None:
            return TextEncoder.parse(table, place)
        found = NumberEncoder.parse(table, place, self.number.decimal if self.number else ".")
        wrong = np.isinf(found) if self.number else ~np.isfinite(found)
        if wrong.any():
            row = int(wrong.argmax())
            is_missing = bool(np.isnan(found[row]))
            expected = "a value" if is_missing else "a finite number in the range of float32"
            hint = "fill it in, or leave the line out" if is_missing else "correct it"
            raise table.refused(row, place, expected, hint)
        return found

    def transform(self, values: Values) -> Values:
        """Features of such values."""
        return values[:, None] if self.encoder is None else self.encoder.transform(values)


def _title(column: Column) -> str:
    return column.name or f"column {column.position}"


def _learnt(column: Column) -> str:
    return "as it is" if column.encoder is None else column.encoder.describe()


def _problem(column: Column) -> str:
    """What is wrong with the encoder of a column; nothing if it can be used."""
    encoders: dict[str, Encoder | None] = {
        "number": column.number,
        "category": column.category,
        "date": column.date,
        "text": column.text,
    }
    kinds = [kind for kind, each in encoders.items() if each is not None]
    if kinds and kinds != [column.kind]:
        return f"a {column.kind} that is encoded as {' and '.join(kinds)}"
    if not kinds and column.kind in ("category", "date", "text"):
        return f"a {column.kind} without an encoder"
    if column.text is not None:
        return column.text.problem()
    numbers = column.date.days if column.date is not None else column.number
    if numbers is not None:
        values = (numbers.mean, numbers.scale, numbers.median)
        if not np.isfinite(values).all() or numbers.scale <= 0:
            return f"a scale of {numbers.scale}"
        if numbers.decimal not in (".", ","):
            return f"the decimal mark {numbers.decimal[:10]!r}"
    if column.date is not None and not (
        is_format(column.date.format) and set(column.date.cycles) <= set(CYCLES)
    ):
        return f"dates as {column.date.format[:40]!r}"
    return ""
