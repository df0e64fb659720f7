"""Dates as people write them: which format a column has, and what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from caldera.data.tables.table import Values

ISO = "iso"
_DAYS = (
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%d.%m.%y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%B %d %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%b %Y",
    "%B %Y",
    "%Y-%m",
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
FORMATS = (ISO, *(day + time for day in _DAYS for time in _TIMES))
_SAFE = re.compile(r"(%[dmYyHMSfpIbBj]|[ ./:,T-])+")
_LONGEST = 40


class Found(NamedTuple):
    """The format of a column, and another one that would do as well, if there is one."""

    format: str
    other: str = ""


def is_format(text: str) -> bool:
    """Whether a text is a format of dates, as `strptime` has them.

    >>> is_format("%d/%m/%Y"), is_format("%Q"), is_format("iso")
    (True, False, True)
    """
    return text == ISO or (len(text) <= _LONGEST and _SAFE.fullmatch(text) is not None)


def find_format(texts: Sequence[str]) -> Found | None:
    """The first format in which all texts are dates.

    >>> find_format(["31/12/2024", "01/02/2025"])
    Found(format='%d/%m/%Y', other='')
    >>> find_format(["03/04/2024"]).other
    '%d/%m/%Y'
    """
    if not texts or not any(each.isdigit() for each in texts[0]):
        return None
    fitting = [each for each in FORMATS if parse_date(texts[0], each) is not None]
    different = list(dict.fromkeys(texts))
    fitting = [
        each for each in fitting if all(parse_date(text, each) is not None for text in different)
    ]
    if not fitting:
        return None
    swapped = fitting[0].translate(str.maketrans("dm", "md"))
    return Found(fitting[0], swapped if swapped in fitting[1:] else "")


def parse_date(text: str, format_: str) -> np.datetime64 | None:
    """A date in a format; None if it is none. Times of known zones become those of UTC.

    >>> str(parse_date("2024-05-01T12:00:00+02:00", "iso"))
    '2024-05-01T10:00:00.000000'
    """
    try:
        if format_ == ISO:
            # Without a dash or a point it is rather a number.
            found = datetime.fromisoformat(text) if "-" in text else None
        else:
            found = datetime.strptime(text, format_)
    except (ValueError, OverflowError):
        return None
    if found is None:
        return None
    if found.tzinfo is not None:
        try:
            found = found.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            return None
    return np.datetime64(found, "us")


def parse_dates(texts: Values, format_: str) -> tuple[Values, np.ndarray]:
    """The dates of a column of texts, and which of them are none although there is a text."""
    known = {text: parse_date(text, format_) for text in set(texts) - {None}}
    nothing = np.datetime64("NaT")
    found = np.array(
        [nothing if (date := known.get(text)) is None else date for text in texts], "datetime64[us]"
    )
    wrong = np.array([text is not None and known[text] is None for text in texts], bool)
    return found, wrong
