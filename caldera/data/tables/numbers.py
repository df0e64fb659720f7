"""Numbers as written by people: decimal marks, groups of digits, signs, exponents and units.

"1,234" is 1234 if commas separate thousands, and 1.234 if the comma is the decimal mark. An
ambiguous text is resolved by the rest of its column, then by the remaining columns of its table,
and for a new table by the format of the training column. A column that is still ambiguous is
rejected.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.data.tables.table import MARKS, Table, TypedNumber, Values

POINT, COMMA = ".", ","
MARKS_OF_FRACTIONS = (POINT, COMMA)
_PRIOR = {",": POINT, ";": COMMA}
"""The decimal mark that the delimiter of a text file suggests."""
_NOT_A_NUMBER = MARKS | {"-", "--", ".", "none", "missing", "unknown", "n.a.", "k.a."}
"""Texts for a missing value in a column of numbers."""
_GAPS = "' \u00a0\u2009\u202f\u2019"
_MINUS = str.maketrans("\u2212", "-")
_PARTS = re.compile(
    rf"(?P<sign>[+-]?) ?(?P<before>[$\u00a2-\u00a5\u20a0-\u20bf]?) ?(?P<sign_after>[+-]?)"
    rf"(?P<core>[\d.,]+(?:[{_GAPS}][\d.,]+)*)(?P<exponent>[eE][+-]?\d+)?"
    rf"(?:[{_GAPS[1:5]}]?(?P<unit>[^\d\s.,'\u2019()+\-\"/\\;:#*&=<>?!|_](?:[^\d\n,;]{{0,14}}[^\d\s,;\-])?))?"
    r"(?P<last>-?)",
    re.ASCII,
)
_CODE = re.compile(r"[+-]?0\d+", re.ASCII)
_CODE_LINE = re.compile(rf"^{_CODE.pattern}$", re.ASCII | re.MULTILINE)
_WHOLE = re.compile(r"^[+-]?\d+$", re.MULTILINE)
_PLACES = {n: re.compile(rf"\.\d{{{n},}}$", re.MULTILINE) for n in (3, 1)}
_FRACTION = re.compile(r"\.(?!\d{3}(?!\d))", re.ASCII)
"""A point that divides no thousands."""
_DIGIT = re.compile(r"\d")
HUNDREDTHS = {"%": -2, "\u2030": -3}
"""Units that are powers of ten."""


def _core(decimal: str, other: str) -> re.Pattern[str]:
    """Return digits with this decimal mark: plain, in groups of three, or in Indian groups. No
    group follows a leading zero."""
    fraction = rf"(?:{re.escape(decimal)}\d*)?"
    return re.compile(
        rf"(?:\d+{fraction}|{re.escape(decimal)}\d+"
        rf"|[1-9]\d{{0,2}}(?P<gap>[{other}{_GAPS}])\d{{3}}(?:(?P=gap)\d{{3}})*{fraction}"
        rf"|[1-9]\d?(?:(?P<lakh>[{other}])\d\d)+(?P=lakh)\d{{3}}{fraction})",
        re.ASCII,
    )


_CORES = {POINT: _core(POINT, COMMA), COMMA: _core(COMMA, POINT)}


class WrittenNumber(NamedTuple):
    """Number in the notation of Python.

    `grouped` is True if a comma or a point separated its thousands. `places` is the number of
    digits of the fraction, -1 with an exponent.
    """

    plain: str
    grouped: bool = False
    unit: str = ""
    places: int = -1


@dataclass(frozen=True)
class NumberFormat:
    """Format of the numbers of a column.

    - `decimal`: the decimal mark.
    - `grouped`: True if the opposite mark separated thousands in some numbers.
    - `unit`: the text before or after each number; per cent are hundredths.
    - `whole`: True if some numbers had no fraction.
    - `places`: the maximum number of digits of a fraction; 3 may mean more, and 1 may mean 2.

    >>> NumberFormat(",", unit="kg").decimal
    ','
    """

    decimal: str = POINT
    grouped: bool = False
    unit: str = ""
    whole: bool = True
    places: int = 3


AS_IN_PYTHON = NumberFormat()


def read_number(text: str, decimal: str) -> WrittenNumber | None:
    """Return the number that a text holds with this decimal mark; None if it holds none.

    >>> read_number("1.250,5", ",")
    WrittenNumber(plain='1250.5', grouped=True, unit='', places=1)
    >>> read_number("-1 250 kg", ".").unit, read_number("12,5%", ",").plain
    ('kg', '0.125')
    >>> read_number("0,234", "."), read_number("1_000", "."), read_number("1.5", ",")
    (None, None, None)
    """
    text = text.translate(_MINUS)
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    parts = _PARTS.fullmatch(inner)
    if parts is None:
        infinite = text.lstrip("+-").lower() in ("inf", "infinity")
        return WrittenNumber(text) if (infinite or decimal == POINT) and is_plain(text) else None
    core = _CORES[decimal].fullmatch(parts["core"])
    signs = parts["sign"] + parts["sign_after"] + parts["last"] + "-" * (inner != text)
    gap = core and (core["gap"] or core["lakh"])
    if core is None or len(signs) > 1 or (gap and parts["exponent"]):
        return None
    digits = core[0].replace(gap, "") if gap else core[0]
    plain = signs + digits.replace(decimal, POINT) + (parts["exponent"] or "")
    unit = parts["before"] + (parts["unit"] or "")
    if unit in HUNDREDTHS:
        plain = str(Decimal(plain).scaleb(HUNDREDTHS[unit]))
    places = -1 if parts["exponent"] else len(digits.partition(decimal)[2])
    return WrittenNumber(plain, gap in MARKS_OF_FRACTIONS, unit, places)


def plain_number(text: str, decimal: str) -> str | None:
    """Return the number that a text without a unit holds, as Python writes it.

    None if it holds none.

    >>> plain_number("1,250.5", "."), plain_number("1 250", "."), plain_number("5 kg", ".")
    ('1250.5', '1250', None)
    """
    found = read_number(text, decimal)
    return None if found is None or found.unit else found.plain


def is_plain(text: str) -> bool:
    """Return True if Python reads a text as a number without underscores."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def is_number(text: str) -> bool:
    """Return True if a text is a number with some decimal mark.

    >>> is_number("0,5"), is_number("0.5"), is_number("width")
    (True, True, False)
    """
    text = text.strip()
    if _DIGIT.search(text) is None:
        return is_plain(text)
    return is_plain(text) or any(plain_number(text, mark) for mark in MARKS_OF_FRACTIONS)


