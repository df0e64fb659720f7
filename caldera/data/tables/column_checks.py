"""Findings of the data doctor, and statistics of single columns that reveal them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from caldera.data.tables.numbers import MARKS_OF_FRACTIONS, first_code, read_number
from caldera.data.tables.table import Values
from caldera.data.tables.text_parsing import find_format, parse_date

_NINES = re.compile(r"-9|-?99+")
_LIMITS = {float(sign * (1 << bits)) - (sign > 0) for bits in (15, 31, 63) for sign in (1, -1)}
_HUGE = 1e30
"""Larger numbers mark missing values in the files of some programs."""
_FEW, _MANY = 3, 10
"""Minimum numbers of different values in addition to a sentinel value."""
_BINS = 64
_MOST_ROWS = 20_000
"""Rows from which the relation to the target is computed."""
_UNUSUAL = 0.01
"""Maximum share of outliers in a column; more are a part of the distribution."""
_SAME_SPELLING = re.compile(r"[\s_.-]+")
_MAY_BE_DATE = re.compile(r"\d+[./ -]\w+[./ -]?\d|[A-Za-z]{3}.*\d{4}")
_MOST_TRIED = 50


@dataclass(frozen=True)
class TableFinding:
    """Observation of the data doctor.

    - `kind`: sentinel, unit, giveaway, identifier, duplicates, constant, conventions, future,
      imbalance, outliers, or ignored.
    - `column`: the name of the column; empty for rows and the target's classes.
    - `rows`: the number of affected rows.
    - `text`: the sentence to show.
    - `is_fault`: True if the data should be mended before training; False for information.

    >>> print(TableFinding("future", "sold", 2, "dates after today in 2 rows"))
    column 'sold': dates after today in 2 rows
    """

    kind: str
    column: str
    rows: int
    text: str
    is_fault: bool = True

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.text}" if self.column else self.text


class Sentinel(NamedTuple):
    """Number that marks missing values, and the number of its rows."""

    value: float
    rows: int


def sentinels(values: Values) -> list[Sentinel]:
    """Return the numbers of a column that look like marks of missing values.

    Such a number is repeated, is the smallest or the largest one, and is customary: -1, -9, 99,
    -999, the limits of integers. There is a gap to the rest of the numbers.

    >>> sentinels(np.r_[np.linspace(10, 20, 50), [-999.0] * 4])
    [Sentinel(value=-999.0, rows=4)]
    >>> sentinels(np.r_[np.arange(100.0), [99.0] * 4])
    []
    """
    different, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    found = []
    for end in (0, -1, 0, -1):
        if len(different) <= _FEW:
            break
        value, rest = float(different[end]), np.delete(different, end)
        if counts[end] > 1 and _is_mark(value) and _lies_apart(value, rest, np.delete(counts, end)):
            found.append(Sentinel(value, int(counts[end])))
            different, counts = rest, np.delete(counts, end)
    return found


def _is_mark(value: float) -> bool:
    return (
        value == -1
        or value in _LIMITS
        or abs(value) >= _HUGE
        or _NINES.fullmatch(f"{value:.15g}") is not None
    )


def _lies_apart(value: float, rest: Values, counts: Values) -> bool:
    """Return True if a number is far from the rest, or the only negative one."""
    if value < 0 <= rest[0]:
        return len(rest) >= (_MANY if value == -1 else _FEW)
    low, high = np.quantile(np.repeat(rest, np.minimum(counts, _MOST_TRIED)), (0.01, 0.99))
    spread, gap = float(high - low), float(np.abs(rest - value).min())
    needed = spread / 2 if value < 0 else spread
    return gap >= needed if len(rest) >= _MANY else gap >= 3 * spread > 0


def outliers(values: Values) -> Values:
    """Return the numbers far beyond the rest, on a linear and on a logarithmic scale.

    Long tails, as of incomes, have none.

    >>> outliers(np.r_[np.linspace(1, 2, 200), 150.0]).tolist()
    [150.0]
    >>> outliers(np.exp(2 * np.random.default_rng(0).normal(size=1000))).tolist()
    []
    """
    known = np.sort(values[np.isfinite(values)])
    most = max(int(_UNUSUAL * len(known)), 1)
    if len(np.unique(known)) <= 2 * _MANY:
        return known[:0]
    low, middle, high = np.quantile(known, (0.25, 0.5, 0.75))
    width = (high - low) or np.ptp(np.quantile(known, (0.01, 0.99)))
    if not width:
        return known[:0]
    scaled = np.arcsinh((known - middle) / width)
    spread = np.ptp(np.quantile(scaled, (0.01, 0.99)))
    far = np.zeros(len(known), bool)
    below, above = np.diff(scaled[: most + 1]), np.diff(scaled[-most - 1 :])
    if below.max() > spread:
        far[: below.argmax() + 1] = True
    if above.max() > spread:
        far[len(known) - most + above.argmax() :] = True
    # Without variety among the rest, the gaps between few levels would count.
    return known[far] if len(np.unique(known[~far])) > 2 * _MANY else known[:0]


class UnitChange(NamedTuple):
    """Rows whose numbers are a power of ten larger or smaller than most numbers."""

    rows: int
    factor: float


def other_scale(values: Values) -> UnitChange | None:
    """Return the rows that look as if they had another unit; None if there are none.

    >>> other_scale(np.r_[np.linspace(150, 190, 60), np.linspace(1.5, 1.9, 8)])
    UnitChange(rows=8, factor=0.01)
    """
    known = np.sort(values[np.isfinite(values) & (values != 0)])
    if len(np.unique(known)) <= 2 * _MANY or known[0] <= 0:
        return None
    logs = np.log10(known)
    place = int(np.diff(logs).argmax()) + 1
    parts = logs[:place], logs[place:]
    gap = float(parts[1][0] - parts[0][-1])
    apart = float(np.median(parts[1]) - np.median(parts[0]))
    power = round(apart)
    is_unit = power in (1, 2, 3, 6) and abs(apart - power) < 0.06
    few = min(parts, key=len)
    if not is_unit or len(few) < _FEW or gap < max(0.4, *(np.ptp(part) for part in parts)):
        return None
    return UnitChange(len(few), 10.0 ** (power if few is parts[1] else -power))


# --- the relation to the target


def codes_of(values: Values) -> Values:
    """Return a number for each different value; missing values are equal."""
    if values.dtype == object:
        place: dict[object, int] = {}
        return np.array([place.setdefault(each, len(place)) for each in values], np.int64)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def giveaway(values: Values, target: Values, classes: int) -> float:
    """Return how well a single column predicts the target, from 0 to 1.

    For two classes: the area under the ROC curve, if that is larger. Otherwise, the share of the
    errors of the constant answer that the means or majorities of the column's bins avoid, on rows
    that they were not computed from.

    >>> target = np.arange(200.0) % 7
    >>> giveaway(3 * target + 1, target, 0), giveaway(np.arange(200.0), target, 0) < 0.1
    (1.0, True)
    """
    order = np.random.default_rng(0).permutation(len(target))[:_MOST_ROWS]
    values, target = values[order], target[order]
    ranks = None if values.dtype == object else _ranks(values.astype(np.float64))
    scores = [_binned(_bins(values), target, classes)]
    if ranks is not None and classes == 2:
        positive = target == 1
        pairs = positive.sum() * (~positive).sum()
        area = (ranks[positive].sum() - positive.sum() * (positive.sum() - 1) / 2) / max(pairs, 1)
        scores.append(max(area, 1 - area))
    elif ranks is not None and not classes and np.ptp(ranks) and np.ptp(target):
        scores.append(float(np.corrcoef(ranks, _ranks(target))[0, 1] ** 2))
    return float(max(scores))


def _ranks(values: Values) -> Values:
    """Return the mean rank of equal values; missing values have the largest one."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def _bins(values: Values) -> Values:
    codes = codes_of(values)
    if values.dtype == object or codes.max(initial=0) < _BINS:
        return codes
    edges = np.unique(np.nanquantile(values.astype(np.float64), np.linspace(0, 1, _BINS)[1:-1]))
    return np.searchsorted(edges, values.astype(np.float64), "right")


