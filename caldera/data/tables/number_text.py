"""Numbers as people write them: with a point or a comma for the fraction, and digits in groups."""

from __future__ import annotations

import re

from caldera.data.tables.table import MARKS

POINT, COMMA = ".", ","
_NOT_A_NUMBER = MARKS | {"-", "--", ".", "none", "missing", "unknown", "n.a.", "k.a."}
"""How a column of numbers says that one is missing."""
_GAPS = "' \u00a0\u2009\u202f\u2019"
_GROUPED_POINT = re.compile(rf"[+-]?\d{{1,3}}([,{_GAPS}]\d{{3}})+(\.\d*)?", re.ASCII)
_GROUPED_COMMA = re.compile(rf"[+-]?\d{{1,3}}([.{_GAPS}]\d{{3}})+(,\d*)?", re.ASCII)
_PLAIN_COMMA = re.compile(r"[+-]?(\d+(,\d*)?|,\d+)([eE][+-]?\d+)?", re.ASCII)


def plain_number(text: str, decimal: str) -> str | None:
    """The number that a text holds, as Python writes it; None if it holds none.

    >>> plain_number("1,250.5", "."), plain_number("1.250,5", ","), plain_number("1 250", ".")
    ('1250.5', '1250.5', '1250')
    >>> plain_number("12,5", "."), plain_number("1_000", "."), plain_number("1.5", ",")
    (None, None, None)
    """
    if decimal == POINT:
        if is_plain(text):
            return text
        if _GROUPED_POINT.fullmatch(text):
            return re.sub(rf"[,{_GAPS}]", "", text)
        return None
    if _GROUPED_COMMA.fullmatch(text):
        return re.sub(rf"[.{_GAPS}]", "", text).replace(",", ".")
    if _PLAIN_COMMA.fullmatch(text) or text.lstrip("+-").lower() in ("inf", "infinity"):
        return text.replace(",", ".")
    return None


def is_plain(text: str) -> bool:
    """Whether Python reads it as a number; 1_000 is none."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def says_missing(text: str) -> bool:
    """Whether a text among numbers says that there is none.

    >>> says_missing("-"), says_missing("-1")
    (True, False)
    """
    return text.lower() in _NOT_A_NUMBER