def is_code(text: str) -> bool:
    """Return True for digits with a leading zero, which are a code and not a number.

    >>> is_code("01234"), is_code("0"), is_code("0.5")
    (True, False, False)
    """
    return _CODE.fullmatch(text) is not None


def says_missing(text: str) -> bool:
    """Return True if a text in a column of numbers marks a missing value.

    >>> says_missing("-"), says_missing("-1")
    (True, False)
    """
    return text.lower() in _NOT_A_NUMBER


def numbers_of(texts: Values, form: NumberFormat) -> Values:
    """Return texts as float64; NaN for missing values and texts in a different format."""
    if not form.unit:
        written = ["nan" if each is None else each for each in texts]
        plain = _plain_numbers(written, "\n".join(written), form.decimal)
        if plain is not None and len(plain) == len(texts):
            return plain
    known = {each: read_number(each, form.decimal) for each in set(texts) - {None}}
    values = {
        text: float(found.plain)
        for text, found in known.items()
        if found is not None and found.unit == form.unit
    }
    return np.array([values.get(each, np.nan) for each in texts], np.float64)


def undoubted_numbers(values: Values, form: NumberFormat) -> Values | None:
    """Return the numbers of texts that leave no doubt that a point is their decimal mark.

    None for others.

    >>> undoubted_numbers(np.array(["0.5", None, "7"], object), AS_IN_PYTHON).tolist()
    [0.5, nan, 7.0]
    >>> undoubted_numbers(np.array(["1.234"], object), AS_IN_PYTHON) is None
    True
    """
    written = ["nan" if each is None else each for each in values]
    joined = "\n".join(written)
    if form.unit or COMMA in joined or (POINT in joined and not _FRACTION.search(joined)):
        return None
    found = _plain_numbers(written, joined)
    return found if found is not None and len(found) == len(written) else None


