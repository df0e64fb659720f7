"""Encoders of columns as network inputs: plain data, fitted to the training rows.

Each encoder is a frozen, JSON-serialisable dataclass. `parse` converts a column to values of its
type, `fit` learns from such values, and `transform` converts them to numbers, which are never NaN,
even for missing or unknown values. `notes` describes the values that `transform` had to fill in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np

from caldera.data.tables.numbers import (
    AS_IN_PYTHON,
    COMMA,
    HUNDREDTHS,
    POINT,
    NumberFormat,
    check_typed,
    is_code,
    is_plain,
    numbers_of,
    read_number,
    says_missing,
)
from caldera.data.tables.table import (
    Table,
    Values,
    category_name,
    missing_values,
    number_name,
    objects,
)
from caldera.data.tables.text_encoder import TextEncoder, strangely_missing
from caldera.data.tables.text_parsing import ISO, is_format, parse_dates

LEAST_SEEN = 5
"""Rows that a category occurs in to have a feature."""
_FEW = 20
"""Number of categories up to which each has a feature, however rare it is."""
_MOST_CELLS = 1 << 27
"""Maximum number of features of all rows of a column: half a GiB."""
_ALWAYS_KEPT = 100
_SHOWN = 6
_DAY = np.timedelta64(1, "D")
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
"""Days after which a part of dates begins again."""


@dataclass(frozen=True)
class NumberEncoder:
    """Numbers with mean 0 and deviation 1.

    Missing values become the median. If some training values were missing, a second feature marks
    missing values.
    """

    kind = "number"
    mean: float
    scale: float
    median: float
    marks_missing: bool = False
    decimal: str = POINT

    @staticmethod
    def parse(table: Table, column: int, form: NumberFormat = AS_IN_PYTHON) -> Values:
        """Return the numbers of a column; any other text raises an error."""
        values = table.columns[column]
        if values.dtype.kind == "f":
            return values
        if values.dtype.kind == "M":
            raise table.refused(_first(values), column, "a number")
        check_typed(table, column, form)
        found = numbers_of(values, form)
        wrong = np.flatnonzero(np.isnan(found) & ~missing_values(values))
        for row in wrong:
            if not says_missing(values[row]):
                unit = f" with {form.unit!r}" if form.unit else ""
                hint = _no_number(values[row], form)
                raise table.refused(int(row), column, f"a number{unit}", hint)
        return found

    @classmethod
    def fit(cls, values: Values, form: NumberFormat = AS_IN_PYTHON) -> Self:
        """Learn mean, deviation and median; infinite numbers are ignored."""
        known = values[np.isfinite(values)]
        # Of numbers near the end of float64 the sum, and even more the square, is infinite.
        largest = float(np.abs(known).max(initial=0.0)) or 1.0
        small = known / largest
        mean = float(small.mean()) if len(known) else 0.0
        scale = float(small.std()) if len(known) else 0.0
        rounding = 1e-13 * abs(mean)
        return cls(
            mean * largest,
            scale * largest if scale > rounding else 1.0,
            float(np.median(small)) * largest if len(known) else 0.0,
            bool(np.isnan(values).any()),
            form.decimal,
        )

    @property
    def width(self) -> int:
        """Number of features per value."""
        return 1 + self.marks_missing

    def features(self, name: str) -> list[str]:
        """Return the names of the features."""
        return [name, f"{name} is missing"][: self.width]

    def transform(self, values: Values) -> Values:
        """Return features of numbers."""
        missing = np.isnan(values)
        with np.errstate(over="ignore"):
            found = (np.where(missing, self.median, values) / self.scale) - self.mean / self.scale
        return np.stack([found, missing], axis=1)[:, : self.width]

    def measure(self, values: Values) -> Values:
        """Return the values to compare with the training range."""
        return values

    def shown(self, measure: float) -> str:
        """Return the text of a value that `measure` returned."""
        return f"{measure:.6g}"

    def notes(self, values: Values) -> str:
        """Return a note about filled values."""
        missing = int(np.isnan(values).sum())
        return f"{missing} missing, taken for the median {self.median:.6g}" if missing else ""

    @property
    def detail(self) -> NumberFormat:
        """Format of the values."""
        return NumberFormat(self.decimal)

    def problem(self) -> str:
        """Return the fault of an encoder that was read from a file; "" if it is valid."""
        if not np.isfinite((self.mean, self.scale, self.median)).all() or self.scale <= 0:
            return f"a scale of {self.scale}"
        known = self.decimal in (POINT, COMMA)
        return "" if known else f"the decimal mark {self.decimal[:10]!r}"

    def describe(self, unit: str = "") -> str:
        """Return a description of the learnt values, of which per cent are hundredths."""
        numbers = np.array([self.mean, self.scale, self.median])
        sign = unit if unit in HUNDREDTHS else ""
        numbers *= 10.0 ** -HUNDREDTHS.get(unit, 0)
        mean, scale, median = (f"{each:.4g}{sign}" for each in numbers)
        said = f"mean {mean}, deviation {scale}"
        said += f", in {unit}" if unit != sign else ""
        said += ", with decimal commas" if self.decimal == COMMA else ""
        return said + (f"; missing: {median}, with an indicator" if self.marks_missing else "")

    def example(self) -> Any:
        """Return an example of a value in a row."""
        return float(f"{self.median:.4g}")


@dataclass(frozen=True)
class CategoryEncoder:
    """One-hot encoding of categories.

    Missing values are a category if some training values were missing. An unknown or rare category
    has zeros everywhere.
    """

    kind = "category"
    detail = ""
    categories: tuple[str, ...]
    marks_missing: bool = False
    rare: int = 0
    """Number of categories of the training rows without a feature."""

    @staticmethod
    def parse(table: Table, column: int, detail: str = "") -> Values:
        """Return the names of categories."""
        texts = table.texts(column)
        return objects([None if each is None else category_name(each) for each in texts])

    @classmethod
    def fit(cls, values: Values, detail: str = "") -> Self:
        """Learn which categories there are, the most frequent ones first."""
        counts = Counter(each for each in values if each is not None)
        ordered = sorted(counts, key=lambda each: (-counts[each], each))
        kept = ordered
        if len(ordered) > _FEW:
            # Little is learnt of rare ones; together they are treated as unknown.
            most = max(_ALWAYS_KEPT, _MOST_CELLS // len(values))
            kept = [each for each in ordered if counts[each] >= LEAST_SEEN][:most]
        missing = any(each is None for each in values)
        return cls(tuple(kept), missing, len(ordered) - len(kept))

    @property
    def width(self) -> int:
        """Number of features per value."""
        return len(self.categories) + self.marks_missing

    def features(self, name: str) -> list[str]:
        """Return the names of the features."""
        return [*(f"{name}={each}" for each in self.categories), f"{name} is missing"][: self.width]

    def transform(self, values: Values) -> Values:
        """Return features of the names of categories."""
        found = np.zeros((len(values), self.width), np.float32)
        place = {name: number for number, name in enumerate(self.categories)}
        numbers = np.array([self._place(each, place) for each in values], np.int64)
        known = np.flatnonzero(numbers >= 0)
        found[known, numbers[known]] = 1
        return found

    def measure(self, values: Values) -> Values:
        """Return an empty array: categories have no range, and `notes` reports unknown ones."""
        return np.zeros(0)

    def shown(self, measure: float) -> str:
        """Return an empty text."""
        return ""

    def _place(self, value: str | None, place: dict[str, int]) -> int:
        if value is None:
            return len(self.categories) if self.marks_missing else -1
        found = place.get(value)
        if found is None and is_plain(value) and not is_code(value):
            found = place.get(number_name(Decimal(value)) if Decimal(value).is_finite() else value)
        return -1 if found is None else found

    def notes(self, values: Values) -> str:
        """Return a note about unknown and missing categories."""
        place = {name: number for number, name in enumerate(self.categories)}
        unknown = Counter(
            each for each in values if each is not None and self._place(each, place) < 0
        )
        parts = []
        if unknown:
            names = ", ".join(repr(each[:40]) for each, _ in unknown.most_common(3))
            more = ", ..." if len(unknown) > 3 else ""
            rare = "rare or unknown" if self.rare else "unknown"
            parts.append(f"{sum(unknown.values())} of {rare} categories ({names}{more})")
        return " and ".join([*parts, *strangely_missing(values, self.marks_missing)])

    def problem(self) -> str:
        """Return "": categories that were read from a file are always valid."""
        return ""

    def describe(self) -> str:
        """Return a description of the learnt values."""
        names = ", ".join(each[:40] for each in self.categories[:_SHOWN])
        more = len(self.categories) - _SHOWN
        said = names + (f" and {more} more" if more > 0 else "")
        said += f"; {self.rare} rare ones together" if self.rare else ""
        return said + ("; missing is one too" if self.marks_missing else "")

    def example(self) -> Any:
        """Return an example of a value in a row."""
        return self.categories[0] if self.categories else ""


@dataclass(frozen=True)
class DateEncoder:
    """The days of dates with mean 0 and deviation 1, and where in the year, the week and the day
    they are, as far as the training rows differ in that."""

    kind = "date"
    format: str
    days: NumberEncoder
    cycles: tuple[str, ...] = ()

    @staticmethod
    def parse(table: Table, column: int, format_: str = ISO) -> Values:
        """Return the dates of a column; a text that is none is refused."""
        values = table.columns[column]
        if values.dtype.kind == "M":
            return values
        if values.dtype.kind == "f":
            if np.isnan(values).all():
                return np.full(len(values), np.datetime64("NaT"), "datetime64[us]")
            raise table.refused(_first(values), column, "a date")
        found, wrong = parse_dates(values, format_)
        if wrong.any():
            looks = "2024-05-31" if format_ == ISO else format_
            raise table.refused(int(wrong.argmax()), column, f"a date such as {looks}")
        return found

    @classmethod
    def fit(cls, values: Values, format_: str = ISO) -> Self:
        """Learn the range of the dates, and which of their parts differ."""
        days = _days(values)
        known = days[~np.isnan(days)]
        cycles = tuple(name for name, length in CYCLES.items() if _varies(known, length))
        return cls(format_, NumberEncoder.fit(days), cycles)

    @property
    def width(self) -> int:
        """Number of features per value."""
        return self.days.width + 2 * len(self.cycles)

    def features(self, name: str) -> list[str]:
        """Return the names of the features."""
        waves = [f"{name}: {wave} of {each}" for each in self.cycles for wave in ("sine", "cosine")]
        return [*self.days.features(name), *waves]

    def transform(self, values: Values) -> Values:
        """Return features of dates."""
        days = _days(values)
        filled = np.where(np.isnan(days), self.days.median, days)
        turns = [2 * np.pi * _phase(filled, CYCLES[each]) for each in self.cycles]
        waves = [wave(turn)[:, None] for turn in turns for wave in (np.sin, np.cos)]
        return np.concatenate([self.days.transform(days), *waves], axis=1)

    def measure(self, values: Values) -> Values:
        """Return the values to compare with the training range, in days."""
        return _days(values)

    def shown(self, measure: float) -> str:
        """Return days as a date."""
        return str(np.datetime64(0, "D") + np.timedelta64(int(measure), "D"))

    def notes(self, values: Values) -> str:
        """Return a note about filled values."""
        missing = int(np.isnat(values).sum())
        return f"{missing} missing, taken for {self.example()}" if missing else ""

    @property
    def detail(self) -> str:
        """Format of the values."""
        return self.format

    def problem(self) -> str:
        """Return the fault of an encoder that was read from a file; "" if it is valid."""
        known = is_format(self.format) and set(self.cycles) <= set(CYCLES)
        return self.days.problem() or ("" if known else f"dates as {self.format[:40]!r}")

    def describe(self) -> str:
        """Return a description of the learnt values."""
        parts = f"; parts of {', '.join(self.cycles)}" if self.cycles else ""
        said = "" if self.format == ISO else f" as {self.format}"
        missing = "; missing values have an indicator" if self.days.marks_missing else ""
        return f"around {self.shown(self.days.median)}{said}{parts}{missing}"

    def example(self) -> Any:
        """Return an example of a value in a row."""
        middle = self.shown(self.days.median)
        if self.format == ISO:
            return middle
        moment: Any = np.datetime64(middle, "s").item()
        return moment.strftime(self.format)


Encoder = NumberEncoder | CategoryEncoder | DateEncoder | TextEncoder
ENCODERS: Mapping[str, type[Encoder]] = {
    each.kind: each for each in (NumberEncoder, CategoryEncoder, DateEncoder, TextEncoder)
}
"""Encoders by type of column."""


def _days(values: Values) -> Values:
    return (values - np.datetime64(0, "us")) / _DAY


def _phase(days: Values, length: float) -> Values:
    """Return the phase in a cycle, from 0 to 1.

    Weeks start on Mondays; day 0 was a Thursday.
    """
    return ((days + (3 if length == CYCLES["week"] else 0)) / length) % 1.0


def _varies(days: Values, length: float) -> bool:
    """Return True if days differ in phase by more than the shift of leap years."""
    turn = 2 * np.pi * _phase(days, length)
    return len(days) > 0 and max(np.ptp(np.sin(turn)), np.ptp(np.cos(turn))) > 0.1


def _first(values: Values) -> int:
    return int((~missing_values(values)).argmax())


def _no_number(text: str, form: NumberFormat) -> str:
    other = POINT if form.decimal == COMMA else COMMA
    mine, theirs = (read_number(text, mark) for mark in (form.decimal, other))
    if mine is None and theirs is not None and theirs.unit == form.unit:
        mark = "comma" if form.decimal == COMMA else "point"
        return f"numbers of this column have {mark} as the decimal mark"
    return "correct it"
