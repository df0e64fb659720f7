"""What a notebook shows of our objects: small pieces of HTML, with all texts escaped.

A notebook has a style sheet of its own, and may be light or dark; so tables leave colours to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

MOST_ROWS = 60
"""Rows of a table; of more, the first and the last."""


def note(text: str, *, strong: bool = False) -> str:
    """A line of text.

    >>> note("a < b")
    '<p>a &lt; b</p>'
    """
    inside = f"<b>{escape(text)}</b>" if strong else escape(text)
    return f"<p>{inside}</p>"


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()
) -> str:
    """A table; columns whose index is in `numbers` are set to the right.

    >>> html_table(["a"], [[1]], numbers=[0]).count("text-align:right")
    2
    """
    right = set(numbers)
    lines = [list(map(str, row)) for row in rows]
    if len(lines) > MOST_ROWS:
        half = MOST_ROWS // 2
        lines = [*lines[:half], ["\u2026"] * len(head), *lines[-half:]]

    def cell(kind: str, place: int, content: str) -> str:
        side = "right" if place in right else "left"
        return f'<{kind} style="text-align:{side}">{escape(content)}</{kind}>'

    def line(kind: str, row: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(kind, i, each) for i, each in enumerate(row))}</tr>"

    body = "".join(line("td", row) for row in lines)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def html_facts(values: Mapping[str, object]) -> str:
    """Names with their values.

    >>> html_facts({"a": 1}).startswith("<table>")
    True
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def html_text(text: str) -> str:
    """A text in lines, as a terminal would show it.

    >>> html_text("a & b")
    '<pre>a &amp; b</pre>'
    """
    return f"<pre>{escape(text)}</pre>"