def _plain_numbers(texts: Sequence[str], joined: str, decimal: str = POINT) -> Values | None:
    """Return texts as float64, or None if Python rejects some text.

    `joined` contains the texts as lines, in which the decimal mark is replaced in a single pass:
    faster than text by text.
    """
    if "_" in joined or (decimal == COMMA and POINT in joined):
        return None
    try:
        return np.array(
            [float(each) for each in joined.replace(decimal, POINT).split("\n")] if texts else [],
            np.float64,
        )
    except ValueError:
        return None


def format_of(texts: Iterable[str], decimal: str) -> NumberFormat:
    """Return the most common format of the texts that are numbers with this decimal mark."""
    read = {each: found for each in set(texts) if (found := read_number(each, decimal)) is not None}
    units = Counter(read[each].unit for each in texts if each in read)
    unit = units.most_common(1)[0][0] if units else ""
    places = [each.places for each in read.values()]
    return NumberFormat(
        decimal,
        any(each.grouped for each in read.values()),
        unit,
        0 in places,
        max(places, default=0),
    )


def typed_format(numbers: Values) -> NumberFormat:
    """Return the format of numbers that were no texts: as Python writes them.

    >>> typed_format(np.array([1.0, 2.0])).places, typed_format(np.array([1.5, np.nan])).places
    (0, 3)
    """
    has_fractions = bool((np.isfinite(numbers) & (numbers != np.floor(numbers))).any())
    return NumberFormat(places=3 * has_fractions)


class Reading(NamedTuple):
    """Texts of a column as numbers of a single format."""

    form: NumberFormat
    values: Values

    def lies_in(self, seen: Sequence[float]) -> bool:
        """Return True if all numbers are in the range seen in training."""
        low, high = self.values.min(initial=np.inf), self.values.max(initial=-np.inf)
        return bool(seen) and seen[0] <= low and high <= seen[-1]


def readings(texts: Sequence[str]) -> dict[str, Reading]:
    """Return the numbers of the texts by decimal mark, for the marks with which all can be read.

    If both marks result in the same numbers, only the point is returned.

    >>> sorted(readings(["1,234", "2,5"])), sorted(readings(["1,234"])), sorted(readings(["1"]))
    ([','], [',', '.'], ['.'])
    """
    found: dict[str, Reading] = {}
    joined = "\n".join(texts)
    for mark in MARKS_OF_FRACTIONS:
        plain = _plain_numbers(texts, joined, mark)
        if plain is not None and len(plain) == len(texts):
            lines = joined.replace(mark, POINT)
            places = next((n for n, pattern in _PLACES.items() if pattern.search(lines)), 0)
            form = NumberFormat(mark, whole=bool(_WHOLE.search(lines)), places=places)
            found[mark] = Reading(form, plain)
            if POINT not in lines or (mark == POINT and _FRACTION.search(lines)):
                break
        elif all(read_number(each, mark) is not None for each in texts):
            form = format_of(texts, mark)
            found[mark] = Reading(form, numbers_of(np.array(texts, object), form))
    found = {mark: each for mark, each in found.items() if not np.isnan(each.values).any()}
    if len(found) == 2 and (found[POINT].values == found[COMMA].values).all():
        del found[COMMA]
    return found