def _binned(bins: Values, target: Values, classes: int) -> float:
    """Return the share of the constant answer's errors that the means of bins avoid."""
    columns = np.eye(classes)[target] if classes else target[:, None].astype(np.float64)
    wrong, most = 0.0, int(bins.max(initial=0)) + 1
    halves = np.arange(len(target)) % 2 == 0
    for fitted in (halves, ~halves):
        sums = np.zeros((most, columns.shape[1]))
        np.add.at(sums, bins[fitted], columns[fitted])
        counts = np.bincount(bins[fitted], minlength=most)[:, None]
        means = np.where(counts > 0, sums / np.maximum(counts, 1), columns[fitted].mean(axis=0))
        said = means[bins[~fitted]]
        if classes:
            wrong += (said.argmax(axis=1) != target[~fitted]).sum()
        else:
            wrong += np.square(said - columns[~fitted]).sum()
    if classes:
        usual = len(target) - np.bincount(target).max(initial=0)
    else:
        usual = np.square(columns - columns.mean(axis=0)).sum()
    return 1 - wrong / usual if usual else 0.0


# --- texts


class Conventions(NamedTuple):
    """Values of a column that are written in another way, and the number of their rows."""

    rows: int
    text: str


def mixed_numbers(texts: Sequence[str]) -> Conventions | None:
    """Return the texts among numbers, or numbers of another unit; None if numbers are rare.

    >>> mixed_numbers(["5 kg"] * 30 + ["500 g"] * 9).text
    "numbers with the unit 'kg' in 30 rows, but 'g' in 9"
    """
    if first_code(texts):
        return None
    counts = Counter(texts)
    tables = []
    for mark in MARKS_OF_FRACTIONS:
        units: Counter[str | None] = Counter()
        for text, count in counts.items():
            number = read_number(text, mark)
            units[None if number is None else number.unit] += count
        tables.append(units)
    units = min(tables, key=lambda each: each[None])
    words = units.pop(None, 0)
    if not units or words > len(texts) / 2:
        return None
    (unit, usual), *others = units.most_common()
    if not (others or words) or usual < len(texts) / 2 or len(others) > _FEW:
        return None
    said = f"numbers {f'with the unit {unit!r} ' if unit else ''}in {usual} rows, but "
    other = [f"{each or 'no unit'!r} in {count}" for each, count in others]
    if words:
        marks = MARKS_OF_FRACTIONS
        strange = [each for each in counts if all(read_number(each, m) is None for m in marks)]
        other.append(f"text in {words}" + (f" ({strange[0][:40]!r})" if strange else ""))
    said += " and ".join(other)
    if words and len(strange) == 1 and "," not in strange[0]:
        said += (
            f", read as categories: --missing-values={strange[0]!r} (missing_values=) reads this "
            "text as a missing value, with an indicator, and all other cells as numbers"
        )
    return Conventions(len(texts) - usual, said)


