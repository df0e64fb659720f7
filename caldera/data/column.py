"""A column of a table: its type, and its conversion to features."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from caldera.data.tables.encoders import (
    ENCODERS,
    CategoryEncoder,
    DateEncoder,
    Encoder,
    NumberEncoder,
)
from caldera.data.tables.numbers import (
    AS_IN_PYTHON,
    NumberFormat,
    find_number_format,
    undoubted_numbers,
)
from caldera.data.tables.table import Table, Values, objects
from caldera.data.tables.text_encoder import TextEncoder

KINDS = ("number", "category", "date", "text", "class")
"""Types of columns; a "class" column has named classes and is the target."""
AS_IT_IS = NumberEncoder(mean=0.0, scale=1.0, median=0.0)
"""Describes the numbers of columns that have no encoder."""
_QUANTILES = (0.0, 0.01, 0.5, 0.99, 1.0)
_LEAST_DRIFTING = 20
_OUTSIDE = 0.02
"""Share of the training values outside the 1% to 99% range."""


@dataclass(frozen=True)
class Column:
    """Column of a table: its name, type, position and encoder.

    `name` is empty if the file has no names. `form` is the format of its numbers. `seen` contains
    the minimum, the 1%, 50% and 99% quantiles and the maximum of the training values: of numbers,
    of days since 1970, or of the number of words of texts.

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
    # Not compared: format and range of a column do not change what its values mean.
    form: NumberFormat | None = field(default=None, compare=False)
    seen: tuple[float, ...] = field(default=(), compare=False)

    @classmethod
    def encoded(cls, name: str, position: int, encoder: Encoder) -> Column:
        """Return a column with the encoder that was fitted to it."""
        given: dict[str, Any] = {encoder.kind: encoder}
        return cls(name, encoder.kind, position, **given)

    @property
    def encoder(self) -> Encoder | None:
        """Encoder that converts values to features; None if numbers are used unchanged."""
        return self.number or self.category or self.date or self.text

    @property
    def width(self) -> int:
        """Number of features per value.

        >>> from caldera import data
        >>> data.Column("width", "number", 0).width
        1
        """
        return 1 if self.encoder is None else self.encoder.width

    @property
    def title(self) -> str:
        """The name of the column, or else its position."""
        return self.name or f"column {self.position}"

    def features(self) -> list[str]:
        """Return the names of the features."""
        return [self.title] if self.encoder is None else self.encoder.features(self.title)

    def parse(
        self, table: Table, place: int, decimal: str | None = None, *, is_new: bool = True
    ) -> Values:
        """Return the values of the column at this place of a table, as this column has them;
        `decimal` is the decimal mark of a new table, where a user has said it."""
        encoder: Any = self.encoder
        if encoder is not None and self.number is None:
            return encoder.parse(table, place, encoder.detail)
        form = self.form or AS_IN_PYTHON
        values, found = table.columns[place], None
        if is_new and values.dtype == object:
            found = undoubted_numbers(values, form) if decimal is None else None
            form = self.number_format(table, place, decimal) if found is None else form
        found = NumberEncoder.parse(table, place, form) if found is None else found
        wrong = np.isinf(found) if self.number else ~np.isfinite(found)
        if wrong.any():
            row = int(wrong.argmax())
            is_missing = bool(np.isnan(found[row]))
            expected = "a value" if is_missing else "a finite number in the range of float32"
            hint = "fill it in, or leave the line out" if is_missing else "correct it"
            raise table.refused(row, place, expected, hint)
        return found

    def trained_on(self, values: Values) -> Column:
        """Return the column with the quantiles of its training values in `seen`.

        >>> Column("width", "number", 0).trained_on(np.arange(101.0)).seen
        (0.0, 1.0, 50.0, 99.0, 100.0)
        """
        found = (self.encoder or AS_IT_IS).measure(values)
        known = found[np.isfinite(found)]
        if not len(known):
            return self
        return replace(self, seen=tuple(np.quantile(known, _QUANTILES).tolist()))

    def far(self, values: Values) -> tuple[int, str]:
        """Return the number of outliers in `values` and the range of the training values.

        An outlier is outside this range by more than the distance between the 1% and 99% quantiles.
        """
        if not self.seen:
            return 0, ""
        encoder = self.encoder or AS_IT_IS
        low, almost_low, _, almost_high, high = self.seen
        margin = (almost_high - almost_low) or (high - low) or abs(high)
        found = encoder.measure(values)
        is_far = (found < low - margin) | (found > high + margin)
        if not is_far.any():
            return 0, ""
        return int(is_far.sum()), f"{encoder.shown(low)} to {encoder.shown(high)}"

    def drift(self, values: Values) -> float:
        """Return the share of values outside the 1% to 99% range of training, or 0.

        In training the share is 2%. It counts as drift above 5% plus four standard errors, and for
        at least 20 values.

        >>> column = Column("width", "number", 0).trained_on(np.arange(101.0))
        >>> column.drift(np.arange(101.0)), column.drift(np.arange(101.0) + 50)
        (0.0, 0.504950495049505)
        """
        if not self.seen or self.kind == "text":
            return 0.0
        found = (self.encoder or AS_IT_IS).measure(values)
        found = found[np.isfinite(found)]
        if len(found) < _LEAST_DRIFTING:
            return 0.0
        share = float(np.mean((found < self.seen[1]) | (found > self.seen[3])))
        return share if share > 0.05 + 4 * np.sqrt(_OUTSIDE / len(found)) else 0.0

    def number_format(self, table: Table, place: int, decimal: str | None) -> NumberFormat:
        """Return the format of the numbers in this column of a table, with this column's unit."""
        known = self.form or (self.number or AS_IT_IS).detail
        form = find_number_format(table, place, decimal, known, self.seen)
        return form if form.unit == known.unit else replace(form, unit=known.unit)

    def transform(self, values: Values) -> Values:
        """Return the features of values of this column."""
        return values[:, None] if self.encoder is None else self.encoder.transform(values)

    def typical(self) -> Values:
        """Return features of the usual training value: the median, the most frequent category, or a
        text without words.

        >>> Column.encoded("width", 0, NumberEncoder(mean=1.0, scale=2.0, median=3.0)).typical()
        array([[1.]])
        """
        values: Values = np.array([self.seen[2] if self.seen else 0.0])
        if self.number is not None:
            values = np.array([self.number.median])
        elif self.date is not None:
            moment = np.datetime64(0, "us") + int(self.date.days.median * 86_400e6)
            values = np.array([moment])
        elif self.category is not None:
            values = objects([next(iter(self.category.categories), None)])
        elif self.text is not None:
            values = objects([""])
        return self.transform(values)

    def describe(self) -> str:
        """Return a description of the learnt values."""
        unit = "" if self.form is None else self.form.unit
        if self.number is not None:
            return self.number.describe(unit)
        said = "unchanged" if self.encoder is None else self.encoder.describe()
        return f"{said}, in {unit}" if unit else said

    def problem(self) -> str:
        """Return the fault of a column that was read from a file; "" if it is valid."""
        kinds = [kind for kind in ENCODERS if getattr(self, kind) is not None]
        if kinds and kinds != [self.kind]:
            return f"a {self.kind} that is encoded as {' and '.join(kinds)}"
        if not kinds and self.kind in ("category", "date", "text"):
            return f"a {self.kind} without an encoder"
        is_sorted = len(self.seen) == len(_QUANTILES) and list(self.seen) == sorted(self.seen)
        if self.seen and not (is_sorted and np.isfinite(self.seen).all()):
            return f"the range {self.seen}"
        return "" if self.encoder is None else self.encoder.problem()