def written_numbers(values: Values) -> list[str]:
    """Return the texts of a column that do not say that a number is missing."""
    texts = [each for each in values if each is not None]
    words = {each for each in set(texts) if not each[-1:].isdigit() and says_missing(each)}
    return [each for each in texts if each not in words] if words else texts


def first_code(texts: Iterable[str]) -> str:
    """Return the first text that is a code; empty if there is none.

    >>> first_code(["10", "0.5", "007", "08"])
    '007'
    """
    found = _CODE_LINE.search("\n".join(texts))
    return found[0] if found else ""


def find_number_format(
    table: Table,
    column: int,
    given: str | None,
    known: NumberFormat | None = None,
    seen: Sequence[float] = (),
) -> NumberFormat:
    """Return the format of the numbers of a column; `given` is the user's decimal mark.

    `known` is the format of the training column, and `seen` contains its quantiles, from the
    minimum to the maximum. A column that remains ambiguous is rejected.
    """
    require(given in (None, *MARKS_OF_FRACTIONS), "decimal", "'.' or ','", repr(given))
    values = table.columns[column]
    if values.dtype != object:
        return known or typed_format(values)
    texts = written_numbers(values)
    texts = [each for each in texts if type(each) is not TypedNumber] or texts
    if given is not None:
        return format_of(texts, given)
    found = readings(texts)
    if not found:
        return known or _likely_format(texts)
    if len(found) == 1:
        return next(iter(found.values())).form
    proven = {
        mark for place in range(table.width) if place != column for mark in _proven(table, place)
    }
    if len(proven) == 1:
        return found[proven.pop()].form
    mine = None if known is None else _as_trained(found, known, seen, _PRIOR.get(table.delimiter))
    if mine is None:
        point, comma = found[POINT].values, found[COMMA].values
        text = texts[int((point != comma).argmax())]
        raise table.refused(
            int((values == text).argmax()),
            column,
            "an unambiguous number",
            f"it is {point[point != comma][0]:g} with a decimal point and "
            f"{comma[point != comma][0]:g} with a decimal comma, and the rest of the table does "
            "not decide: pass decimal='.' or decimal=',' (--decimal)",
        )
    return mine.form


def check_typed(table: Table, column: int, form: NumberFormat) -> None:
    """Refuse numbers with a decimal point among texts with decimal commas."""
    if form.decimal == POINT:
        return
    for row, each in enumerate(table.columns[column]):
        if type(each) is TypedNumber and POINT in each:
            hint = "give all values of the column as numbers, or all as texts"
            raise table.refused(row, column, "a text with a decimal comma, as in other rows", hint)


def _likely_format(texts: Sequence[str]) -> NumberFormat:
    """Return the format in which the most texts are numbers, if some are not."""
    point, comma = (format_of(texts, mark) for mark in MARKS_OF_FRACTIONS)
    counts = [
        int(np.isfinite(numbers_of(np.array(texts, object), form)).sum()) for form in (point, comma)
    ]
    return comma if counts[1] > counts[0] else point


def _proven(table: Table, column: int) -> list[str]:
    """Return the decimal mark of a column as a list, empty if its texts are ambiguous."""
    values = table.columns[column]
    found = readings(written_numbers(values)) if values.dtype == object else {}
    return [mark for mark, (form, _) in found.items() if len(found) == 1 and _has_marks(form)]


def _has_marks(form: NumberFormat) -> bool:
    return form.grouped or form.places > 0


def _as_trained(
    found: dict[str, Reading], known: NumberFormat, seen: Sequence[float], prior: str | None
) -> Reading | None:
    """Return the reading of a column in doubt that is like the training column; None if that is in
    doubt as well: groups are believed only where the training column had them."""
    mine = found[known.decimal]
    # Three digits follow each mark.
    is_usual = (
        (not mine.form.grouped or (known.grouped and known.whole))
        and (mine.form.places < 1 or known.places > 2)
        and (not seen or mine.lies_in(seen))
        and prior in (None, known.decimal)
    )
    return mine if is_usual else None