def mixed_dates(texts: Sequence[str]) -> Conventions | None:
    """Return the texts that are no dates in the format of most others; None if dates are rare.

    >>> mixed_dates(["2024-05-31"] * 30 + ["31.05.2024"] * 9).text
    "dates as in '2024-05-31' in 30 rows, but as in '31.05.2024' in 9"
    """
    tried = [each for each in list(dict.fromkeys(texts))[:_MOST_TRIED] if _MAY_BE_DATE.search(each)]
    formats = Counter(
        found.format for each in tried if (found := find_format([each])) is not None
    ).most_common(1)
    if not formats:
        return None
    usual = formats[0][0]
    known = {each: parse_date(each, usual) is not None for each in set(texts)}
    rows = sum(known[each] for each in texts)
    if rows < len(texts) / 2:
        return None
    strange = [each for each in texts if not known[each]]
    if not strange:
        return None
    shown = next(each for each in texts if known[each])
    said = f"dates as in {shown!r} in {rows} rows, but as in {strange[0][:40]!r} in {len(strange)}"
    return Conventions(len(strange), said)


def mixed_spellings(texts: Sequence[str]) -> Conventions | None:
    """Return the categories that differ only in case, spaces or abbreviation from others.

    >>> mixed_spellings(["Oslo"] * 30 + ["oslo"] * 2 + ["Roma"] * 9).text
    "'oslo' in 2 rows next to 'Oslo' in 30"
    """
    counts = Counter(texts)
    plain: dict[str, list[str]] = {}
    for each, _ in counts.most_common():
        plain.setdefault(_SAME_SPELLING.sub(" ", each).strip().casefold(), []).append(each)
    pairs = [(each, kept) for kept, *others in plain.values() for each in others]
    if 1 < len(plain) <= _MANY:
        letters = {each: said[0] for each, said in plain.items() if len(each) == 1}
        words = {each[0]: said[0] for each, said in plain.items() if len(each) > 1}
        if letters and len(words) == len(plain) - len(letters) and set(letters) <= set(words):
            pairs += [(said, words[each]) for each, said in letters.items()]
    if not pairs:
        return None
    said = [
        f"{each!r} in {counts[each]} rows next to {kept!r} in {counts[kept]}"
        for each, kept in pairs[:_FEW]
    ]
    more = f" and {len(pairs) - _FEW} more" if len(pairs) > _FEW else ""
    return Conventions(sum(counts[each] for each, _ in pairs), ", ".join(said) + more)
